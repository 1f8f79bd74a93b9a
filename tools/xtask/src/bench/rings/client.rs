//! The clients of the figures (experiments of `bench/figures`) of the ring API, and their reports.

use std::time::Duration;

use serde_json::Value;
use tidelane_tests::{Program, Service, Side, Stop, Wire, wire::SERVER, wrk::WrkReport};

use super::{LIMIT, PORT};
use crate::bench::programs::{answered_requests, embedded_client, number};

/// Least share of the offered load that a server must answer for its measurement to count.
const LEAST_PART: f64 = 0.98;

/// The rate and latency that a client has measured.
pub struct ClientReport {
    /// Requests per second.
    pub requests_per_second: f64,
    /// Mean and 99th percentile of the latency in µs. `None` if the client does not measure the
    /// latency.
    pub latency_us: Option<(f64, f64)>,
}

impl ClientReport {
    /// Reads the report of a client at the fixed rate `rate`. `line` is the client's line of JSON.
    /// Fails if the server answered less than [`LEAST_PART`] of this rate.
    pub fn at_rate(line: &Value, rate: f64) -> Result<Self, Stop> {
        let report = Self {
            requests_per_second: number(line, "rps")?,
            latency_us: Some((
                number(&line["latency_us"], "mean")?,
                number(&line["latency_us"], "p99")?,
            )),
        };
        if report.requests_per_second < LEAST_PART * rate {
            return Err(Stop::Fail(format!("the rate was not reached: {line}")));
        }
        Ok(report)
    }
}

/// The end of the wire at which a client runs, and the service that carries its connections.
/// Without a service, the client is on the kernel.
type End<'a> = (Side, Option<&'a Service>);

/// The load of a client.
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
    /// Returns the client that offers `rate` requests per second.
    pub fn client_at(
        &self,
        wire: &Wire,
        (side, service): End<'_>,
        rate: f64,
    ) -> Result<Program, Stop> {
        let client = wire.load_tool(side, "http-client")?.on(service);
        Ok(client.cpus(&self.cpus).args(&format!(
            "--connect {SERVER}:{PORT} --path /{} --connections {} --seconds {} --rate {rate}",
            self.length, self.connections, self.seconds
        )))
    }

    /// Runs wrk, which is the client in a closed loop.
    pub fn run_wrk(
        &self,
        wire: &Wire,
        (side, service): End<'_>,
        limit: Duration,
    ) -> Result<ClientReport, Stop> {
        let wrk = wire.program(side, "wrk").on(service).cpus(&self.cpus);
        let wrk = wrk.args("-t 1 --timeout 10s --latency");
        let wrk = wrk.arg("-c").arg(self.connections);
        let wrk = wrk.arg("-d").arg(format!("{}s", self.seconds));
        let wrk = wrk.arg(format!("http://{SERVER}:{PORT}/{}", self.length));
        let output = wrk.run(limit)?.success()?.stdout;
        let report = WrkReport::parse(&output).map_err(Stop::Fail)?;
        let missing = || Stop::Fail(format!("no latency in {output}"));
        let mean_us = report.mean_us.ok_or_else(missing)?;
        let p99_us = report.p99_us.ok_or_else(missing)?;
        Ok(ClientReport {
            requests_per_second: report.requests_per_second,
            latency_us: Some((mean_us, p99_us)),
        })
    }

    /// Runs the embedded client, whose TCP runs in the client's process, in a closed loop. The
    /// client has the address of the server, and exchanges packets with `service` through a mux
    /// port (a pair of packet rings).
    pub fn run_embedded(
        &self,
        wire: &Wire,
        service: &Service,
        limit: Duration,
    ) -> Result<ClientReport, Stop> {
        let client = embedded_client(wire, service, PORT)?.cpus(&self.cpus);
        let client = client.args(&format!(
            "--connections {} --bytes {} --seconds {}",
            self.connections, self.length, self.seconds
        ));
        let requests = answered_requests(&client.run(limit)?.success()?.stdout)?;
        Ok(ClientReport {
            requests_per_second: requests / f64::from(self.seconds),
            latency_us: None,
        })
    }
}

/// The counts of a server.
pub struct Counts {
    /// Number of answered requests, at least 1.
    pub requests: f64,
    /// System calls per request that the server has made to exchange data or to wait.
    pub calls: f64,
    /// Mean and standard deviation of the number of ready descriptors (sockets with events) in a
    /// cycle. In a cycle, the server asks once for the ready descriptors, and handles all of them.
    /// Cycles without a ready descriptor do not count.
    pub ready: (f64, f64),
}

impl Counts {
    /// Asks the server for its counts.
    pub fn read(wire: &Wire) -> Result<Self, Stop> {
        let curl = wire.program(Side::Client, "curl").args("-sS --max-time 10");
        let curl = curl.arg(format!("http://{SERVER}:{PORT}/counters"));
        let counts = curl.run(LIMIT)?.success()?.json()?;
        let number = |name| number(&counts, name);
        let requests = number("requests")?.max(1.0);
        Ok(Self {
            requests,
            calls: number("system_calls")? / requests,
            ready: (number("ready_mean")?, number("ready_deviation")?),
        })
    }
}
