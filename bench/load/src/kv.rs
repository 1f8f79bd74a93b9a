//! A key-value client with memcached's text protocol, in a closed loop or at a fixed rate.
//!
//! The client stores all objects before the load starts. Each connection has at most one request in
//! flight. Every answer is compared with the expected answer, and any failure ends the client. At a
//! fixed rate (an open loop), latency counts from the time at which the request was due. If a
//! connection is free and the next request is due in less than two milliseconds, the client polls
//! instead of sleeping.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Value, json};

use crate::{
    report::Report,
    schedule::Schedule,
    sys::{self, Epoll, Fd, READABLE, Readiness, WRITABLE},
};

use items::{Items, Mix, Operation};

mod items;

/// Largest number of descriptors that one `epoll_wait` reports.
const EVENTS_MAX: usize = 512;
/// Largest number of bytes per call of `recv`.
const READ_MAX: usize = 64 * 1024;
/// Time limit for a connection to open, and for an object to be stored. Also the longest time
/// without an answer while requests are in flight.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Options of `kv-client`.
#[derive(Args, Debug)]
pub struct Options {
    /// Server, as ADDRESS:PORT.
    #[arg(long)]
    connect: SocketAddr,
    /// Number of concurrent connections.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Seconds during which requests are counted.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds before counting starts.
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// Offered load in requests per second (0: a closed loop).
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Number of keys.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    keys: u32,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    bytes: u32,
    /// Percentage of requests that store a value. The other requests read a value.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(0..=100))]
    set_percent: u8,
    /// Count this many requests, without a warm-up (0: count for --seconds).
    #[arg(long, default_value_t = 0)]
    total: u64,
}

/// Prints "ready" after the set-up, runs the load, and prints the result as one line of JSON.
pub fn run(options: &Options) -> io::Result<()> {
    sys::catch_end();
    let mut client = Client::open(options, TIMEOUT)?;
    client.store_all()?;
    println!("ready");
    println!("{}", client.run()?);
    Ok(())
}

/// A running client with its connections.
struct Client<'a> {
    options: &'a Options,
    /// Time limit for the next answer, and for a connection to open.
    patience: Duration,
    items: Items,
    epoll: Epoll,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
}

/// An established connection.
struct Connection {
    fd: Fd,
    /// The request in flight. `None` if the connection is free.
    pending: Option<Pending>,
    /// True if the epoll instance reports writability.
    watches_writable: bool,
}

/// A request in flight.
struct Pending {
    operation: Operation,
    /// Time from which the latency counts: in an open loop, the time at which the request was due;
    /// in a closed loop, the time at which the request was started.
    start: Instant,
    /// Number of bytes of the request that the socket has accepted.
    sent: usize,
    /// Number of received bytes of the answer.
    received: usize,
}

impl Pending {
    /// Handles received bytes. Returns true if the answer is complete. Fails if the bytes differ
    /// from the expected `answer`.
    fn feed(&mut self, bytes: &[u8], answer: &[u8]) -> io::Result<bool> {
        if !answer[self.received..].starts_with(bytes) {
            let what = format!("{:?}: another answer than expected", self.operation);
            return Err(io::Error::other(what));
        }
        self.received += bytes.len();
        Ok(self.received == answer.len())
    }
}

impl Connection {
    /// Starts a request on a connection that has no request in flight.
    fn start(&mut self, operation: Operation, start: Instant, items: &Items) -> io::Result<()> {
        self.pending = Some(Pending {
            operation,
            start,
            sent: 0,
            received: 0,
        });
        self.send(items)
    }

    /// Sends the rest of the request in flight, as far as the socket accepts it.
    fn send(&mut self, items: &Items) -> io::Result<()> {
        let Some(pending) = &mut self.pending else {
            return Ok(());
        };
        let request = items.request(pending.operation);
        while pending.sent < request.len() {
            match sys::send(&self.fd, &request[pending.sent..]) {
                Ok(len) => pending.sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Handles an event. If the answer is complete, returns the time from which the request's
    /// latency counts.
    fn serve(
        &mut self,
        event: &Readiness,
        items: &Items,
        buffer: &mut [u8],
    ) -> io::Result<Option<Instant>> {
        if event.writable() {
            self.send(items)?;
        }
        if !event.readable() {
            return Ok(None);
        }
        let len = match sys::recv(&self.fd, buffer) {
            Ok(0) => return Err(io::Error::other("the server closed a connection")),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let unexpected = || io::Error::other("bytes that no request asked for");
        let pending = self.pending.as_mut().ok_or_else(unexpected)?;
        if !pending.feed(&buffer[..len], items.answer(pending.operation))? {
            return Ok(None);
        }
        Ok(self.pending.take().map(|pending| pending.start))
    }

    /// Watches the socket for writability only while there are bytes to send.
    fn watch(&mut self, epoll: &Epoll, items: &Items, token: u64) -> io::Result<()> {
        let unsent = self
            .pending
            .as_ref()
            .is_some_and(|pending| pending.sent < items.request(pending.operation).len());
        if unsent != self.watches_writable {
            self.watches_writable = unsent;
            let bits = if unsent {
                READABLE | WRITABLE
            } else {
                READABLE
            };
            epoll.modify(&self.fd, bits, token)?;
        }
        Ok(())
    }
}

impl<'a> Client<'a> {
    /// Opens all connections. Fails if a connection does not open within the time limit `patience`.
    fn open(options: &'a Options, patience: Duration) -> io::Result<Self> {
        let mut epoll = Epoll::new(EVENTS_MAX)?;
        let mut connections = Vec::new();
        let mut ready = Vec::with_capacity(1);
        for token in 0..options.connections.into() {
            let fd = sys::tcp_socket(options.connect)?;
            sys::set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
            sys::connect(&fd, options.connect)?;
            epoll.add(&fd, WRITABLE, token)?;
            epoll.wait(patience, &mut ready)?;
            if ready.is_empty() {
                return Err(io::Error::other("a connection does not open"));
            }
            sys::take_error(&fd)?;
            epoll.modify(&fd, READABLE, token)?;
            connections.push(Connection {
                fd,
                pending: None,
                watches_writable: false,
            });
        }
        Ok(Self {
            options,
            patience,
            items: Items::new(options.keys as usize, options.bytes as usize),
            epoll,
            connections,
            buffer: vec![0; READ_MAX],
        })
    }

    /// Stores each object once, so that every later read finds its object.
    fn store_all(&mut self) -> io::Result<()> {
        let mut ready = Vec::with_capacity(EVENTS_MAX);
        for index in 0..self.options.keys as usize {
            self.start(0, Operation::Set(index), Instant::now())?;
            while self.connections[0].pending.is_some() {
                self.epoll.wait(self.patience, &mut ready)?;
                if ready.is_empty() {
                    return Err(io::Error::other("an object is not stored"));
                }
                for event in &ready {
                    self.serve(event)?;
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, index: usize, operation: Operation, start: Instant) -> io::Result<()> {
        let connection = &mut self.connections[index];
        connection.start(operation, start, &self.items)?;
        connection.watch(&self.epoll, &self.items, index as u64)
    }

    fn serve(&mut self, event: &Readiness) -> io::Result<Option<Instant>> {
        let connection = &mut self.connections[event.token as usize];
        let answered = connection.serve(event, &self.items, &mut self.buffer)?;
        connection.watch(&self.epoll, &self.items, event.token)?;
        Ok(answered)
    }

    /// Runs the load. Returns the line of JSON to print.
    fn run(&mut self) -> io::Result<Value> {
        let options = self.options;
        let start = Instant::now();
        let warmup = if options.total > 0 {
            0.0
        } else {
            options.warmup
        };
        let warm = start + Duration::from_secs_f64(warmup);
        let end = warm + Duration::from_secs_f64(options.seconds);
        let mut schedule = Schedule::new(options.rate, start);
        let mut mix = Mix::new(options.keys as usize, options.set_percent);
        let mut free: VecDeque<usize> = (0..self.connections.len()).collect();
        let mut ready = Vec::with_capacity(EVENTS_MAX);
        let mut report = Report::default();
        report.connections = self.connections.len() as u64;
        let mut cpu_at_start = None;
        // The most recent time at which an answer arrived, or at which no request was in flight.
        let mut progress = start;
        loop {
            let now = Instant::now();
            if free.len() == self.connections.len() {
                progress = now;
            }
            if now.saturating_duration_since(progress) >= self.patience {
                return Err(io::Error::other("the server does not answer"));
            }
            if now >= warm && cpu_at_start.is_none() {
                cpu_at_start = Some(sys::cpu_time());
            }
            let all = options.total > 0 && report.requests >= options.total;
            if sys::ending() || all || (options.total == 0 && now >= end) {
                let seconds = now.saturating_duration_since(warm).as_secs_f64();
                let cpu = sys::cpu_time().saturating_sub(cpu_at_start.unwrap_or_default());
                return result(options, &report, seconds, cpu, schedule.overdue(now));
            }
            while let Some(&index) = free.front()
                && let Some(due) = schedule.take(Instant::now())
            {
                free.pop_front();
                self.start(index, mix.next(), due)?;
            }
            let sleep = schedule.sleep(Instant::now(), !free.is_empty());
            self.epoll.wait(sleep, &mut ready)?;
            for event in &ready {
                if let Some(start) = self.serve(event)? {
                    free.push_back(event.token as usize);
                    progress = Instant::now();
                    if cpu_at_start.is_some() {
                        report.record(start.elapsed());
                    }
                }
            }
        }
    }
}

/// Returns the line of JSON to print. `overdue` is the number of requests of an open loop that were
/// due at the end but not started. Fails if no request was answered.
fn result(
    options: &Options,
    report: &Report,
    seconds: f64,
    cpu: Duration,
    overdue: u64,
) -> io::Result<Value> {
    if report.requests == 0 {
        return Err(io::Error::other("no request was answered"));
    }
    let mut line = report.to_json(seconds, cpu);
    line["offered_rps"] = json!(options.rate);
    line["overdue"] = json!(overdue);
    Ok(line)
}

#[cfg(test)]
mod tests;
