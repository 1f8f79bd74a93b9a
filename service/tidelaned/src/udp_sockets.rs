//! A search of `/proc/net/udp` and `/proc/net/udp6` for other UDP sockets of the kernel on a port
//! that a program wants to claim.
//!
//! The kernel lets several UDP sockets with SO_REUSEADDR have one port, and delivers a unicast
//! datagram to one of them. After a claim of the port, the Tidelane service takes the port's
//! datagrams from the NIC. The claim would thus take the datagrams of all these sockets.

use std::fs;

use tidelane_wire::{Endpoint, IpAddress};

use crate::sockets::KernelSocket;

/// The tables of the calling thread's network namespace.
const TABLES: [&str; 2] = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];

/// Returns true if another UDP socket gets datagrams of one of `socket`'s 3-tuples (address,
/// protocol, port). The socket with the inode `reservation` belongs to the service and does not
/// count. Also returns true if the IPv4 table cannot be read, or if the IPv6 table exists but
/// cannot be read.
pub fn have_another_socket(socket: &KernelSocket, reservation: u64) -> bool {
    let [v4, v6] = TABLES.map(fs::read_to_string);
    let text = match (v4, v6) {
        (Ok(v4), Ok(v6)) => v4 + &v6,
        // A kernel without IPv6 has no such table.
        (Ok(v4), Err(error)) if error.kind() == std::io::ErrorKind::NotFound => v4,
        _ => return true,
    };
    let known = [socket.inode(), reservation];
    has_another(&text, socket.ends(), known)
}

/// Returns true if `tables` has a socket whose local endpoint overlaps with one of `ends`. Sockets
/// with the inodes in `known` do not count.
fn has_another(tables: &str, ends: impl Iterator<Item = Endpoint>, known: [u64; 2]) -> bool {
    let ends: Vec<Endpoint> = ends.collect();
    let mut sockets = tables.lines().filter_map(parse_line);
    sockets.any(|(local, inode)| {
        let overlaps = ends.iter().any(|end| overlap(*end, local));
        overlaps && !known.contains(&inode)
    })
}

/// Returns true if sockets at both endpoints can get datagrams to the same address and port. The
/// tables do not show whether a socket at `::` has IPV6_V6ONLY, so `other` at `::` overlaps with
/// endpoints of both IP versions.
fn overlap(own: Endpoint, other: Endpoint) -> bool {
    let addresses = own.addr.covers(other.addr) || other.addr.covers(own.addr);
    own.port == other.port && (addresses || other.addr == IpAddress::UNSPECIFIED_V6)
}

/// Returns the local endpoint and the inode in a line. Returns `None` for the heading.
fn parse_line(line: &str) -> Option<(Endpoint, u64)> {
    let mut fields = line.split_whitespace();
    let (address, port) = fields.nth(1)?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // The address is one or four 32-bit words in hexadecimal, in the byte order of the CPU.
    let words = (0..address.len()).step_by(8).map(|at| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    });
    let bytes = words.collect::<Option<Vec<_>>>()?.concat();
    let addr = match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(v4) => IpAddress::from_v4(v4),
        Err(_) => IpAddress(bytes.try_into().ok()?),
    };
    // Between the local endpoint and the inode are seven fields.
    let inode = fields.nth(7)?.parse().ok()?;
    Some((Endpoint::new(addr, port), inode))
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, os::fd::AsFd};

    use rustix::{
        fs::fstat,
        net::{AddressFamily, SocketType, bind, socket, sockopt},
    };

    use super::*;
    use crate::sockets::examine;

    #[test]
    fn sockets_are_found_by_their_ports() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(own) = UdpSocket::bind(address) else {
                assert!(address.starts_with('['), "no loopback");
                continue;
            };
            let examined = examine(own.as_fd()).expect("a socket").expect("bound");
            assert!(!have_another_socket(&examined, 0));
            // A socket counts unless its inode is in `known`.
            let text: String = TABLES
                .iter()
                .map(|table| fs::read_to_string(table).unwrap_or_default())
                .collect();
            assert!(has_another(&text, examined.ends(), [0, 0]));
            let inode = fstat(&own).expect("a socket").st_ino;
            assert!(!has_another(&text, examined.ends(), [0, inode]));
        }
    }

    #[test]
    fn a_wildcard_overlaps_with_each_address_of_its_version() {
        let end = |text: &str, port| {
            let addr: std::net::IpAddr = text.parse().expect("an address");
            Endpoint::new(IpAddress::from(addr), port)
        };
        let one = end("10.0.0.1", 53);
        assert!(overlap(one, one) && overlap(one, end("0.0.0.0", 53)));
        assert!(overlap(one, end("::", 53)) && overlap(end("0.0.0.0", 53), one));
        assert!(!overlap(one, end("10.0.0.2", 53)) && !overlap(one, end("10.0.0.1", 54)));
        assert!(!overlap(end("::", 53), one), "`::` overlaps with IPv4");
    }

    #[test]
    fn two_sockets_with_so_reuseaddr_share_a_port() {
        let shared = || {
            let one = socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
            sockopt::set_socket_reuseaddr(&one, true).expect("allowed");
            one
        };
        let (first, second) = (shared(), shared());
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
        bind(&first, &any).expect("a port");
        let examined = examine(first.as_fd()).expect("a socket").expect("bound");
        let addr: std::net::SocketAddr = format!("127.0.0.1:{}", examined.local.port)
            .parse()
            .expect("an address");
        assert!(!have_another_socket(&examined, 0));
        bind(&second, &addr).expect("both may share the port");
        assert!(have_another_socket(&examined, 0));
    }
}
