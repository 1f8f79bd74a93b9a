//! [`Server`]: an HTTP server on a context of the ring API (the sockets of one thread). One cycle
//! receives requests of all connections, and queues the answers.

use std::{collections::VecDeque, io};

use tidelane_rings::{Buffer, Context, Descriptor, Events, ReadyList, SendRefusal, Wait};

/// Longest request head in bytes.
const REQUEST_LEN_MAX: usize = 8192;
/// Longest body in bytes.
const BODY_LEN_MAX: usize = 1 << 20;
/// Limit of the unsent answers of one client. The server closes the connection of a client with
/// more.
const ANSWERS_MAX: usize = 64;

/// Counts of a server, for the answer to `GET /counters`.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Answered requests.
    requests: u64,
    /// Cycles with at least one ready descriptor.
    cycles: u64,
    /// Sum of the ready descriptors over all cycles.
    ready: u64,
    /// Sum of the squares of the ready descriptors over all cycles.
    ready_squares: u64,
}

impl Counts {
    fn add_cycle(&mut self, ready: usize) {
        let ready = ready as u64;
        self.cycles += u64::from(ready > 0);
        self.ready += ready;
        self.ready_squares += ready * ready;
    }

    /// Returns the counts as one line of JSON.
    fn report(&self, context: &dyn Context) -> String {
        let (mean, deviation) = self.ready_per_cycle();
        format!(
            "{{\"requests\": {}, \"system_calls\": {}, \"ready_mean\": {mean:.3}, \
             \"ready_deviation\": {deviation:.3}}}",
            self.requests,
            context.system_calls(),
        )
    }

    /// Returns the mean and the standard deviation of the ready descriptors per cycle, over the
    /// cycles with at least one ready descriptor.
    fn ready_per_cycle(&self) -> (f64, f64) {
        let cycles = self.cycles.max(1) as f64;
        let mean = self.ready as f64 / cycles;
        let variance = self.ready_squares as f64 / cycles - mean * mean;
        (mean, variance.max(0.0).sqrt())
    }
}

/// An answer with bytes that are not yet in a buffer.
#[derive(Debug)]
struct Answer {
    /// The head in bytes. In the answer to `GET /counters`, the body follows the head.
    head: Vec<u8>,
    /// Length in bytes of the body, which is a prefix of the server's pattern.
    body_len: usize,
    /// Number of bytes of head and body that are in buffers.
    done: usize,
}

impl Answer {
    /// Returns the answer to `GET /counters`.
    fn of_report(report: &str) -> Self {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{report}",
            report.len()
        );
        Self {
            head: head.into_bytes(),
            body_len: 0,
            done: 0,
        }
    }

    /// Returns the answer to a request head.
    fn to(request: &str) -> Self {
        let path = request.strip_prefix("GET /").unwrap_or("x");
        let len = path.split([' ', '?']).next().unwrap_or_default();
        let len: Option<usize> = len.parse().ok().filter(|len| *len <= BODY_LEN_MAX);
        let connection = match is_last(request) {
            true => "Connection: close\r\n",
            false => "",
        };
        let status = match len {
            Some(_) => "200 OK",
            None => "404 Not Found",
        };
        let body_len = len.unwrap_or(0);
        Self {
            head: format!("HTTP/1.1 {status}\r\nContent-Length: {body_len}\r\n{connection}\r\n")
                .into_bytes(),
            body_len,
            done: 0,
        }
    }

    /// Appends bytes to `buffer` until it is full. Returns true if no byte of the answer remains.
    fn fill(&mut self, buffer: &mut Buffer, pattern: &[u8]) -> bool {
        if let Some(head) = self.head.get(self.done..).filter(|head| !head.is_empty()) {
            let count = buffer.append(head);
            self.done += count;
            if self.done < self.head.len() {
                return false;
            }
        }
        let body = &pattern[self.done - self.head.len()..self.body_len];
        let count = buffer.append(body);
        self.done += count;
        count == body.len()
    }
}

/// State of a client: the start of an incomplete request, and the unsent answers.
#[derive(Debug, Default)]
struct Client {
    request: Vec<u8>,
    /// Answers with bytes that are not yet in a buffer.
    answers: VecDeque<Answer>,
    /// A buffer that the context has refused. The server sends this buffer before the answers.
    refused: Option<Buffer>,
    closes: bool,
}

/// An HTTP server, with its clients and its counts.
#[derive(Debug)]
pub struct Server {
    /// Clients by descriptor.
    clients: Vec<Option<Client>>,
    /// Clients with unsent answers.
    waiting: Vec<Descriptor>,
    list: ReadyList,
    /// Content of the longest body. Each body is a prefix of this content.
    pattern: Vec<u8>,
    counts: Counts,
}

impl Server {
    pub fn new() -> Self {
        Self {
            clients: Vec::new(),
            waiting: Vec::new(),
            list: ReadyList::new(),
            pattern: (0..BODY_LEN_MAX).map(|at| b'a' + (at % 26) as u8).collect(),
            counts: Counts::default(),
        }
    }

    /// Returns the counts as one line of JSON.
    pub fn report(&self, context: &dyn Context) -> String {
        self.counts.report(context)
    }

    /// Waits for requests, and queues an answer to each.
    pub fn cycle(&mut self, context: &mut dyn Context, wait: Wait) -> io::Result<()> {
        context.sync(&mut self.list, wait)?;
        self.counts.add_cycle(self.list.len());
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
        let place = entry.descriptor.0 as usize;
        if place >= self.clients.len() {
            self.clients.resize_with(place + 1, || None);
        }
        let counts = self.counts;
        let report = || counts.report(context);
        let mut client = self.clients[place].take().unwrap_or_default();
        while let Some(buffer) = list.take_next(at) {
            match client.request.is_empty() && is_whole(buffer.payload()) {
                // Avoid a copy: a request usually arrives as one segment in one buffer.
                true => client.answer(buffer.payload(), report),
                false => client.request.extend_from_slice(buffer.payload()),
            }
        }
        while let Some(end) = end_of_head(&client.request) {
            let rest = client.request.split_off(end);
            let request = std::mem::replace(&mut client.request, rest);
            client.answer(&request, report);
        }
        // A client that has sent its FIN still receives the answers.
        client.closes |= entry.events.intersects(Events::END);
        let is_over = entry.events.intersects(Events::CLOSED);
        if is_over || client.request.len() > REQUEST_LEN_MAX || client.answers.len() > ANSWERS_MAX {
            return context.close(entry.descriptor);
        }
        self.clients[place] = Some(client);
        self.send_answers(context, entry.descriptor);
    }

    /// Sends answers until the context refuses a buffer or none is left.
    fn send_answers(&mut self, context: &mut dyn Context, descriptor: Descriptor) {
        let place = descriptor.0 as usize;
        let Some(client) = self.clients.get_mut(place).and_then(Option::as_mut) else {
            return;
        };
        let requests = &mut self.counts.requests;
        let pattern = &self.pattern;
        while let Some(buffer) = client.next_buffer(context, descriptor, pattern, requests) {
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
            self.clients[place] = None;
            context.close(descriptor);
        }
    }
}

impl Client {
    /// Adds the answer to a request. `report` returns the answer to `GET /counters`.
    fn answer(&mut self, request: &[u8], report: impl Fn() -> String) {
        let text = std::str::from_utf8(request).unwrap_or_default();
        self.closes |= is_last(text);
        self.answers
            .push_back(match text.starts_with("GET /counters ") {
                true => Answer::of_report(&report()),
                false => Answer::to(text),
            });
    }

    /// Returns the next buffer to send: the refused buffer, or a new buffer with bytes of the
    /// answers. Adds the number of answers that end in the buffer to `done`.
    fn next_buffer(
        &mut self,
        context: &mut dyn Context,
        descriptor: Descriptor,
        pattern: &[u8],
        done: &mut u64,
    ) -> Option<Buffer> {
        if let Some(refused) = self.refused.take() {
            return Some(refused);
        }
        self.answers.front()?;
        let mut buffer = context.allocate(descriptor)?;
        while let Some(answer) = self.answers.front_mut() {
            if !answer.fill(&mut buffer, pattern) {
                break;
            }
            self.answers.pop_front();
            *done += 1;
        }
        Some(buffer)
    }
}

/// Returns true if the request has the header `Connection: close`.
fn is_last(request: &str) -> bool {
    request.contains("Connection: close")
}

/// Returns true if `data` is exactly one request head.
fn is_whole(data: &[u8]) -> bool {
    end_of_head(data) == Some(data.len())
}

/// Returns the offset at which the first request head in `data` ends.
fn end_of_head(data: &[u8]) -> Option<usize> {
    let found = data.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some(found + 4)
}
