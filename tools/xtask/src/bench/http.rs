//! Figures of HTTP servers: the embedded stack on a port of the service, the same program on the
//! kernel's sockets, and nginx on the kernel.
//!
//! wrk is the client, on the kernel at the other end of a veth. Each measurement uses a new wire.

use std::{collections::BTreeMap, io::Write, time::Duration};

use serde::Deserialize;
use tidelane_tests::{
    Running, Service, Side, Stop, Wire,
    machine::median,
    nginx::{Nginx, NginxOptions},
    service::run_dir,
    tools,
    wire::{SERVER, write_random_file},
};

use super::{
    plan::{Heading, Target},
    plot,
    rows::{Row, pair_row, value_row},
};

/// Port of the server.
const PORT: u16 = 8080;
/// Time limit of a measurement, besides its own seconds.
const LIMIT: Duration = Duration::from_secs(30);

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
    /// Lengths of the response bodies in bytes.
    pub lengths: Vec<u64>,
    /// Number of connections at a time.
    pub connections: u32,
    /// True if each connection has one request.
    pub close: bool,
    /// CPU of the client.
    pub client_cpus: String,
    /// CPU of the server, and of the service if there is one.
    pub server_cpus: String,
    /// Targets for single rows.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

/// A server.
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

impl HttpPlan {
    /// Returns the parts that the plans of all kinds of figures have.
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
                "wrk on CPU {}; server, and with the embedded stack the service too, on CPU {}; {} \
                 connections at a time, {kind}",
                self.client_cpus, self.server_cpus, self.connections
            ),
            targets: self.targets.clone(),
        }
    }
}

/// The requests per second of each server and length, in the order of the rounds.
#[derive(Debug, Default)]
pub struct Results(BTreeMap<(Server, u64), Vec<f64>>);

/// Runs all rounds of a plan.
pub fn run(plan: &HttpPlan) -> Result<Results, Stop> {
    tools::require_tools(&["wrk", "nginx"])?;
    let heading = plan.heading();
    heading.print();
    let mut results = Results::default();
    for round in 0..plan.rounds {
        println!("round {} of {}", round + 1, plan.rounds);
        for length in &plan.lengths {
            let mut servers = SERVERS;
            if round % 2 == 1 {
                servers.reverse();
            }
            for server in servers {
                let rate = measure(plan, server, *length)?;
                println!(
                    "  {length:>6} B, {:<26} {rate:>9.0} requests/s",
                    server.name()
                );
                let _ = std::io::stdout().flush();
                results.0.entry((server, *length)).or_default().push(rate);
            }
        }
    }
    Ok(results)
}

/// The programs of a measurement.
struct Programs {
    _server: Running,
    _service: Option<Service>,
}

/// Measures a server once. Returns the requests per second.
fn measure(plan: &HttpPlan, server: Server, length: u64) -> Result<f64, Stop> {
    let wire = Wire::new()?;
    let _programs = start(plan, &wire, server, length)?;
    let wrk = wire.program(Side::Client, "wrk").cpus(&plan.client_cpus);
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
    if output.contains("Socket errors") || output.contains("Non-2xx") {
        return Err(Stop::Fail(format!("{}: {output}", server.name())));
    }
    let rate = output.lines().find_map(|line| {
        let rate = line.trim().strip_prefix("Requests/sec:")?;
        rate.trim().parse().ok()
    });
    rate.ok_or_else(|| Stop::Fail(format!("no rate in {output}")))
}

fn start(plan: &HttpPlan, wire: &Wire, server: Server, length: u64) -> Result<Programs, Stop> {
    if server == Server::Nginx {
        let options = NginxOptions {
            workers: 1,
            port: PORT,
            cpus: Some(plan.server_cpus.clone()),
            ..NginxOptions::default()
        };
        let nginx = Nginx::start(wire, None, &options)?;
        write_random_file(&nginx.file(&length.to_string()), length, length)?;
        return Ok(Programs {
            _server: nginx.master,
            _service: None,
        });
    }
    let path = tools::binary("tidelane-http")?;
    let program = wire.program(Side::Server, &path.to_string_lossy());
    let program = program.cpus(&plan.server_cpus);
    let seconds = u64::from(plan.seconds) + LIMIT.as_secs();
    let program = program.args(&format!(
        "--address {SERVER} --port {PORT} --seconds {seconds}"
    ));
    let (program, service) = if server == Server::Embedded {
        let service = wire.service_on(Side::Server, &plan.server_cpus, &[])?;
        let socket = run_dir(service.name()).join("control.sock");
        let program = program.env("TIDELANE_SOCKET", &socket.to_string_lossy());
        (program.arg("--service"), Some(service))
    } else {
        (program.arg("--kernel"), None)
    };
    let mut running = program.spawn()?;
    tools::wait_until(LIMIT, "the server", || {
        running.check_alive()?;
        Ok(running.written().0.contains("ready"))
    })?;
    Ok(Programs {
        _server: running,
        _service: service,
    })
}

impl Results {
    fn values(&self, server: Server, length: u64) -> Option<Vec<f64>> {
        self.0.get(&(server, length)).cloned()
    }

    /// Returns the rows of the result: the embedded stack beside each of the other servers.
    pub fn rows(&self, plan: &HttpPlan) -> Vec<Row> {
        let heading = plan.heading();
        let mut rows = Vec::new();
        for length in &plan.lengths {
            for (server, beside) in [
                (Server::Kernel, "beside the same source"),
                (Server::Nginx, "beside nginx"),
            ] {
                let case = format!("{length} B, {beside}");
                let pair = (
                    self.values(server, *length),
                    self.values(Server::Embedded, *length),
                );
                let metric = ("requests_per_second", true);
                rows.extend(pair_row(&heading, &case, metric, pair.0, pair.1));
            }
            let case = format!("{length} B");
            let rates = self.values(Server::Embedded, *length).unwrap_or_default();
            let bits: Vec<f64> = rates
                .iter()
                .map(|rate| rate * *length as f64 * 8.0)
                .collect();
            rows.push(value_row(&heading, &case, "body_bits_per_second", &bits));
        }
        rows
    }

    /// Returns the plot: a group of bars for each length, with one bar for each server.
    pub fn svg(&self, plan: &HttpPlan) -> String {
        let lengths: Vec<String> = plan.lengths.iter().map(|len| format!("{len} B")).collect();
        let groups: Vec<(&str, Vec<f64>)> = plan
            .lengths
            .iter()
            .zip(&lengths)
            .map(|(length, name)| {
                let of =
                    |server: &Server| median(&self.values(*server, *length).unwrap_or_default());
                (name.as_str(), SERVERS.iter().map(of).collect())
            })
            .collect();
        let names = SERVERS.map(Server::name);
        plot::bars(&plan.title, "requests/s", &names, &groups)
    }
}
