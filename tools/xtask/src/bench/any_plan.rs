//! The plan of a figure of any kind, from `bench/figures/NAME/plan.toml`. A figure is an
//! experiment, and most figures compare Tidelane with the kernel's stack.

use std::{fs, path::Path};

use serde::Deserialize;

use super::{
    bulk::BulkPlan, http::HttpPlan, idle::IdlePlan, kv::KvPlan, layers::LayersPlan, mux::MuxPlan,
    plan::Plan, rings::RingsPlan,
};

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
    /// A figure of the ring API, by which a program exchanges messages of many connections in one
    /// call.
    Rings(RingsPlan),
    /// A figure of the CPU time that each layer of the stack uses for a request.
    Layers(LayersPlan),
    /// A figure of key-value servers.
    Kv(KvPlan),
}

impl AnyPlan {
    /// Reads and parses the plan file `path`.
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
