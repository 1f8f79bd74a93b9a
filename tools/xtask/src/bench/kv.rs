//! Figures (experiments of `bench/figures`) of key-value servers. The baseline is memcached on the
//! kernel. The figures compare two kinds of servers with the baseline: memcached on the service,
//! and the server of `app/kv` on the back ends of the ring API. The ring API (crate
//! `tidelane-rings`) lets a program exchange messages of many connections in one call. Its back
//! ends have their TCP in the kernel, in the service, or in the program.
//!
//! The client is `tidelane-load kv-client`, which compares each answer with the expected answer.
//! Each measurement uses a new wire, which is a veth pair between two network namespaces. The field
//! `path` of the plan places the client:
//!
//! - `veth`: the client uses the kernel's stack in the other namespace.
//! - `memory`: the client runs in the server's namespace. If the server is on the kernel, the
//!   client uses the kernel too, over the loopback interface. If the server uses the service, the
//!   client uses the same service, which joins the two ends in memory.

use std::{
    collections::BTreeMap,
    io::Write,
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::Value;
use tidelane_tests::{
    Program, Running, Service, Side, Stop, Wire,
    machine::median,
    tools,
    wire::{INTERFACE, SERVER},
};

use super::{
    heading::{Heading, Target},
    plot,
    programs::{Programs, number},
    rows::{Row, pair_row},
};

/// TCP port of the server.
const PORT: u16 = 11211;
/// Memory of the server for items, in MiB.
const MEMORY_MIB: u32 = 256;
/// Time limit for the server on the ring API to start, and for the client to store the initial
/// values. Also the time by which a measurement may exceed the plan's seconds.
const GRACE: Duration = Duration::from_secs(30);

/// The plan of a figure that compares key-value servers.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct KvPlan {
    /// Title of the table, one line.
    pub title: String,
    /// Source in the literature, and its result.
    pub paper: String,
    /// Number of rounds. A round measures each server once with each number of connections.
    pub rounds: u32,
    /// Duration of a measurement in seconds.
    pub seconds: u32,
    /// Path between the client and the server.
    pub path: Path,
    /// Length of the values in bytes.
    pub value_len: u32,
    /// Numbers of connections of the client. Each number has rows of its own in the table.
    pub connections: Vec<u32>,
    /// Servers to compare with memcached on the kernel, which is always measured.
    pub servers: Vec<Server>,
    /// CPUs of the client, separated by commas.
    pub client_cpus: String,
    /// CPUs of the server and of its service, separated by commas.
    pub server_cpus: String,
    /// Numbers of server cores, 1 or 2. Each number has rows of its own in the table. With 2, there
    /// are two servers, each with a client and a wire of its own. The second server runs on the CPU
    /// of the first client, and the second client on the CPU of the first server.
    #[serde(default = "one_core")]
    pub cores: Vec<Cores>,
    /// Targets for single rows.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

fn one_core() -> Vec<Cores> {
    vec![Cores::One]
}

/// A number of server cores.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "u32")]
pub enum Cores {
    /// One server.
    One,
    /// Two servers, which share nothing.
    Two,
}

impl TryFrom<u32> for Cores {
    type Error = String;

    fn try_from(count: u32) -> Result<Self, String> {
        match count {
            1 => Ok(Self::One),
            2 => Ok(Self::Two),
            _ => Err(format!("{count} server cores; a plan can have 1 or 2")),
        }
    }
}

impl Cores {
    /// Returns the name of a case with `connections` connections per server.
    fn case(self, connections: u32) -> String {
        match self {
            Self::One => format!("{connections} connections"),
            Self::Two => format!("2 cores, {connections} connections each"),
        }
    }

    /// Returns the CPUs of each server and of its client.
    fn placements(self, plan: &KvPlan) -> Vec<Placement<'_>> {
        let (server, client) = (&plan.server_cpus[..], &plan.client_cpus[..]);
        let first = Placement { server, client };
        let second = Placement {
            server: client,
            client: server,
        };
        match self {
            Self::One => vec![first],
            Self::Two => vec![first, second],
        }
    }
}

/// The CPUs of a server (and of its service), and the CPUs of the server's client.
#[derive(Clone, Copy, Debug)]
struct Placement<'a> {
    server: &'a str,
    client: &'a str,
}

/// The path between the client and the server.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// A veth pair. The client uses the kernel's stack.
    #[default]
    Veth,
    /// Within the host. If the server is on the kernel, the path is the loopback interface.
    /// Otherwise the path is the memory of the service.
    #[serde(rename = "memory")]
    Local,
}

/// A key-value server, with the stack that carries its connections.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// memcached on the kernel, the baseline.
    Memcached,
    /// memcached on the service, by `tidelane run`.
    MemcachedAccelerated,
    /// The server on the ring API, with the kernel's TCP through io_uring.
    IoUring,
    /// The server on the ring API, with TCP in the service.
    Service,
    /// The server on the ring API, with TCP in the server's process. On [`Path::Veth`], the server
    /// owns the queue of the veth interface through AF_XDP. On [`Path::Local`], the server
    /// exchanges packets with the service through a mux port, which is a pair of packet rings.
    Direct,
}

impl Server {
    /// Returns the name in the table.
    fn name(self) -> &'static str {
        match self {
            Self::Memcached => "memcached on the kernel",
            Self::MemcachedAccelerated => "memcached on the service",
            Self::IoUring => "ring API on io_uring",
            Self::Service => "ring API on the service",
            Self::Direct => "ring API, direct",
        }
    }

    /// Returns true if the server needs the service.
    fn needs_service(self, path: Path) -> bool {
        match self {
            Self::Memcached | Self::IoUring => false,
            Self::MemcachedAccelerated | Self::Service => true,
            Self::Direct => path == Path::Local,
        }
    }
}

/// One measurement of a server.
#[derive(Clone, Copy, Debug)]
struct Sample {
    requests_per_second: f64,
    /// Mean latency of a request in µs.
    mean_us: f64,
    /// 99th percentile of the latency of the requests in µs.
    p99_us: f64,
    /// CPU time of the server's process and of its service, in µs per request. On [`Path::Local`],
    /// the service also carries the client's end of the connections.
    cpu_us: f64,
}

/// The results of all rounds.
#[derive(Debug, Default)]
pub struct Results {
    /// The samples of each case, in the order of the rounds.
    samples: BTreeMap<Case, Vec<Sample>>,
}

/// A measured case: the server cores, the connections of each server, and the server.
type Case = (Cores, u32, Server);

impl KvPlan {
    /// Returns the fields that the plans of all kinds of figures have in common.
    pub fn heading(&self) -> Heading {
        Heading {
            title: self.title.clone(),
            paper: self.paper.clone(),
            rounds: self.rounds,
            placement: format!(
                "client {} on CPU {}; server, and with the service the service too, on CPU {}{}; \
                 10 % set, 90 % get, values of {} B",
                match self.path {
                    Path::Veth => "at the other end of a veth",
                    Path::Local => "within the host",
                },
                self.client_cpus,
                self.server_cpus,
                match self.cores.contains(&Cores::Two) {
                    true => "; with 2 cores, a second pair with these CPUs exchanged",
                    false => "",
                },
                self.value_len
            ),
            targets: self.targets.clone(),
        }
    }

    /// Returns the servers to measure: memcached on the kernel, and then the plan's servers.
    fn all_servers(&self) -> Vec<Server> {
        [&[Server::Memcached], &self.servers[..]].concat()
    }

    /// Returns each number of server cores with each number of connections per server.
    fn loads(&self) -> impl Iterator<Item = (Cores, u32)> {
        let cores = self.cores.iter();
        cores.flat_map(|cores| self.connections.iter().map(|count| (*cores, *count)))
    }
}

/// Runs all rounds of a plan. Every second round measures the servers in reverse order.
pub fn run(plan: &KvPlan) -> Result<Results, Stop> {
    tools::require_tools(&["memcached"])?;
    plan.heading().print();
    let mut results = Results::default();
    for round in 0..plan.rounds {
        println!("round {} of {}", round + 1, plan.rounds);
        for (cores, connections) in plan.loads() {
            let mut servers = plan.all_servers();
            if round % 2 == 1 {
                servers.reverse();
            }
            for server in servers {
                let case = (cores, connections, server);
                let sample = measure(plan, case)?;
                println!(
                    "  {}, {:<25} {:>8.0} requests/s  mean {:>7.1} us  p99 {:>7.1} us  CPU {:>5.2} \
                     us",
                    cores.case(connections),
                    server.name(),
                    sample.requests_per_second,
                    sample.mean_us,
                    sample.p99_us,
                    sample.cpu_us
                );
                let _ = std::io::stdout().flush();
                results.samples.entry(case).or_default().push(sample);
            }
        }
    }
    Ok(results)
}

/// Starts a server on `cpus`, and its service if the server needs a service.
fn start(plan: &KvPlan, wire: &Wire, server: Server, cpus: &str) -> Result<Programs, Stop> {
    let service = server
        .needs_service(plan.path)
        .then(|| wire.service_on_cores(Side::Server, cpus, &[]))
        .transpose()?;
    let running = match server {
        Server::Memcached | Server::MemcachedAccelerated => {
            let line = format!("-u root -l 0.0.0.0 -p {PORT} -U 0 -t 1 -m {MEMORY_MIB}");
            let program = wire.program(Side::Server, "memcached").args(&line);
            let program = program.cpus(cpus);
            wire.start_server(program, service.as_ref(), PORT)?
        }
        Server::IoUring => start_rings(wire, cpus, "io-uring", None)?,
        Server::Service => start_rings(wire, cpus, "service", service.as_ref())?,
        Server::Direct if plan.path == Path::Local => {
            start_rings(wire, cpus, "direct", service.as_ref())?
        }
        Server::Direct => {
            start_rings(wire, cpus, &format!("direct --interface {INTERFACE}"), None)?
        }
    };
    Ok(Programs {
        server: running,
        service,
    })
}

/// Starts the server on the ring API (`tidelane-kv`). `back_end` is the value of the option
/// `--backend`, and may contain further options.
fn start_rings(
    wire: &Wire,
    cpus: &str,
    back_end: &str,
    service: Option<&Service>,
) -> Result<Running, Stop> {
    let path = tools::binary("tidelane-kv")?;
    let program = wire.program(Side::Server, &path.to_string_lossy());
    let program = program.cpus(cpus).args(&format!(
        "--backend {back_end} --listen {SERVER}:{PORT} --memory {MEMORY_MIB}"
    ));
    let program = match service {
        Some(service) => program.registering_at(service),
        None => program,
    };
    program.spawn_ready(GRACE)
}

/// Measures a case once, on a new wire for each server.
fn measure(plan: &KvPlan, case: Case) -> Result<Sample, Stop> {
    let (cores, connections, server) = case;
    let mut pairs = Vec::new();
    for placement in cores.placements(plan) {
        let wire = Wire::new()?;
        let programs = start(plan, &wire, server, placement.server)?;
        // The programs are dropped before their wire.
        pairs.push((programs, wire, placement));
    }
    let mut clients = Vec::new();
    for (programs, wire, placement) in &pairs {
        let client = client(plan, wire, programs, placement.client)?;
        let client = client.arg("--connections").arg(connections);
        // The client is ready after the set-up: it has connected, and has stored the initial
        // values. The load then begins.
        clients.push(client.spawn_ready(GRACE)?);
    }
    let cpu_time = || -> Result<Duration, Stop> {
        pairs.iter().map(|(programs, ..)| programs.cpu_time()).sum()
    };
    let (start, before) = (Instant::now(), cpu_time()?);
    // Read the CPU time again before a client ends, so that the time between the two readings
    // contains no idle time.
    thread::sleep(Duration::from_secs_f64(0.9 * f64::from(plan.seconds)));
    let (span, after) = (start.elapsed(), cpu_time()?);
    let limit = GRACE + Duration::from_secs(plan.seconds.into());
    let mut lines = Vec::new();
    for client in clients {
        lines.push(client.wait(limit)?.success()?.json()?);
    }
    Sample::of(&lines, (after - before).div_duration_f64(span))
}

/// Returns the client of a server, without its number of connections. If there is a second server,
/// the clients start one after the other, and each client begins to count half a second after its
/// start.
fn client(plan: &KvPlan, wire: &Wire, server: &Programs, cpus: &str) -> Result<Program, Stop> {
    let (side, service) = match plan.path {
        Path::Veth => (Side::Client, None),
        Path::Local => (Side::Server, server.service.as_ref()),
    };
    let warmup = match plan.cores.contains(&Cores::Two) {
        true => 0.5,
        false => 0.0,
    };
    let client = wire.load_tool(side, "kv-client")?.on(service).cpus(cpus);
    Ok(client.args(&format!(
        "--connect {SERVER}:{PORT} --seconds {} --warmup {warmup} --bytes {}",
        plan.seconds, plan.value_len
    )))
}

impl Sample {
    /// Returns the sample of a measurement. Each of `lines` is the JSON that a client printed. The
    /// rate is the sum over the clients, and the latency is the mean. `busy` is the mean number of
    /// CPUs that the servers and their services used under the load.
    fn of(lines: &[Value], busy: f64) -> Result<Self, Stop> {
        let mut sample = Self {
            requests_per_second: 0.0,
            mean_us: 0.0,
            p99_us: 0.0,
            cpu_us: 0.0,
        };
        let share = 1.0 / lines.len() as f64;
        for line in lines {
            sample.requests_per_second += number(line, "requests")? / number(line, "seconds")?;
            sample.mean_us += share * number(&line["latency_us"], "mean")?;
            sample.p99_us += share * number(&line["latency_us"], "p99")?;
        }
        sample.cpu_us = busy * 1e6 / sample.requests_per_second;
        Ok(sample)
    }
}

impl Results {
    /// Returns one value of each sample, in the order of the rounds. Returns `None` if there is no
    /// sample.
    fn values(&self, case: Case, value: impl Fn(&Sample) -> f64) -> Option<Vec<f64>> {
        let samples = self.samples.get(&case)?;
        Some(samples.iter().map(value).collect())
    }

    /// Returns the rows of the table, which compare each server with memcached on the kernel.
    pub fn rows(&self, plan: &KvPlan) -> Vec<Row> {
        /// Name of a metric, true if a higher value is better, and the metric's value in a sample.
        type Metric = (&'static str, bool, fn(&Sample) -> f64);
        const METRICS: [Metric; 4] = [
            ("requests_per_second", true, |sample| {
                sample.requests_per_second
            }),
            ("mean_us", false, |sample| sample.mean_us),
            ("p99_us", false, |sample| sample.p99_us),
            ("server_cpu_us_per_request", false, |sample| sample.cpu_us),
        ];
        let heading = plan.heading();
        let mut rows = Vec::new();
        for (cores, connections) in plan.loads() {
            for server in &plan.servers {
                let case = format!("{}, {}", cores.case(connections), server.name());
                for (name, higher, value) in METRICS {
                    let base = self.values((cores, connections, Server::Memcached), value);
                    let values = self.values((cores, connections, *server), value);
                    rows.extend(pair_row(&heading, &case, (name, higher), base, values));
                }
            }
        }
        rows
    }

    /// Returns the bar chart of the requests per second. Each number of cores with each number of
    /// connections has a group of bars, with one bar for each server.
    pub fn svg(&self, plan: &KvPlan) -> String {
        let servers = plan.all_servers();
        let rate = |sample: &Sample| sample.requests_per_second;
        let of = |case: Case| median(&self.values(case, rate).unwrap_or_default());
        let groups: Vec<(String, Vec<f64>)> = plan
            .loads()
            .map(|(cores, count)| {
                let bars = servers.iter().map(|server| of((cores, count, *server)));
                (cores.case(count), bars.collect())
            })
            .collect();
        let groups: Vec<(&str, Vec<f64>)> = groups
            .iter()
            .map(|(name, bars)| (name.as_str(), bars.clone()))
            .collect();
        let servers: Vec<&str> = servers.iter().map(|server| server.name()).collect();
        plot::bars(&plan.title, "requests/s", &servers, &groups)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_cpu_time_is_divided_by_the_requests_of_the_same_span() {
        let latency = json!({ "mean": 9.0, "p99": 20.0 });
        let line = json!({ "requests": 30_000, "seconds": 3.0, "latency_us": latency });
        let sample = Sample::of(std::slice::from_ref(&line), 0.5).expect("a sample");
        assert_eq!(sample.requests_per_second, 10_000.0);
        assert_eq!(sample.cpu_us, 50.0);
        let both = Sample::of(&[line.clone(), line], 1.0).expect("a sample");
        assert_eq!(both.requests_per_second, 20_000.0);
        assert_eq!(both.cpu_us, 50.0);
        assert_eq!(both.mean_us, 9.0);
    }
}
