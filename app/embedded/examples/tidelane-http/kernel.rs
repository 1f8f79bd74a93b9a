//! The HTTP server on the kernel's sockets, in an event loop of the crate mio (epoll).

use std::{
    io::{self, IoSlice, Read, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use foldhash::{HashMap, HashMapExt};
use mio::{
    Events, Interest, Poll, Registry, Token,
    net::{TcpListener, TcpStream},
};

use crate::http::{Server, Sockets};

/// Token of the listener. The tokens of connections start at 1.
const LISTENER: Token = Token(0);

/// The kernel's listener and connections.
struct Kernel {
    registry: Registry,
    listener: TcpListener,
    /// Connections by token. Each connection has a flag, which is true if no more data can arrive.
    streams: HashMap<Token, (TcpStream, bool)>,
    /// Token of the newest connection. Zero if there was no connection yet.
    last: usize,
}

impl Sockets for Kernel {
    type Connection = Token;

    fn accept(&mut self) -> Option<Token> {
        let (mut stream, _) = self.listener.accept().ok()?;
        self.last += 1;
        let token = Token(self.last);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry.register(&mut stream, token, interest).ok()?;
        self.streams.insert(token, (stream, false));
        Some(token)
    }

    fn read(&mut self, connection: Token, buffer: &mut [u8]) -> usize {
        let Some((stream, end)) = self.streams.get_mut(&connection) else {
            return 0;
        };
        match stream.read(buffer) {
            Ok(count) => {
                *end = count == 0;
                count
            }
            Err(error) => {
                *end = error.kind() != io::ErrorKind::WouldBlock;
                0
            }
        }
    }

    fn write(&mut self, connection: Token, parts: &[&[u8]]) -> usize {
        let Some((stream, end)) = self.streams.get_mut(&connection) else {
            return 0;
        };
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = &mut slices[..];
        let mut written = 0;
        // Remove the leading slices that are empty.
        IoSlice::advance_slices(&mut rest, 0);
        // mio is edge-triggered, so mio reports room only after a write has found no room.
        while !rest.is_empty() {
            match stream.write_vectored(rest) {
                Ok(count) => {
                    written += count;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // The connection has ended, and its data is lost.
                    *end = true;
                    return parts.iter().map(|part| part.len()).sum();
                }
            }
        }
        written
    }

    fn is_end(&mut self, connection: Token) -> bool {
        self.streams.get(&connection).is_none_or(|(_, end)| *end)
    }

    fn close(&mut self, connection: Token) {
        self.streams.remove(&connection);
    }
}

/// Serves at `address` for the time `limit`. Returns the number of responses.
pub fn serve(address: SocketAddr, limit: Duration) -> io::Result<u64> {
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(address)?;
    let registry = poll.registry().try_clone()?;
    registry.register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut server = Server::new(Kernel {
        registry,
        listener,
        streams: HashMap::new(),
        last: 0,
    });
    let mut events = Events::with_capacity(1024);
    println!("ready");
    let end = Instant::now() + limit;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let left = match server.has_more() {
            true => Duration::ZERO,
            false => left,
        };
        match poll.poll(&mut events, Some(left)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &events {
            match event.token() {
                LISTENER => server.accept(),
                connection => server.serve(connection),
            }
        }
        server.serve_more();
    }
    Ok(server.responses)
}
