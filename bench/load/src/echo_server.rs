//! A TCP echo server with one thread and level-triggered epoll.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use clap::Args;

use crate::sys::{self, Epoll, Fd, READABLE, Readiness, WRITABLE};

/// Largest number of bytes per call of `recv`.
const READ_MAX: usize = 64 * 1024;
/// Number of pending bytes of a connection (received and not yet sent back) at which the server
/// stops reading from the connection.
const PENDING_MAX: usize = 256 * 1024;
/// Largest number of descriptors that one `epoll_wait` reports.
const EVENTS_MAX: usize = 512;
/// Backlog of the listener.
const BACKLOG: i32 = 4096;
/// Token of the listener in the epoll instance. The token of a connection is its index.
const LISTENER: u64 = u64::MAX;

/// Options of `echo-server`.
#[derive(Args, Debug)]
pub struct Options {
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0")]
    address: IpAddr,
    /// Port to listen on.
    #[arg(long)]
    port: u16,
    /// Length of one request in bytes. Used only with --requests.
    #[arg(long, default_value_t = 64)]
    bytes: u64,
    /// Close each connection after this many requests (0: the client closes the connection).
    #[arg(long, default_value_t = 0)]
    requests: u64,
}

/// An accepted connection.
struct Connection {
    fd: Fd,
    /// Bytes that were received and not written back yet.
    pending: VecDeque<u8>,
    /// Number of bytes to receive before the server closes. `u64::MAX` if the client closes.
    left: u64,
    /// Events that the epoll instance reports for this connection.
    watched: u32,
    /// True after the peer's FIN.
    ended: bool,
}

/// The server: its listener and its connections.
struct Server {
    epoll: Epoll,
    listener: Fd,
    /// Connections by token. `None` marks a free token.
    connections: Vec<Option<Connection>>,
    /// The free tokens.
    free: Vec<usize>,
    /// Initial value of [`Connection::left`].
    left_at_start: u64,
    buffer: Vec<u8>,
}

/// Runs the server until the process is killed.
pub fn run(options: &Options) -> io::Result<()> {
    let listener = sys::listen(SocketAddr::new(options.address, options.port), BACKLOG)?;
    let epoll = Epoll::new(EVENTS_MAX)?;
    epoll.add(&listener, READABLE, LISTENER)?;
    let left_at_start = match options.requests {
        0 => u64::MAX,
        requests => requests * options.bytes,
    };
    println!("listening on {}:{}", options.address, options.port);
    let mut server = Server {
        epoll,
        listener,
        connections: Vec::new(),
        free: Vec::new(),
        left_at_start,
        buffer: vec![0; READ_MAX],
    };
    let mut ready = Vec::with_capacity(EVENTS_MAX);
    loop {
        server.epoll.wait(Duration::from_secs(10), &mut ready)?;
        for event in &ready {
            if event.token == LISTENER {
                server.accept_all()?;
            } else {
                server.serve(event);
            }
        }
    }
}

impl Server {
    fn accept_all(&mut self) -> io::Result<()> {
        while let Some(fd) = sys::accept(&self.listener)? {
            // The option may fail if the peer has already reset the connection. The first read
            // reports this error.
            let _ = sys::set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
            let index = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            self.epoll.add(&fd, READABLE, index as u64)?;
            self.connections[index] = Some(Connection {
                fd,
                pending: VecDeque::new(),
                left: self.left_at_start,
                watched: READABLE,
                ended: false,
            });
        }
        Ok(())
    }

    fn serve(&mut self, event: &Readiness) {
        let index = event.token as usize;
        let Some(connection) = self.connections[index].as_mut() else {
            return;
        };
        let alive = connection.serve(event, &mut self.buffer).unwrap_or(false)
            && connection.watch(&self.epoll, event.token).is_ok();
        if !alive {
            self.connections[index] = None;
            self.free.push(index);
        }
    }
}

impl Connection {
    /// Handles an event: writes pending bytes, reads at most once, and writes the received bytes
    /// back. Returns true if the connection is still in use.
    fn serve(&mut self, event: &Readiness, buffer: &mut [u8]) -> io::Result<bool> {
        if event.writable() && !self.pending.is_empty() {
            self.flush()?;
        }
        if event.readable() && !self.ended && self.pending.len() < PENDING_MAX {
            match sys::recv(&self.fd, buffer) {
                Ok(0) => self.ended = true,
                Ok(len) => self.echo(&buffer[..len])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(!(self.pending.is_empty() && (self.ended || self.left == 0)))
    }

    /// Writes received bytes back. Bytes that the socket does not accept become pending.
    fn echo(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut taken = 0;
        if self.pending.is_empty() {
            taken = match sys::send(&self.fd, bytes) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error),
            };
        }
        self.pending.extend(&bytes[taken..]);
        if self.left != u64::MAX {
            self.left = self.left.saturating_sub(bytes.len() as u64);
        }
        Ok(())
    }

    /// Writes pending bytes until the socket is full.
    fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            let (front, _) = self.pending.as_slices();
            match sys::send(&self.fd, front) {
                Ok(len) => drop(self.pending.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Watches the socket for the events that the connection can handle.
    fn watch(&mut self, epoll: &Epoll, token: u64) -> io::Result<()> {
        let mut wanted = 0;
        if !self.ended && self.pending.len() < PENDING_MAX {
            wanted |= READABLE;
        }
        if !self.pending.is_empty() {
            wanted |= WRITABLE;
        }
        if wanted != self.watched {
            self.watched = wanted;
            epoll.modify(&self.fd, wanted, token)?;
        }
        Ok(())
    }
}
