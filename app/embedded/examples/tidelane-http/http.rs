//! The paper's HTTP server: a GET of `/N` gets N bytes.

use std::collections::HashMap;

use tidelane_embedded::{Connection, Event, Listener, PacketIo, Stack};

/// Longest request in bytes. A longer request ends its connection.
const REQUEST_LEN_MAX: usize = 8192;
/// Largest body in bytes.
const BODY_LEN_MAX: usize = 64 << 20;

/// A client of the server.
#[derive(Default)]
struct Client {
    /// Bytes of requests that are not complete.
    request: Vec<u8>,
    /// Bytes of responses that the stack has not taken.
    response: Vec<u8>,
    /// True if the connection ends after the response.
    closes: bool,
}

/// The server and its clients.
pub struct Server {
    listener: Listener,
    clients: HashMap<Connection, Client>,
    /// Number of responses.
    pub responses: u64,
}

impl Server {
    /// Makes a server for the connections of `listener`.
    pub fn new(listener: Listener) -> Self {
        Self {
            listener,
            clients: HashMap::new(),
            responses: 0,
        }
    }

    /// Handles an event of the stack.
    pub fn handle<P: PacketIo>(&mut self, stack: &mut Stack<P>, event: Event) {
        match event {
            Event::Incoming(_) => {
                while let Some(connection) = stack.accept(self.listener) {
                    self.clients.insert(connection, Client::default());
                    self.serve(stack, connection);
                }
            }
            Event::Readable(connection) | Event::Writable(connection) => {
                self.serve(stack, connection);
            }
            Event::Closed(connection, _) => self.close(stack, connection),
            Event::Connected(_) => {}
        }
    }

    fn close<P: PacketIo>(&mut self, stack: &mut Stack<P>, connection: Connection) {
        self.clients.remove(&connection);
        stack.close(connection);
    }

    /// Reads requests and writes responses as far as possible.
    fn serve<P: PacketIo>(&mut self, stack: &mut Stack<P>, connection: Connection) {
        let Some(client) = self.clients.get_mut(&connection) else {
            return;
        };
        let received = stack.received(connection);
        let len = received[0].len() + received[1].len();
        client.request.extend_from_slice(received[0]);
        client.request.extend_from_slice(received[1]);
        stack.consume(connection, len);
        while !client.closes && client.response.is_empty() && client.answer() {
            self.responses += 1;
        }
        let written = stack.write(connection, &client.response);
        client.response.drain(..written);
        let bad = client.request.len() > REQUEST_LEN_MAX;
        let over = client.closes && client.response.is_empty();
        if bad || over || stack.is_end(connection) {
            self.close(stack, connection);
        }
    }
}

impl Client {
    /// Answers the first complete request. Returns false if there is none.
    fn answer(&mut self) -> bool {
        let end = self.request.windows(4).position(|end| end == b"\r\n\r\n");
        let Some(end) = end else {
            return false;
        };
        let head: Vec<u8> = self.request.drain(..end + 4).collect();
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let path = head
            .strip_prefix("get /")
            .and_then(|rest| rest.split(' ').next());
        let len = path.and_then(|path| path.parse().ok());
        let len: Option<usize> = len.filter(|len| *len <= BODY_LEN_MAX);
        self.closes = head.contains("\r\nconnection: close\r\n") || len.is_none();
        let status = if len.is_some() {
            "200 OK"
        } else {
            "400 Bad Request"
        };
        let (len, mode) = (
            len.unwrap_or(0),
            if self.closes { "close" } else { "keep-alive" },
        );
        let header =
            format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: {mode}\r\n\r\n");
        self.response.extend_from_slice(header.as_bytes());
        self.response
            .extend((0..len).map(|at| b'a' + (at % 26) as u8));
        true
    }
}
