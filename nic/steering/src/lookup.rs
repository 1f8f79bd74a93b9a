//! The kernel's answer to "which listening socket gets a SYN for this address and port?".
//!
//! The question goes over NETLINK_SOCK_DIAG. The kernel looks as it does for a packet: namespace,
//! interface, address, groups of SO_REUSEPORT and programs at the socket lookup included.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, ipproto, listen,
        netlink, recv, send, socket_with, sockopt,
    },
};

use crate::sys;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// `struct nlmsghdr`, `struct inet_diag_req_v2`, `struct inet_diag_msg`.
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = 56;
const ANSWER_LEN: usize = 72;
/// `TCP_LISTEN` among the states, and all states as a set.
const LISTEN: u8 = 10;
const ALL_STATES: u32 = u32::MAX;
/// `INET_DIAG_NOCOOKIE`: whichever socket it is.
const ANY_COOKIE: u64 = u64::MAX;
/// Interface of loopback in every namespace.
const LOOPBACK: u32 = 1;

/// A listening socket of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundListener {
    /// Identity of the socket (SO_COOKIE).
    pub cookie: u64,
    /// Its local address, IPv4 as `::ffff:a.b.c.d`; unspecified for a wildcard.
    pub addr: [u8; 16],
    /// Its owner.
    pub uid: u32,
}

/// Asks the kernel of the calling thread's network namespace.
pub struct Lookup {
    socket: OwnedFd,
    sequence: u32,
}

impl Lookup {
    /// Opens the way to the kernel.
    pub fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        bind(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Asks for a socket of its own. Fails on a kernel that cannot answer (CONFIG_INET_DIAG): such
    /// a kernel says of every socket that there is none.
    pub fn try_out(&mut self) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::STREAM;
        let own = socket_with(AddressFamily::INET, kind, flags, Some(ipproto::TCP))?;
        // Nobody else can connect to it.
        sys::bind_to_interface(own.as_fd(), LOOPBACK)?;
        bind(&own, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        listen(&own, 1)?;
        let bound = SocketAddr::try_from(rustix::net::getsockname(&own)?)?;
        let any = Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().octets();
        let found = self.listener(any, bound.port(), LOOPBACK)?;
        let cookie = sockopt::socket_cookie(&own)?;
        if found.is_none_or(|found| found.cookie != cookie) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(())
    }

    /// The listening socket that gets a SYN for `port` of `addr` (IPv4 as `::ffff:a.b.c.d`) over
    /// the interface. Of a group that shares the port, it is any one.
    pub fn listener(
        &mut self,
        addr: [u8; 16],
        port: u16,
        ifindex: u32,
    ) -> io::Result<Option<FoundListener>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(addr, port, ifindex, self.sequence);
        send(&self.socket, &request, SendFlags::empty())?;
        let mut bytes = [0; 4096];
        loop {
            let (len, _) = match recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                received => received?,
            };
            if let Some(answer) = Answer::parse(&bytes[..len], self.sequence) {
                return answer.0;
            }
        }
    }
}

fn request(addr: [u8; 16], port: u16, ifindex: u32, sequence: u32) -> Vec<u8> {
    let (family, local) = match Ipv6Addr::from(addr).to_canonical() {
        IpAddr::V4(v4) => {
            let mut local = [0; 16];
            local[..4].copy_from_slice(&v4.octets());
            (AddressFamily::INET, local)
        }
        IpAddr::V6(v6) => (AddressFamily::INET6, v6.octets()),
    };
    let mut bytes = Vec::with_capacity(HEADER_LEN + REQUEST_LEN);
    bytes.extend(((HEADER_LEN + REQUEST_LEN) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend([family.as_raw() as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend(ALL_STATES.to_ne_bytes());
    // Ports, local first; then addresses.
    bytes.extend(port.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(local);
    bytes.extend([0; 16]);
    bytes.extend(ifindex.to_ne_bytes());
    bytes.extend(ANY_COOKIE.to_ne_bytes());
    bytes
}

struct Answer(io::Result<Option<FoundListener>>);

impl Answer {
    /// The kernel's answer to the request of that number; `None` if it is to another one.
    fn parse(bytes: &[u8], sequence: u32) -> Option<Self> {
        let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        if u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?) != sequence {
            return None;
        }
        let body = bytes.get(HEADER_LEN..)?;
        if kind == NLMSG_ERROR {
            let code = i32::from_ne_bytes(*body.first_chunk()?);
            return Some(Self(match -code {
                libc::ENOENT => Ok(None),
                code => Err(io::Error::from_raw_os_error(code)),
            }));
        }
        let message: &[u8; ANSWER_LEN] = body.first_chunk()?;
        let [family, state, ..] = *message;
        if kind != SOCK_DIAG_BY_FAMILY || state != LISTEN {
            return Some(Self(Ok(None)));
        }
        let mut addr = [0; 16];
        addr.copy_from_slice(&message[8..24]);
        if i32::from(family) == libc::AF_INET {
            let [a, b, c, d, ..] = addr;
            addr = Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets();
        }
        Some(Self(Ok(Some(FoundListener {
            cookie: u64::from_ne_bytes(*message[44..].first_chunk()?),
            addr,
            uid: u32::from_ne_bytes(*message[64..].first_chunk()?),
        }))))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const LOCALHOST: [u8; 16] = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();

    #[test]
    fn a_listener_is_found_where_the_kernel_delivers() {
        let mut lookup = Lookup::open().expect("a netlink socket");
        lookup.try_out().expect("the kernel answers");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its name").port();
        let mut look = |addr, port, ifindex| lookup.listener(addr, port, ifindex).expect("answer");
        let found = look(LOCALHOST, port, LOOPBACK).expect("a listener");
        assert_eq!(found.cookie, sockopt::socket_cookie(&listener).unwrap());
        assert_eq!(found.addr, LOCALHOST);
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        let other = Ipv4Addr::new(127, 0, 0, 2).to_ipv6_mapped().octets();
        assert_eq!(look(other, port, LOOPBACK), None);
        drop(listener);
        assert_eq!(look(LOCALHOST, port, LOOPBACK), None);
    }

    #[test]
    fn a_wildcard_is_found_for_every_address_and_one_of_another_interface_is_not() {
        let mut lookup = Lookup::open().expect("a netlink socket");
        lookup.try_out().expect("the kernel answers");
        let listener = TcpListener::bind("[::]:0").expect("a port");
        let port = listener.local_addr().expect("its name").port();
        let cookie = sockopt::socket_cookie(&listener).unwrap();
        let mut look = |addr, ifindex| lookup.listener(addr, port, ifindex).expect("answer");
        for addr in [LOCALHOST, Ipv6Addr::LOCALHOST.octets(), [0; 16]] {
            let found = look(addr, LOOPBACK).expect("a listener");
            assert_eq!((found.cookie, found.addr), (cookie, [0; 16]));
        }
        if sys::bind_to_interface(listener.as_fd(), LOOPBACK).is_ok() {
            assert_eq!(look(LOCALHOST, LOOPBACK + 1), None);
        }
    }

    #[test]
    fn an_answer_to_another_question_is_none() {
        assert!(Answer::parse(&[], 1).is_none());
        let mut bytes = [0; HEADER_LEN + ANSWER_LEN];
        bytes[8] = 2;
        assert!(Answer::parse(&bytes, 1).is_none());
        for len in 0..bytes.len() {
            let _ = Answer::parse(&bytes[..len], 2);
        }
    }
}
