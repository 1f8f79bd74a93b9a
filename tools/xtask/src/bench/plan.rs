//! The plan of a figure, `bench/figures/NAME/plan.toml`.

use std::{fs, path::Path};

use serde::Deserialize;

use super::{bulk::BulkPlan, idle::IdlePlan};

/// The plan of a request figure: series and targets.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Title of the table, one line.
    pub title: String,
    /// The finding of the paper's figure.
    pub paper: String,
    /// Number of rounds; each measures every case on every side.
    pub rounds: u32,
    /// Seconds counted per measurement.
    pub seconds: f64,
    /// Seconds of load before the counted time.
    pub warmup: f64,
    /// Congestion control on both stacks.
    pub congestion: String,
    /// CPUs of the client.
    pub client_cpus: String,
    /// CPUs of the server and, on Tidelane's side, of the service.
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
    /// Name within the figure; may be empty if there is only one.
    #[serde(default)]
    pub name: String,
    /// The load of the client and the server that answers it.
    pub workload: Workload,
    /// Numbers of connections.
    pub connections: Vec<u32>,
    /// Also measure both programs on one service, over the local path.
    #[serde(default)]
    pub memory: bool,
    /// Also measure the stateless AF_XDP echo.
    #[serde(default)]
    pub limit: bool,
}

/// The load of the client and the server that answers it.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Echo of 64 bytes on long connections.
    Echo,
    /// GET of a 64-byte file from nginx on long connections.
    NginxKeepAlive,
    /// GET of a 64-byte file from nginx, one connection per request.
    NginxClose,
}

/// The target of a row.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Case of the row.
    pub case: String,
    /// Metric of the row.
    pub metric: String,
    /// Target for the ratio, or for the value of a row without a kernel side.
    pub target: f64,
}

/// A plan, by its `kind`.
#[derive(Deserialize, Debug, Clone)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AnyPlan {
    /// Requests and replies.
    Requests(Plan),
    /// One-way streams.
    Bulk(BulkPlan),
    /// Connections without requests.
    Idle(IdlePlan),
}

impl AnyPlan {
    /// Reads and checks a plan.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Returns the title, one line.
    pub fn title(&self) -> &str {
        match self {
            Self::Requests(plan) => &plan.title,
            Self::Bulk(plan) => &plan.title,
            Self::Idle(plan) => &plan.title,
        }
    }
}

impl Plan {
    /// Applies the options of the command line.
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

    /// Returns the description that every figure has.
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

/// The description of a figure, of either kind.
#[derive(Debug, Clone)]
pub struct Heading {
    /// Title of the table, one line.
    pub title: String,
    /// The finding of the paper's figure.
    pub paper: String,
    /// Number of rounds.
    pub rounds: u32,
    /// Description of the CPUs of the programs.
    pub placement: String,
    /// Targets for single rows.
    pub targets: Vec<Target>,
}

impl Heading {
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
    /// Returns the name of a case on a wire.
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
