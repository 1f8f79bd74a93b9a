//! Figures of the ring API (crate `tidelane-rings`), by which a program exchanges messages of many
//! connections in one call, without copies. They compare the HTTP server of
//! `app/kernel/examples/ring-http` on a back end of the ring API with the same server on the
//! kernel's sockets with epoll. The kernel back end uses the kernel's sockets through io_uring, the
//! service back end uses the TCP of the service, and the direct back end runs TCP in the program,
//! on an AF_XDP queue.
//!
//! The client is on the kernel at the other end of a veth: wrk in a closed loop, or
//! `tidelane-load http-client` at a fixed rate. The server answers `GET /counters`
//! with its counts. Each measurement uses a new wire, which is a veth pair between two network
//! namespaces.

use std::{collections::BTreeMap, io::Write, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use tidelane_tests::{
    Program, Side, Stop, Wire,
    machine::median,
    tools,
    wire::{INTERFACE, SERVER},
    wrk::WrkReport,
};

use super::{
    plan::{Heading, Target},
    plot,
    programs::Programs,
    rows::{Row, pair_row, value_row},
};

/// Port of the server.
pub const PORT: u16 = 8080;
/// Time that a measurement may take longer than the plan's seconds, and time limit for the start of
/// a server.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Least share of the offered load that a server must answer for its measurement to count.
const LEAST_PART: f64 = 0.98;

/// The plan of a figure of the ring API.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct RingsPlan {
    /// Title of the table, one line.
    pub title: String,
    /// Source in the literature, and its result.
    pub paper: String,
    /// Number of rounds; each measures every case with every server.
    pub rounds: u32,
    /// Seconds of a measurement.
    pub seconds: u32,
    /// Offered load in requests per second. Without a rate, the loop is closed.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Lengths of the response bodies in bytes.
    pub lengths: Vec<u64>,
    /// Numbers of connections.
    pub connections: Vec<u32>,
    /// The servers on the ring API, each compared with its baseline, a server with epoll.
    pub servers: Vec<Server>,
    /// CPU of the client.
    pub client_cpus: String,
    /// CPU of the server.
    pub server_cpus: String,
    /// Targets for single rows.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

/// A variant of the HTTP server: the interface by which it uses TCP, and how it waits for work.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// The kernel's sockets with epoll. The server sleeps when there is nothing to do.
    Epoll,
    /// The kernel's sockets with epoll. The server polls without a sleep.
    EpollPoll,
    /// The kernel back end of the ring API. The server sleeps when there is nothing to do.
    IoUring,
    /// The kernel back end of the ring API. The server polls without a sleep.
    IoUringPoll,
    /// The service back end. The service has the CPU of the server.
    Service,
    /// The direct back end on the queue of the interface. The server sleeps when there is nothing
    /// to do.
    Direct,
    /// The direct back end on the queue of the interface. The server polls without a sleep.
    DirectPoll,
}

impl Server {
    /// Returns the name in the results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Epoll => "epoll",
            Self::EpollPoll => "polling epoll",
            Self::IoUring => "io_uring",
            Self::IoUringPoll => "polling io_uring",
            Self::Service => "service",
            Self::Direct => "direct",
            Self::DirectPoll => "polling direct",
        }
    }

    /// Returns the example and its arguments.
    fn command(self) -> (&'static str, String) {
        let on_queue = format!("--back-end direct --interface {INTERFACE}");
        match self {
            Self::Epoll => ("ring-http", "--back-end epoll".to_owned()),
            Self::EpollPoll => ("ring-http", "--back-end epoll --poll".to_owned()),
            Self::IoUring => ("ring-http", "--back-end io-uring".to_owned()),
            Self::IoUringPoll => ("ring-http", "--back-end io-uring --poll".to_owned()),
            Self::Service => ("ring-http", "--back-end service".to_owned()),
            Self::Direct => ("ring-http", on_queue),
            Self::DirectPoll => ("ring-http", on_queue + " --poll"),
        }
    }

    /// Returns the baseline, which is the server with epoll that waits in the same way.
    fn baseline(self) -> Self {
        match self {
            Self::Epoll | Self::IoUring | Self::Service | Self::Direct => Self::Epoll,
            Self::EpollPoll | Self::IoUringPoll | Self::DirectPoll => Self::EpollPoll,
        }
    }
}

/// One measurement of a server.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    requests_per_second: f64,
    /// Mean and 99th percentile of the latency in µs.
    mean_us: f64,
    p99_us: f64,
    /// CPU time of the server's process and of its service, in µs per request.
    cpu_us: f64,
    /// System calls per request.
    calls: f64,
    /// Mean and standard deviation of the ready descriptors per cycle. In a cycle, the server asks
    /// once for the ready descriptors, and handles all of them.
    ready: (f64, f64),
}

/// Length of the body, number of connections, server.
type Case = (u64, u32, Server);

/// The results, in the order of the rounds.
#[derive(Debug, Default)]
pub struct Results {
    samples: BTreeMap<Case, Vec<Sample>>,
}

impl RingsPlan {
    /// Returns the fields that the plans of all kinds of figures have in common.
    pub fn heading(&self) -> Heading {
        Heading {
            title: self.title.clone(),
            paper: self.paper.clone(),
            rounds: self.rounds,
            placement: format!(
                "{} on CPU {}; server on CPU {}; keep-alive",
                self.rate.map_or_else(
                    || "wrk".to_owned(),
                    |rate| format!("http-client with {rate} requests/s"),
                ),
                self.client_cpus,
                self.server_cpus
            ),
            targets: self.targets.clone(),
        }
    }

    /// Returns the time limit of a client.
    fn limit(&self) -> Duration {
        LIMIT + Duration::from_secs(self.seconds.into())
    }

    /// Returns all servers with their baselines, each once.
    fn all_servers(&self) -> Vec<Server> {
        let baselines = self.servers.iter().map(|server| server.baseline());
        let mut all: Vec<Server> = baselines.chain(self.servers.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Runs all rounds of a plan.
pub fn run(plan: &RingsPlan) -> Result<Results, Stop> {
    tools::require_tools(&["wrk", "curl"])?;
    plan.heading().print();
    let mut results = Results::default();
    for round in 0..plan.rounds {
        println!("round {} of {}", round + 1, plan.rounds);
        for length in &plan.lengths {
            for connections in &plan.connections {
                let mut servers = plan.all_servers();
                if round % 2 == 1 {
                    servers.reverse();
                }
                for server in servers {
                    let case = (*length, *connections, server);
                    let sample = measure(plan, case)?;
                    print_sample(case, &sample);
                    results.samples.entry(case).or_default().push(sample);
                }
            }
        }
    }
    Ok(results)
}

fn print_sample((length, connections, server): Case, sample: &Sample) {
    println!(
        "  {length:>5} B, {connections:>3} connections, {:<17} {:>8.0} requests/s  mean {:>7.1} \
         us  p99 {:>8.1} us  CPU {:>5.2} us  {:>5.3} calls  {:>5.1} ready",
        server.name(),
        sample.requests_per_second,
        sample.mean_us,
        sample.p99_us,
        sample.cpu_us,
        sample.calls,
        sample.ready.0,
    );
    let _ = std::io::stdout().flush();
}

/// The rate and latency that a client has measured.
pub struct ClientReport {
    /// Requests per second.
    pub requests_per_second: f64,
    mean_us: f64,
    p99_us: f64,
}

impl ClientReport {
    /// Reads the report of a client at a fixed rate. Fails if the server did not answer this rate.
    pub fn at_rate(line: &Value, rate: f64) -> Result<Self, Stop> {
        let number = |value: &Value, name: &str| {
            let number = value[name].as_f64();
            number.ok_or_else(|| Stop::Fail(format!("no {name}: {line}")))
        };
        let report = Self {
            requests_per_second: number(line, "rps")?,
            mean_us: number(&line["latency_us"], "mean")?,
            p99_us: number(&line["latency_us"], "p99")?,
        };
        if report.requests_per_second < LEAST_PART * rate {
            return Err(Stop::Fail(format!("the rate was not reached: {line}")));
        }
        Ok(report)
    }
}

/// The load of a client at a fixed rate.
pub struct Load {
    /// Length of the response bodies in bytes.
    pub length: u64,
    /// Number of connections.
    pub connections: u32,
    /// Seconds of load.
    pub seconds: u32,
    /// CPU of the client.
    pub cpus: String,
}

impl Load {
    /// Returns the client, which offers `rate` requests per second.
    pub fn client_at(&self, wire: &Wire, rate: f64) -> Result<Program, Stop> {
        let client = wire.load_tool(Side::Client, "http-client")?;
        Ok(client.cpus(&self.cpus).args(&format!(
            "--connect {SERVER}:{PORT} --path /{} --connections {} --seconds {} --rate {rate}",
            self.length, self.connections, self.seconds
        )))
    }
}

/// The counts of a server.
pub struct Counts {
    /// Number of answered requests, at least 1.
    pub requests: f64,
    /// System calls per request.
    pub calls: f64,
    /// Mean and standard deviation of the ready descriptors per cycle.
    pub ready: (f64, f64),
}

impl Counts {
    /// Asks the server for its counts.
    pub fn read(wire: &Wire) -> Result<Self, Stop> {
        let curl = wire.program(Side::Client, "curl").args("-sS --max-time 10");
        let curl = curl.arg(format!("http://{SERVER}:{PORT}/counters"));
        let counts = curl.run(LIMIT)?.success()?.json()?;
        let number = |name: &str| {
            let found = counts[name].as_f64();
            found.ok_or_else(|| Stop::Fail(format!("no {name} in {counts}")))
        };
        let requests = number("requests")?.max(1.0);
        Ok(Self {
            requests,
            calls: number("system_calls")? / requests,
            ready: (number("ready_mean")?, number("ready_deviation")?),
        })
    }
}

/// Runs the client in a closed loop.
fn run_wrk(
    plan: &RingsPlan,
    wire: &Wire,
    url: &str,
    connections: u32,
) -> Result<ClientReport, Stop> {
    let wrk = wire.program(Side::Client, "wrk").cpus(&plan.client_cpus);
    let wrk = wrk.args("-t 1 --timeout 10s --latency");
    let wrk = wrk.arg("-c").arg(connections);
    let wrk = wrk.arg("-d").arg(format!("{}s", plan.seconds)).arg(url);
    let output = wrk.run(plan.limit())?.success()?.stdout;
    let report = WrkReport::parse(&output).map_err(Stop::Fail)?;
    let missing = || Stop::Fail(format!("no latency in {output}"));
    Ok(ClientReport {
        requests_per_second: report.requests_per_second,
        mean_us: report.mean_us.ok_or_else(missing)?,
        p99_us: report.p99_us.ok_or_else(missing)?,
    })
}

/// Measures a server once.
fn measure(plan: &RingsPlan, (length, connections, server): Case) -> Result<Sample, Stop> {
    let wire = Wire::new()?;
    let time = Duration::from_secs(plan.seconds.into());
    let programs = start(&wire, server, time, &plan.server_cpus)?;
    let before = programs.cpu_time()?;
    let report = match plan.rate {
        None => {
            let url = format!("http://{SERVER}:{PORT}/{length}");
            run_wrk(plan, &wire, &url, connections)
        }
        Some(rate) => {
            let load = Load {
                length,
                connections,
                seconds: plan.seconds,
                cpus: plan.client_cpus.clone(),
            };
            let line = load.client_at(&wire, rate)?.run(plan.limit())?.success()?;
            ClientReport::at_rate(&line.json()?, rate)
        }
    };
    let report = report.map_err(|stop| Stop::Fail(format!("{}: {stop:?}", server.name())))?;
    let used = programs.cpu_time()? - before;
    let counts = Counts::read(&wire)?;
    Ok(Sample {
        requests_per_second: report.requests_per_second,
        mean_us: report.mean_us,
        p99_us: report.p99_us,
        cpu_us: used.as_secs_f64() * 1e6 / counts.requests,
        calls: counts.calls,
        ready: counts.ready,
    })
}

/// Starts a server on these CPUs for a measurement of this time, and its service if the server
/// needs one.
pub fn start(wire: &Wire, server: Server, time: Duration, cpus: &str) -> Result<Programs, Stop> {
    let (example, arguments) = server.command();
    let path = tools::binary(example)?;
    let program = wire.program(Side::Server, &path.to_string_lossy());
    let seconds = (time + LIMIT).as_secs();
    let program = program.cpus(cpus).args(&format!(
        "--listen {SERVER}:{PORT} --seconds {seconds} {arguments}"
    ));
    let (program, service) = match server {
        Server::Service => {
            let service = wire.service_on_cores(Side::Server, cpus, &[])?;
            (program.registering_at(&service), Some(service))
        }
        _ => (program, None),
    };
    Ok(Programs {
        server: program.spawn_ready(LIMIT)?,
        service,
    })
}

impl Results {
    fn values(&self, case: Case, value: impl Fn(&Sample) -> f64) -> Option<Vec<f64>> {
        let samples = self.samples.get(&case)?;
        Some(samples.iter().map(value).collect())
    }

    /// Returns the rows of the result: each back end beside epoll, in each metric.
    pub fn rows(&self, plan: &RingsPlan) -> Vec<Row> {
        type Metric = (&'static str, bool, fn(&Sample) -> f64);
        const METRICS: [Metric; 4] = [
            ("requests_per_second", true, |sample| {
                sample.requests_per_second
            }),
            ("latency_mean_us", false, |sample| sample.mean_us),
            ("latency_p99_us", false, |sample| sample.p99_us),
            ("server_cpu_us_per_request", false, |sample| sample.cpu_us),
        ];
        let heading = plan.heading();
        let mut rows = Vec::new();
        for length in &plan.lengths {
            for connections in &plan.connections {
                for server in &plan.servers {
                    let place = format!("{length} B, {connections} connections");
                    let case = format!("{place}, {}", server.name());
                    for (name, higher, value) in METRICS {
                        let base = (*length, *connections, server.baseline());
                        let pair = (
                            self.values(base, value),
                            self.values((*length, *connections, *server), value),
                        );
                        rows.extend(pair_row(&heading, &case, (name, higher), pair.0, pair.1));
                    }
                }
                for server in plan.all_servers() {
                    rows.extend(self.count_rows(&heading, (*length, *connections, server)));
                }
            }
        }
        rows
    }

    /// Returns the rows with the counts of a server.
    fn count_rows(&self, heading: &Heading, case: Case) -> Vec<Row> {
        let (length, connections, server) = case;
        let name = format!("{length} B, {connections} connections, {}", server.name());
        type Metric = (&'static str, fn(&Sample) -> f64);
        let metrics: [Metric; 3] = [
            ("system_calls_per_request", |sample| sample.calls),
            ("ready_descriptors_mean", |sample| sample.ready.0),
            ("ready_descriptors_deviation", |sample| sample.ready.1),
        ];
        metrics
            .iter()
            .filter_map(|(metric, value)| {
                let values = self.values(case, value)?;
                Some(value_row(heading, &name, metric, &values))
            })
            .collect()
    }

    /// Returns the plot: a group of bars for each case, with one bar for each server. The bars show
    /// the rate, or at a fixed rate the CPU time.
    pub fn svg(&self, plan: &RingsPlan) -> String {
        let servers = plan.all_servers();
        let cases: Vec<(u64, u32)> = plan
            .lengths
            .iter()
            .flat_map(|length| plan.connections.iter().map(|count| (*length, *count)))
            .collect();
        let names: Vec<String> = cases
            .iter()
            .map(|(length, count)| format!("{length} B, {count}"))
            .collect();
        let shown: (&str, fn(&Sample) -> f64) = match plan.rate {
            None => ("requests/s", |sample| sample.requests_per_second),
            Some(_) => ("us of the server's CPU per request", |sample| sample.cpu_us),
        };
        let groups: Vec<(&str, Vec<f64>)> = cases
            .iter()
            .zip(&names)
            .map(|((length, count), name)| {
                let of = |server: &Server| {
                    median(
                        &self
                            .values((*length, *count, *server), shown.1)
                            .unwrap_or_default(),
                    )
                };
                (name.as_str(), servers.iter().map(of).collect())
            })
            .collect();
        let names: Vec<&str> = servers.iter().map(|server| server.name()).collect();
        plot::bars(&plan.title, shown.0, &names, &groups)
    }
}
