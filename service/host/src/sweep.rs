//! The periodic work of a core, which no packet and no request causes.

use tidelane_engine::{Engine, EngineConfig};
use tidelane_packet_io::PacketIo;
use tidelane_time::{Duration, Instant};

use crate::{HostRequest, bindings::Bindings, stack::Stack};

/// Interval of sweeps. A sweep frees the empty receive buffers of connections that have received no
/// data since an earlier sweep examined them.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);

/// The sweeps of a core. A sweep frees idle memory and updates the journal (the record from which
/// another process resets the connections of a killed service). A sweep also assigns connections
/// that wait for room in a program, and limits receive windows while memory is short.
pub(crate) struct Sweep {
    /// Time of the next sweep.
    next: Instant,
    /// Limit of receive windows in bytes while there is no memory pressure.
    rx_window_max: u32,
}

impl Sweep {
    /// Returns the sweeps of a host with this limit of receive windows in bytes.
    pub(crate) fn new(rx_window_max: u32) -> Self {
        Self {
            next: Instant(0),
            rx_window_max,
        }
    }

    /// Returns true if a sweep is due: the interval has passed, or a program may have room for a
    /// connection that waits in an accept queue.
    #[inline]
    pub(crate) fn is_due<P: PacketIo>(&self, now: Instant, stack: &Stack<P>) -> bool {
        now >= self.next || stack.io.listeners.has_room()
    }

    /// Does the periodic work.
    pub(crate) fn run<P: PacketIo>(&mut self, now: Instant, stack: &mut Stack<P>) {
        self.next = now + SWEEP_INTERVAL;
        let Stack { engine, io } = stack;
        io.bindings.free_idle(engine, &mut io.programs);
        shrink(engine, &mut io.bindings);
        let (flows, in_frames) = (io.bindings.bound(), io.counters.in_frames);
        io.journal.tend(engine, flows, in_frames);
        if io.listeners.has_unassigned() {
            stack.assign_waiting(now);
        }
        let Stack { engine, io } = stack;
        if io.programs.check_idle() {
            io.requests.push(HostRequest::IdleMemory);
        }
        self.follow_pressure(engine, io.staging.memory().is_pressed());
    }

    /// Stops the growth of receive windows under memory pressure, and allows growth otherwise.
    fn follow_pressure(&self, engine: &mut Engine, is_pressed: bool) {
        let most = match is_pressed {
            true => engine.config().rx_window_initial,
            false => self.rx_window_max,
        };
        if engine.config().rx_window_max != most {
            engine.set_config(EngineConfig {
                rx_window_max: most,
                ..engine.config().clone()
            });
        }
    }

    /// Returns the time of the next sweep. Returns `None` while a sweep would have no work.
    pub(crate) fn next_timeout<P: PacketIo>(&self, stack: &Stack<P>) -> Option<Instant> {
        let Stack { engine, io } = stack;
        if io.listeners.has_room() {
            return Some(io.now);
        }
        let mut programs = io.programs.iter();
        let needs_work = io.bindings.has_buffers()
            || io.listeners.has_unassigned()
            || is_oversized(engine, &io.bindings)
            || programs.any(|(_, program)| program.rx.needs_idle_check())
            || io.journal.is_stale(io.counters.in_frames);
        needs_work.then_some(self.next)
    }
}

/// Returns true if the table of bindings (the host's records of flows) has a large capacity, but no
/// flow (connection in the engine) exists.
fn is_oversized(engine: &Engine, bindings: &Bindings) -> bool {
    bindings.is_oversized() && engine.is_empty()
}

/// Frees the tables of flows if the tables are large, no flow exists, and no change of a flow waits
/// for its publication.
fn shrink(engine: &mut Engine, bindings: &mut Bindings) {
    if is_oversized(engine, bindings) && !bindings.has_unpublished() {
        bindings.shrink();
        engine.shrink();
    }
}
