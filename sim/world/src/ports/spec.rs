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
    /// Tidelane's embedded stack (`app/embedded`), with the configuration of its engine.
    Embedded(Box<EngineConfig>),
    /// smoltcp, an independent implementation of TCP/IP.
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
    /// Capacity of each packet ring in bytes.
    pub ring_len: u32,
    /// For each active open, the program claims the local port: at all addresses (the unspecified
    /// address) if true, at one address if false. False if the program claims the port at one
    /// address. A claim gives the packets of an address and a port to the mux port.
    pub claims_all: bool,
    /// Limits of the rate at which the program may send.
    pub rate: SendRate,
    /// True if a tap copies the frames of the mux port, as for a capture.
    pub is_tapped: bool,
}

/// Parameters of a hostile program on a mux port.
#[derive(Clone, Debug)]
pub struct HostileSpec {
    /// Capacity of each packet ring in bytes.
    pub ring_len: u32,
    /// Time of the first turn, in which the program opens its mux port.
    pub start: Instant,
    /// Longest time between two turns, except while the program waits for the mux's driver
    /// (`driver.rs`) to close its mux port. In most turns, the program misbehaves once.
    pub every: Duration,
    /// Largest number of misbehaviours.
    pub count: u32,
    /// The kinds of misbehaviour.
    pub harms: Vec<Harm>,
}

/// A planned end of a well-behaved program on a mux port.
#[derive(Clone, Copy, Debug)]
pub struct PortChange {
    /// Time of the end.
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
    /// A new version of the program takes over the claims (the 3-tuples of protocol, local address
    /// and local port whose packets go to the mux port).
    HandOver {
        /// True if one call moves all claims. False if each call moves one claim.
        all: bool,
        /// Time for which the mux port of the old version stays open after the claims have moved.
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
    /// Planned deaths and handovers of well-behaved programs, in the order of time.
    pub changes: Vec<PortChange>,
    /// Longest time until the mux's driver (`driver.rs`, not a NIC driver) closes a mux port that a
    /// hostile program gives up, or a mux port in whose rings the mux has found an impossible
    /// value.
    pub answer_time_max: Duration,
    /// Largest number of sent frames whose memory the host's NIC frees between two steps of the
    /// service. `None` means no limit.
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
