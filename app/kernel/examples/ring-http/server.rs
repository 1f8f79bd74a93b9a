//! The server: one cycle receives requests of all connections, and queues the answers.

use std::{
    collections::{HashMap, VecDeque},
    io,
    time::Duration,
};

use tidelane_rings::{Buffer, Context, Descriptor, Events, ReadyList, SendRefusal, Wait};

/// Longest request in bytes.
const REQUEST_LEN_MAX: usize = 8192;
/// Longest body in bytes.
const BODY_LEN_MAX: usize = 1 << 20;
/// Limit of answers that wait for one client. The client of a longer queue is not read.
const ANSWERS_MAX: usize = 64;

/// Counts of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Answered requests.
    pub requests: u64,
    /// Cycles with at least one ready descriptor.
    pub cycles: u64,
    /// Ready descriptors over all cycles.
    pub ready: u64,
}

/// A client: the start of its next request, and the rest of its answers.
#[derive(Debug, Default)]
struct Client {
    request: Vec<u8>,
    /// Answers for which the pool or the descriptor had no room: their remaining bytes.
    answers: VecDeque<Vec<u8>>,
    /// A buffer that the context has refused.
    refused: Option<Buffer>,
    closes: bool,
}

/// An HTTP server.
#[derive(Debug, Default)]
pub struct Server {
    clients: HashMap<Descriptor, Client>,
    /// Clients with answers that wait.
    waiting: Vec<Descriptor>,
    list: ReadyList,
    report: Report,
}

impl Server {
    /// Returns the counts.
    pub fn report(&self) -> Report {
        self.report
    }

    /// Waits for requests at most for `limit`, and answers them.
    pub fn cycle(&mut self, context: &mut dyn Context, limit: Duration) -> io::Result<()> {
        context.sync(&mut self.list, Wait::For(limit))?;
        self.report.cycles += u64::from(!self.list.is_empty());
        self.report.ready += self.list.len() as u64;
        let mut list = std::mem::take(&mut self.list);
        for at in 0..list.len() {
            self.handle(context, &mut list, at);
        }
        self.list = list;
        for descriptor in std::mem::take(&mut self.waiting) {
            self.send_answers(context, descriptor);
        }
        Ok(())
    }

    fn handle(&mut self, context: &mut dyn Context, list: &mut ReadyList, at: usize) {
        let entry = list.entry(at);
        let client = self.clients.entry(entry.descriptor).or_default();
        while let Some(buffer) = list.take_next(at) {
            match client.request.is_empty() && is_whole(buffer.payload()) {
                // The usual request is one segment, and is not copied.
                true => client.answer(buffer.payload()),
                false => client.request.extend_from_slice(buffer.payload()),
            }
        }
        while let Some(end) = end_of_head(&client.request) {
            let rest = client.request.split_off(end);
            let request = std::mem::replace(&mut client.request, rest);
            client.answer(&request);
        }
        let is_over = entry.events.intersects(Events::END.union(Events::CLOSED));
        if is_over || client.request.len() > REQUEST_LEN_MAX || client.answers.len() > ANSWERS_MAX {
            self.clients.remove(&entry.descriptor);
            return context.close(entry.descriptor);
        }
        self.report.requests += self.send_answers(context, entry.descriptor);
    }

    /// Sends as many answers as there is room for. Returns the number of answers that are queued
    /// whole.
    fn send_answers(&mut self, context: &mut dyn Context, descriptor: Descriptor) -> u64 {
        let Some(client) = self.clients.get_mut(&descriptor) else {
            return 0;
        };
        let mut done = 0;
        while let Some(buffer) = client.next_buffer(context, &mut done) {
            if let Err(error) = context.send(descriptor, buffer) {
                if error.refusal == SendRefusal::Full {
                    client.refused = Some(error.buffer);
                }
                break;
            }
        }
        if client.refused.is_some() || !client.answers.is_empty() {
            self.waiting.push(descriptor);
        } else if client.closes {
            self.clients.remove(&descriptor);
            context.close(descriptor);
        }
        done
    }
}

impl Client {
    /// Adds the answer to a request.
    fn answer(&mut self, request: &[u8]) {
        let text = std::str::from_utf8(request).unwrap_or_default();
        let path = text.strip_prefix("GET /").unwrap_or("x");
        let len = path.split([' ', '?']).next().unwrap_or_default();
        let len: Option<usize> = len.parse().ok().filter(|len| *len <= BODY_LEN_MAX);
        self.closes |= text.contains("Connection: close");
        self.answers.push_back(match len {
            Some(len) => {
                let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
                answer.extend((0..len).map(|at| (b'a' + (at % 26) as u8) as char));
                answer.into_bytes()
            }
            None => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
        });
    }

    /// Returns the next buffer to send: the refused one, or one with bytes of the answers. Adds the
    /// answers that end in the buffer to `done`.
    fn next_buffer(&mut self, context: &dyn Context, done: &mut u64) -> Option<Buffer> {
        if let Some(refused) = self.refused.take() {
            return Some(refused);
        }
        self.answers.front()?;
        let mut buffer = context.pool().allocate()?;
        while let Some(answer) = self.answers.front_mut() {
            let count = buffer.append(answer);
            if count < answer.len() {
                answer.drain(..count);
                break;
            }
            self.answers.pop_front();
            *done += 1;
        }
        Some(buffer)
    }
}

/// Returns true if `data` is one whole request.
fn is_whole(data: &[u8]) -> bool {
    end_of_head(data) == Some(data.len())
}

/// Returns the end of the first head in `data`.
fn end_of_head(data: &[u8]) -> Option<usize> {
    let found = data.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some(found + 4)
}
