//! The parameters of mux ports. A mux port is a pair of packet rings through which a program with a
//! TCP/IP stack of its own shares the NIC.

use std::fmt;

use tidelane_engine::EngineConfig;
use tidelane_mux::SendRate;
use tidelane_time::{Duration, Instant};

use super::{harm::Harm, rules::PortRulesSpec};
use crate::smoltcp_spec::SmoltcpSpec;

/// The TCP/IP stack of a program on a mux port.
#[derive(Clone, Debug)]
pub enum PortStack {
    /// The embedded stack, with the configuration of its engine.
    Embedded(Box<EngineConfig>),
    /// smoltcp.
    Smoltcp(SmoltcpSpec),
}

/// Parameters of a well-behaved program on a mux port. The program follows the plans of its
/// connections.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// Index of the program in [`Scenario::programs`](crate::Scenario::programs).
    pub program: usize,
    /// The program's stack.
    pub stack: PortStack,
    /// Length of each packet ring in bytes.
    pub ring_len: u32,
    /// True if active opens claim their local port at the unspecified address instead of one
    /// address.
    pub claims_all: bool,
    /// Limits of the rate at which the program may send.
    pub rate: SendRate,
    /// True if a tap copies the frames of the mux port, as for a capture.
    pub is_tapped: bool,
}

/// Parameters of a hostile program on a mux port.
#[derive(Clone, Debug)]
pub struct HostileSpec {
    /// Length of each packet ring in bytes.
    pub ring_len: u32,
    /// Time of the first turn, in which the program opens its mux port.
    pub start: Instant,
    /// Longest time between two turns, except while the program waits for the driver. In most
    /// turns, the program misbehaves once.
    pub every: Duration,
    /// Largest number of misbehaviours.
    pub count: u32,
    /// The kinds of misbehaviour.
    pub harms: Vec<Harm>,
}

/// A planned end of a well-behaved program on a mux port.
#[derive(Clone, Copy, Debug)]
pub struct PortChange {
    /// Time of the change.
    pub at: Instant,
    /// Index of the program in [`PortsSpec::programs`].
    pub index: usize,
    /// How the program ends.
    pub kind: ChangeKind,
}

/// How a program on a mux port ends.
#[derive(Clone, Copy, Debug)]
pub enum ChangeKind {
    /// The program dies and may start again.
    Death {
        /// Time from the death to the next start. `None` if the program does not start again.
        restart_after: Option<Duration>,
    },
    /// A new version of the program takes over the claims.
    HandOver {
        /// True if all claims move at once. False if they move one by one.
        all: bool,
        /// Time for which the mux port of the old version stays open.
        lasts: Duration,
    },
}

/// Parameters of the mux ports of a run.
#[derive(Clone, Debug)]
pub struct PortsSpec {
    /// Index of the host with the mux ports.
    pub host: usize,
    /// Well-behaved programs.
    pub programs: Vec<PortSpec>,
    /// Hostile programs.
    pub hostile: Vec<HostileSpec>,
    /// Planned ends of well-behaved programs, in the order of time.
    pub changes: Vec<PortChange>,
    /// Longest time until the mux's driver (`driver.rs`, not a NIC driver) closes a port that a
    /// hostile program gives up, or a port in whose rings the mux has found an impossible value.
    pub answer_time_max: Duration,
    /// Largest number of sent frames whose memory the host's NIC frees between two steps. `None`
    /// means no limit.
    pub nic_rate: Option<u32>,
    /// True if the run is compared with a run without the hostile programs.
    pub is_compared: bool,
    /// The operator's rules for the mux ports.
    pub rules: PortRulesSpec,
}

impl PortsSpec {
    /// Returns true if a program on a mux port uses smoltcp, which lacks path MTU discovery.
    pub fn has_smoltcp(&self) -> bool {
        let is_smoltcp = |port: &PortSpec| matches!(port.stack, PortStack::Smoltcp(_));
        self.programs.iter().any(is_smoltcp)
    }

    /// Returns the index in [`programs`](Self::programs) of a program, or `None` for a program
    /// without a mux port. `program` is an index in
    /// [`Scenario::programs`](crate::Scenario::programs).
    pub fn index_of(&self, program: usize) -> Option<usize> {
        self.programs
            .iter()
            .position(|port| port.program == program)
    }
}

impl fmt::Display for PortsSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, answer) = (self.host, self.answer_time_max);
        write!(
            f,
            "ports of host {host}: the mux's driver answers within {answer:?}, NIC rate {:?}, \
             compared {}, {:?}",
            self.nic_rate, self.is_compared, self.rules
        )?;
        for (index, port) in self.programs.iter().enumerate() {
            write!(f, "\nport {index}: {port:?}")?;
        }
        for (index, hostile) in self.hostile.iter().enumerate() {
            write!(f, "\nhostile port {index}: {hostile:?}")?;
        }
        for change in &self.changes {
            write!(f, "\n{change:?}")?;
        }
        Ok(())
    }
}
