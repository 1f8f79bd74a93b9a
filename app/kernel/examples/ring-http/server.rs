//! [`Server`]: an HTTP server on the ring API (`tidelane-rings`). A context of this API has the
//! sockets of one thread. One cycle of the server receives requests of all connections, and queues
//! the answers.

use std::{collections::VecDeque, io};

use memchr::memchr_iter;
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

    /// Returns the answer with a body of `body_len` bytes. `None` gives the status 404. `is_last`
    /// is true if the client wants the connection to end after the answer. The function writes the
    /// head to `memory`, which must be empty.
    fn of_body(body_len: Option<usize>, is_last: bool, mut memory: Vec<u8>) -> Self {
        let status = match body_len {
            Some(_) => "200 OK",
            None => "404 Not Found",
        };
        let connection = match is_last {
            true => "\r\nConnection: close",
            false => "",
        };
        let body_len = body_len.unwrap_or(0);
        for part in [
            "HTTP/1.1 ",
            status,
            "\r\nContent-Length: ",
            itoa::Buffer::new().format(body_len),
            connection,
            "\r\n\r\n",
        ] {
            memory.extend_from_slice(part.as_bytes());
        }
        Self {
            head: memory,
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
    /// Empty memory for the head of the next answer.
    spare_head: Vec<u8>,
    /// A buffer that the context has refused. The server sends this buffer before the answers.
    refused: Option<Buffer>,
    /// True if the server closes the connection after the answers, because the client has sent its
    /// FIN or a request with `Connection: close`.
    closes: bool,
}

/// The path of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// A number: the length of the body in bytes, at most [`BODY_LEN_MAX`].
    BodyLen(usize),
    /// `/counters`.
    Counters,
    /// Any other path, or a request other than GET.
    Unknown,
}

impl Path {
    /// Returns the path in the first line of a request.
    fn of_line(line: &[u8]) -> Self {
        let Some(path) = line.strip_prefix(b"GET /") else {
            return Self::Unknown;
        };
        let end = path.iter().position(|byte| matches!(byte, b' ' | b'?'));
        let path = &path[..end.unwrap_or(path.len())];
        if path == b"counters" {
            return Self::Counters;
        }
        let number = str::from_utf8(path).ok().and_then(|path| path.parse().ok());
        match number {
            Some(len) if len <= BODY_LEN_MAX => Self::BodyLen(len),
            _ => Self::Unknown,
        }
    }
}

/// The head of a request.
#[derive(Clone, Copy, Debug)]
struct RequestHead {
    /// Length in bytes, with the empty line at the end of the head.
    len: usize,
    path: Path,
    /// True if the client wants the connection to end after the answer.
    closes: bool,
}

impl RequestHead {
    /// Parses the head at the start of `data`. Returns `None` if the head is incomplete.
    fn parse(data: &[u8]) -> Option<Self> {
        let mut head = Self {
            len: 0,
            path: Path::Unknown,
            closes: false,
        };
        for line_end in memchr_iter(b'\n', data) {
            let line = &data[head.len..line_end];
            if head.len == 0 {
                head.path = Path::of_line(line);
            }
            head.len = line_end + 1;
            if line == b"\r" {
                return Some(head);
            }
            head.closes |= line.eq_ignore_ascii_case(b"connection: close\r");
        }
        None
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
        let counts = self.counts;
        let report = || counts.report(context);
        let client = self.clients[place].get_or_insert_default();
        while let Some(buffer) = list.take_next(at) {
            let payload = buffer.payload();
            match RequestHead::parse(payload) {
                // Avoid a copy: a request usually arrives as one segment in one buffer.
                Some(head) if client.request.is_empty() && head.len == payload.len() => {
                    client.answer(head, report);
                }
                _ => client.request.extend_from_slice(payload),
            }
        }
        while let Some(head) = RequestHead::parse(&client.request) {
            client.request.drain(..head.len);
            client.answer(head, report);
        }
        // A client that has sent its FIN still receives the answers.
        client.closes |= entry.events.intersects(Events::END);
        let is_over = entry.events.intersects(Events::CLOSED);
        if is_over || client.request.len() > REQUEST_LEN_MAX || client.answers.len() > ANSWERS_MAX {
            self.clients[place] = None;
            return context.close(entry.descriptor);
        }
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
    fn answer(&mut self, request: RequestHead, report: impl Fn() -> String) {
        self.closes |= request.closes;
        let body_len = match request.path {
            Path::BodyLen(len) => Some(len),
            Path::Unknown => None,
            Path::Counters => return self.answers.push_back(Answer::of_report(&report())),
        };
        let memory = std::mem::take(&mut self.spare_head);
        let answer = Answer::of_body(body_len, request.closes, memory);
        self.answers.push_back(answer);
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
            if let Some(answer) = self.answers.pop_front() {
                self.spare_head = answer.head;
                self.spare_head.clear();
            }
            *done += 1;
        }
        Some(buffer)
    }
}
