//! The congestion control algorithms that a program of the Tidelane service may choose. The
//! kernel's rule applies: `net.ipv4.tcp_allowed_congestion_control` lists the algorithms that every
//! program may choose. A program with CAP_NET_ADMIN may choose any algorithm.

use std::{fs, path::Path};

use rustix::thread::CapabilitySet;
use tidelane_host::AllowedCongestion;

use crate::{peer::Peer, sysctl::Sysctl};

/// File of the setting that lists the algorithms that every program may choose.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// The setting `tcp_allowed_congestion_control` of a network namespace.
#[derive(Debug)]
pub struct Congestion(Sysctl);

impl Congestion {
    /// Opens the setting of the calling thread's namespace.
    pub fn open() -> Self {
        Self(Sysctl::open(ALLOWED))
    }

    /// Returns the algorithms that the process `peer` may choose. If the setting cannot be read,
    /// the kernel's default list takes its place.
    pub fn allowed_to(&self, peer: &Peer) -> AllowedCongestion {
        if is_network_administrator(peer) {
            return AllowedCongestion::ALL;
        }
        let named = self.0.read(|list| Some(AllowedCongestion::named(list)));
        named.unwrap_or_else(|| AllowedCongestion::named("reno cubic"))
    }
}

/// Returns true if the process has CAP_NET_ADMIN in the service's user namespace. A process may
/// have the capability only in a user namespace that it has created itself. The function therefore
/// also requires that the process's `uid_map` equals the service's `uid_map`.
fn is_network_administrator(peer: &Peer) -> bool {
    // If the process has ended, its id may already belong to another process.
    if !peer.is_alive() {
        return false;
    }
    let process = Path::new("/proc").join(peer.pid_number().to_string());
    let capable = fs::read_to_string(process.join("status")).is_ok_and(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let bits = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
        let set = CapabilitySet::from_bits_retain(bits.unwrap_or(0));
        set.contains(CapabilitySet::NET_ADMIN)
    });
    let users = |process: &Path| fs::read_to_string(process.join("uid_map")).ok();
    let theirs = users(&process);
    // The files that were read belong to this process only if the process still exists.
    capable && theirs.is_some() && theirs == users(Path::new("/proc/self")) && peer.is_alive()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use tidelane_abi::congestion;

    use super::*;

    #[test]
    fn only_an_administrator_chooses_freely() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let (one, _other) = UnixStream::pair().expect("a pair");
        let mut peer = Peer::of(&one).expect("a peer");
        let setting = Congestion::open();
        assert_eq!(setting.allowed_to(&peer), AllowedCongestion::ALL);
        // The child process runs as another user, so it does not have the capability.
        let mut child = std::process::Command::new("setpriv")
            .args(["--reuid", "65534", "--clear-groups", "sleep", "60"])
            .spawn()
            .expect("util-linux");
        let pid = rustix::process::Pid::from_raw(child.id() as i32);
        peer.pid = pid;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while is_network_administrator(&peer) && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        let allowed = setting.allowed_to(&peer);
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert_ne!(allowed, AllowedCongestion::ALL);
        assert!(allowed.has(congestion::RENO));
    }
}
