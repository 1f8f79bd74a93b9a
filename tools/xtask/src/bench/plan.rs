//! The plan of a request figure.

use serde::Deserialize;

use super::heading::{Heading, Target};

/// The plan of a request figure: closed-loop clients that send requests to a server.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Title of the table, one line.
    pub title: String,
    /// Source in the literature, and its result.
    pub paper: String,
    /// Number of rounds; each measures every case with every variant of stack and path.
    pub rounds: u32,
    /// Counted seconds of each measurement.
    pub seconds: f64,
    /// Seconds of load before the counted time.
    pub warmup: f64,
    /// Congestion control on both stacks.
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
    /// True to also measure client and server within one host: on the kernel's loopback, and on the
    /// local path of one service, which passes the bytes in memory.
    #[serde(default)]
    pub memory: bool,
    /// True to also measure the stateless AF_XDP echo, which answers each segment without TCP. Its
    /// rate is the upper limit of the wire.
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
    /// Applies the command-line options: the number of rounds, and the numbers of connections to
    /// measure. An empty list selects all numbers of the plan. Numbers that the plan does not have
    /// are not measured.
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
    /// Returns the name of a case. `wire` is the kind of path, such as "veth" or "memory".
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
