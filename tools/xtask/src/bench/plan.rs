//! A figure's plan, `bench/figures/NAME/plan.toml`.

use std::{fs, path::Path};

use serde::Deserialize;

use super::bulk::BulkPlan;

/// What is measured and what it must reach.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// One line.
    pub title: String,
    /// What the figure of the paper shows.
    pub paper: String,
    /// Rounds; each measures every case on every side.
    pub rounds: u32,
    /// Seconds counted per measurement.
    pub seconds: f64,
    /// Seconds before counting.
    pub warmup: f64,
    /// Congestion control on both stacks.
    pub congestion: String,
    /// CPUs of the client.
    pub client_cpus: String,
    /// CPUs of the server and, on Tidelane's side, of the service.
    pub server_cpus: String,
    /// What is measured.
    pub series: Vec<Series>,
    /// What must be reached.
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
    /// What the programs do.
    pub workload: Workload,
    /// Numbers of connections.
    pub connections: Vec<u32>,
    /// Also with both programs on the service.
    #[serde(default)]
    pub memory: bool,
    /// Also the stateless AF_XDP echo.
    #[serde(default)]
    pub limit: bool,
}

/// What the programs do.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// 64 bytes there and back on long connections.
    Echo,
    /// GET of a 64-byte file from nginx on long connections.
    NginxKeepAlive,
    /// The same, one connection per request.
    NginxClose,
}

/// What a row must reach.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The row's case.
    pub case: String,
    /// The row's metric.
    pub metric: String,
    /// The ratio, or the value, to be reached.
    pub target: f64,
}

/// A plan, by its `kind`.
#[derive(Deserialize, Debug, Clone)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AnyPlan {
    /// Requests and answers.
    Requests(Plan),
    /// One-way streams.
    Bulk(BulkPlan),
}

impl AnyPlan {
    /// Reads and checks a plan.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// One line.
    pub fn title(&self) -> &str {
        match self {
            Self::Requests(plan) => &plan.title,
            Self::Bulk(plan) => &plan.title,
        }
    }
}

impl Plan {
    /// Applies what the command line asks for.
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

    /// What stands above its table.
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

/// What every figure says of itself, whatever it measures.
#[derive(Debug, Clone)]
pub struct Heading {
    /// One line.
    pub title: String,
    /// What the figure of the paper shows.
    pub paper: String,
    /// Rounds.
    pub rounds: u32,
    /// Where the programs run, in words.
    pub placement: String,
    /// What must be reached.
    pub targets: Vec<Target>,
}

impl Heading {
    /// The target of a row, if it has one.
    pub fn target(&self, case: &str, metric: &str) -> Option<f64> {
        let found = self
            .targets
            .iter()
            .find(|t| t.case == case && t.metric == metric);
        found.map(|target| target.target)
    }
}

impl Series {
    /// Name of a case on a wire.
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
