//! [`Server`]: an HTTP server on the ring API (`tidelane-rings`). A context of this API has the
//! sockets of one thread. One cycle of the server receives requests of all connections, and queues
//! the answers.

use std::{collections::VecDeque, io};

use memchr::{memchr2, memmem};
use tidelane_rings::{Buffer, Context, Descriptor, Events, ReadyList, SendRefusal, Wait};

/// Largest number of received bytes of an incomplete request head. The server closes the connection
/// of a client that has sent more.
const REQUEST_LEN_MAX: usize = 8192;
/// Length in bytes of the longest body.
const BODY_LEN_MAX: usize = 1 << 20;
/// Largest number of unsent answers of one client. The server closes the connection of a client
/// that has more unsent answers.
const ANSWERS_MAX: usize = 64;

/// Counts of a server, for the answer to `GET /counters`.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Answered requests.
    requests: u64,
    /// Cycles with at least one ready descriptor.
    cycles: u64,
    /// Sum of the numbers of ready descriptors over all cycles.
    ready: u64,
    /// Sum of the squares of the numbers of ready descriptors over all cycles.
    ready_squares: u64,
}

impl Counts {
    fn add_cycle(&mut self, ready: usize) {
        let ready = ready as u64;
        self.cycles += u64::from(ready > 0);
        self.ready += ready;
        self.ready_squares += ready * ready;
    }

    /// Returns the counts, and the number of system calls of `context`, as one line of JSON.
    fn report(&self, context: &dyn Context) -> String {
        let (mean, deviation) = self.ready_per_cycle();
        format!(
            "{{\"requests\": {}, \"system_calls\": {}, \"ready_mean\": {mean:.3}, \
             \"ready_deviation\": {deviation:.3}}}",
            self.requests,
            context.system_calls(),
        )
    }

    /// Returns the mean and the standard deviation of the number of ready descriptors in a cycle.
    /// Cycles without a ready descriptor do not count.
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
    /// Bytes of the head. In the answer to `GET /counters`, the body is also in this field.
    head: Vec<u8>,
    /// Length in bytes of the body that follows `head`: the first bytes of the server's pattern.
    body_len: usize,
    /// Number of bytes of the answer that are already in buffers.
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

    /// Returns the answer to a request head. The path of the request is the length of the body.
    /// Status 404 answers any other path, and a length above [`BODY_LEN_MAX`]. `is_last` is true if
    /// the client wants the connection to end after the answer.
    fn to(request: &[u8], is_last: bool) -> Self {
        let len = length_in_path(request).filter(|len| *len <= BODY_LEN_MAX);
        let connection = match is_last {
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

    /// Appends bytes of the answer to `buffer` until the buffer is full or no byte remains. Returns
    /// true if no byte of the answer remains.
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
    /// Received bytes of a request whose head is incomplete.
    request: Vec<u8>,
    /// Answers with bytes that are not yet in a buffer.
    answers: VecDeque<Answer>,
    /// A buffer that the context has refused. The server sends this buffer before the answers.
    refused: Option<Buffer>,
    /// True if the server closes the connection after the answers, because the client has sent its
    /// FIN or a request with `Connection: close`.
    closes: bool,
}

/// The texts for which the server searches in requests, prepared for the search.
#[derive(Debug)]
struct Search {
    /// The end of a request head.
    head_end: memmem::Finder<'static>,
    /// The header field by which a client asks for the end of the connection.
    close: memmem::Finder<'static>,
}

impl Search {
    fn new() -> Self {
        Self {
            head_end: memmem::Finder::new("\r\n\r\n"),
            close: memmem::Finder::new("Connection: close"),
        }
    }

    /// Returns true if `data` is exactly one request head.
    fn is_whole(&self, data: &[u8]) -> bool {
        self.end_of_head(data) == Some(data.len())
    }

    /// Returns the offset at which the first request head in `data` ends.
    fn end_of_head(&self, data: &[u8]) -> Option<usize> {
        Some(self.head_end.find(data)? + self.head_end.needle().len())
    }
}

/// An HTTP server, with its clients and its counts.
#[derive(Debug)]
pub struct Server {
    /// Clients, indexed by descriptor (the number of a socket).
    clients: Vec<Option<Client>>,
    /// Descriptors of the clients that have unsent answers or a refused buffer.
    waiting: Vec<Descriptor>,
    list: ReadyList,
    /// Content of the longest body. Each body is a prefix of this content.
    pattern: Vec<u8>,
    search: Search,
    counts: Counts,
}

impl Server {
    pub fn new() -> Self {
        Self {
            clients: Vec::new(),
            waiting: Vec::new(),
            list: ReadyList::new(),
            pattern: (0..BODY_LEN_MAX).map(|at| b'a' + (at % 26) as u8).collect(),
            search: Search::new(),
            counts: Counts::default(),
        }
    }

    /// Returns the counts, and the number of system calls of `context`, as one line of JSON.
    pub fn report(&self, context: &dyn Context) -> String {
        self.counts.report(context)
    }

    /// Waits for requests, and queues an answer to each request.
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

    /// Processes entry `at` of the list: its requests, the end of its stream, or its failure.
    fn handle(&mut self, context: &mut dyn Context, list: &mut ReadyList, at: usize) {
        let entry = list.entry(at);
        let place = entry.descriptor.0 as usize;
        if place >= self.clients.len() {
            self.clients.resize_with(place + 1, || None);
        }
        let (counts, search) = (self.counts, &self.search);
        let report = || counts.report(context);
        let mut client = self.clients[place].take().unwrap_or_default();
        while let Some(buffer) = list.take_next(at) {
            match client.request.is_empty() && search.is_whole(buffer.payload()) {
                // Avoid a copy: a request usually arrives as one segment in one buffer.
                true => client.answer(buffer.payload(), search, report),
                false => client.request.extend_from_slice(buffer.payload()),
            }
        }
        while let Some(end) = search.end_of_head(&client.request) {
            let rest = client.request.split_off(end);
            let request = std::mem::replace(&mut client.request, rest);
            client.answer(&request, search, report);
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

    /// Sends answers until the context refuses a buffer, no buffer is free or no answer remains.
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
    /// Adds the answer to a request. `report` returns the body of the answer to `GET /counters`.
    fn answer(&mut self, request: &[u8], search: &Search, report: impl Fn() -> String) {
        let is_last = search.close.find(request).is_some();
        self.closes |= is_last;
        self.answers
            .push_back(match request.starts_with(b"GET /counters ") {
                true => Answer::of_report(&report()),
                false => Answer::to(request, is_last),
            });
    }

    /// Returns the next buffer to send: the refused buffer, or a new buffer with bytes of the
    /// answers. Adds to `done` the number of answers whose last byte is in the new buffer. Returns
    /// `None` if there is no answer or no free buffer.
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

/// Returns the number that is the path of a `GET` request. Returns `None` if the path is no number.
fn length_in_path(request: &[u8]) -> Option<usize> {
    let path = request.strip_prefix(b"GET /")?;
    let end = memchr2(b' ', b'?', path)?;
    str::from_utf8(&path[..end]).ok()?.parse().ok()
}
