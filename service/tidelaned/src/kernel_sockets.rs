//! Sockets of programs that stayed with the kernel, as `/proc/net/tcp` and `tcp6` have them.
//!
//! The kernel walks through the sockets of all network namespaces to write such a table, so each
//! table is read once for a listing, and only if a program has something in it.

use std::{
    collections::HashMap,
    fs,
    net::{Ipv4Addr, Ipv6Addr},
};

use crate::netns::NetNs;

/// Namespaces whose tables are read for one listing, beside the service's own. Sockets of further
/// ones are not shown.
const NAMESPACES_MAX: usize = 16;

const LISTEN: &str = "LISTEN";

/// A socket of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSocket {
    /// Its state, in RFC 9293's spelling.
    pub state: &'static str,
    /// Local end.
    pub local: String,
    /// Peer.
    pub peer: String,
    /// Bytes received and not read.
    pub recv_q: u32,
    /// Bytes written and not acknowledged.
    pub send_q: u32,
}

impl KernelSocket {
    /// Returns true if it listens.
    pub fn is_listener(&self) -> bool {
        self.state == LISTEN
    }

    /// Returns true if a connection with this local end may have come to this listener.
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
type Table = HashMap<u64, KernelSocket>;

/// The tables of one listing.
#[derive(Debug)]
pub struct KernelTables<R> {
    own: Option<NetNs>,
    /// The text of the tables that a process sees.
    read: R,
    tables: HashMap<NetNs, Table>,
}

/// The text of the tables that process `pid` sees; the service's own for zero.
///
/// Zero is a process of another PID namespace. It is in the service's network namespace, or its
/// sockets are not found.
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

impl<R: FnMut(u32) -> String> KernelTables<R> {
    /// No table is read yet. `own` is the namespace of the service.
    pub fn new(own: Option<NetNs>, read: R) -> Self {
        Self {
            own,
            read,
            tables: HashMap::new(),
        }
    }

    /// The socket with this inode in `namespace`, where process `pid` is.
    pub fn find(&mut self, namespace: NetNs, pid: u32, inode: u64) -> Option<&KernelSocket> {
        let known = self.tables.contains_key(&namespace);
        if !known && self.tables.len() > NAMESPACES_MAX && self.own != Some(namespace) {
            return None;
        }
        let read = &mut self.read;
        let table = self.tables.entry(namespace).or_insert_with(|| {
            let text = read(pid);
            let sockets = text.lines().filter_map(parse_line);
            // A connection that no process has any more, as in TIME-WAIT, has the inode 0.
            sockets.filter(|(inode, _)| *inode != 0).collect()
        });
        table.get(&inode)
    }

    /// Connections that may have come to a listener, which was [found](Self::find) in `namespace`,
    /// with their inodes. One that no process has any more has none.
    pub fn connections_of(
        &self,
        namespace: NetNs,
        listener: &KernelSocket,
    ) -> Vec<(u64, KernelSocket)> {
        let table = self.tables.get(&namespace).into_iter().flatten();
        let of_it = table.filter(|(_, socket)| listener.has(socket));
        of_it
            .map(|(inode, socket)| (*inode, socket.clone()))
            .collect()
    }
}

/// One line of a table; none if it is a heading.
fn parse_line(line: &str) -> Option<(u64, KernelSocket)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (send_q, recv_q) = fields.get(4)?.split_once(':')?;
    let socket = KernelSocket {
        local: parse_end(fields.get(1)?)?,
        peer: parse_end(fields.get(2)?)?,
        state: state_of(fields.get(3)?),
        recv_q: u32::from_str_radix(recv_q, 16).ok()?,
        send_q: u32::from_str_radix(send_q, 16).ok()?,
    };
    Some((fields.get(9)?.parse().ok()?, socket))
}

/// Addresses are written as native words of 32 bits, in hexadecimal.
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

    /// The kernel's own tables, with a listener and a connection of this process.
    #[test]
    fn sockets_are_found_by_their_inodes() {
        let own = NetNs::current().expect("a namespace");
        let mut tables = KernelTables::new(Some(own), tables_of_process);
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
            assert!(peers.is_empty(), "no process has accepted one: {peers:?}");
            let _accepted = listener.accept().expect("the client");
            tables.tables.clear();
            assert_eq!(tables.find(own, 0, 0), None);
            let accepted = tables.connections_of(own, &listening);
            let peers: Vec<&str> = accepted.iter().map(|(_, s)| &s.peer[..]).collect();
            assert_eq!(peers, [connected.local]);
        }
    }

    /// However many programs there are, a table is read once.
    #[test]
    fn a_table_is_read_once_for_a_listing() {
        let own = NetNs::current().expect("a namespace");
        let mut reads = 0;
        let mut tables = KernelTables::new(Some(own), |_| {
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
