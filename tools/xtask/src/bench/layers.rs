//! Layer figures (experiments of `bench/figures`): the CPU time that each layer of the network
//! stack takes for one HTTP request, as in table 1 of the StackMap paper. The server is
//! `app/kernel/examples/ring-http`, on the back ends of the ring API (crate `tidelane-rings`) and
//! on the kernel's sockets with epoll.
//!
//! `tidelane-load http-client` offers a fixed load from the other end of a veth. Meanwhile `perf`
//! samples the call chains of all CPUs at a fixed frequency. Each sample of work for the server
//! counts for one layer (see [`profile`]). A veth delivers a packet on the CPU of its sender. The
//! softirqs on the client's CPU therefore do the server's reception.

mod profile;

use std::{collections::BTreeMap, io::Write, thread, time::Duration};

use serde::Deserialize;
use tidelane_tests::{Side, Stop, Wire, machine::median, tools};

use super::{
    heading::Heading,
    kv::Path,
    plot,
    rings::{self, LIMIT, Server},
    rows::{Row, cost_row},
};
use profile::Layer;

/// Samples per second on each CPU. The number is prime, so that the samples do not coincide with
/// timers.
const FREQUENCY: u32 = 1999;
/// Time that the load runs before `perf` starts. The load runs about this time again after the last
/// sample.
const MARGIN: Duration = Duration::from_secs(1);

/// The plan of a layer figure.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct LayersPlan {
    /// Title of the table, one line.
    pub title: String,
    /// Source in the literature, and its result.
    pub paper: String,
    /// Number of rounds. A round measures each server once.
    pub rounds: u32,
    /// Seconds of a measurement in which `perf` takes samples.
    pub seconds: u32,
    /// Offered load in requests per second.
    pub rate: f64,
    /// Length of the response bodies in bytes.
    pub length: u64,
    /// Number of connections.
    pub connections: u32,
    /// The servers.
    pub servers: Vec<Server>,
    /// CPU of the client.
    pub client_cpu: u32,
    /// CPU of the server.
    pub server_cpu: u32,
}

impl LayersPlan {
    /// Returns the fields that the plans of all kinds of figures have in common.
    pub fn heading(&self) -> Heading {
        Heading {
            title: self.title.clone(),
            paper: self.paper.clone(),
            rounds: self.rounds,
            placement: format!(
                "http-client with {} requests/s on {} connections on CPU {}; server on CPU {}",
                self.rate, self.connections, self.client_cpu, self.server_cpu
            ),
            targets: Vec::new(),
        }
    }
}

/// The values of one measurement.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// CPU time of each layer in microseconds per request.
    layers: BTreeMap<Layer, f64>,
    /// System calls per request that the server has made to exchange data or to wait.
    calls: f64,
}

/// The samples of each server, in the order of the rounds.
#[derive(Debug, Default)]
pub struct Results {
    samples: BTreeMap<Server, Vec<Sample>>,
}

/// Runs all rounds of a plan.
pub fn run(plan: &LayersPlan) -> Result<Results, Stop> {
    tools::require_tools(&["perf", "curl"])?;
    plan.heading().print();
    let mut results = Results::default();
    for round in 0..plan.rounds {
        println!("round {} of {}", round + 1, plan.rounds);
        let mut servers = plan.servers.clone();
        if round % 2 == 1 {
            servers.reverse();
        }
        for server in servers {
            let sample = measure(plan, server)?;
            let total: f64 = sample.layers.values().sum();
            println!(
                "  {:<17} {total:>6.2} us  {:>5.3} calls",
                server.name(),
                sample.calls
            );
            let _ = std::io::stdout().flush();
            results.samples.entry(server).or_default().push(sample);
        }
    }
    Ok(results)
}

/// Measures a server once.
fn measure(plan: &LayersPlan, server: Server) -> Result<Sample, Stop> {
    let wire = Wire::new()?;
    let seconds = Duration::from_secs(plan.seconds.into());
    let whole = seconds + 2 * MARGIN;
    let _programs = rings::start(
        &wire,
        server,
        Path::Veth,
        whole,
        &plan.server_cpu.to_string(),
    )?;
    let load = rings::Load {
        length: plan.length,
        connections: plan.connections,
        seconds: whole.as_secs() as u32,
        cpus: plan.client_cpu.to_string(),
    };
    let client = load
        .client_at(&wire, (Side::Client, None), plan.rate)?
        .spawn()?;
    thread::sleep(MARGIN);
    let record = wire.scratch().join("perf.data");
    let perf = wire.program(Side::Server, "perf").args(&format!(
        "record --quiet -e cpu-clock -F {FREQUENCY} -a -g -o {} -- sleep {}",
        record.display(),
        plan.seconds
    ));
    let perf = perf.cpus(&plan.client_cpu.to_string());
    perf.run(seconds + LIMIT)?.success()?;
    let line = client.wait(whole + LIMIT)?.success()?.json()?;
    let rate = rings::ClientReport::at_rate(&line, plan.rate)?.requests_per_second;
    let script = wire.program(Side::Server, "perf").args(&format!(
        "script -i {} --no-inline -F comm,cpu,ip,sym,dso",
        record.display()
    ));
    let text = script.run(2 * LIMIT)?.success()?.stdout;
    let counts = profile::count(&text, plan.server_cpu);
    let sample_us = 1e6 / f64::from(FREQUENCY);
    let requests = rate * seconds.as_secs_f64();
    let us = |count: u64| count as f64 * sample_us / requests;
    Ok(Sample {
        layers: counts.into_iter().map(|(l, n)| (l, us(n))).collect(),
        calls: rings::Counts::read(&wire)?.calls,
    })
}

impl Results {
    fn values(&self, server: Server, layer: Layer) -> Vec<f64> {
        let samples = self.samples.get(&server).into_iter().flatten();
        let values = samples.map(|sample| sample.layers.get(&layer).copied().unwrap_or_default());
        values.collect()
    }

    /// Returns the rows of the result. Each server has one row for each layer that has samples, one
    /// row for the sum of its layers, and one row for its system calls.
    pub fn rows(&self, plan: &LayersPlan) -> Vec<Row> {
        let heading = plan.heading();
        let mut rows = Vec::new();
        for (server, samples) in &self.samples {
            for layer in Layer::ALL {
                let values = self.values(*server, layer);
                if values.iter().any(|value| *value > 0.0) {
                    let metric = format!("{}_us", layer.name());
                    rows.push(cost_row(&heading, server.name(), &metric, &values));
                }
            }
            let totals = samples.iter().map(|sample| sample.layers.values().sum());
            let totals: Vec<f64> = totals.collect();
            rows.push(cost_row(&heading, server.name(), "total_us", &totals));
            let calls: Vec<f64> = samples.iter().map(|sample| sample.calls).collect();
            let metric = "system_calls_per_request";
            rows.push(cost_row(&heading, server.name(), metric, &calls));
        }
        rows
    }

    /// Returns the plot: a group of bars for each layer, with one bar for each server.
    pub fn svg(&self, plan: &LayersPlan) -> String {
        let servers: Vec<Server> = self.samples.keys().copied().collect();
        let names: Vec<&str> = servers.iter().map(|server| server.name()).collect();
        let of = |layer: Layer| -> Vec<f64> {
            let medians = servers.iter().map(|s| median(&self.values(*s, layer)));
            medians.collect()
        };
        let groups = Layer::ALL.map(|layer| (layer.name(), of(layer)));
        plot::bars(&plan.title, "us per request", &names, &groups)
    }
}
