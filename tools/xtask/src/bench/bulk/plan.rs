//! The plan of a bulk figure: the pairings of stacks, and the wires (test networks). A bulk figure
//! is an experiment that compares the pairings by the goodput of one-way streams.

use serde::Deserialize;

use crate::bench::heading::{Heading, Target};

/// The plan of a bulk figure.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct BulkPlan {
    /// Title of the table, one line.
    pub title: String,
    /// Source in the literature, and its result.
    pub paper: String,
    /// Number of rounds; each measures every case with every pairing.
    pub rounds: u32,
    /// Counted seconds of each measurement.
    pub seconds: f64,
    /// Seconds of load between the connection of the last flow and the counted seconds.
    pub warmup: f64,
    /// Congestion control on both stacks.
    pub congestion: String,
    /// CPUs of the sender and its service, separated by commas.
    pub sender_cpus: String,
    /// CPUs of the receiver and its service, separated by commas.
    pub receiver_cpus: String,
    /// Number of flows (connections) from the sender to the receiver.
    pub flows: u32,
    /// If false, TSO and GSO are switched off at both ends. If true, their settings are not
    /// changed. The field has no effect on GRO.
    pub offloads: bool,
    /// Rate in Mbit/s of a token bucket between sender and receiver, on each wire with a middle
    /// namespace (`Case::middle`). The opposite direction has no limit. `None` means no token
    /// bucket.
    #[serde(default)]
    pub bottleneck_mbit: Option<u32>,
    /// Pairings to compare with [`Pairing::KernelToKernel`], which is always measured.
    pub pairings: Vec<Pairing>,
    /// The wires. If the first wire is clean ([`Case::is_clean`]), the goodput on the other wires
    /// is also reported as a share of the goodput on the first wire.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
    /// Targets for single rows.
    #[serde(default, rename = "target")]
    pub targets: Vec<Target>,
}

/// The stacks of sender and receiver.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// The kernel's stack at both ends.
    KernelToKernel,
    /// Tidelane sends to the kernel.
    TidelaneToKernel,
    /// The kernel sends to Tidelane.
    KernelToTidelane,
    /// Tidelane at both ends, with a service for each end.
    TidelaneToTidelane,
}

/// One case of the plan: a wire with its impairments.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name of the case.
    pub name: String,
    /// Lost packets per million in each direction.
    #[serde(default)]
    pub loss_ppm: u32,
    /// Packets per million in each direction that are delayed, so that later packets overtake them.
    #[serde(default)]
    pub reorder_ppm: u32,
    /// True if the wire has a third namespace between the ends, through which the packets pass. A
    /// wire with loss or delay always has this namespace, even if the field is false.
    #[serde(default)]
    pub middle: bool,
}

impl Pairing {
    /// Returns the name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::KernelToKernel => "kernel to kernel",
            Self::TidelaneToKernel => "tidelane to kernel",
            Self::KernelToTidelane => "kernel to tidelane",
            Self::TidelaneToTidelane => "tidelane to tidelane",
        }
    }

    /// Returns true if the sender is on Tidelane.
    pub fn tidelane_sends(self) -> bool {
        matches!(self, Self::TidelaneToKernel | Self::TidelaneToTidelane)
    }

    /// Returns true if the receiver is on Tidelane.
    pub fn tidelane_receives(self) -> bool {
        matches!(self, Self::KernelToTidelane | Self::TidelaneToTidelane)
    }
}

impl Case {
    /// Returns true if the case has neither loss nor reordering. A wire with a token bucket
    /// (`BulkPlan::bottleneck_mbit`) can also be clean.
    pub fn is_clean(&self) -> bool {
        self.loss_ppm == 0 && self.reorder_ppm == 0
    }
}

impl BulkPlan {
    /// Returns all pairings. The first pairing is [`Pairing::KernelToKernel`].
    pub fn all_pairings(&self) -> Vec<Pairing> {
        let others = self.pairings.iter().copied();
        let others = others.filter(|pairing| *pairing != Pairing::KernelToKernel);
        std::iter::once(Pairing::KernelToKernel)
            .chain(others)
            .collect()
    }

    /// Returns the fields that the plans of all kinds of figures have in common.
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
