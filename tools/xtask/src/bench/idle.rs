//! Idle figures (experiments of `bench/figures`): the memory of idle connections, and the time of a
//! request on each connection in turn.
//!
//! Each measurement uses a new wire (a veth pair between two network namespaces). The client uses
//! the kernel's TCP, and one local address for each 30,000 connections. The servers (`echo-server`)
//! use the kernel's TCP or the Tidelane service. Each server and each process of the client has at
//! most 15,000 connections, because a process may have only a limited number of descriptors.

use std::{collections::BTreeMap, fs, io::Write, thread, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use tidelane_tests::{
    Program, Running, Service, Side, Stop, Wire, command,
    machine::median,
    wire::{INTERFACE, SERVER},
};

use super::{
    heading::{Heading, Target},
    plot,
    programs::number,
    rows::{Row, cost_row, pair_row},
};

/// TCP port of the first server. Each further server uses the next port.
const PORT: u16 = 7000;
/// Largest number of connections of one server.
const CONNECTIONS_PER_SERVER_MAX: u32 = 15_000;
/// Largest number of connections from one address of the client.
const CONNECTIONS_PER_ADDRESS_MAX: u32 = 30_000;
/// Default of the service's `--flows-max`.
const FLOWS_MAX_DEFAULT: u32 = 131_072;
/// Last octet of the client's first additional address.
const FIRST_HOST: u32 = 100;
/// Time limit of the client.
const LIMIT: Duration = Duration::from_secs(900);
/// Time between the end of the servers and the last reading of the service's memory. The service
/// frees memory in this time.
const GIVE_BACK: Duration = Duration::from_secs(3);

/// The plan of an idle figure: numbers of connections and targets.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct IdlePlan {
    /// Title of the table, one line.
    pub title: String,
    /// Source of the target.
    pub paper: String,
    /// Number of rounds. A round measures each number of connections on both stacks: the kernel's
    /// TCP, and Tidelane.
    pub rounds: u32,
    /// Numbers of connections.
    pub connections: Vec<u32>,
    /// Number of requests on each connection after the idle time.
    pub requests: u32,
    /// Number of requests in flight at one time, each on a connection of its own.
    pub at_once: u32,
    /// Seconds without requests before memory is read.
    pub rest: f64,
    /// CPUs of the client, separated by commas.
    pub client_cpus: String,
    /// CPUs of the servers, and of the service if there is one.
    pub server_cpus: String,
    /// Targets for single rows.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

impl IdlePlan {
    /// Returns the fields that the plans of all kinds of figures have in common.
    pub fn heading(&self) -> Heading {
        Heading {
            title: self.title.clone(),
            paper: self.paper.clone(),
            rounds: self.rounds,
            placement: format!(
                "client on CPU {}; servers, and with Tidelane the service too, on CPU {}; {} \
                 connections wait for an answer at a time",
                self.client_cpus, self.server_cpus, self.at_once
            ),
            targets: self.targets.clone(),
        }
    }
}

/// The values of one measurement. Memory is in bytes per connection, as growth since the time
/// before the first connection. Times are in microseconds per connection or request.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    /// Growth of the service's memory, read while the connections are idle.
    service: f64,
    /// Growth of the servers' memory, read while the connections are idle.
    programs: f64,
    /// Sum of `service` and `programs`.
    total: f64,
    /// Growth of the kernel's slab memory (objects such as sockets), read while the connections are
    /// idle. Client and server share the kernel, so the value includes the slab memory of both
    /// ends.
    slab: f64,
    /// Growth of the service's memory, read after the client has closed the connections.
    service_closed: f64,
    /// Growth of the service's memory, read [`GIVE_BACK`] after the servers have ended.
    service_ended: f64,
    /// Time to open all connections, divided by their number.
    open_us: f64,
    /// Median of the values of `IdlePlan::requests` passes. A pass has one request on each
    /// connection. The value of a pass is its duration, divided by the number of connections. If
    /// `IdlePlan::at_once` is above 1, requests overlap, and the value is not a latency.
    request_us: f64,
}

/// Index into `IdlePlan::connections`, and true if the servers are on Tidelane.
type Key = (usize, bool);

/// The samples of each key, in the order of the rounds.
#[derive(Debug, Default)]
pub struct Results(BTreeMap<Key, Vec<Sample>>);

/// Runs all rounds of a plan.
pub fn run(plan: &IdlePlan) -> Result<Results, Stop> {
    let heading = plan.heading();
    heading.print();
    let mut results = Results::default();
    for round in 0..plan.rounds {
        println!("round {} of {}", round + 1, plan.rounds);
        for (index, connections) in plan.connections.iter().enumerate() {
            let kernel_first = round % 2 == 0;
            for accelerated in [!kernel_first, kernel_first] {
                let sample = measure(plan, *connections, accelerated)?;
                println!("  {connections} on {}: {sample:.1?}", name(accelerated));
                let _ = std::io::stdout().flush();
                results
                    .0
                    .entry((index, accelerated))
                    .or_default()
                    .push(sample);
            }
        }
    }
    Ok(results)
}

fn name(accelerated: bool) -> &'static str {
    if accelerated {
        "Tidelane"
    } else {
        "the kernel"
    }
}

/// Returns the proportional set size (Pss) of a process in KiB. A page that n processes share
/// counts as 1/n of a page in this size.
fn pss_kib(pid: u32) -> Result<f64, Stop> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| Stop::Fail(format!("no Pss of process {pid}")))
}

fn tool(wire: &Wire, side: Side, cpus: &str, tool: &str) -> Result<Program, Stop> {
    Ok(wire.load_tool(side, tool)?.cpus(cpus))
}

/// Returns the value of the service's option `--flows-max`, the largest number of the service's
/// connections. The value is five quarters of `connections`, but at least the default. The margin
/// is needed because root, the user of the servers, may have at most seven eighths of this number.
fn flows_max(connections: u32) -> u32 {
    FLOWS_MAX_DEFAULT.max(connections + connections / 4)
}

/// Builds a wire, starts the servers, and measures once. If `accelerated` is true, the servers use
/// a new service. Otherwise the servers use the kernel's TCP.
fn measure(plan: &IdlePlan, connections: u32, accelerated: bool) -> Result<Sample, Stop> {
    let wire = Wire::new()?;
    let range = "net.ipv4.ip_local_port_range";
    wire.sysctl(Side::Client, range, "1024 65535")?;
    let mut from = Vec::new();
    for number in 0..connections.div_ceil(CONNECTIONS_PER_ADDRESS_MAX) {
        let addr = format!("10.77.0.{}", FIRST_HOST + number);
        let space = wire.namespace(Side::Client);
        let with_len = format!("{addr}/24");
        command(&[
            "ip", "-n", &space, "addr", "add", &with_len, "dev", INTERFACE,
        ])?;
        from.push(addr);
    }
    let flows_max = flows_max(connections).to_string();
    let options = ["--", "--flows-max", &flows_max];
    let service = accelerated
        .then(|| wire.service_on_cores(Side::Server, &plan.server_cpus, &options))
        .transpose()?;
    let servers: Result<Vec<Running>, Stop> = (0..connections.div_ceil(CONNECTIONS_PER_SERVER_MAX))
        .map(|number| {
            let port = PORT + number as u16;
            let server = tool(&wire, Side::Server, &plan.server_cpus, "echo-server")?;
            let server = server.arg("--port").arg(port);
            wire.start_server(server, service.as_ref(), port)
        })
        .collect();
    let servers = servers?;
    let line = load(
        plan,
        &wire,
        connections,
        (&from, service.as_ref(), &servers),
    )?;
    drop(servers);
    thread::sleep(GIVE_BACK);
    let ended = service.as_ref().map(|service| pss_kib(service.pid()));
    let ended = ended.transpose()?.unwrap_or(0.0);
    Sample::of(&line, ended)
}

/// Runs the client and returns its line of JSON. `from` are the client's local addresses.
fn load(
    plan: &IdlePlan,
    wire: &Wire,
    connections: u32,
    (from, service, servers): (&[String], Option<&Service>, &[Running]),
) -> Result<Value, Stop> {
    let ports = (0..servers.len()).map(|number| format!("{SERVER}:{}", usize::from(PORT) + number));
    let ports: Vec<String> = ports.collect();
    let pids = servers.iter().map(Running::pid).enumerate();
    let mut watched: Vec<String> = pids.map(|(at, pid)| format!("server-{at}:{pid}")).collect();
    watched.extend(service.map(|service| format!("service:{}", service.pid())));
    let client = tool(wire, Side::Client, &plan.client_cpus, "idle-client")?;
    let client = client.arg("--connect").arg(ports.join(","));
    let client = client.arg("--from").arg(from.join(","));
    let client = client.arg("--connections").arg(connections);
    let client = client.arg("--rounds").arg(plan.requests);
    let client = client.arg("--at-once").arg(plan.at_once);
    let client = client.arg("--rest").arg(plan.rest);
    client
        .arg("--watch")
        .arg(watched.join(","))
        .run(LIMIT)?
        .json()
}

impl Sample {
    /// Returns the sample for the client's line of JSON. `ended_kib` is the service's memory in KiB
    /// after the servers have ended, or 0 without a service.
    fn of(line: &Value, ended_kib: f64) -> Result<Self, Stop> {
        let connections = number(line, "connections")?;
        // Adds up one field of all processes whose names begin with `prefix`. A missing value is an
        // error. Without a service, no name begins with "service", and the sum is 0.
        let sum = |when: &str, prefix: &str, field: &str| -> Result<f64, Stop> {
            let all = line["memory"][when].as_object();
            let all = all.ok_or_else(|| Stop::Fail(format!("no memory {when} in {line}")))?;
            let of_it = all.iter().filter(|(name, _)| name.starts_with(prefix));
            of_it.map(|(_, values)| number(values, field)).sum()
        };
        let each = |kib: f64| kib * 1024.0 / connections;
        let grown = |when: &str, prefix: &str, field: &str| -> Result<f64, Stop> {
            Ok(each(
                sum(when, prefix, field)? - sum("before", prefix, field)?,
            ))
        };
        let service = grown("idle", "service", "pss_kib")?;
        let programs = grown("idle", "server-", "pss_kib")?;
        let requests = line["request_us"].as_array().into_iter().flatten();
        let requests: Vec<f64> = requests.filter_map(Value::as_f64).collect();
        let before = sum("before", "service", "pss_kib")?;
        Ok(Self {
            service,
            programs,
            total: service + programs,
            slab: grown("idle", "kernel", "slab_kib")?,
            service_closed: grown("closed", "service", "pss_kib")?,
            service_ended: if before > 0.0 {
                each(ended_kib - before)
            } else {
                0.0
            },
            open_us: number(line, "open_us")?,
            request_us: median(&requests),
        })
    }
}

/// A function that reads one metric of a sample.
type Metric = fn(&Sample) -> f64;

/// Metrics of Tidelane that are reported without a comparison. `program_bytes` is also compared
/// with the kernel, in `PAIRS`.
const COUNTS: &[(&str, Metric)] = &[
    ("service_bytes", |s| s.service),
    ("program_bytes", |s| s.programs),
    ("service_and_program_bytes", |s| s.total),
    ("service_bytes_when_closed", |s| s.service_closed),
    ("service_bytes_when_ended", |s| s.service_ended),
];
/// Metrics of Tidelane that are compared with the same metrics of the kernel. Less is better.
const PAIRS: &[(&str, Metric)] = &[
    ("request_us", |s| s.request_us),
    ("open_us", |s| s.open_us),
    ("program_bytes", |s| s.programs),
    ("kernel_slab_bytes_of_both_ends", |s| s.slab),
];

impl Results {
    fn values(&self, key: Key, metric: impl Fn(&Sample) -> f64) -> Vec<f64> {
        let samples = self.0.get(&key).into_iter().flatten();
        samples.map(metric).collect()
    }

    /// Returns the rows of the result.
    pub fn rows(&self, plan: &IdlePlan) -> Vec<Row> {
        let heading = plan.heading();
        let mut rows = Vec::new();
        for (index, connections) in plan.connections.iter().enumerate() {
            let case = format!("{connections} connections");
            for (metric, of) in PAIRS {
                let kernel = self.values((index, false), of);
                let tidelane = self.values((index, true), of);
                let pair = (Some(kernel), Some(tidelane));
                rows.extend(pair_row(&heading, &case, (*metric, false), pair.0, pair.1));
            }
            for (metric, of) in COUNTS {
                let values = self.values((index, true), of);
                rows.push(cost_row(&heading, &case, metric, &values));
            }
        }
        rows
    }

    /// Returns the plot of Tidelane's memory per connection. Each number of connections has two
    /// bars: the service's memory and the servers' memory.
    pub fn svg(&self, plan: &IdlePlan) -> String {
        let names: Vec<String> = plan.connections.iter().map(u32::to_string).collect();
        let values = |index: usize| {
            let of = |metric: Metric| median(&self.values((index, true), metric));
            vec![of(|s| s.service), of(|s| s.programs)]
        };
        let groups = names.iter().enumerate();
        let groups: Vec<(&str, Vec<f64>)> = groups
            .map(|(index, name)| (name.as_str(), values(index)))
            .collect();
        let bars = ["service", "program"];
        plot::bars(&plan.title, "bytes per connection", &bars, &groups)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Sample;

    #[test]
    fn a_missing_memory_is_an_error() {
        let of = |server: u64| {
            json!({
                "server-0": {"pss_kib": server}, "server-1": {"pss_kib": server},
                "kernel": {"slab_kib": 0},
            })
        };
        let mut line = json!({
            "connections": 2, "open_us": 1, "request_us": [1, 2, 3],
            "memory": {"before": of(10), "idle": of(12), "closed": of(10)},
        });
        let sample = Sample::of(&line, 0.0).expect("all values");
        assert_eq!((sample.programs, sample.service), (2048.0, 0.0));
        line["memory"]["idle"]["server-1"] = json!({"rss_kib": 12});
        assert!(Sample::of(&line, 0.0).is_err());
        line["memory"]["idle"] = json!(null);
        assert!(Sample::of(&line, 0.0).is_err());
    }
}
