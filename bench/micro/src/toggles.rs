//! What is counted: callgrind counts from the entry of one of these functions to its return.

use tidelane_engine::Segment;
use tidelane_time::Instant;

use crate::{echo::Side, engine::OneFlow, rig::Machine};

/// The engine receives a segment and acknowledges it.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_receive(one: &mut OneFlow, segment: &Segment<'_>) {
    one.receive(segment);
}

/// The engine sends a segment.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_send(one: &mut OneFlow) {
    one.send();
}

/// A step of the service.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_service(machine: &mut Machine, now: Instant) {
    machine.host.step(now);
}

/// A program looks at its events, reads, writes, and tells the service.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_library(side: &mut Side) {
    side.turn();
}

/// A program writes its requests and tells the service.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_ask(side: &mut Side) {
    side.ask();
}
