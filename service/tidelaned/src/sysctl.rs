//! A kernel setting (sysctl), whose file in `/proc/sys` stays open. A read of the open file costs
//! one system call. Opening the file again for each read would cost five.

use std::{fs::File, os::unix::fs::FileExt};

/// Maximum length of a setting's text in bytes. The longest text is the list of all congestion
/// controls.
const TEXT_MAX: usize = 4096;

/// The open file of a setting. The setting is that of the network namespace in which the file was
/// opened. `None` if the file cannot be opened.
#[derive(Debug)]
pub struct Sysctl(Option<File>);

impl Sysctl {
    /// Opens the file `path` of a setting, in the calling thread's network namespace.
    pub fn open(path: &str) -> Self {
        Self(File::open(path).ok())
    }

    /// Reads the current setting, and parses its text with `read`. Returns `None` if the text
    /// cannot be read or parsed.
    pub fn read<T>(&self, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let mut text = [0; TEXT_MAX];
        let len = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        read(str::from_utf8(text.get(..len)?).ok()?.trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_is_read_again_at_each_call() {
        let path = "/proc/sys/net/ipv4/tcp_fastopen";
        let text = std::fs::read_to_string(path).expect("a setting");
        let setting = Sysctl::open(path);
        for _ in 0..2 {
            let read = setting.read(|now| Some(now == text.trim()));
            assert_eq!(read, Some(true));
        }
        assert_eq!(Sysctl::open("/proc/sys/no/such").read(|_| Some(())), None);
    }
}
