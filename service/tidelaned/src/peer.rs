//! The process at the other end of a registration socket of the Tidelane service, as described by
//! the kernel.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use tidelane_ring::registration::Sender;

use tidelane_host::Credentials;

use crate::{netns::NetNs, sys};

/// Number of bytes that one read of `/proc/PID/status` asks for. The file is usually shorter.
const STATUS_LEN: usize = 4096;
/// Maximum number of bytes that are read from `/proc/PID/status`. Even the file of a process with
/// 65,536 groups is shorter.
const STATUS_MAX: u64 = 1 << 20;

/// The kernel's data about the process that connected a registration socket, at the time of the
/// connect. A later `setuid`, `setns` or `exec` does not change the data. The socket of a forked
/// child has the parent's data at first: see [`successor`](Self::successor) and
/// [`becomes`](Self::becomes).
#[derive(Debug)]
pub struct Peer {
    /// Process id in the service's PID namespace; `None` if this namespace does not contain the
    /// process.
    pub pid: Option<Pid>,
    /// Becomes readable when the process ends. `None` for a forked child that has not sent a
    /// message yet. On a kernel before Linux 6.5 (without SO_PEERPIDFD and SO_PASSPIDFD), also
    /// `None` for every forked child, and for a process outside of the service's PID namespace.
    /// Without the pidfd, the service notices the end of the process when the process' socket
    /// closes.
    pub pidfd: Option<OwnedFd>,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups (gids).
    pub groups: Vec<u32>,
    /// Network namespace in which the process made its end of the socket.
    pub namespace: NetNs,
}

impl Peer {
    /// Returns the process at the other end of an accepted unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let socket = socket.as_fd();
        let credentials = sys::peer_credentials(socket)?;
        let pid = Pid::from_raw(credentials.pid);
        let by_number = || pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Self {
            pid,
            pidfd: sys::peer_pidfd(socket).ok().or_else(by_number),
            uid: credentials.uid,
            gid: credentials.gid,
            groups: sys::peer_groups(socket)?,
            namespace: NetNs::of_socket(socket)?,
        })
    }

    /// Returns the peer of a socket pair that the service makes for a future child of the process
    /// of `self`. Until the child sends its first message, the new peer has the data of `self`, but
    /// no pidfd.
    pub fn successor(&self) -> Self {
        Self {
            pid: self.pid,
            pidfd: None,
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
            namespace: self.namespace,
        }
    }

    /// Replaces the process id, the uid and the gid by the values that the kernel has reported for
    /// the sender of a message. Also replaces the pidfd, except if the sender is the same process
    /// as before and the present pidfd shows that this process is alive. The groups and the
    /// namespace stay.
    pub fn becomes(&mut self, sender: Sender, pidfd: Option<OwnedFd>) {
        if sender.pid != self.pid || !self.is_alive() {
            self.pidfd = pidfd;
        }
        self.pid = sender.pid;
        self.uid = sender.uid;
        self.gid = sender.gid;
    }

    /// Reads the supplementary groups of the process from procfs, because the kernel's report of a
    /// message's sender does not contain them.
    pub fn read_groups(&mut self) {
        self.groups = groups_of(self.pid_number());
    }

    /// Returns the user and groups of the process, for the operator's rules.
    pub fn credentials(&self) -> Credentials {
        let groups = std::iter::once(self.gid).chain(self.groups.iter().copied());
        Credentials {
            uid: self.uid,
            groups: groups.collect(),
        }
    }

    /// Returns true if the process still exists. Returns false without a pidfd.
    pub fn is_alive(&self) -> bool {
        let Some(pidfd) = &self.pidfd else {
            return false;
        };
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&at_once)), Ok(0))
    }

    /// Returns the process id, or zero for a process outside of the service's PID namespace.
    pub fn pid_number(&self) -> u32 {
        self.pid.map_or(0, |pid| pid.as_raw_nonzero().get() as u32)
    }

    /// Returns the name of the process' program (`comm`), or `?` if the name cannot be read.
    pub fn name(&self) -> String {
        let path = format!("/proc/{}/comm", self.pid_number());
        fs::read_to_string(path).map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned())
    }
}

/// Returns the supplementary groups of a process. The list is empty if the groups cannot be read.
fn groups_of(pid: u32) -> Vec<u32> {
    let mut status = String::with_capacity(STATUS_LEN);
    // `status` has room for the usual file, so one call reads the text. `fs::read_to_string` would
    // first ask for the file's length, which is zero in procfs.
    let file = File::open(format!("/proc/{pid}/status"));
    let _ = file.and_then(|file| file.take(STATUS_MAX).read_to_string(&mut status));
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let numbers = line.unwrap_or_default().split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_socket_pair_is_the_process_that_made_it() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let (one, _other) = UnixStream::pair().expect("a pair");
        let peer = Peer::of(&one).expect("a peer");
        assert_eq!(peer.pid_number(), std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
        assert_eq!(peer.namespace, NetNs::current().expect("a namespace"));
        assert!(peer.pidfd.is_some());
        assert_ne!(peer.name(), "?");
    }
}
