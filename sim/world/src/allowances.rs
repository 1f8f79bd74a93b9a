//! Deviations that a scenario's parameters make possible, such as timeouts. The ledger (the record
//! of all connection ends) accepts these deviations.

use crate::{
    direct::DirectSpec,
    fault::Fault,
    host_spec::HostSpec,
    program_spec::ListenerSpec,
    scenario::{Scenario, Theme},
};

impl Scenario {
    /// Returns true if nothing in the scenario can lose a frame that fits in the path MTU. The
    /// links must lose no frames, no service or direct host (which runs TCP within its programs)
    /// may restart, and no program may have its own stack on packet rings. A full packet ring drops
    /// frames.
    pub fn is_lossless(&self) -> bool {
        let breaks = |fault: &Fault| matches!(fault, Fault::Outage { .. } | Fault::Restart { .. });
        let topology = &self.topology;
        let lossy = topology.loss() > 0 || topology.has_bursts() || topology.has_queue();
        !lossy && !self.faults.iter().any(breaks) && self.ports.is_none()
    }

    /// Returns true if the links are so bad that a connection may time out.
    pub fn may_time_out(&self) -> bool {
        let outage = |fault: &Fault| matches!(fault, Fault::Outage { .. });
        self.topology.loss() > 40_000
            || self.topology.has_bursts()
            || self.faults.iter().any(outage)
    }

    /// Returns true if a host's clock may jump, or if a host may pause. The ledger treats both
    /// faults alike. After a jump, the host's timers expire early.
    pub fn has_clock_jumps(&self) -> bool {
        let jump = |fault: &Fault| matches!(fault, Fault::ClockJump { .. } | Fault::Pause { .. });
        self.faults.iter().any(jump)
    }

    /// Returns true if a limit (a backlog, or a host's number of local ports) is so low that the
    /// service may refuse a connection.
    pub fn has_low_limits(&self) -> bool {
        let low = |spec: &ListenerSpec| (spec.backlog as usize) < self.connections.len();
        let few = |host: &HostSpec| (host.ports as usize) < self.connections.len();
        self.listeners.iter().any(low) || self.hosts.iter().any(few)
    }

    /// Returns true if programs have little memory for stream buffers, or if a direct host has few
    /// buffers.
    pub fn is_short_of_memory(&self) -> bool {
        self.theme == Theme::LowMemory || self.direct.iter().any(DirectSpec::is_short_of_memory)
    }
}
