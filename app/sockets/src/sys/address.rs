//! Socket addresses: conversion between the C structures that programs pass and [`Address`].

/// First bytes of an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`).
const V4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// Length of a `sockaddr_in` in bytes.
const SOCKADDR_IN_LEN: usize = 16;
/// Length of a `sockaddr_in6` in bytes.
const SOCKADDR_IN6_LEN: usize = 28;
/// Length in bytes of a `sockaddr_in6` without the scope id. The kernel accepts this length, too.
const SOCKADDR_IN6_LEN_MIN: usize = 24;

/// An IP address and a port, as in a `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// The IPv6 address. An IPv4 address has the form `::ffff:a.b.c.d`.
    pub addr: [u8; 16],
    /// The port in host byte order.
    pub port: u16,
    /// True if the address is written as a `sockaddr_in6`, because the socket is of family
    /// AF_INET6.
    pub inet6: bool,
}

impl Address {
    /// Reads a `sockaddr_in` or `sockaddr_in6`. Returns `None` for another family, or if bytes are
    /// missing. Ignores the scope id: it matters only for link-local addresses, and the connections
    /// of these addresses stay with the kernel.
    pub fn read(name: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(*name.first_chunk()?);
        let port = u16::from_be_bytes([*name.get(2)?, *name.get(3)?]);
        let (addr, inet6) = match i32::from(family) {
            libc::AF_INET if name.len() >= SOCKADDR_IN_LEN => {
                let [_, _, _, _, a, b, c, d, ..] = *name else {
                    return None;
                };
                (v4_mapped([a, b, c, d]), false)
            }
            libc::AF_INET6 if name.len() >= SOCKADDR_IN6_LEN_MIN => {
                (*name[8..].first_chunk()?, true)
            }
            _ => return None,
        };
        Some(Self { addr, port, inet6 })
    }

    /// Returns true for a `sockaddr` of the family AF_UNSPEC.
    pub fn is_unspecified_family(name: &[u8]) -> bool {
        let family = name.first_chunk().copied().map(u16::from_ne_bytes);
        family == Some(libc::AF_UNSPEC as u16)
    }

    /// Writes a `sockaddr_in` or `sockaddr_in6` to the start of the array. Returns the array and
    /// the length of the address.
    pub fn write(self) -> ([u8; SOCKADDR_IN6_LEN], usize) {
        let mut name = [0; SOCKADDR_IN6_LEN];
        let family = if self.inet6 {
            libc::AF_INET6
        } else {
            libc::AF_INET
        };
        name[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        name[2..4].copy_from_slice(&self.port.to_be_bytes());
        if self.inet6 {
            name[8..24].copy_from_slice(&self.addr);
            (name, SOCKADDR_IN6_LEN)
        } else {
            name[4..8].copy_from_slice(&self.addr[12..]);
            (name, SOCKADDR_IN_LEN)
        }
    }

    /// Returns true if the address is an IPv4 address. An IPv4-mapped address that was read from a
    /// `sockaddr_in6` is an IPv4 address, too.
    pub(crate) fn is_v4(&self) -> bool {
        self.addr.starts_with(&V4_PREFIX)
    }

    /// Returns true if the address is `0.0.0.0` or `::`.
    pub(crate) fn is_unspecified(&self) -> bool {
        self.addr == [0; 16] || self.addr == v4_mapped([0; 4])
    }
}

fn v4_mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_writing_and_reading() {
        for (addr, inet6) in [
            (v4_mapped([10, 0, 0, 1]), false),
            (v4_mapped([10, 0, 0, 1]), true),
            ([0xfd; 16], true),
        ] {
            let address = Address {
                addr,
                port: 8080,
                inet6,
            };
            let (name, len) = address.write();
            assert_eq!(len, if inet6 { 28 } else { 16 });
            assert_eq!(Address::read(&name[..len]), Some(address));
            assert_eq!(address.is_v4(), addr[0] == 0);
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        let (v6, _) = Address {
            inet6: true,
            ..Address::default()
        }
        .write();
        assert!(Address::read(&v6).is_some_and(|address| address.is_unspecified()));
        assert!(Address::read(&v6[..24]).is_some());
        assert_eq!(Address::read(&v6[..23]), None);
        let (v4, _) = Address::default().write();
        assert_eq!(Address::read(&v4[..15]), None);
        assert_eq!(Address::read(&[libc::AF_UNIX as u8, 0, 0, 0]), None);
        assert_eq!(Address::read(&[]), None);
    }
}
