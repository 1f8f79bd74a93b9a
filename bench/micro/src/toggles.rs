//! The functions that callgrind counts in, from their entry to their return.
//!
//! Their symbols are arguments of `--toggle-collect`, so they are neither mangled nor inlined.

use tidelane_engine::Segment;
use tidelane_time::Instant;

use crate::{echo::Side, engine::OneFlow, rig::Machine};

/// Lets the engine receive a segment and acknowledge it.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_receive(one: &mut OneFlow, segment: &Segment<'_>) {
    one.receive(segment);
}

/// Lets the engine send a segment.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_send(one: &mut OneFlow) {
    one.send();
}

/// Runs one step of the service.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_service(machine: &mut Machine, now: Instant) {
    machine.host.step(now);
}

/// Handles one wake-up of a program.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_library(side: &mut Side) {
    side.turn();
}

/// Writes the requests of a client.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_ask(side: &mut Side) {
    side.ask();
}
