//! Measures the memory of many idle connections, and the time of one request on each in turn.
//!
//! The client opens the connections, and sends one request on each connection. The client then
//! sends several rounds of requests on all connections in turn, and closes the connections. The
//! client reads the memory of the watched processes and of the kernel four times: before the start,
//! after the opening, after the first requests, and after the closing. An idle time precedes each
//! reading except the first. Child processes hold the connections, because a process has a limited
//! number of descriptors.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr},
    ops::Range,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Value, json};

use crate::sys::{self, Epoll, Fd, READABLE, WRITABLE};

/// Largest number of connections in the handshake at one time, so that no accept queue overflows.
const OPENING_MAX: usize = 64;
/// Largest number of connections of one child process. A process has a limited number of
/// descriptors.
const CONNECTIONS_PER_PROCESS_MAX: usize = 15_000;
/// The bytes of a request. The echo server sends them back as the answer.
const REQUEST: [u8; 64] = [7; 64];
/// Longest wait for the next connection to open, and for the next answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A process whose memory the client reports.
#[derive(Clone, Debug)]
struct Watched {
    /// Name of the process in the result.
    name: String,
    pid: u32,
}

/// Parses a value of the option `--watch`, which has the form `NAME:PID`.
fn watched(text: &str) -> Result<Watched, String> {
    let (name, pid) = text.split_once(':').ok_or("not NAME:PID")?;
    let pid = pid.parse().map_err(|_| "not NAME:PID")?;
    let name = name.to_owned();
    Ok(Watched { name, pid })
}

/// Options of `idle-client`.
#[derive(Args, Debug)]
pub struct Options {
    /// Servers, as ADDRESS:PORT. Connections go to the servers in turn.
    #[arg(long, value_delimiter = ',', required = true)]
    connect: Vec<SocketAddr>,
    /// Local addresses. Connections use the addresses in turn. Each address has its own ports.
    #[arg(long, value_delimiter = ',')]
    from: Vec<IpAddr>,
    /// Number of connections.
    #[arg(long)]
    connections: usize,
    /// Number of rounds after the first requests. A round has one request on each connection.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Largest number of requests in flight at one time, each on a connection of its own.
    #[arg(long, default_value_t = 1)]
    at_once: usize,
    /// Seconds without requests before memory is read.
    #[arg(long, default_value_t = 2.0)]
    rest: f64,
    /// Run as the child process that holds the connections from this number on.
    #[arg(long, hide = true)]
    child_from: Option<usize>,
    /// Processes whose memory to read, as NAME:PID
    #[arg(long, value_delimiter = ',', value_parser = watched)]
    watch: Vec<Watched>,
}

/// Runs all phases and prints the result as one line of JSON.
pub fn run(options: &Options) -> io::Result<()> {
    if let Some(first) = options.child_from {
        return run_child(options, first);
    }
    let before = memory(&options.watch)?;
    let start = Instant::now();
    let children = options.connections.div_ceil(CONNECTIONS_PER_PROCESS_MAX);
    let children = (0..children)
        .map(|child| ChildProcess::start(options, child * CONNECTIONS_PER_PROCESS_MAX));
    let mut children = children.collect::<io::Result<Vec<ChildProcess>>>()?;
    let opened = start.elapsed();
    let mut round = || -> io::Result<f64> {
        let start = Instant::now();
        children.iter_mut().try_for_each(ChildProcess::run_round)?;
        Ok(micros(start.elapsed(), options.connections))
    };
    rest(options);
    let fresh = memory(&options.watch)?;
    let first = round()?;
    rest(options);
    let idle = memory(&options.watch)?;
    let rounds: io::Result<Vec<f64>> = (0..options.rounds).map(|_| round()).collect();
    let rounds = rounds?;
    drop(children);
    rest(options);
    let closed = memory(&options.watch)?;
    let line = json!({
        "connections": options.connections,
        "open_us": micros(opened, options.connections),
        "first_us": first,
        "request_us": rounds,
        "memory": {"before": before, "fresh": fresh, "idle": idle, "closed": closed},
    });
    println!("{line}");
    Ok(())
}

/// Runs as the child process that holds the connections from number `first` on. The child writes a
/// line to standard output when its connections are open. Each line on standard input then starts a
/// round of requests, and the child writes a line when the round has ended.
fn run_child(options: &Options, first: usize) -> io::Result<()> {
    sys::die_with_parent()?;
    let count = CONNECTIONS_PER_PROCESS_MAX.min(options.connections - first);
    let mut idle = IdleConnections::open(options, first..first + count)?;
    println!("open");
    for line in io::stdin().lines() {
        line?;
        idle.round(options.at_once)?;
        println!("done");
    }
    Ok(())
}

/// A child process that holds a part of the connections. Dropping it closes the connections.
struct ChildProcess {
    child: Child,
    /// Standard input of the child, which starts rounds.
    commands: ChildStdin,
    /// Standard output of the child, which reports the ends of rounds.
    reports: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// Starts a child for the connections from number `first` on, and waits until they are open.
    fn start(options: &Options, first: usize) -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.args(std::env::args_os().skip(1));
        command.arg("--child-from").arg(first.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let piped = child.stdin.take().zip(child.stdout.take());
        let (commands, reports) = piped.ok_or_else(|| io::Error::other("no pipes"))?;
        let mut process = Self {
            child,
            commands,
            reports: BufReader::new(reports),
        };
        debug_assert!(first < options.connections);
        process.wait()?;
        Ok(process)
    }

    /// Sends one request on each of the child's connections.
    fn run_round(&mut self) -> io::Result<()> {
        self.commands.write_all(b"\n")?;
        self.wait()
    }

    /// Waits for the child's next report. Fails if the child has ended.
    fn wait(&mut self) -> io::Result<()> {
        match self.reports.read_line(&mut String::new())? {
            0 => Err(io::Error::other("a child process failed")),
            _ => Ok(()),
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // The kernel closes the connections of a killed child. The calls fail if the child has
        // already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the idle time.
fn rest(options: &Options) {
    thread::sleep(Duration::from_secs_f64(options.rest));
}

/// Returns `time` divided by the number of connections, in microseconds.
fn micros(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count.max(1) as f64
}

/// The open connections of a child process.
struct IdleConnections {
    connections: Vec<Fd>,
    epoll: Epoll,
}

impl IdleConnections {
    /// Opens the connections with these numbers.
    fn open(options: &Options, mut numbers: Range<usize>) -> io::Result<Self> {
        let mut epoll = Epoll::new(OPENING_MAX)?;
        let mut connections: Vec<Fd> = Vec::with_capacity(numbers.len());
        let mut opening = 0;
        let mut ready = Vec::with_capacity(OPENING_MAX);
        while !numbers.is_empty() || opening > 0 {
            while opening < OPENING_MAX
                && let Some(number) = numbers.next()
            {
                let server = options.connect[number % options.connect.len()];
                let fd = sys::tcp_socket(server)?;
                if !options.from.is_empty() {
                    let from = options.from[number / options.connect.len() % options.from.len()];
                    sys::bind_address(&fd, from)?;
                }
                sys::connect(&fd, server)?;
                epoll.add(&fd, WRITABLE, connections.len() as u64)?;
                opening += 1;
                connections.push(fd);
            }
            epoll.wait(TIMEOUT, &mut ready)?;
            if ready.is_empty() && opening > 0 {
                return Err(io::Error::other("a connection does not open"));
            }
            for event in &ready {
                let fd = &connections[event.token as usize];
                sys::take_error(fd)?;
                epoll.modify(fd, READABLE, event.token)?;
                opening -= 1;
            }
        }
        Ok(Self { connections, epoll })
    }

    /// Sends one request on each connection in turn, with at most `at_once` requests in flight.
    /// Returns the duration of the round divided by the number of connections, in microseconds.
    fn round(&mut self, at_once: usize) -> io::Result<f64> {
        let start = Instant::now();
        let (mut sent, mut received) = (0, 0);
        let mut ready = Vec::with_capacity(OPENING_MAX);
        let mut buffer = [0; REQUEST.len()];
        while received < self.connections.len() {
            while sent < self.connections.len() && sent - received < at_once.max(1) {
                sys::send(&self.connections[sent], &REQUEST)?;
                sent += 1;
            }
            self.epoll.wait(TIMEOUT, &mut ready)?;
            if ready.is_empty() {
                return Err(io::Error::other("an answer is missing"));
            }
            for event in &ready {
                let got = sys::recv(&self.connections[event.token as usize], &mut buffer)?;
                if got != REQUEST.len() {
                    return Err(io::Error::other(format!("{got} bytes of an answer")));
                }
                received += 1;
            }
        }
        Ok(micros(start.elapsed(), self.connections.len()))
    }
}

/// Returns the memory of each process, and the slab and shared memory of the whole machine, in KiB.
fn memory(processes: &[Watched]) -> io::Result<Value> {
    let mut all = serde_json::Map::new();
    for Watched { name, pid } in processes {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let [rss, pss] = ["Rss:", "Pss:"].map(|name| field(&text, name));
        let shared = field(&text, "Pss_Shmem:")?;
        all.insert(
            name.clone(),
            json!({"rss_kib": rss?, "pss_kib": pss?, "pss_shared_kib": shared}),
        );
    }
    let text = fs::read_to_string("/proc/meminfo")?;
    let kernel = json!({"slab_kib": field(&text, "Slab:")?, "shmem_kib": field(&text, "Shmem:")?});
    all.insert("kernel".to_owned(), kernel);
    Ok(Value::Object(all))
}

/// Returns the number in the line that begins with `name`.
fn field(text: &str, name: &str) -> io::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| io::Error::other(format!("the kernel reports no {name}")))
}
