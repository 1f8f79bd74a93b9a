//! Queries to the kernel: which socket receives a segment for an address and port, and which ports
//! have connections.
//!
//! The queries go over NETLINK_SOCK_DIAG. If a query asks for one socket, the kernel searches for
//! this socket as it does for an arriving packet: by namespace, interface, address, SO_REUSEPORT
//! group and BPF socket lookup programs.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, ipproto, listen, netlink, send,
    socket_with, sockopt,
};

use crate::{
    answers::{ANSWER_WAIT_MAX, limit_wait, receive_answer},
    sys,
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
/// `NLM_F_ROOT | NLM_F_MATCH`: requests all sockets that match the request.
const NLM_F_DUMP: u16 = 0x300;
/// Lengths in bytes of `struct nlmsghdr`, `struct inet_diag_req_v2` and `struct inet_diag_msg`.
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = 56;
const ANSWER_LEN: usize = 72;
/// The states `TCP_LISTEN` and `TCP_CLOSE`, the set of all states, and the set of the states of
/// connections.
const LISTEN: u8 = 10;
const CLOSE: u8 = 7;
const ALL_STATES: u32 = u32::MAX;
const CONNECTIONS: u32 = !(1 << LISTEN | 1 << CLOSE);
/// Length in bytes of the receive buffer for one part of a long answer. The kernel sends at most 32
/// KiB in one part.
const PART_LEN: usize = 32 << 10;
/// `INET_DIAG_NOCOOKIE`: matches any socket.
const ANY_COOKIE: u64 = u64::MAX;
/// Index of the loopback interface in every namespace.
const LOOPBACK: u32 = 1;

/// A listening socket of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundListener {
    /// Identity of the socket (SO_COOKIE).
    pub cookie: u64,
    /// Local address (IPv4 as `::ffff:a.b.c.d`). A wildcard socket has the unspecified address.
    pub addr: [u8; 16],
    /// User id of the owner.
    pub uid: u32,
}

/// Lookup of TCP sockets in the network namespace of the thread that opened the lookup.
pub struct Lookup {
    socket: OwnedFd,
    /// Sequence number of the most recent request.
    sequence: u32,
}

impl Lookup {
    /// Opens the netlink socket.
    pub fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        bind(&socket, &netlink::SocketAddrNetlink::new(0, 0))?;
        limit_wait(&socket, ANSWER_WAIT_MAX)?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Tests [`listener`](Self::listener) with a listening socket of this process. Returns
    /// `Unsupported` if the kernel does not find the socket. A kernel without CONFIG_INET_DIAG
    /// finds no socket.
    pub fn self_test(&mut self) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::STREAM;
        let own = socket_with(AddressFamily::INET, kind, flags, Some(ipproto::TCP))?;
        // The restriction to the loopback interface keeps other hosts from connecting.
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

    /// Returns the local ports of the kernel's connections, including connections in SYN-RECEIVED
    /// and TIME-WAIT. The kernel walks through all its sockets, once for each IP version.
    pub fn connected_ports(&mut self) -> io::Result<HashSet<u16>> {
        let mut ports = HashSet::new();
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            self.sequence = self.sequence.wrapping_add(1);
            let request = Request {
                family,
                states: CONNECTIONS,
                flags: NLM_F_REQUEST | NLM_F_DUMP,
                ends: [([0; 16], 0); 2],
                ifindex: 0,
            };
            send(
                &self.socket,
                &request.encode(self.sequence),
                SendFlags::empty(),
            )?;
            while !self.receive_part(&mut ports)? {}
        }
        Ok(ports)
    }

    /// Reads one part of an answer with many sockets, and adds the local ports of these sockets to
    /// `ports`. Returns true if this part ends the answer.
    fn receive_part(&mut self, ports: &mut HashSet<u16>) -> io::Result<bool> {
        let mut bytes = vec![0; PART_LEN];
        let len = receive_answer(&self.socket, &mut bytes)?;
        let mut rest = &bytes[..len];
        while let Some((message, next)) = split_message(rest) {
            rest = next;
            match message.answers(self.sequence) {
                Some(NLMSG_DONE) => return Ok(true),
                Some(NLMSG_ERROR) => return Err(message.error()),
                Some(SOCK_DIAG_BY_FAMILY) => ports.extend(message.local_port()),
                _ => {}
            }
        }
        Ok(false)
    }

    /// Returns true if the kernel has a connection between the endpoints `ends`, in any state from
    /// SYN-SENT or SYN-RECEIVED to TIME-WAIT. The first endpoint is the local endpoint. IPv4
    /// addresses have the form `::ffff:a.b.c.d`.
    pub fn has_connection(&mut self, ends: [([u8; 16], u16); 2], ifindex: u32) -> io::Result<bool> {
        let answer = self.query(ends, ifindex)?;
        Ok(answer.is_some_and(|found| found.state != LISTEN))
    }

    /// Returns the listening socket that receives a SYN for `port` of `addr` (IPv4 as
    /// `::ffff:a.b.c.d`) on the interface. If the socket is in an SO_REUSEPORT group, the result is
    /// any member of the group.
    pub fn listener(
        &mut self,
        addr: [u8; 16],
        port: u16,
        ifindex: u32,
    ) -> io::Result<Option<FoundListener>> {
        let answer = self.query([(addr, port), ([0; 16], 0)], ifindex)?;
        let listening = answer.filter(|found| found.state == LISTEN);
        Ok(listening.map(|found| found.socket))
    }

    /// Returns the socket that receives a segment from the second endpoint to the first endpoint.
    fn query(&mut self, ends: [([u8; 16], u16); 2], ifindex: u32) -> io::Result<Option<Found>> {
        self.sequence = self.sequence.wrapping_add(1);
        let v4 = matches!(Ipv6Addr::from(ends[0].0).to_canonical(), IpAddr::V4(_));
        let request = Request {
            family: if v4 {
                AddressFamily::INET
            } else {
                AddressFamily::INET6
            },
            states: ALL_STATES,
            flags: NLM_F_REQUEST,
            ends,
            ifindex,
        };
        send(
            &self.socket,
            &request.encode(self.sequence),
            SendFlags::empty(),
        )?;
        self.receive_found()
    }

    /// Reads the answer to the most recent request of [`query`](Self::query).
    fn receive_found(&mut self) -> io::Result<Option<Found>> {
        let mut bytes = [0; 4096];
        loop {
            let len = receive_answer(&self.socket, &mut bytes)?;
            if let Some(answer) = Answer::parse(&bytes[..len], self.sequence) {
                return answer.0;
            }
        }
    }
}

/// A netlink message: the body, and two fields of the header.
struct Message<'a> {
    /// `nlmsg_type` of the header.
    kind: u16,
    /// `nlmsg_seq` of the header: the number of the request that the message answers.
    sequence: u32,
    body: &'a [u8],
}

impl Message<'_> {
    /// Returns the message's type if the message answers the request with number `sequence`;
    /// otherwise `None`.
    fn answers(&self, sequence: u32) -> Option<u16> {
        (self.sequence == sequence).then_some(self.kind)
    }

    /// Returns the errno of an NLMSG_ERROR message.
    fn error(&self) -> io::Error {
        let code = self
            .body
            .first_chunk()
            .map_or(0, |code| i32::from_ne_bytes(*code));
        io::Error::from_raw_os_error(-code)
    }

    /// Returns the local port (`id.idiag_sport`) in the body, a `struct inet_diag_msg`.
    fn local_port(&self) -> Option<u16> {
        let port = self.body.get(4..)?.first_chunk()?;
        Some(u16::from_be_bytes(*port))
    }
}

/// Returns the first message and the bytes that follow the message. Returns `None` if the bytes
/// contain no complete message.
fn split_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let message = Message {
        kind: u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?),
        sequence: u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?),
        body: bytes.get(HEADER_LEN..len)?,
    };
    // Netlink aligns messages to 4 bytes.
    Some((
        message,
        bytes.get(len.next_multiple_of(4)..).unwrap_or_default(),
    ))
}

/// A query: `struct inet_diag_req_v2` with its netlink header.
struct Request {
    family: AddressFamily,
    /// Bit set of the TCP states whose sockets are reported: bit `n` for the state with number `n`.
    states: u32,
    /// `nlmsg_flags` of the netlink header.
    flags: u16,
    /// Addresses (IPv4 as `::ffff:a.b.c.d`) and ports, local first.
    ends: [([u8; 16], u16); 2],
    /// Index of the interface at which a segment for the socket would arrive; 0 for any interface.
    ifindex: u32,
}

impl Request {
    fn encode(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_LEN + REQUEST_LEN);
        bytes.extend(((HEADER_LEN + REQUEST_LEN) as u32).to_ne_bytes());
        bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend([self.family.as_raw() as u8, libc::IPPROTO_TCP as u8, 0, 0]);
        bytes.extend(self.states.to_ne_bytes());
        bytes.extend(self.ends.iter().flat_map(|(_, port)| port.to_be_bytes()));
        bytes.extend(self.ends.iter().flat_map(|(addr, _)| self.address(*addr)));
        bytes.extend(self.ifindex.to_ne_bytes());
        bytes.extend(ANY_COOKIE.to_ne_bytes());
        bytes
    }

    /// Returns an address in the request's form: an IPv4 address is in the first 4 bytes.
    fn address(&self, addr: [u8; 16]) -> [u8; 16] {
        let mut bytes = addr;
        if self.family == AddressFamily::INET {
            bytes = [0; 16];
            bytes[..4].copy_from_slice(&addr[12..]);
        }
        bytes
    }
}

/// A listening socket, or the socket of a connection (up to TIME-WAIT).
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// TCP state of the socket (`TCP_LISTEN` and others).
    state: u8,
    /// Identity, local address and owner. The socket of a connection has these fields, too.
    socket: FoundListener,
}

/// The kernel's answer to a query: the found socket, `None` if no socket matches, or an error.
struct Answer(io::Result<Option<Found>>);

impl Answer {
    /// Parses the answer to the request with number `sequence`. Returns `None` for an answer to
    /// another request, and for a truncated message.
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
        if kind != SOCK_DIAG_BY_FAMILY {
            return Some(Self(Ok(None)));
        }
        let mut addr = [0; 16];
        addr.copy_from_slice(&message[8..24]);
        if i32::from(family) == libc::AF_INET {
            let [a, b, c, d, ..] = addr;
            addr = Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets();
        }
        let socket = FoundListener {
            cookie: u64::from_ne_bytes(*message[44..].first_chunk()?),
            addr,
            uid: u32::from_ne_bytes(*message[64..].first_chunk()?),
        };
        Some(Self(Ok(Some(Found { state, socket }))))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        time::Duration,
    };

    use super::*;

    const LOCALHOST: [u8; 16] = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();

    #[test]
    fn a_lost_answer_is_an_error() {
        let mut lookup = Lookup::open().expect("a netlink socket");
        limit_wait(&lookup.socket, Duration::from_millis(1)).expect("a limit");
        // Without a request, no answer comes.
        let error = lookup.receive_found().expect_err("no answer");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = lookup.receive_part(&mut HashSet::new());
        assert_eq!(
            error.expect_err("no answer").kind(),
            io::ErrorKind::TimedOut
        );
    }

    #[test]
    fn a_listener_is_found_where_the_kernel_delivers() {
        let mut lookup = Lookup::open().expect("a netlink socket");
        lookup.self_test().expect("the kernel answers");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("a local address").port();
        let mut listener_at =
            |addr, port, ifindex| lookup.listener(addr, port, ifindex).expect("answer");
        let found = listener_at(LOCALHOST, port, LOOPBACK).expect("a listener");
        assert_eq!(found.cookie, sockopt::socket_cookie(&listener).unwrap());
        assert_eq!(found.addr, LOCALHOST);
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        let other = Ipv4Addr::new(127, 0, 0, 2).to_ipv6_mapped().octets();
        assert_eq!(listener_at(other, port, LOOPBACK), None);
        drop(listener);
        assert_eq!(listener_at(LOCALHOST, port, LOOPBACK), None);
    }

    #[test]
    fn a_wildcard_listener_is_found_unless_bound_to_another_interface() {
        let mut lookup = Lookup::open().expect("a netlink socket");
        lookup.self_test().expect("the kernel answers");
        let listener = TcpListener::bind("[::]:0").expect("a port");
        let port = listener.local_addr().expect("a local address").port();
        let cookie = sockopt::socket_cookie(&listener).unwrap();
        let mut listener_at = |addr, ifindex| lookup.listener(addr, port, ifindex).expect("answer");
        for addr in [LOCALHOST, Ipv6Addr::LOCALHOST.octets(), [0; 16]] {
            let found = listener_at(addr, LOOPBACK).expect("a listener");
            assert_eq!((found.cookie, found.addr), (cookie, [0; 16]));
        }
        if sys::bind_to_interface(listener.as_fd(), LOOPBACK).is_ok() {
            assert_eq!(listener_at(LOCALHOST, LOOPBACK + 1), None);
        }
    }

    #[test]
    fn connections_are_found_by_their_ends_and_by_their_port() {
        let mut lookup = Lookup::open().expect("a netlink socket");
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (listener, local) = listener_without_connections(&mut lookup, address);
            let port = local.port();
            let client = TcpStream::connect(local).expect("a connection");
            let peer = client.local_addr().expect("a local address");
            let ends = [local, peer].map(|end| (address_of(end), end.port()));
            assert!(lookup.has_connection(ends, LOOPBACK).expect("answer"));
            assert!(lookup.connected_ports().expect("answer").contains(&port));
            let other_port = [ends[0], (ends[1].0, 9)];
            assert!(!lookup.has_connection(other_port, LOOPBACK).expect("answer"));
            // The server closes first, so that the server's end of the connection is in TIME-WAIT.
            drop(listener.accept().expect("a pending connection"));
            drop((client, listener));
            // The kernel drops the connection if the namespace already has as many connections in
            // TIME-WAIT as its limit allows (net.ipv4.tcp_max_tw_buckets).
            let is_in_time_wait = lookup.has_connection(ends, LOOPBACK).expect("answer");
            let ports = lookup.connected_ports().expect("answer");
            assert_eq!(ports.contains(&port), is_in_time_wait);
        }
    }

    /// Returns a listener at `address` and its local address. No connection has the listener's
    /// port. The function tries several ports, because the kernel may assign a port that has a
    /// connection in TIME-WAIT.
    fn listener_without_connections(
        lookup: &mut Lookup,
        address: &str,
    ) -> (TcpListener, SocketAddr) {
        for _ in 0..20 {
            let listener = TcpListener::bind(address).expect("a port");
            let local = listener.local_addr().expect("a local address");
            let ports = lookup.connected_ports().expect("answer");
            if !ports.contains(&local.port()) {
                return (listener, local);
            }
        }
        panic!("each of 20 ports has a connection");
    }

    fn address_of(end: SocketAddr) -> [u8; 16] {
        match end.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        }
    }

    #[test]
    fn an_answer_to_another_request_is_ignored() {
        assert!(Answer::parse(&[], 1).is_none());
        let mut bytes = [0; HEADER_LEN + ANSWER_LEN];
        bytes[8] = 2;
        assert!(Answer::parse(&bytes, 1).is_none());
        for len in 0..bytes.len() {
            let _ = Answer::parse(&bytes[..len], 2);
        }
    }
}
