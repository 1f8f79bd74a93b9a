//! The kernel's settings of Fast Open (RFC 7413): policy and keys of the network namespace, and
//! options of a program's listening socket. The Tidelane service uses the kernel's keys, so a Fast
//! Open cookie is valid both in the service's TCP and in the kernel's TCP.

use std::os::fd::{AsFd, OwnedFd};

use tidelane_engine::{FastOpenKeys, FastOpenPolicy};
use tidelane_host::ListenerFastOpen;

use crate::{sys, sysctl::Sysctl};

/// File of the setting that enables Fast Open for clients and listeners.
const POLICY: &str = "/proc/sys/net/ipv4/tcp_fastopen";
/// File of the keys from which the namespace's Fast Open cookies are made.
const KEYS: &str = "/proc/sys/net/ipv4/tcp_fastopen_key";

/// The Fast Open settings of a network namespace.
#[derive(Debug)]
pub struct FastOpen {
    policy: Sysctl,
    keys: Sysctl,
}

impl FastOpen {
    /// Opens the settings of the calling thread's namespace.
    pub fn open() -> Self {
        Self {
            policy: Sysctl::open(POLICY),
            keys: Sysctl::open(KEYS),
        }
    }

    /// Returns the namespace's policy and keys. If the policy cannot be read, returns Linux's
    /// default policy. If the keys cannot be read, returns `None` for the keys. Also returns `None`
    /// while the kernel shows a primary key of zeros: the kernel makes the keys for its first
    /// listener that needs keys.
    pub fn read(&self) -> (FastOpenPolicy, Option<FastOpenKeys>) {
        let bits = self.policy.read(|text| text.parse().ok());
        let keys = self.keys.read(FastOpenKeys::from_text);
        (
            bits.map_or_else(FastOpenPolicy::default, FastOpenPolicy::from_bits),
            keys.filter(|keys| keys.primary != [0; 16]),
        )
    }
}

/// Returns the Fast Open options of a listening socket. An option that cannot be read counts as not
/// set.
pub fn of_listener(socket: &OwnedFd) -> ListenerFastOpen {
    let socket = socket.as_fd();
    let number = |name| {
        let mut value = [0; 4];
        let len = sys::tcp_option(socket, name, &mut value).unwrap_or(0);
        if len == 4 {
            u32::from_ne_bytes(value)
        } else {
            0
        }
    };
    let mut keys = [0; 32];
    let len = sys::tcp_option(socket, libc::TCP_FASTOPEN_KEY, &mut keys).unwrap_or(0);
    ListenerFastOpen {
        places: number(libc::TCP_FASTOPEN),
        without_cookie: number(libc::TCP_FASTOPEN_NO_COOKIE) != 0,
        keys: FastOpenKeys::from_bytes(&keys[..len]),
    }
}
