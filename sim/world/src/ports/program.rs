//! A well-behaved program on a mux port. A mux port is a pair of packet rings through which a
//! program with a TCP/IP stack of its own shares the NIC.

use std::sync::Arc;

use tidelane_mux::PortId;
use tidelane_netem::Rng;
use tidelane_packet_io::{BURST_MAX, Burst, PacketIo, TxChecksum};
use tidelane_packet_ring::ProgramEnd;
use tidelane_ring::Doorbell;
use tidelane_time::{Duration, Instant};

use super::{
    embedded::EmbeddedProgram, launch::Launch, owners::PortKey, program_checks::ProgramChecks,
    rings::Rings, spec::PortStack,
};
use crate::{connection_end::RunState, ledger::Violation, plan::Role, smoltcp_host::SmoltcpHost};

/// Interval at which a program runs again while the mux has not taken all packets of the program's
/// ring.
const FULL_RETRY: Duration = Duration::from_micros(50);

/// The stack of a program, with the program's connections.
enum Running {
    /// Tidelane's embedded stack (`app/embedded`), which runs in the program.
    Embedded(EmbeddedProgram),
    /// smoltcp, an independent implementation of TCP/IP.
    Smoltcp(Box<SmoltcpProgram>),
}

/// A program with smoltcp. The program copies frames between the mux port and smoltcp's device.
struct SmoltcpProgram {
    host: SmoltcpHost,
    /// The program's end of the mux port.
    end: ProgramEnd,
}

/// A well-behaved program on an open mux port.
pub struct PortProgram {
    /// Number of the mux port in the simulation.
    pub key: PortKey,
    /// Number of the mux port in the mux.
    pub id: PortId,
    /// The rings of the mux port.
    pub rings: Rings,
    /// Time of the next run. `None` while the program sleeps without a timer.
    pub next: Option<Instant>,
    /// The checks of the mux port's counters.
    pub checks: ProgramChecks,
    running: Running,
    /// The doorbell that the service rings to wake the program.
    doorbell: Arc<Doorbell>,
    /// Longest delay from the ring of the doorbell to the program's run.
    wake_time_max: Duration,
    rng: Rng,
}

impl SmoltcpProgram {
    fn run(
        &mut self,
        now: Instant,
        run_state: &mut RunState,
    ) -> Result<Option<Instant>, Violation> {
        self.end.cancel_sleep();
        let mut burst = self.end.new_burst();
        while self.end.rx_burst(&mut burst, BURST_MAX) > 0 {
            burst.iter().for_each(|frame| self.host.deliver(now, frame));
            self.end.rx_release(&mut burst);
        }
        self.host.run(now, run_state)?;
        for frame in self.host.take_frames() {
            // If the ring has no room, the frame is lost, as in a NIC with a full queue.
            if let Some(room) = self.end.tx_frame() {
                room[..frame.len()].copy_from_slice(&frame);
                self.end.tx_commit(frame.len(), TxChecksum::Done);
            }
        }
        self.end.tx_flush();
        self.end.prepare_to_sleep();
        let soon = self.end.has_frames().then_some(now);
        Ok(soon.into_iter().chain(self.host.next).min())
    }
}

impl PortProgram {
    /// Starts the program on a mux port whose rings are `rings`.
    pub fn new(
        launch: &Launch<'_>,
        key: PortKey,
        id: PortId,
        rings: Rings,
        doorbell: Arc<Doorbell>,
    ) -> Self {
        let scenario = launch.scenario;
        let frame_len_max = scenario.hosts[launch.host].mtu + 14;
        let end = ProgramEnd::new(&rings.program, frame_len_max, false);
        let running = match &launch.spec().stack {
            PortStack::Embedded(engine) => {
                Running::Embedded(EmbeddedProgram::new(launch, engine, end))
            }
            PortStack::Smoltcp(spec) => {
                let (topology, starts) = (&scenario.topology, launch.starts.clone());
                let rng = launch.rng.fork(3);
                let mut host = SmoltcpHost::new(launch.host, spec, topology, starts, rng);
                host.set_first_port(launch.smoltcp_port());
                if let Some((local, _)) = launch.listener {
                    host.listen(local.port, scenario.connections.len() + 1);
                }
                Running::Smoltcp(Box::new(SmoltcpProgram { host, end }))
            }
        };
        let is_smoltcp = matches!(running, Running::Smoltcp(_));
        Self {
            key,
            id,
            rings,
            next: Some(Instant::ZERO),
            checks: ProgramChecks::new(key, scenario.smallest_mtu_of(launch.host), is_smoltcp),
            running,
            doorbell,
            wake_time_max: scenario.programs[launch.spec().program].wake_time_max,
            rng: launch.rng.fork(4),
        }
    }

    /// Runs the program until it would sleep, and schedules its next run. Returns true if the
    /// program has published frames since the last call.
    ///
    /// A retired program is an old version, whose claims (the 3-tuples whose packets its mux port
    /// got) have moved to a new version. If a retired program has the embedded stack, only the
    /// stack runs. If a retired program has smoltcp, nothing runs.
    pub fn run(&mut self, now: Instant, run_state: &mut RunState) -> Result<bool, Violation> {
        let due = match &mut self.running {
            Running::Embedded(program) if self.checks.is_retired => program.poll(now),
            Running::Smoltcp(_) if self.checks.is_retired => None,
            Running::Embedded(program) => program.run(now, run_state)?,
            Running::Smoltcp(program) => program.run(now, run_state)?,
        };
        let retry = (!self.rings.are_drained()).then_some(now + FULL_RETRY);
        let next = due.into_iter().chain(retry).min();
        self.next = next.map(|at| at.max(now + Duration(1)));
        Ok(match &mut self.running {
            Running::Embedded(program) => program.take_published(),
            Running::Smoltcp(program) => program.end.take_published(),
        })
    }

    /// Schedules a run of the program if the service has rung the program's doorbell.
    pub fn take_ring(&mut self, now: Instant) {
        if self.doorbell.drain() {
            let at = now + Duration(self.rng.below(self.wake_time_max.0 + 1));
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
    }

    /// Returns the connection ends that the program has not yet closed. For each end, returns the
    /// number of the connection (`None` if the number is unknown) and the role of the program.
    pub fn open_ends(&self) -> Vec<(Option<u32>, Role)> {
        match &self.running {
            Running::Embedded(program) => program.open_ends(),
            Running::Smoltcp(program) => program.host.open_ends(),
        }
    }

    /// Describes the state of the program's connections.
    pub fn describe(&self) -> String {
        match &self.running {
            Running::Embedded(program) => program.describe(),
            Running::Smoltcp(program) => program.host.describe(),
        }
    }

    /// Returns true if the program has no connection to open or to serve.
    pub fn is_idle(&self) -> bool {
        match &self.running {
            Running::Embedded(program) => program.is_idle(),
            Running::Smoltcp(program) => program.host.is_idle(),
        }
    }

    /// Returns true if the program is idle and its stack has no state of any connection.
    pub fn is_over(&self) -> bool {
        match &self.running {
            Running::Embedded(program) => program.is_over(),
            Running::Smoltcp(program) => program.host.is_over(),
        }
    }

    /// Returns true if the program uses smoltcp. The wire rules (`wire_rules.rs`) do not apply to
    /// the segments of smoltcp.
    pub fn is_smoltcp(&self) -> bool {
        matches!(self.running, Running::Smoltcp(_))
    }

    /// Ends the program. Its unpublished frames never reach the mux. Returns the rings and the
    /// checks, which outlive the program.
    pub fn end(self) -> (Rings, ProgramChecks) {
        (self.rings, self.checks)
    }
}
