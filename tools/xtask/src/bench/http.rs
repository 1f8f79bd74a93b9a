//! HTTP figures, which compare three servers: an example server on the embedded stack, the same
//! example server (the same source) on the kernel's sockets, and nginx on the kernel's sockets. The
//! embedded stack runs TCP inside the program, and exchanges packets with the service (`tidelaned`)
//! over a mux port (`service/mux`): packet rings through which the program shares the NIC.
//!
//! In most measurements, the client is wrk, which runs on the kernel at the other end of a veth. In
//! the measurements in memory, the client is another program with a mux port of the same service,
//! and the packets do not pass the veth. The figure compares this server with the same source on
//! the kernel's sockets, whose client (wrk) shares its network namespace. Each measurement uses a
//! new wire, which is a veth pair between two network namespaces.
//!
//! By default, a veth does not split the kernel's long TSO packets into frames. [`Link::Frames`]
//! has the offloads with which the veth carries frames as a NIC does.

use std::{collections::BTreeMap, io::Write, time::Duration};

use serde::Deserialize;
use tidelane_tests::{
    Side, Stop, Wire,
    machine::median,
    nginx::{Nginx, NginxOptions},
    service::cpu_time_of,
    tools,
    wire::{INTERFACE, SERVER, write_random_file},
    wrk::WrkReport,
};

use super::{
    heading::{Heading, Target},
    plot,
    programs::{Programs, answered_requests, embedded_client},
    rows::{Row, pair_row, value_row},
};

/// TCP port of the server.
const PORT: u16 = 8080;
/// Time that a measurement may take in addition to the plan's seconds. Also the time limit for the
/// start of the example server.
const LIMIT: Duration = Duration::from_secs(30);
/// Largest number of times that a failed measurement of a server on the kernel is repeated.
const REPEATS_MAX: u32 = 8;

/// The plan of an HTTP figure.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct HttpPlan {
    /// Title of the table, one line.
    pub title: String,
    /// Source of the target.
    pub paper: String,
    /// Number of rounds; each measures every length with every server.
    pub rounds: u32,
    /// Seconds of a measurement.
    pub seconds: u32,
    /// Lengths of the response bodies in bytes, for a veth with the default offloads.
    pub lengths: Vec<u64>,
    /// Lengths of the response bodies in bytes, for a veth with GRO at the client.
    #[serde(default)]
    pub lengths_with_gro: Vec<u64>,
    /// Lengths of the response bodies in bytes, for a veth without TSO at the server and with GRO
    /// at the client.
    #[serde(default)]
    pub lengths_without_tso: Vec<u64>,
    /// Number of connections at a time.
    pub connections: u32,
    /// True if each connection carries only one request.
    pub close: bool,
    /// CPU of the client.
    pub client_cpus: String,
    /// CPU of the server, and of the service if there is one.
    pub server_cpus: String,
    /// Lengths of the response bodies in bytes, for the measurements in memory (between two mux
    /// ports of one service). In these measurements, the service runs on the CPU of the client.
    #[serde(default)]
    pub lengths_in_memory: Vec<u64>,
    /// Targets for single rows.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

/// A server of the comparison, and the stack that carries its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Server {
    /// The example server on the embedded stack.
    Embedded,
    /// The example server on the kernel's sockets.
    Kernel,
    /// nginx on the kernel's sockets.
    Nginx,
}

const SERVERS: [Server; 3] = [Server::Embedded, Server::Kernel, Server::Nginx];

impl Server {
    fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Kernel => "same source on the kernel",
            Self::Nginx => "nginx on the kernel",
        }
    }
}

/// Offloads of the veth between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Link {
    /// The defaults: TSO, and no GRO.
    Plain,
    /// TSO at the server and GRO at the client.
    Gro,
    /// No TSO at the server, so that each frame has at most 1,514 bytes, and GRO at the client.
    Frames,
}

impl Link {
    /// Returns the suffix that names these offloads in a row's label, after the length of the
    /// bodies.
    fn suffix(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Gro => ", GRO at the client",
            Self::Frames => ", GRO at the client, no TSO",
        }
    }

    /// Returns a new wire with these offloads.
    fn wire(self) -> Result<Wire, Stop> {
        let wire = Wire::new()?;
        if self != Self::Plain {
            wire.set_offloads(Side::Client, INTERFACE, "gro on")?;
        }
        if self == Self::Frames {
            wire.set_offloads(Side::Server, INTERFACE, "tso off")?;
        }
        Ok(wire)
    }
}

/// A measurement over a veth: its offloads, the server, and the length of the bodies.
type OverVeth = (Link, Server, u64);

impl HttpPlan {
    /// Returns the links and lengths of the measurements over a veth, in the order of the rows.
    fn cases(&self) -> Vec<(Link, u64)> {
        let of = |link, lengths: &[u64]| lengths.iter().map(move |len| (link, *len)).collect();
        let cases: [Vec<(Link, u64)>; 3] = [
            of(Link::Plain, &self.lengths),
            of(Link::Gro, &self.lengths_with_gro),
            of(Link::Frames, &self.lengths_without_tso),
        ];
        cases.concat()
    }

    /// Returns the fields that the plans of all kinds of figures have in common.
    pub fn heading(&self) -> Heading {
        let kind = if self.close {
            "a new connection for each request"
        } else {
            "keep-alive"
        };
        Heading {
            title: self.title.clone(),
            paper: self.paper.clone(),
            rounds: self.rounds,
            placement: format!(
                "client on CPU {}, server on CPU {}; the service of the embedded stack on the CPU \
                 of the server, or in memory on the CPU of the client; {} connections at a time, \
                 {kind}",
                self.client_cpus, self.server_cpus, self.connections
            ),
            targets: self.targets.clone(),
        }
    }
}

/// The results. Each list has one element for each round, in the order of the rounds.
#[derive(Debug, Default)]
pub struct Results {
    /// Requests per second of each measurement over a veth.
    over_veth: BTreeMap<OverVeth, Vec<f64>>,
    /// Rates of each length between two mux ports, in memory.
    in_memory: BTreeMap<u64, Vec<LocalRates>>,
    /// Rates of each length between two programs on the kernel, in one network namespace.
    on_kernel_loopback: BTreeMap<u64, Vec<LocalRates>>,
}

/// The rates of a server whose client runs on the same host.
#[derive(Clone, Copy, Debug)]
struct LocalRates {
    /// Requests per second.
    requests: f64,
    /// Number of requests for each second of CPU time that the server's process used.
    per_server_core: f64,
}

impl LocalRates {
    /// Makes the rates from the number of requests that the server answered while the plan's client
    /// ran, and the CPU time that the server used.
    fn new(plan: &HttpPlan, requests: f64, used: Duration) -> Self {
        Self {
            requests: requests / f64::from(plan.seconds),
            per_server_core: requests / used.as_secs_f64().max(0.01),
        }
    }

    fn print(&self, length: u64, name: &str) {
        println!(
            "  {length:>6} B, {name:<26} {:>9.0} requests/s, {:.0} per CPU second of the server",
            self.requests, self.per_server_core
        );
        let _ = std::io::stdout().flush();
    }
}

/// Runs all rounds of a plan.
pub fn run(plan: &HttpPlan) -> Result<Results, Stop> {
    tools::require_tools(&["wrk", "nginx", "ethtool"])?;
    let heading = plan.heading();
    heading.print();
    let mut results = Results::default();
    for round in 0..plan.rounds {
        println!("round {} of {}", round + 1, plan.rounds);
        for (link, length) in plan.cases() {
            let mut servers = SERVERS;
            if round % 2 == 1 {
                servers.reverse();
            }
            for server in servers {
                let case = (link, server, length);
                let rate = measure_repeatedly(server, || measure(plan, case))?;
                println!(
                    "  {length:>6} B, {:<26} {rate:>9.0} requests/s{}",
                    server.name(),
                    link.suffix()
                );
                let _ = std::io::stdout().flush();
                results.over_veth.entry(case).or_default().push(rate);
            }
        }
        for length in &plan.lengths_in_memory {
            let rates = measure_in_memory(plan, *length)?;
            rates.print(*length, "embedded, in memory");
            results.in_memory.entry(*length).or_default().push(rates);
            let measure = || measure_on_kernel_loopback(plan, *length);
            let rates = measure_repeatedly(Server::Kernel, measure)?;
            rates.print(*length, "same source, on loopback");
            let measured = results.on_kernel_loopback.entry(*length);
            measured.or_default().push(rates);
        }
    }
    Ok(results)
}

/// Measures the embedded server with a client on another mux port of the same service. Client and
/// service run on the plan's CPU for clients, so that the server has its CPU for itself. The server
/// sleeps when no packet waits, without polling first, so that its CPU time contains no time in
/// which the server waits for the client.
fn measure_in_memory(plan: &HttpPlan, length: u64) -> Result<LocalRates, Stop> {
    let wire = Wire::new()?;
    let placed = Placement {
        service: &plan.client_cpus,
        server: &plan.server_cpus,
    };
    let programs = start(plan, &wire, Server::Embedded, (length, placed))?;
    let Some(service) = &programs.service else {
        return Err(Stop::Fail("no service".to_owned()));
    };
    let client = embedded_client(&wire, service, PORT)?.cpus(&plan.client_cpus);
    let client = client.args(&format!(
        "--connections {} --bytes {length}",
        plan.connections
    ));
    let client = client.arg("--seconds").arg(plan.seconds);
    let client = match plan.close {
        true => client.arg("--close"),
        false => client,
    };
    let before = cpu_time_of(programs.server.pid())?;
    let limit = LIMIT + Duration::from_secs(plan.seconds.into());
    let output = client.run(limit)?.success()?.stdout;
    let used = cpu_time_of(programs.server.pid())? - before;
    Ok(LocalRates::new(plan, answered_requests(&output)?, used))
}

/// Measures the same source on the kernel's sockets, with wrk as the client in the server's network
/// namespace. The packets pass the loopback interface. Client and server have the same CPUs as in
/// [`measure_in_memory`].
fn measure_on_kernel_loopback(plan: &HttpPlan, length: u64) -> Result<LocalRates, Stop> {
    let wire = Wire::new()?;
    let placed = Placement {
        service: &plan.client_cpus,
        server: &plan.server_cpus,
    };
    let server = Server::Kernel;
    let programs = start(plan, &wire, server, (length, placed))?;
    let before = cpu_time_of(programs.server.pid())?;
    let rate = run_wrk(plan, &wire, Side::Server, (server, length))?;
    let used = cpu_time_of(programs.server.pid())? - before;
    let requests = rate * f64::from(plan.seconds);
    Ok(LocalRates::new(plan, requests, used))
}

/// Calls `measure`, which measures `server`. The kernel resets a connection of its own servers in
/// rare measurements. Such a measurement is repeated, at most [`REPEATS_MAX`] times.
fn measure_repeatedly<T>(server: Server, measure: impl Fn() -> Result<T, Stop>) -> Result<T, Stop> {
    for _ in 0..REPEATS_MAX {
        match measure() {
            Err(Stop::Fail(reason)) if server != Server::Embedded => {
                println!("  repeated: {reason}");
            }
            result => return result,
        }
    }
    measure()
}

/// Measures a server once. Returns the requests per second.
fn measure(plan: &HttpPlan, (link, server, length): OverVeth) -> Result<f64, Stop> {
    let wire = link.wire()?;
    let placed = Placement {
        service: &plan.server_cpus,
        server: &plan.server_cpus,
    };
    let _programs = start(plan, &wire, server, (length, placed))?;
    run_wrk(plan, &wire, Side::Client, (server, length))
}

/// Runs wrk at `side` of the wire, with requests for bodies of `length` bytes from `server`.
/// Returns the requests per second. Fails if a request failed.
fn run_wrk(
    plan: &HttpPlan,
    wire: &Wire,
    side: Side,
    (server, length): (Server, u64),
) -> Result<f64, Stop> {
    let wrk = wire.program(side, "wrk").cpus(&plan.client_cpus);
    let wrk = wrk.args("-t 1 --timeout 10s");
    let wrk = wrk.arg("-c").arg(plan.connections);
    let wrk = wrk.arg("-d").arg(format!("{}s", plan.seconds));
    let wrk = match plan.close {
        true => wrk.arg("-H").arg("Connection: close"),
        false => wrk,
    };
    let wrk = wrk.arg(format!("http://{SERVER}:{PORT}/{length}"));
    let limit = LIMIT + Duration::from_secs(plan.seconds.into());
    let output = wrk.run(limit)?.success()?.stdout;
    let report = WrkReport::parse(&output)
        .map_err(|reason| Stop::Fail(format!("{}: {reason}", server.name())))?;
    Ok(report.requests_per_second)
}

/// The CPUs of a service and of a server.
#[derive(Clone, Copy, Debug)]
struct Placement<'a> {
    service: &'a str,
    server: &'a str,
}

/// Starts a server that can send response bodies of `length` bytes. If the server is on the
/// embedded stack, also starts the service that the server uses. Server and service run on the CPUs
/// of `placed`.
fn start(
    plan: &HttpPlan,
    wire: &Wire,
    server: Server,
    (length, placed): (u64, Placement<'_>),
) -> Result<Programs, Stop> {
    if server == Server::Nginx {
        let options = NginxOptions {
            workers: 1,
            port: PORT,
            cpus: Some(placed.server.to_owned()),
            ..NginxOptions::default()
        };
        let nginx = Nginx::start(wire, None, &options)?;
        write_random_file(&nginx.file(&length.to_string()), length, length)?;
        return Ok(Programs {
            server: nginx.master,
            service: None,
        });
    }
    let path = tools::binary("tidelane-http")?;
    let program = wire.program(Side::Server, &path.to_string_lossy());
    let program = program.cpus(placed.server);
    let seconds = u64::from(plan.seconds) + LIMIT.as_secs();
    let program = program.args(&format!(
        "--address {SERVER} --port {PORT} --seconds {seconds}"
    ));
    let (program, service) = if server == Server::Embedded {
        let service = wire.service_on_cores(Side::Server, placed.service, &[])?;
        let program = program.registering_at(&service);
        (program.args("--service --spin-us 0"), Some(service))
    } else {
        (program.arg("--kernel"), None)
    };
    Ok(Programs {
        server: program.spawn_ready(LIMIT)?,
        service,
    })
}

impl Results {
    fn values(&self, case: OverVeth) -> Option<Vec<f64>> {
        self.over_veth.get(&case).cloned()
    }

    /// Returns the rows of the result: the embedded stack compared with each of the other servers,
    /// its rate in bits of body per second, and its rates in memory.
    pub fn rows(&self, plan: &HttpPlan) -> Vec<Row> {
        let heading = plan.heading();
        let mut rows = Vec::new();
        for (link, length) in plan.cases() {
            for (server, beside) in [
                (Server::Kernel, "beside the same source"),
                (Server::Nginx, "beside nginx"),
            ] {
                let case = format!("{length} B{}, {beside}", link.suffix());
                let pair = (
                    self.values((link, server, length)),
                    self.values((link, Server::Embedded, length)),
                );
                let metric = ("requests_per_second", true);
                rows.extend(pair_row(&heading, &case, metric, pair.0, pair.1));
            }
            let case = format!("{length} B{}", link.suffix());
            let rates = self.values((link, Server::Embedded, length));
            let rates = rates.unwrap_or_default();
            let bits: Vec<f64> = rates
                .iter()
                .map(|rate| rate * length as f64 * 8.0)
                .collect();
            rows.push(value_row(&heading, &case, "body_bits_per_second", &bits));
        }
        for (length, rates) in &self.in_memory {
            let case = format!("{length} B, in memory");
            let requests: Vec<f64> = rates.iter().map(|rate| rate.requests).collect();
            rows.push(value_row(&heading, &case, "requests_per_second", &requests));
            let per_core: Vec<f64> = rates.iter().map(|rate| rate.per_server_core).collect();
            let metric = "requests_per_second_of_server_cpu";
            rows.push(value_row(&heading, &case, metric, &per_core));
            let on_loopback = self.on_kernel_loopback.get(length).map(|rates| {
                let per_core = rates.iter().map(|rate| rate.per_server_core);
                per_core.collect()
            });
            let case = format!("{case}, beside the same source on loopback");
            let pair = (on_loopback, Some(per_core));
            rows.extend(pair_row(&heading, &case, (metric, true), pair.0, pair.1));
        }
        rows
    }

    /// Returns the plot: a group of bars for each length of [`HttpPlan::lengths`], with one bar for
    /// each server. The other measurements are not in the plot.
    pub fn svg(&self, plan: &HttpPlan) -> String {
        let lengths: Vec<String> = plan.lengths.iter().map(|len| format!("{len} B")).collect();
        let groups: Vec<(&str, Vec<f64>)> = plan
            .lengths
            .iter()
            .zip(&lengths)
            .map(|(length, name)| {
                let of = |server: &Server| {
                    let rates = self.values((Link::Plain, *server, *length));
                    median(&rates.unwrap_or_default())
                };
                (name.as_str(), SERVERS.iter().map(of).collect())
            })
            .collect();
        let names = SERVERS.map(Server::name);
        plot::bars(&plan.title, "requests/s", &names, &groups)
    }
}
