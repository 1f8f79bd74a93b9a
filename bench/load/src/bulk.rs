//! Bulk transfer: one-way streams on long connections.
//!
//! The source sends as fast as it can. The sink counts the bytes that it receives.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Value, json};

use crate::sys::{self, Epoll, Fd, READABLE, Readiness, WRITABLE};

/// Largest number of bytes per call of `recv` or `send`. The source's data repeat after this many
/// bytes.
const CHUNK: usize = 256 * 1024;
/// Largest number of calls of `recv` or `send` for one flow before the next flow is served.
const CALLS_PER_FLOW_MAX: usize = 2;
/// Largest number of descriptors that one `epoll_wait` reports.
const EVENTS_MAX: usize = 512;
/// Backlog of the listener.
const BACKLOG: i32 = 4096;
/// Token of the listener in the epoll instance. The token of a flow is its index.
const LISTENER: u64 = u64::MAX;
/// Time within which all flows must reach the sink.
const CONNECT_MAX: Duration = Duration::from_secs(15);
/// Longest time in `epoll_wait` before the program checks whether the time is over or a signal has
/// arrived.
const TICK: Duration = Duration::from_millis(20);

/// Options of `bulk-sink`.
#[derive(Args, Debug)]
pub struct SinkOptions {
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0")]
    address: IpAddr,
    /// Port to listen on.
    #[arg(long)]
    port: u16,
    /// Number of flows to wait for.
    #[arg(long, default_value_t = 1)]
    flows: usize,
    /// Seconds between the arrival of the last flow and the start of counting.
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// Seconds during which the bytes are counted.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Compare every byte with the source's stream, and fail if any byte differs.
    #[arg(long)]
    check: bool,
    /// Also print the number of received bytes at intervals of this many seconds (0: never). The
    /// number starts again from 0 when counting starts.
    #[arg(long, default_value_t = 0.0)]
    every: f64,
}

/// Options of `bulk-source`.
#[derive(Args, Debug)]
pub struct SourceOptions {
    /// Address and port of the sink.
    #[arg(long)]
    connect: SocketAddr,
    /// Number of flows.
    #[arg(long, default_value_t = 1)]
    flows: usize,
    /// Seconds after which the source ends, if the sink has not ended before.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

/// A flow that the sink receives.
struct ReceivedFlow {
    fd: Fd,
    /// Bytes received since counting started. Before that, bytes received since the accept.
    bytes: u64,
    /// Position of the next byte to receive, within the chunk that the source sends again and
    /// again.
    at: usize,
}

/// The receiving program: its listener and its flows.
struct Sink {
    epoll: Epoll,
    listener: Fd,
    flows: Vec<ReceivedFlow>,
    buffer: Vec<u8>,
    /// The source's chunk twice in a row, so that the bytes of each `recv` are one slice of
    /// `expected`. `None` if the bytes are not compared.
    expected: Option<Vec<u8>>,
    /// `None` without `--every`.
    progress: Option<Progress>,
}

/// Prints the number of received bytes at regular intervals.
struct Progress {
    /// Time at which the sink started. The lines count seconds from this time.
    start: Instant,
    /// Earliest time of the next line.
    next: Instant,
    interval: Duration,
}

impl Progress {
    fn new(seconds: f64) -> Option<Self> {
        let start = Instant::now();
        (seconds > 0.0).then(|| Self {
            start,
            next: start,
            interval: Duration::from_secs_f64(seconds),
        })
    }

    fn print(&mut self, flows: &[ReceivedFlow]) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + self.interval;
        let bytes: u64 = flows.iter().map(|flow| flow.bytes).sum();
        let seconds = (now - self.start).as_secs_f64();
        println!("{}", json!({ "seconds": seconds, "bytes": bytes }));
    }
}

/// Returns the chunk that a source sends repeatedly. Each byte depends on its position, so that the
/// sink notices lost, repeated and misplaced bytes.
fn chunk() -> Vec<u8> {
    (0..CHUNK).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Runs the sink: waits for the flows, counts their bytes, and prints the result as one line of
/// JSON.
pub fn sink(options: &SinkOptions) -> io::Result<()> {
    let address = SocketAddr::new(options.address, options.port);
    sys::catch_end();
    let mut sink = Sink::new(address)?;
    sink.expected = options.check.then(|| chunk().repeat(2));
    sink.progress = Progress::new(options.every);
    println!("listening on {address}");
    let limit = Instant::now() + CONNECT_MAX;
    sink.run_until(limit, |sink| sink.flows.len() >= options.flows)?;
    if sink.flows.len() < options.flows {
        let text = format!("{} of {} flows arrived", sink.flows.len(), options.flows);
        return Err(io::Error::new(io::ErrorKind::TimedOut, text));
    }
    let warm = Instant::now() + Duration::from_secs_f64(options.warmup);
    sink.run_until(warm, |_| false)?;
    sink.flows.iter_mut().for_each(|flow| flow.bytes = 0);
    let (start, cpu) = (Instant::now(), sys::cpu_time());
    sink.run_until(start + Duration::from_secs_f64(options.seconds), |_| false)?;
    let (elapsed, cpu) = (start.elapsed(), sys::cpu_time().saturating_sub(cpu));
    let bytes: Vec<u64> = sink.flows.iter().map(|flow| flow.bytes).collect();
    println!("{}", to_json(bytes, elapsed, cpu));
    Ok(())
}

impl Sink {
    fn new(address: SocketAddr) -> io::Result<Self> {
        let listener = sys::listen(address, BACKLOG)?;
        let epoll = Epoll::new(EVENTS_MAX)?;
        epoll.add(&listener, READABLE, LISTENER)?;
        Ok(Self {
            epoll,
            listener,
            flows: Vec::new(),
            buffer: vec![0; CHUNK],
            expected: None,
            progress: None,
        })
    }

    /// Accepts flows and reads from them until the time `end`, until `done` returns true, or until
    /// SIGTERM or SIGINT arrives.
    fn run_until(&mut self, end: Instant, done: impl Fn(&Self) -> bool) -> io::Result<()> {
        let mut ready = Vec::with_capacity(EVENTS_MAX);
        while Instant::now() < end && !done(self) && !sys::ending() {
            self.epoll.wait(TICK, &mut ready)?;
            if let Some(progress) = &mut self.progress {
                progress.print(&self.flows);
            }
            for event in &ready {
                if event.token == LISTENER {
                    self.accept_all()?;
                } else {
                    self.read(event.token as usize)?;
                }
            }
        }
        Ok(())
    }

    fn accept_all(&mut self) -> io::Result<()> {
        while let Some(fd) = sys::accept(&self.listener)? {
            self.epoll.add(&fd, READABLE, self.flows.len() as u64)?;
            let (bytes, at) = (0, 0);
            self.flows.push(ReceivedFlow { fd, bytes, at });
        }
        Ok(())
    }

    /// Reads from a flow. Fails if the flow has ended. With `--check`, also fails if a byte differs
    /// from the source's byte.
    fn read(&mut self, index: usize) -> io::Result<()> {
        let flow = &mut self.flows[index];
        for _ in 0..CALLS_PER_FLOW_MAX {
            match sys::recv(&flow.fd, &mut self.buffer) {
                Ok(0) => return Err(io::Error::other("a flow ended before the sink closed it")),
                Ok(len) => {
                    let wanted = |all: &Vec<u8>| all[flow.at..flow.at + len] == self.buffer[..len];
                    if !self.expected.as_ref().is_none_or(wanted) {
                        return Err(io::Error::other("received bytes differ from sent bytes"));
                    }
                    flow.bytes += len as u64;
                    flow.at = (flow.at + len) % CHUNK;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Runs the source: sends on all flows until the sink closes a flow, the time is over, or SIGTERM
/// or SIGINT arrives.
pub fn source(options: &SourceOptions) -> io::Result<()> {
    sys::catch_end();
    let mut epoll = Epoll::new(EVENTS_MAX)?;
    let mut flows = Vec::with_capacity(options.flows);
    for index in 0..options.flows {
        let fd = sys::tcp_socket(options.connect)?;
        sys::connect(&fd, options.connect)?;
        epoll.add(&fd, WRITABLE, index as u64)?;
        flows.push((fd, 0));
    }
    let chunk = chunk();
    let end = Instant::now() + Duration::from_secs_f64(options.seconds);
    let mut ready: Vec<Readiness> = Vec::with_capacity(EVENTS_MAX);
    while Instant::now() < end && !sys::ending() {
        epoll.wait(TICK, &mut ready)?;
        for event in &ready {
            let (flow, at) = &mut flows[event.token as usize];
            if !write(flow, &chunk, at)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Writes to a flow until the socket is full, at most [`CALLS_PER_FLOW_MAX`] times. `at` is the
/// position in `chunk` of the next byte to send. Returns false if the peer has closed the
/// connection.
fn write(flow: &Fd, chunk: &[u8], at: &mut usize) -> io::Result<bool> {
    for _ in 0..CALLS_PER_FLOW_MAX {
        match sys::send(flow, &chunk[*at..]) {
            Ok(len) => *at = (*at + len) % CHUNK,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(true),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => return Ok(false),
                _ => return Err(error),
            },
        }
    }
    Ok(true)
}

/// Returns the sink's line of JSON: the total goodput, the goodput of the slowest, the median and
/// the fastest flow, and Jain's fairness index (1 means equal shares).
fn to_json(mut bytes: Vec<u64>, elapsed: Duration, cpu: Duration) -> Value {
    bytes.sort_unstable();
    let seconds = elapsed.as_secs_f64();
    let rate = |bytes: u64| bytes as f64 * 8.0 / seconds;
    let sum: u64 = bytes.iter().sum();
    let squares: f64 = bytes.iter().map(|b| (*b as f64).powi(2)).sum();
    let jain = (sum as f64).powi(2) / (bytes.len() as f64 * squares).max(1.0);
    let flow = |at: usize| bytes.get(at).copied().map_or(0.0, rate);
    json!({
        "flows": bytes.len(),
        "seconds": seconds,
        "bytes": sum,
        "goodput_bps": rate(sum),
        "flow_bps": {
            "least": flow(0),
            "median": flow(bytes.len() / 2),
            "most": flow(bytes.len().saturating_sub(1)),
        },
        "jain": jain,
        "cpu_seconds": cpu.as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_and_its_shares() {
        let line = to_json(
            vec![3000, 1000, 2000],
            Duration::from_secs(2),
            Duration::ZERO,
        );
        assert_eq!(line["goodput_bps"], 24_000.0);
        assert_eq!(line["flow_bps"]["least"], 4000.0);
        assert_eq!(line["flow_bps"]["median"], 8000.0);
        assert_eq!(line["flow_bps"]["most"], 12_000.0);
        let jain = line["jain"].as_f64().expect("a number");
        assert!((jain - 36.0 / 42.0).abs() < 1e-9, "{jain}");
        let even = to_json(vec![5; 4], Duration::from_secs(1), Duration::ZERO);
        assert_eq!(even["jain"], 1.0);
    }
}
