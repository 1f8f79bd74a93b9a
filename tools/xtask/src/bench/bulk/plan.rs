//! A bulk figure's plan: which stacks send to which, over which wires.

use serde::Deserialize;

use crate::bench::plan::{Heading, Target};

/// What is measured and what it must reach.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct BulkPlan {
    /// One line.
    pub title: String,
    /// What the figure of the paper shows.
    pub paper: String,
    /// Rounds; each measures every case with every pairing.
    pub rounds: u32,
    /// Seconds counted per measurement.
    pub seconds: f64,
    /// Seconds before counting, once all flows are connected.
    pub warmup: f64,
    /// Congestion control on both stacks.
    pub congestion: String,
    /// CPUs of the sender and its service.
    pub sender_cpus: String,
    /// CPUs of the receiver and its service.
    pub receiver_cpus: String,
    /// Flows.
    pub flows: u32,
    /// Whether the kernel may hand over segments of more than the MTU (TSO, GSO, GRO).
    pub offloads: bool,
    /// Mbit/s of the wires that have a middle, if that is to be slower than its ends.
    #[serde(default)]
    pub bottleneck_mbit: Option<u32>,
    /// Who sends to whom. The kernel to the kernel, which the others are compared with, always is.
    pub pairings: Vec<Pairing>,
    /// The wires. If the first one is clean, the others are also given as the share of it that is
    /// left.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
    /// What must be reached.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

/// Who sends to whom.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// The kernel's stack at both ends.
    KernelToKernel,
    /// Tidelane sends to the kernel.
    TidelaneToKernel,
    /// The kernel sends to Tidelane.
    KernelToTidelane,
    /// Tidelane at both ends, a service for each.
    TidelaneToTidelane,
}

/// One wire.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Packets lost in each direction, of a million.
    #[serde(default)]
    pub loss_ppm: u32,
    /// Packets held back in each direction, of a million.
    #[serde(default)]
    pub reorder_ppm: u32,
    /// A namespace lies between the ends even if nothing is lost or held back there.
    #[serde(default)]
    pub middle: bool,
}

impl Pairing {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::KernelToKernel => "kernel to kernel",
            Self::TidelaneToKernel => "tidelane to kernel",
            Self::KernelToTidelane => "kernel to tidelane",
            Self::TidelaneToTidelane => "tidelane to tidelane",
        }
    }

    /// Whether Tidelane sends.
    pub fn tidelane_sends(self) -> bool {
        matches!(self, Self::TidelaneToKernel | Self::TidelaneToTidelane)
    }

    /// Whether Tidelane receives.
    pub fn tidelane_receives(self) -> bool {
        matches!(self, Self::KernelToTidelane | Self::TidelaneToTidelane)
    }
}

impl Case {
    /// Whether it loses or holds back nothing.
    pub fn is_clean(&self) -> bool {
        self.loss_ppm == 0 && self.reorder_ppm == 0
    }
}

impl BulkPlan {
    /// All pairings, the kernel alone first.
    pub fn all_pairings(&self) -> Vec<Pairing> {
        let others = self.pairings.iter().copied();
        let others = others.filter(|pairing| *pairing != Pairing::KernelToKernel);
        std::iter::once(Pairing::KernelToKernel)
            .chain(others)
            .collect()
    }

    /// What stands above its table.
    pub fn heading(&self) -> Heading {
        let Self {
            sender_cpus,
            receiver_cpus,
            congestion,
            ..
        } = self;
        let offloads = if self.offloads { "as it comes" } else { "off" };
        let placement = format!(
            "sender and its service on CPU {sender_cpus}, receiver and its service on CPU \
             {receiver_cpus}; {congestion} on both stacks; segmentation offload {offloads}"
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
