//! Figures (experiments of `bench/figures`) of the ring API (crate `tidelane-rings`). With the ring
//! API, a program exchanges messages of many connections in one call, without copies. The figures
//! measure the HTTP server of `app/kernel/examples/ring-http` on the back ends of the ring API. The
//! baseline is the same server on the kernel's sockets with epoll. The kernel back end uses the
//! kernel's sockets through io_uring, and the service back end uses the TCP of the service. The
//! direct back end runs TCP in the program, on an AF_XDP queue or on a mux port of the service (a
//! pair of packet rings).
//!
//! In a closed loop, the client is wrk, or `tidelane-http-client` for the server
//! [`Server::DirectEmbedded`]. At a fixed rate, the client is `tidelane-load http-client`. The
//! `path` of the plan places the client:
//!
//! - `veth`: the client is on the kernel at the other end of a veth.
//! - `memory`: the client runs in the server's namespace. If the server is on the kernel, the
//!   client uses the kernel's loopback path. Otherwise the client uses the same service, which
//!   joins the two ends in memory.
//!
//! The server answers `GET /counters` with its counts. Each measurement uses a new wire, which is a
//! veth pair between two network namespaces.

use std::{collections::BTreeMap, io::Write, time::Duration};

use serde::Deserialize;
use tidelane_tests::{Service, Side, Stop, Wire, machine::median, napi::NapiThread, tools};

use super::{
    heading::{Heading, Target},
    kv::Path,
    plot,
    rows::{Row, cost_row, pair_row, value_row},
};

mod client;
mod server;

pub use client::{ClientReport, Counts, Load};
pub use server::{Server, start};

/// Port of the server.
pub const PORT: u16 = 8080;
/// Time by which a measurement may exceed the plan's seconds before it fails. Also the time limit
/// for the start of a server.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Largest number of attempts to measure a server at a fixed rate. Another virtual machine may take
/// the CPU during an attempt, so that the server does not reach the rate.
const ATTEMPTS_MAX: u32 = 4;

/// The plan of a figure of the ring API.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct RingsPlan {
    /// Title of the table, one line.
    pub title: String,
    /// Source in the literature, and its result.
    pub paper: String,
    /// Number of rounds. A round measures each case once with each server.
    pub rounds: u32,
    /// Seconds of a measurement.
    pub seconds: u32,
    /// Offered load in requests per second. `None` means a closed loop: a connection sends its next
    /// request after the answer.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Lengths of the response bodies in bytes.
    pub lengths: Vec<u64>,
    /// Numbers of connections.
    pub connections: Vec<u32>,
    /// The servers on the ring API. Each of these servers is compared with its baseline, a server
    /// with epoll.
    pub servers: Vec<Server>,
    /// Path between the client and the server.
    #[serde(default)]
    pub path: Path,
    /// If true, each end of the veth receives its packets in a NAPI thread (a kernel thread) on the
    /// CPU of this end. The time of the reception then counts for the receiving end. If false, a
    /// packet is received in a softirq on the CPU of its sender, and the time counts for the
    /// sender.
    #[serde(default)]
    pub napi_threads: bool,
    /// CPU of the client.
    pub client_cpus: String,
    /// CPU of the server.
    pub server_cpus: String,
    /// Targets for single rows.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

/// One measurement of a server.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    requests_per_second: f64,
    /// Mean and 99th percentile of the latency in µs. `None` if the client does not measure the
    /// latency.
    latency_us: Option<(f64, f64)>,
    /// CPU time of the server's process, of its service, and of the NAPI thread of the server's
    /// interface, in µs per request. With [`Path::Local`], the service also carries the client's
    /// end of the connections, except for [`Server::DirectEmbedded`].
    cpu_us: f64,
    /// System calls per request that the server has made to exchange data or to wait.
    calls: f64,
    /// Mean and standard deviation of the number of ready descriptors (sockets with events) in a
    /// cycle. In a cycle, the server asks once for the ready descriptors, and handles all of them.
    /// Cycles without a ready descriptor do not count.
    ready: (f64, f64),
}

/// Length of the body, number of connections, server.
type Case = (u64, u32, Server);

/// The samples of each case, in the order of the rounds.
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
                "{} on CPU {}; server on CPU {}{}; keep-alive",
                self.rate.map_or_else(
                    || "wrk".to_owned(),
                    |rate| format!("http-client with {rate} requests/s"),
                ),
                self.client_cpus,
                self.server_cpus,
                match (self.path, self.napi_threads) {
                    (Path::Local, _) => "; in memory",
                    (Path::Veth, true) => "; a NAPI thread at each end",
                    (Path::Veth, false) => "",
                }
            ),
            targets: self.targets.clone(),
        }
    }

    /// Returns the time limit of a client.
    fn limit(&self) -> Duration {
        LIMIT + Duration::from_secs(self.seconds.into())
    }

    /// Returns the plan's servers and their baselines, each once.
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
                    let sample = measure_repeatedly(plan, case)?;
                    print_sample(case, &sample);
                    results.samples.entry(case).or_default().push(sample);
                }
            }
        }
    }
    Ok(results)
}

fn print_sample((length, connections, server): Case, sample: &Sample) {
    let latency = sample
        .latency_us
        .map_or(String::new(), |(mean_us, p99_us)| {
            format!("  mean {mean_us:>7.1} us  p99 {p99_us:>8.1} us")
        });
    println!(
        "  {length:>5} B, {connections:>3} connections, {:<23} {:>8.0} requests/s{latency}  CPU \
         {:>5.2} us  {:>5.3} calls  {:>5.1} ready",
        server.name(),
        sample.requests_per_second,
        sample.cpu_us,
        sample.calls,
        sample.ready.0,
    );
    let _ = std::io::stdout().flush();
}

/// Measures a server. At a fixed rate, measures again after a failure, for example if the server
/// did not reach the rate. [`ATTEMPTS_MAX`] limits the number of attempts.
fn measure_repeatedly(plan: &RingsPlan, case: Case) -> Result<Sample, Stop> {
    let mut attempt = 1;
    loop {
        match measure(plan, case) {
            Err(Stop::Fail(text)) if plan.rate.is_some() && attempt < ATTEMPTS_MAX => {
                println!("  attempt {attempt} failed: {text}");
                attempt += 1;
            }
            ended => return ended,
        }
    }
}

/// Measures a server once.
fn measure(plan: &RingsPlan, (length, connections, server): Case) -> Result<Sample, Stop> {
    let wire = Wire::new()?;
    let napi = NapiThreads::start(plan, &wire)?;
    let time = Duration::from_secs(plan.seconds.into());
    let programs = start(&wire, server, plan.path, time, &plan.server_cpus)?;
    let load = Load {
        length,
        connections,
        seconds: plan.seconds,
        cpus: plan.client_cpus.clone(),
    };
    let used = || Ok::<_, Stop>(programs.cpu_time()? + napi.of_server()?);
    let before = used()?;
    let service = programs.service.as_ref();
    let report = run_client(plan, &wire, server, &load, service);
    let report = report.map_err(|stop| Stop::Fail(format!("{}: {stop:?}", server.name())))?;
    let used = used()? - before;
    let counts = Counts::read(&wire)?;
    Ok(Sample {
        requests_per_second: report.requests_per_second,
        latency_us: report.latency_us,
        cpu_us: used.as_secs_f64() * 1e6 / counts.requests,
        calls: counts.calls,
        ready: counts.ready,
    })
}

/// Runs the client of a measurement. `service` is the service of the server, if any.
fn run_client(
    plan: &RingsPlan,
    wire: &Wire,
    server: Server,
    load: &Load,
    service: Option<&Service>,
) -> Result<ClientReport, Stop> {
    let end = match plan.path {
        Path::Veth => (Side::Client, None),
        Path::Local => (Side::Server, service),
    };
    let limit = plan.limit();
    match (plan.rate, service) {
        (Some(rate), _) => {
            let line = load.client_at(wire, end, rate)?.run(limit)?.success()?;
            ClientReport::at_rate(&line.json()?, rate)
        }
        (None, Some(service)) if server == Server::DirectEmbedded => {
            load.run_embedded(wire, service, limit)
        }
        (None, _) => load.run_wrk(wire, end, limit),
    }
}

/// The NAPI threads of a wire. Empty if the plan has none.
struct NapiThreads {
    server: Option<NapiThread>,
    _client: Option<NapiThread>,
}

impl NapiThreads {
    fn start(plan: &RingsPlan, wire: &Wire) -> Result<Self, Stop> {
        let start = |side, cpus: &str| {
            let threads = plan
                .napi_threads
                .then(|| NapiThread::start(wire, side, cpus));
            threads.transpose()
        };
        Ok(Self {
            server: start(Side::Server, &plan.server_cpus)?,
            _client: start(Side::Client, &plan.client_cpus)?,
        })
    }

    /// Returns the CPU time of the server's NAPI thread, or 0 without a NAPI thread.
    fn of_server(&self) -> Result<Duration, Stop> {
        let time = self.server.as_ref().map(NapiThread::cpu_time).transpose()?;
        Ok(time.unwrap_or_default())
    }
}

impl Results {
    /// Returns one value of each sample of a case, in the order of the rounds. Returns `None` if
    /// there is no sample, or if a sample lacks the value.
    fn values(&self, case: Case, value: impl Fn(&Sample) -> Option<f64>) -> Option<Vec<f64>> {
        self.samples.get(&case)?.iter().map(value).collect()
    }

    /// Returns the rows of the result. A row compares a back end with epoll in one metric, or has
    /// one count of a server.
    pub fn rows(&self, plan: &RingsPlan) -> Vec<Row> {
        /// Name of a metric, true if a higher value is better, and the metric's value in a sample.
        type Metric = (&'static str, bool, fn(&Sample) -> Option<f64>);
        const METRICS: [Metric; 4] = [
            ("requests_per_second", true, |sample| {
                Some(sample.requests_per_second)
            }),
            ("latency_mean_us", false, |sample| {
                Some(sample.latency_us?.0)
            }),
            ("latency_p99_us", false, |sample| Some(sample.latency_us?.1)),
            ("server_cpu_us_per_request", false, |sample| {
                Some(sample.cpu_us)
            }),
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
        let of = |value: fn(&Sample) -> f64| self.values(case, |sample| Some(value(sample)));
        let calls = of(|sample| sample.calls);
        let mean = of(|sample| sample.ready.0);
        let deviation = of(|sample| sample.ready.1);
        let rows = [
            calls.map(|calls| cost_row(heading, &name, "system_calls_per_request", &calls)),
            mean.map(|mean| value_row(heading, &name, "ready_descriptors_mean", &mean)),
            deviation.map(|deviation| {
                cost_row(heading, &name, "ready_descriptors_deviation", &deviation)
            }),
        ];
        rows.into_iter().flatten().collect()
    }

    /// Returns the plot: a group of bars for each case, with one bar for each server. The bars show
    /// the requests per second. If the plan has a fixed rate, the bars show the CPU time per
    /// request instead.
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
                            .values((*length, *count, *server), |sample| Some(shown.1(sample)))
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
