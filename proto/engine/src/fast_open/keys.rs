//! Fast Open cookies of a server (RFC 7413 §4.1.2). A cookie is a keyed hash of the client's
//! address and the server's address, so that the server keeps no state for clients.
//!
//! Linux computes cookies in the same way, so servers behind one address can use common keys even
//! if the servers run different stacks.

use core::hash::Hasher;

use siphasher::sip::SipHasher24;
use tidelane_wire::{FastOpenCookie, FlowKey};

/// Keys of a server's cookies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenKeys {
    /// Key of new cookies.
    pub primary: [u8; 16],
    /// Previous key. A cookie of this key is still valid, and the server replaces it by a cookie of
    /// the primary key.
    pub backup: Option<[u8; 16]>,
}

/// Validity of a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CookieValidity {
    /// None of the keys made the cookie.
    Invalid,
    /// The primary key made the cookie.
    Valid,
    /// The backup key made the cookie. The value is the cookie of the primary key, which the
    /// SYN,ACK carries.
    Outdated(FastOpenCookie),
}

/// Length of a key in bytes.
const KEY_LEN: usize = 16;
/// Number of hexadecimal words of a key in the format of Linux's sysctl.
const KEY_WORDS: usize = 4;

impl FastOpenKeys {
    /// Parses one key of 16 bytes, or a primary key followed by a backup key. Returns `None` for
    /// any other length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (primary, backup) = match bytes.as_chunks::<KEY_LEN>() {
            ([primary], []) => (*primary, None),
            ([primary, backup], []) => (*primary, Some(*backup)),
            _ => return None,
        };
        Some(Self { primary, backup })
    }

    /// Parses the format of Linux's `tcp_fastopen_key`: four hexadecimal words with hyphens between
    /// them, optionally followed by a comma and the four words of the backup key. Returns `None`
    /// for a text in any other format.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut bytes = Vec::new();
        for key in text.trim().split(',') {
            let words: Vec<&str> = key.split('-').collect();
            if words.len() != KEY_WORDS {
                return None;
            }
            for word in words {
                bytes.extend(u32::from_str_radix(word, 16).ok()?.to_le_bytes());
            }
        }
        Self::from_bytes(&bytes)
    }

    /// Returns the cookie of the client at `key.peer` for the server at `key.local`.
    pub fn cookie(&self, key: &FlowKey) -> FastOpenCookie {
        make(&self.primary, key)
    }

    /// Checks `cookie` of the client at `key.peer`.
    pub fn check(&self, key: &FlowKey, cookie: &FastOpenCookie) -> CookieValidity {
        let current = self.cookie(key);
        if *cookie == current {
            return CookieValidity::Valid;
        }
        match self.backup {
            Some(backup) if *cookie == make(&backup, key) => CookieValidity::Outdated(current),
            _ => CookieValidity::Invalid,
        }
    }
}

/// Returns SipHash-2-4 of the two addresses, in the order of the client's packet: client, then
/// server.
fn make(secret: &[u8; 16], key: &FlowKey) -> FastOpenCookie {
    let mut hasher = SipHasher24::new_with_key(secret);
    for addr in [key.peer.addr, key.local.addr] {
        match addr.as_v4() {
            Some(addr) => hasher.write(&addr),
            None => hasher.write(&addr.0),
        }
    }
    let bytes = hasher.finish().to_le_bytes();
    FastOpenCookie::new(&bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tidelane_wire::{Endpoint, IpAddress};

    use super::*;

    #[test]
    fn the_sysctl_and_the_option_name_the_same_key() {
        let of_sysctl = FastOpenKeys::from_text("03020100-07060504-0b0a0908-0f0e0d0c\n");
        let bytes: Vec<u8> = (0..16).collect();
        assert!(of_sysctl.is_some());
        assert_eq!(of_sysctl, FastOpenKeys::from_bytes(&bytes));
        let two = FastOpenKeys::from_text("0-0-0-0,1-2-3-4").and_then(|keys| keys.backup);
        assert_eq!(two.map(|key| key[..5] == [1, 0, 0, 0, 2]), Some(true));
        assert_eq!(FastOpenKeys::from_text("1-2-3"), None);
        for len in [0, 3, 15, 17, 48] {
            assert_eq!(FastOpenKeys::from_bytes(&vec![0; len]), None, "{len}");
        }
    }

    const KEYS: FastOpenKeys = FastOpenKeys {
        primary: *b"0123456789abcdef",
        backup: Some([7; 16]),
    };

    fn v4(client: u8) -> FlowKey {
        FlowKey::new(
            Endpoint::v4([10, 0, 0, 1], 80),
            Endpoint::v4([10, 0, 0, client], 4242),
        )
    }

    #[test]
    fn rfc7413_section_4_1_2_each_client_address_has_a_cookie_of_its_own() {
        let other_port = FlowKey::new(v4(2).local, Endpoint::v4([10, 0, 0, 2], 9));
        assert_eq!(KEYS.cookie(&v4(2)), KEYS.cookie(&other_port));
        assert_ne!(KEYS.cookie(&v4(2)), KEYS.cookie(&v4(3)));
        assert_eq!(KEYS.cookie(&v4(2)).as_slice().len(), 8);
        let v6 = |last| {
            let mut addr = [0xfd; 16];
            addr[15] = last;
            let peer = Endpoint::new(IpAddress(addr), 4242);
            FlowKey::new(Endpoint::new(IpAddress([0xfc; 16]), 80), peer)
        };
        assert_ne!(KEYS.cookie(&v6(1)), KEYS.cookie(&v6(2)));
    }

    #[test]
    fn a_cookie_of_the_backup_key_is_valid_and_replaced() {
        let old = FastOpenKeys {
            primary: [7; 16],
            backup: None,
        };
        let (client, cookie) = (v4(2), old.cookie(&v4(2)));
        assert_eq!(old.check(&client, &cookie), CookieValidity::Valid);
        let now = KEYS.cookie(&client);
        assert_eq!(KEYS.check(&client, &cookie), CookieValidity::Outdated(now));
        assert_eq!(KEYS.check(&client, &now), CookieValidity::Valid);
        assert_eq!(KEYS.check(&v4(3), &now), CookieValidity::Invalid);
        assert_eq!(old.check(&client, &now), CookieValidity::Invalid);
    }
}
