//! The plan of a request figure (an experiment of `bench/figures` in which clients send requests to
//! a server).

use serde::Deserialize;

use super::heading::{Heading, Target};

/// The plan of a request figure: clients send requests to a server in a closed loop, in which a
/// connection sends its next request after the answer.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Title of the table, one line.
    pub title: String,
    /// Source in the literature, and its result.
    pub paper: String,
    /// Number of rounds. A round measures each case once with each variant of stack and path.
    pub rounds: u32,
    /// Seconds of each measurement during which requests are counted.
    pub seconds: f64,
    /// Seconds of load before requests are counted.
    pub warmup: f64,
    /// Congestion control on both stacks, such as `cubic`.
    pub congestion: String,
    /// CPUs of the client, separated by commas.
    pub client_cpus: String,
    /// CPUs of the server, and of the service if there is one.
    pub server_cpus: String,
    /// The workloads.
    pub series: Vec<Series>,
    /// Targets for single rows.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

/// One workload at several numbers of connections.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Name within the figure. The name may be empty if the figure has only one series.
    #[serde(default)]
    pub name: String,
    /// The client's load, and the server that answers it.
    pub workload: Workload,
    /// Numbers of connections.
    pub connections: Vec<u32>,
    /// If true, the figure also measures client and server within one host: on the kernel's
    /// loopback, and on the local path of one service. The local path passes the bytes in memory.
    #[serde(default)]
    pub memory: bool,
    /// If true, the figure also measures the stateless AF_XDP echo, which answers each segment
    /// without TCP. The rate of the echo is the upper limit of the wire.
    #[serde(default)]
    pub limit: bool,
}

/// The client's load, and the server that answers it.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Echo requests of 64 bytes on long connections.
    Echo,
    /// GET requests for a 64-byte file of nginx on long connections.
    NginxKeepAlive,
    /// GET requests for a 64-byte file of nginx, each on a new connection.
    NginxClose,
}

impl Plan {
    /// Applies the command-line options. `rounds` replaces the plan's number of rounds.
    /// `connections` selects some of the plan's numbers of connections, and ignores numbers that
    /// the plan does not have. An empty list selects all numbers of the plan.
    pub fn limit_to(&mut self, rounds: Option<u32>, connections: &[u32]) {
        self.rounds = rounds.unwrap_or(self.rounds).max(1);
        if !connections.is_empty() {
            for series in &mut self.series {
                series
                    .connections
                    .retain(|count| connections.contains(count));
            }
        }
    }

    /// Returns the fields that the plans of all kinds of figures have in common.
    pub fn heading(&self) -> Heading {
        let Self {
            client_cpus,
            server_cpus,
            congestion,
            ..
        } = self;
        let placement = format!(
            "client on CPU {client_cpus}; server, and with Tidelane the service too, on CPU \
             {server_cpus}; {congestion} on both stacks"
        );
        Heading {
            title: self.title.clone(),
            paper: self.paper.clone(),
            rounds: self.rounds,
            placement,
            targets: self.targets.clone(),
        }
    }
}

impl Series {
    /// Returns the name of a case. `wire` is the first part of the name: "veth", "memory", or the
    /// name of a variant.
    pub fn case(&self, wire: &str, connections: u32) -> String {
        let plural = if connections == 1 { "" } else { "s" };
        let name = if self.name.is_empty() {
            String::new()
        } else {
            format!("{}, ", self.name)
        };
        format!("{wire}, {name}{connections} connection{plural}")
    }
}
