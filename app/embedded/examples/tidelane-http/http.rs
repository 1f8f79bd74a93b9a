//! The HTTP server of the MultiStack paper ("Rekindling Network Protocol Innovation with User-Level
//! Stacks", 2014). The body of the response to a GET of `/N` has N bytes. The server uses the trait
//! [`Sockets`], which the embedded stack and the kernel's sockets implement.

use std::{hash::Hash, ops::Range};

use foldhash::{HashMap, HashMapExt};
use memchr::memchr_iter;

use crate::alphabet::PAGE;

/// Limit in bytes of a client's unanswered requests. If a client exceeds the limit, the server
/// closes the client's connection.
const REQUEST_LEN_MAX: usize = 8192;
/// Largest body in bytes.
const BODY_LEN_MAX: usize = 64 << 20;
/// Largest number of rounds in which the server serves one connection before it serves other
/// connections. In a round, the server reads until no data remains or more than [`REQUEST_LEN_MAX`]
/// bytes are unanswered, and writes responses.
const ROUNDS_MAX: usize = 16;
/// Largest number of copies of the [`PAGE`] that one write writes.
const PAGES_MAX: usize = 8;
/// Number of bytes that one read may return.
const READ_LEN: usize = 16 << 10;

/// The calls that the server makes for its connections. No call blocks.
pub trait Sockets {
    type Connection: Copy + Eq + Hash;

    /// Accepts the next connection. Returns `None` if the accept queue is empty.
    fn accept(&mut self) -> Option<Self::Connection>;

    /// Reads received data. Returns the number of bytes, or zero if there is no data.
    fn read(&mut self, connection: Self::Connection, buffer: &mut [u8]) -> usize;

    /// Writes as much of `parts`, one after another, as the send buffer has room for. Returns the
    /// number of written bytes.
    fn write(&mut self, connection: Self::Connection, parts: &[&[u8]]) -> usize;

    /// Returns true if no more data can be read: the program has read all data, and the peer has
    /// sent a FIN or the connection has ended.
    fn is_end(&mut self, connection: Self::Connection) -> bool;

    /// Closes a connection. The peer gets the written data and a FIN, or a RST if received data is
    /// unread.
    fn close(&mut self, connection: Self::Connection);
}

/// State of a client's connection.
#[derive(Default)]
struct Client {
    /// Bytes of unanswered requests. The last request may be incomplete.
    request: Vec<u8>,
    /// The part of the response that the send buffer has not accepted.
    response: Response,
    /// True if the server closes the connection after the response in `response`.
    closes: bool,
}

/// A response, or its unsent part.
#[derive(Default)]
struct Response {
    /// Unsent bytes of the head.
    head: Vec<u8>,
    /// Unsent part of the body, as positions in the body. A body repeats the [`PAGE`].
    body: Range<usize>,
}

/// The server and its clients.
pub struct Server<S: Sockets> {
    /// The connections, and the listener.
    pub sockets: S,
    clients: HashMap<S::Connection, Client>,
    /// Connections that may have unread requests.
    more: Vec<S::Connection>,
    /// Buffer into which each read copies received data.
    read_buffer: Box<[u8]>,
    /// Client without a connection. The next client that has requests and responses reuses the
    /// memory of the two empty vectors.
    spare: Client,
    /// Number of answered requests. The final bytes of some answers may still be unsent.
    pub responses: u64,
}

impl<S: Sockets> Server<S> {
    /// Creates a server for the connections that `sockets` accepts.
    pub fn new(sockets: S) -> Self {
        Self {
            sockets,
            clients: HashMap::new(),
            more: Vec::new(),
            read_buffer: vec![0; READ_LEN].into_boxed_slice(),
            spare: Client::default(),
            responses: 0,
        }
    }

    /// Accepts and serves all connections in the accept queue.
    pub fn accept(&mut self) {
        while let Some(connection) = self.sockets.accept() {
            self.clients.insert(connection, Client::default());
            self.serve(connection);
        }
    }

    pub fn close(&mut self, connection: S::Connection) {
        self.clients.remove(&connection);
        self.sockets.close(connection);
    }

    /// Reads requests and writes responses until the calls would block, in at most [`ROUNDS_MAX`]
    /// rounds. If requests may still be unread after these rounds, [`serve_more`](Self::serve_more)
    /// continues. Closes the connection after its last response, or if the unanswered requests are
    /// too long.
    pub fn serve(&mut self, connection: S::Connection) {
        for _ in 0..ROUNDS_MAX {
            if !self.serve_some(connection) {
                return;
            }
        }
        self.more.push(connection);
    }

    /// Returns true if [`serve_more`](Self::serve_more) has connections to serve.
    pub fn has_more(&self) -> bool {
        !self.more.is_empty()
    }

    /// Serves the connections that may have unread requests, because the server stopped reading
    /// after [`ROUNDS_MAX`] rounds.
    pub fn serve_more(&mut self) {
        for connection in std::mem::take(&mut self.more) {
            self.serve(connection);
        }
    }

    /// Reads requests until the read would block, or until more than [`REQUEST_LEN_MAX`] bytes are
    /// unanswered. Writes responses until the write would block or no complete request remains.
    /// Returns true if more requests may be readable.
    fn serve_some(&mut self, connection: S::Connection) -> bool {
        let Some(client) = self.clients.get_mut(&connection) else {
            return false;
        };
        client.take_memory(&mut self.spare);
        let mut has_more = true;
        while client.request.len() <= REQUEST_LEN_MAX {
            let count = self.sockets.read(connection, &mut self.read_buffer);
            client.request.extend_from_slice(&self.read_buffer[..count]);
            has_more = count > 0;
            if !has_more {
                break;
            }
        }
        // Pipelined requests are answered in turn: the next response begins when the send buffer
        // has accepted the previous response.
        while client.response.send(&mut self.sockets, connection) {
            if client.closes || !client.answer() {
                break;
            }
            self.responses += 1;
        }
        let bad = client.request.len() > REQUEST_LEN_MAX;
        let over = client.response.is_empty() && (client.closes || self.sockets.is_end(connection));
        let is_blocked = !client.response.is_empty();
        client.give_memory(&mut self.spare);
        if bad || over {
            self.close(connection);
            return false;
        }
        has_more && !is_blocked
    }
}

impl Client {
    /// Takes the memory of `spare` for each empty vector.
    fn take_memory(&mut self, spare: &mut Self) {
        if self.request.is_empty() {
            self.request = std::mem::take(&mut spare.request);
        }
        if self.response.head.is_empty() {
            self.response.head = std::mem::take(&mut spare.response.head);
        }
    }

    /// Gives the memory of each empty vector to `spare`.
    fn give_memory(&mut self, spare: &mut Self) {
        if self.request.is_empty() {
            spare.request = std::mem::take(&mut self.request);
        }
        if self.response.head.is_empty() {
            spare.response.head = std::mem::take(&mut self.response.head);
        }
    }

    /// Answers the first complete request: sets the response, which must be empty before. Returns
    /// false if no request is complete.
    fn answer(&mut self) -> bool {
        let Some(head) = Head::parse(&self.request) else {
            return false;
        };
        self.request.drain(..head.len);
        self.closes = head.closes || head.body_len.is_none();
        let status = match head.body_len {
            Some(_) => "200 OK",
            None => "400 Bad Request",
        };
        let body_len = head.body_len.unwrap_or(0);
        let mode = if self.closes { "close" } else { "keep-alive" };
        for part in [
            "HTTP/1.1 ",
            status,
            "\r\nContent-Length: ",
            itoa::Buffer::new().format(body_len),
            "\r\nConnection: ",
            mode,
            "\r\n\r\n",
        ] {
            self.response.head.extend_from_slice(part.as_bytes());
        }
        self.response.body = 0..body_len;
        true
    }
}

impl Response {
    fn is_empty(&self) -> bool {
        self.head.is_empty() && self.body.is_empty()
    }

    /// Writes until the send buffer has no room or nothing remains. Returns true if nothing
    /// remains.
    fn send<S: Sockets>(&mut self, sockets: &mut S, connection: S::Connection) -> bool {
        while !self.is_empty() {
            let mut parts = [&[][..]; 1 + PAGES_MAX];
            parts[0] = &self.head;
            let mut end = self.body.start;
            for part in &mut parts[1..] {
                let from = &PAGE[end % PAGE.len()..];
                *part = &from[..from.len().min(self.body.end - end)];
                end += part.len();
            }
            let len = self.head.len() + (end - self.body.start);
            let written = sockets.write(connection, &parts);
            let of_head = written.min(self.head.len());
            self.head.drain(..of_head);
            self.body.start += written - of_head;
            if written < len {
                return false;
            }
        }
        true
    }
}

/// The head of a request.
struct Head {
    /// Length of the head in bytes, with the empty line at its end.
    len: usize,
    /// Length of the requested body in bytes. `None` if the request is not a GET of `/N`, where N
    /// is at most [`BODY_LEN_MAX`].
    body_len: Option<usize>,
    /// True if the request has the header `Connection: close`.
    closes: bool,
}

impl Head {
    /// Parses the head at the start of `data`. Returns `None` if the head is incomplete.
    fn parse(data: &[u8]) -> Option<Self> {
        let mut head = Self {
            len: 0,
            body_len: None,
            closes: false,
        };
        for line_end in memchr_iter(b'\n', data) {
            let line = &data[head.len..line_end];
            if head.len == 0 {
                head.body_len = requested_len(line);
            }
            head.len = line_end + 1;
            match line {
                b"\r" => return Some(head),
                _ => head.closes |= line.eq_ignore_ascii_case(b"connection: close\r"),
            }
        }
        None
    }
}

/// Returns the length of the body that a request line requests, in bytes. Returns `None` if the
/// line does not request `/N` by GET, where N is at most [`BODY_LEN_MAX`].
fn requested_len(line: &[u8]) -> Option<usize> {
    let path = line
        .strip_prefix(b"GET /")?
        .split(|byte| *byte == b' ')
        .next()?;
    let len = std::str::from_utf8(path).ok()?.parse().ok()?;
    (len <= BODY_LEN_MAX).then_some(len)
}
