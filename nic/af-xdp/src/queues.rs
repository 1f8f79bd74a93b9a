//! The numbers of receive and transmit queues of an interface.

use std::{fs, io};

use crate::sys;

/// Numbers of queues of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// Number of receive queues, each of which needs an AF_XDP port ([`XdpPort`](crate::XdpPort)).
    pub rx: u32,
    /// Number of transmit queues. An AF_XDP port can transmit only if the index of its queue is
    /// below this number.
    pub tx: u32,
}

/// Returns the numbers of queues of an interface in this thread's network namespace. Each number is
/// at least one.
///
/// The function uses the channel counts of ethtool. For a driver without channels, the function
/// counts the queues in `sysfs`. A mount of `sysfs` shows the interfaces of one network namespace,
/// so the thread must be in the network namespace of the mount. If `sysfs` does not show the
/// interface, the function returns one queue of each kind.
pub fn queue_counts(interface: &str) -> io::Result<QueueCounts> {
    sys::interface_index(interface)?;
    match sys::interface_channels(interface) {
        Ok(channels) => Ok(QueueCounts {
            rx: (channels.rx + channels.combined).max(1),
            tx: (channels.tx + channels.combined).max(1),
        }),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(QueueCounts {
            rx: count(interface, "rx-"),
            tx: count(interface, "tx-"),
        }),
        Err(error) => Err(error),
    }
}

fn count(interface: &str, prefix: &str) -> u32 {
    let entries = fs::read_dir(format!("/sys/class/net/{interface}/queues"));
    let names = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    let queues = names.filter(|name| name.to_string_lossy().starts_with(prefix));
    (queues.count() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::queue_counts;

    #[test]
    fn the_loopback_has_one_queue_and_nothing_has_none() {
        let counts = queue_counts("lo").unwrap();
        assert_eq!((counts.rx, counts.tx), (1, 1));
        assert!(queue_counts("no-such-if").is_err());
        assert!(queue_counts("a-name-that-is-far-too-long").is_err());
    }
}
