//! The plan of a figure, from `bench/figures/NAME/plan.toml`. A figure is an experiment, and most
//! figures compare Tidelane with the kernel's stack.

use std::{fs, path::Path};

use serde::Deserialize;

use super::{
    bulk::BulkPlan, http::HttpPlan, idle::IdlePlan, kv::KvPlan, layers::LayersPlan, mux::MuxPlan,
    rings::RingsPlan,
};

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

/// The target of one row of the result.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Case of the row.
    pub case: String,
    /// Metric of the row.
    pub metric: String,
    /// Target for the ratio of Tidelane to the kernel, or for the value of a row without a
    /// comparison.
    pub target: f64,
}

/// A plan of any kind. The field `kind` of the file names the kind.
#[derive(Deserialize, Debug, Clone)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AnyPlan {
    /// A figure of requests and replies.
    Requests(Plan),
    /// A figure of one-way streams.
    Bulk(BulkPlan),
    /// A figure of idle connections.
    Idle(IdlePlan),
    /// A figure of HTTP servers.
    Http(HttpPlan),
    /// A figure of the mux, which shares a NIC between programs with a network stack of their own.
    Mux(MuxPlan),
    /// A figure of the ring API.
    Rings(RingsPlan),
    /// A figure of the layers of a request.
    Layers(LayersPlan),
    /// A figure of key-value servers.
    Kv(KvPlan),
}

impl AnyPlan {
    /// Reads and checks a plan.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Returns the value of the field `kind` of the file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Requests(_) => "requests",
            Self::Bulk(_) => "bulk",
            Self::Idle(_) => "idle",
            Self::Http(_) => "http",
            Self::Mux(_) => "mux",
            Self::Rings(_) => "rings",
            Self::Layers(_) => "layers",
            Self::Kv(_) => "kv",
        }
    }

    /// Returns true if the command line may give the numbers of connections.
    pub fn has_connections(&self) -> bool {
        match self {
            Self::Requests(_) | Self::Idle(_) | Self::Rings(_) | Self::Kv(_) => true,
            Self::Bulk(_) | Self::Http(_) | Self::Mux(_) | Self::Layers(_) => false,
        }
    }

    /// Returns true if the figure can be measured without Tidelane.
    pub fn can_omit_tidelane(&self) -> bool {
        matches!(self, Self::Requests(_))
    }

    /// Returns the title, one line.
    pub fn title(&self) -> &str {
        match self {
            Self::Requests(plan) => &plan.title,
            Self::Bulk(plan) => &plan.title,
            Self::Idle(plan) => &plan.title,
            Self::Http(plan) => &plan.title,
            Self::Mux(plan) => &plan.title,
            Self::Rings(plan) => &plan.title,
            Self::Layers(plan) => &plan.title,
            Self::Kv(plan) => &plan.title,
        }
    }
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

/// The fields that the plans of all kinds of figures have in common.
#[derive(Debug, Clone)]
pub struct Heading {
    /// Title of the table, one line.
    pub title: String,
    /// Source in the literature, and its result.
    pub paper: String,
    /// Number of rounds.
    pub rounds: u32,
    /// Description of the placement: the CPUs of the programs, and the congestion control.
    pub placement: String,
    /// Targets for single rows.
    pub targets: Vec<Target>,
}

impl Heading {
    /// Prints the title, the source and the placement.
    pub fn print(&self) {
        println!("{}\n{}\n{}\n", self.title, self.paper, self.placement);
    }

    /// Returns the target of a row, if it has one.
    pub fn target(&self, case: &str, metric: &str) -> Option<f64> {
        let found = self
            .targets
            .iter()
            .find(|t| t.case == case && t.metric == metric);
        found.map(|target| target.target)
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
