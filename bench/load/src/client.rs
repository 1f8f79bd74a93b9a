//! The load generator of the echo and HTTP clients, with a closed and an open loop.
//!
//! In a closed loop, each connection keeps a fixed number of requests in flight. The connection
//! sends the next request when an answer is complete. In an open loop, requests are due at fixed
//! intervals. A due request goes to the free connection that has waited longest. The latency of the
//! request counts from the time at which the request was due. If a connection is free and the next
//! request is due in less than two milliseconds, the client polls instead of sleeping.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;

use crate::{
    exchange::{Exchange, Fed, Progress},
    report::Report,
    schedule::Schedule,
    sys::{self, Epoll, Fd, READABLE, Readiness, WRITABLE},
};

/// Largest number of bytes per call of `recv`.
const READ_MAX: usize = 256 * 1024;
/// Largest number of descriptors that one `epoll_wait` reports.
const EVENTS_MAX: usize = 512;
/// Least time between the failure of a connection and the next attempt to connect. Also the
/// interval at which the client looks for due attempts.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Options of the load, which all clients of this module share.
#[derive(Args, Debug)]
pub struct Load {
    /// Server, as ADDRESS:PORT.
    #[arg(long)]
    pub connect: SocketAddr,
    /// Number of concurrent connections.
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Seconds during which exchanges are counted.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Seconds before counting starts.
    #[arg(long, default_value_t = 0.5)]
    pub warmup: f64,
    /// Stop after this many exchanges of a request and its answer (0: after --seconds). Fail if the
    /// exchanges take longer than --warmup and --seconds together.
    #[arg(long, default_value_t = 0)]
    pub total: u64,
    /// Offered load in requests per second (0: a closed loop).
    #[arg(long, default_value_t = 0.0)]
    pub rate: f64,
    /// Exit with status 0 even if connections failed. Failures are counted in any case.
    #[arg(long)]
    pub allow_errors: bool,
}

/// The end that closes a connection after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Closer {
    /// The client closes as soon as the last answer is complete.
    Client,
    /// The server closes first, and the client waits for the server's FIN.
    Server,
}

/// The load on each connection.
#[derive(Debug)]
pub struct Plan {
    /// One request and its answer.
    pub exchange: Exchange,
    /// Requests in flight per connection.
    pub pipeline: usize,
    /// Requests per connection (0: no limit).
    pub per_connection: u64,
    /// The end that closes after the last request.
    pub closer: Closer,
    /// True if the latency of the first request on a connection counts from the start of the
    /// handshake, even in an open loop.
    pub latency_includes_handshake: bool,
}

/// Runs the load and prints the result as one line of JSON. Returns an error if --total exchanges
/// are not completed in time, or if any connection failed and --allow-errors is not given.
pub fn run(load: &Load, plan: &Plan) -> io::Result<()> {
    sys::catch_end();
    let mut client = Client::new(load, plan)?;
    let ended = client.run();
    let seconds = client.counting_since.elapsed().as_secs_f64();
    let cpu = sys::cpu_time().saturating_sub(client.cpu_at_start);
    let mut line = client.report.to_json(seconds, cpu);
    line["offered_rps"] = json!(load.rate);
    line["overdue"] = json!(client.schedule.overdue(Instant::now()));
    println!("{line}");
    ended?;
    match client.report.first_error {
        Some(error) if !load.allow_errors => Err(io::Error::other(error)),
        _ => Ok(()),
    }
}

/// A running client with its connections.
struct Client<'a> {
    load: &'a Load,
    plan: &'a Plan,
    epoll: Epoll,
    connections: Vec<ConnectionState>,
    schedule: Schedule,
    /// In an open loop, the indices of the connections that can take a request. The first
    /// connection has waited longest. Entries of connections that have ended are skipped.
    free: VecDeque<usize>,
    report: Report,
    buffer: Vec<u8>,
    /// True after the warm-up. With --total, true from the start.
    counting: bool,
    /// Time at which counting started. Before counting starts, the start of the run.
    counting_since: Instant,
    /// CPU time of the process at the start of counting.
    cpu_at_start: Duration,
    /// Number of completed exchanges, including the warm-up.
    done: u64,
}

/// One of the concurrent connections. A closed connection is opened again.
enum ConnectionState {
    Open(Connection),
    /// Time of the next attempt to connect.
    Closed(Instant),
}

/// A connection, from the start of its handshake to its end.
struct Connection {
    fd: Fd,
    /// True until the handshake is complete.
    connecting: bool,
    /// Time at which the handshake started.
    opened: Instant,
    /// Time from which the latency of each request in flight counts, oldest request first.
    start_times: VecDeque<Instant>,
    /// Number of requests that may still be started on this connection. `u64::MAX`: no limit.
    left: u64,
    /// Bytes of the newest request that the socket has not accepted yet.
    unsent: usize,
    /// The received part of the oldest answer.
    progress: Progress,
    /// Events that the epoll instance reports for this connection.
    watched: u32,
    /// True if the connection is in the client's queue of free connections.
    listed: bool,
}

/// The reason for the end of a connection.
enum End {
    /// All requests of the connection are answered.
    Done,
    /// The connection failed.
    Broken(String),
}

impl<'a> Client<'a> {
    fn new(load: &'a Load, plan: &'a Plan) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            load,
            plan,
            epoll: Epoll::new(EVENTS_MAX)?,
            connections: (0..load.connections)
                .map(|_| ConnectionState::Closed(now))
                .collect(),
            schedule: Schedule::new(load.rate, now),
            free: VecDeque::with_capacity(load.connections),
            report: Report::default(),
            buffer: vec![0; READ_MAX],
            counting: load.total > 0,
            counting_since: now,
            cpu_at_start: Duration::ZERO,
            done: 0,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let start = Instant::now();
        let warm = start + Duration::from_secs_f64(self.load.warmup);
        let measured = Duration::from_secs_f64(self.load.seconds);
        let mut end = warm + measured;
        for index in 0..self.connections.len() {
            self.open(index);
        }
        let mut ready = Vec::with_capacity(EVENTS_MAX);
        let mut retry = start + RETRY_AFTER;
        loop {
            let now = Instant::now();
            if !self.counting && now >= warm {
                self.counting = true;
                self.counting_since = now;
                self.cpu_at_start = sys::cpu_time();
                end = now + measured;
            }
            let all_done = self.load.total > 0 && self.done >= self.load.total;
            if sys::ending() || all_done || now >= end {
                return self.check_total();
            }
            if now >= retry {
                self.retry(now);
                retry = now + RETRY_AFTER;
            }
            self.start_due();
            let sleep = self.schedule.sleep(Instant::now(), !self.free.is_empty());
            self.epoll.wait(sleep.min(RETRY_AFTER), &mut ready)?;
            for event in &ready {
                self.serve(event);
            }
        }
    }

    /// Fails if --total exchanges were requested but not completed in time.
    fn check_total(&self) -> io::Result<()> {
        if self.load.total > 0 && self.done < self.load.total {
            let text = format!("{} of {} exchanges in time", self.done, self.load.total);
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        Ok(())
    }

    fn open(&mut self, index: usize) {
        match Connection::open(self.load.connect, self.plan, &self.epoll, index as u64) {
            Ok(connection) => self.connections[index] = ConnectionState::Open(connection),
            Err(error) => self.broken(index, format!("connect: {error}")),
        }
    }

    fn broken(&mut self, index: usize, what: String) {
        self.report.fail(what);
        self.connections[index] = ConnectionState::Closed(Instant::now() + RETRY_AFTER);
    }

    fn retry(&mut self, now: Instant) {
        for index in 0..self.connections.len() {
            if matches!(self.connections[index], ConnectionState::Closed(at) if at <= now) {
                self.open(index);
            }
        }
    }

    /// Starts the requests that are due in an open loop, as long as a connection is free.
    fn start_due(&mut self) {
        if !self.schedule.is_open() {
            return;
        }
        while let Some(&index) = self.free.front() {
            // Skip the entries of connections that have ended.
            let connection = match &mut self.connections[index] {
                ConnectionState::Open(connection) if connection.listed => connection,
                _ => {
                    self.free.pop_front();
                    continue;
                }
            };
            let Some(due) = self.schedule.take(Instant::now()) else {
                return;
            };
            self.free.pop_front();
            connection.listed = false;
            let mut due = Some(due);
            let sent = connection.send_requests(self.plan, &mut || due.take());
            if let Err(end) = sent.and_then(|()| connection.watch(&self.epoll, index as u64)) {
                self.end(index, end);
            }
        }
    }

    fn serve(&mut self, event: &Readiness) {
        let index = event.token as usize;
        let ConnectionState::Open(connection) = &mut self.connections[index] else {
            return;
        };
        let open_loop = self.schedule.is_open();
        let mut next = || (!open_loop).then(Instant::now);
        let connecting = connection.connecting;
        let mut completed = 0;
        let mut completed_one = |latency| {
            completed += 1;
            if self.counting {
                self.report.record(latency);
            }
        };
        let buffer = &mut self.buffer;
        let result = connection.serve(event, self.plan, buffer, &mut next, &mut completed_one);
        self.done += completed;
        if connecting && !connection.connecting && self.counting {
            self.report.connections += 1;
        }
        if let Err(end) = result.and_then(|()| connection.watch(&self.epoll, event.token)) {
            self.end(index, end);
        } else if open_loop && connection.is_free(self.plan) && !connection.listed {
            connection.listed = true;
            self.free.push_back(index);
        }
    }

    /// Ends a connection. After `End::Done`, opens the next connection immediately. After a
    /// failure, the client connects later.
    fn end(&mut self, index: usize, end: End) {
        match end {
            End::Done => {
                // Close the old connection before the next connect, so that no connection occupies
                // two descriptors.
                self.connections[index] = ConnectionState::Closed(Instant::now());
                self.open(index);
            }
            End::Broken(what) => self.broken(index, what),
        }
    }
}

fn broken(what: &str, error: &io::Error) -> End {
    End::Broken(format!("{what}: {error}"))
}

impl Connection {
    fn open(to: SocketAddr, plan: &Plan, epoll: &Epoll, token: u64) -> io::Result<Self> {
        let opened = Instant::now();
        let fd = sys::tcp_socket(to)?;
        sys::set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        sys::connect(&fd, to)?;
        // A connection that is already established is also reported as writable.
        epoll.add(&fd, READABLE | WRITABLE, token)?;
        Ok(Self {
            fd,
            connecting: true,
            opened,
            start_times: VecDeque::with_capacity(plan.pipeline),
            left: if plan.per_connection == 0 {
                u64::MAX
            } else {
                plan.per_connection
            },
            unsent: 0,
            progress: Progress::default(),
            watched: READABLE | WRITABLE,
            listed: false,
        })
    }

    /// Returns true if the connection can take a request.
    fn is_free(&self, plan: &Plan) -> bool {
        !self.connecting
            && self.unsent == 0
            && self.left > 0
            && self.start_times.len() < plan.pipeline
    }

    /// Handles an event: completes the handshake, sends requests, and reads answers. Calls
    /// `completed` with the latency of each completed exchange. Passes `next` to
    /// [`send_requests`](Self::send_requests).
    fn serve(
        &mut self,
        event: &Readiness,
        plan: &Plan,
        buffer: &mut [u8],
        next: &mut impl FnMut() -> Option<Instant>,
        completed: &mut impl FnMut(Duration),
    ) -> Result<(), End> {
        if self.connecting {
            if !event.writable() {
                return Ok(());
            }
            sys::take_error(&self.fd).map_err(|e| broken("connect", &e))?;
            self.connecting = false;
        }
        self.send_requests(plan, next)?;
        if !event.readable() {
            return Ok(());
        }
        match sys::recv(&self.fd, buffer) {
            Ok(0) => self.ended(),
            Ok(len) => {
                self.take(&buffer[..len], plan, completed)?;
                self.send_requests(plan, next)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(broken("recv", &error)),
        }
    }

    /// Handles the server's FIN. The FIN is a failure if a request of the connection has not been
    /// answered, or if the connection may still start requests.
    fn ended(&self) -> Result<(), End> {
        if self.left == 0 && self.start_times.is_empty() {
            return Err(End::Done);
        }
        Err(End::Broken("the server closed early".to_owned()))
    }

    /// Passes requests to the socket. Stops when the pipeline or the socket is full, when no
    /// request is due, or when the connection may start no more requests. `next` returns the time
    /// from which the latency of the next request counts, or `None` if no request is due.
    fn send_requests(
        &mut self,
        plan: &Plan,
        next: &mut impl FnMut() -> Option<Instant>,
    ) -> Result<(), End> {
        let request = plan.exchange.request();
        loop {
            if self.unsent == 0 {
                if self.left == 0 || self.start_times.len() >= plan.pipeline {
                    return Ok(());
                }
                let Some(start) = next() else {
                    return Ok(());
                };
                let first = self.left == plan.per_connection && plan.latency_includes_handshake;
                self.start_times
                    .push_back(if first { self.opened } else { start });
                self.left = if self.left == u64::MAX {
                    u64::MAX
                } else {
                    self.left - 1
                };
                self.unsent = request.len();
            }
            match sys::send(&self.fd, &request[request.len() - self.unsent..]) {
                Ok(len) => self.unsent -= len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(broken("send", &error)),
            }
        }
    }

    /// Handles received bytes, which may complete an answer and contain later answers.
    fn take(
        &mut self,
        mut bytes: &[u8],
        plan: &Plan,
        completed: &mut impl FnMut(Duration),
    ) -> Result<(), End> {
        while !bytes.is_empty() {
            let Some(start) = self.start_times.front() else {
                return Err(End::Broken("bytes that no request asked for".to_owned()));
            };
            match plan.exchange.feed(&mut self.progress, bytes) {
                Fed::More => return Ok(()),
                Fed::Wrong(what) => return Err(End::Broken(what.to_owned())),
                Fed::Complete(used) => {
                    completed(start.elapsed());
                    self.start_times.pop_front();
                    self.progress = Progress::default();
                    bytes = &bytes[used..];
                }
            }
        }
        if self.left == 0 && self.start_times.is_empty() && plan.closer == Closer::Client {
            return Err(End::Done);
        }
        Ok(())
    }

    /// Watches the socket for readability, and for writability during the handshake and while there
    /// are bytes to send.
    fn watch(&mut self, epoll: &Epoll, token: u64) -> Result<(), End> {
        let write = self.connecting || self.unsent > 0;
        let wanted = if write { READABLE | WRITABLE } else { READABLE };
        if wanted != self.watched {
            self.watched = wanted;
            epoll
                .modify(&self.fd, wanted, token)
                .map_err(|e| broken("epoll_ctl", &e))?;
        }
        Ok(())
    }
}
