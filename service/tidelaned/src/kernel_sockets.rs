//! Sockets that are not accelerated (the kernel handles them) although their programs use the
//! Tidelane service. The command `tidelane ss` lists these sockets. The addresses and states of the
//! sockets come from the tables `/proc/net/tcp` and `/proc/net/tcp6`.
//!
//! For each read of a table, the kernel walks through the sockets of all network namespaces. A
//! listing therefore reads each table at most once, and only if a program has a socket in the
//! table's namespace.

use std::{
    collections::HashMap,
    fs,
    net::{Ipv4Addr, Ipv6Addr},
};

use crate::netns::NetNs;

/// Number of namespaces whose tables one listing reads without restriction. Once the tables of more
/// than this number of namespaces have been read, no further tables are read, except for the tables
/// of the service's own namespace. Sockets of a namespace whose tables were not read are not shown.
const NAMESPACES_MAX: usize = 16;

/// Name of the state of a listener.
const LISTEN: &str = "LISTEN";

/// A socket in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcNetSocket {
    /// State of the socket, in the spelling of RFC 9293.
    pub state: &'static str,
    /// Local address and port.
    pub local: String,
    /// Peer's address and port.
    pub peer: String,
    /// Number of received bytes that the program has not read yet. For a listener, the number of
    /// connections in the accept queue.
    pub recv_q: u32,
    /// Number of bytes that the program has sent and the peer has not acknowledged.
    pub send_q: u32,
}

impl ProcNetSocket {
    /// Returns true if the socket listens.
    pub fn is_listener(&self) -> bool {
        self.state == LISTEN
    }

    /// Returns true if this listener may have accepted `connection`: the local ports are equal, and
    /// the local addresses are equal or the listener's address is a wildcard.
    fn has(&self, connection: &Self) -> bool {
        let (Some((addr, port)), Some((at, of_port))) = (
            self.local.rsplit_once(':'),
            connection.local.rsplit_once(':'),
        ) else {
            return false;
        };
        let is_wildcard = matches!(addr, "0.0.0.0" | "[::]");
        !connection.is_listener() && port == of_port && (is_wildcard || addr == at)
    }
}

/// The sockets of a namespace, by inode.
type Table = HashMap<u64, ProcNetSocket>;

/// The kernel's socket tables for one listing. A namespace's table is read when the first socket of
/// the namespace is looked up.
#[derive(Debug)]
pub struct SocketTables<R> {
    /// The service's network namespace.
    own: Option<NetNs>,
    /// Reads the tables that a process sees. The argument is the process id.
    read: R,
    /// The tables that were read.
    tables: HashMap<NetNs, Table>,
}

/// Returns the text of the tables that process `pid` sees. If `pid` is zero, returns the text of
/// the tables that the service sees.
///
/// Zero stands for a process of another PID namespace. The service's tables contain the sockets of
/// this process only if the process is in the service's network namespace.
pub fn tables_of_process(pid: u32) -> String {
    let process = match pid {
        0 => "self".to_owned(),
        pid => pid.to_string(),
    };
    let table = |name| fs::read_to_string(format!("/proc/{process}/net/{name}"));
    ["tcp", "tcp6"]
        .map(|name| table(name).unwrap_or_default())
        .concat()
}

impl<R: FnMut(u32) -> String> SocketTables<R> {
    /// Makes an empty set of tables. `own` is the namespace of the service.
    pub fn new(own: Option<NetNs>, read: R) -> Self {
        Self {
            own,
            read,
            tables: HashMap::new(),
        }
    }

    /// Returns the socket with this inode in `namespace`, which must be the namespace of process
    /// `pid`. Returns `None` if the table of `namespace` lacks the socket, or if the table was not
    /// read because of `NAMESPACES_MAX`.
    pub fn find(&mut self, namespace: NetNs, pid: u32, inode: u64) -> Option<&ProcNetSocket> {
        let known = self.tables.contains_key(&namespace);
        if !known && self.tables.len() > NAMESPACES_MAX && self.own != Some(namespace) {
            return None;
        }
        let read = &mut self.read;
        let table = self.tables.entry(namespace).or_insert_with(|| {
            let text = read(pid);
            let sockets = text.lines().filter_map(parse_line);
            // A connection without a process, as in TIME-WAIT, has the inode 0.
            sockets.filter(|(inode, _)| *inode != 0).collect()
        });
        table.get(&inode)
    }

    /// Returns the connections that `listener` may have accepted, with their inodes. An earlier
    /// call of [`find`](Self::find) has found `listener` in `namespace`. The result lacks
    /// connections without a process, whose inode is 0.
    pub fn connections_of(
        &self,
        namespace: NetNs,
        listener: &ProcNetSocket,
    ) -> Vec<(u64, ProcNetSocket)> {
        let table = self.tables.get(&namespace).into_iter().flatten();
        let of_it = table.filter(|(_, socket)| listener.has(socket));
        of_it
            .map(|(inode, socket)| (*inode, socket.clone()))
            .collect()
    }
}

/// Parses a line of a table. Returns the socket with its inode. Returns `None` for a heading or a
/// malformed line.
fn parse_line(line: &str) -> Option<(u64, ProcNetSocket)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (send_q, recv_q) = fields.get(4)?.split_once(':')?;
    let socket = ProcNetSocket {
        local: parse_end(fields.get(1)?)?,
        peer: parse_end(fields.get(2)?)?,
        state: state_of(fields.get(3)?),
        recv_q: u32::from_str_radix(recv_q, 16).ok()?,
        send_q: u32::from_str_radix(send_q, 16).ok()?,
    };
    Some((fields.get(9)?.parse().ok()?, socket))
}

/// Parses `ADDRESS:PORT` in hexadecimal. The address consists of one or four 32-bit words in the
/// byte order of the CPU.
fn parse_end(text: &str) -> Option<String> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words = (0..address.len()).step_by(8);
    let bytes = words.map(|at| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    });
    let bytes = bytes.collect::<Option<Vec<_>>>()?.concat();
    if let Ok(v4) = <[u8; 4]>::try_from(&bytes[..]) {
        return Some(format!("{}:{port}", Ipv4Addr::from(v4)));
    }
    let v6 = <[u8; 16]>::try_from(&bytes[..]).ok()?;
    Some(format!("[{}]:{port}", Ipv6Addr::from(v6)))
}

fn state_of(code: &str) -> &'static str {
    match code {
        "01" => "ESTABLISHED",
        "02" => "SYN-SENT",
        "03" => "SYN-RECEIVED",
        "04" => "FIN-WAIT-1",
        "05" => "FIN-WAIT-2",
        "06" => "TIME-WAIT",
        "07" => "CLOSED",
        "08" => "CLOSE-WAIT",
        "09" => "LAST-ACK",
        "0A" => LISTEN,
        "0B" => "CLOSING",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
    };

    use rustix::fs::fstat;

    use super::*;

    /// Finds a listener and a connection of this process in the kernel's tables.
    #[test]
    fn sockets_are_found_by_their_inodes() {
        let own = NetNs::current().expect("a namespace");
        let mut tables = SocketTables::new(Some(own), tables_of_process);
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "no loopback");
                continue;
            };
            let end = listener.local_addr().expect("a bound socket");
            let client = TcpStream::connect(end).expect("a listener");
            tables.tables.clear();
            let mut found = |socket: &dyn AsFd| {
                let inode = fstat(socket.as_fd()).expect("a socket").st_ino;
                tables.find(own, 0, inode).cloned().expect("in the table")
            };
            let (listening, connected) = (found(&listener), found(&client));
            assert_eq!(
                (listening.state, connected.state),
                ("LISTEN", "ESTABLISHED")
            );
            assert_eq!(listening.local, end.to_string());
            assert_eq!(connected.peer, end.to_string());
            let accepted = tables.connections_of(own, &listening);
            let peers: Vec<&str> = accepted.iter().map(|(_, s)| &s.peer[..]).collect();
            assert!(peers.is_empty(), "found before `accept`: {peers:?}");
            let _accepted = listener.accept().expect("the client");
            tables.tables.clear();
            assert_eq!(tables.find(own, 0, 0), None);
            let accepted = tables.connections_of(own, &listening);
            let peers: Vec<&str> = accepted.iter().map(|(_, s)| &s.peer[..]).collect();
            assert_eq!(peers, [connected.local]);
        }
    }

    /// The table of a namespace is read once, although many programs have sockets in the namespace.
    #[test]
    fn a_table_is_read_once_for_a_listing() {
        let own = NetNs::current().expect("a namespace");
        let mut reads = 0;
        let mut tables = SocketTables::new(Some(own), |_| {
            reads += 1;
            String::new()
        });
        for program in 0..1000 {
            assert_eq!(tables.find(own, program, 1), None);
        }
        drop(tables);
        assert_eq!(reads, 1);
    }
}
