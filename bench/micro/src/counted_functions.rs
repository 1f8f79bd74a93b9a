//! The functions whose instructions callgrind counts, from entry to return.
//!
//! Callgrind finds the functions by the symbols that its option `--toggle-collect` names. The
//! functions are therefore neither mangled nor inlined.

use tidelane_engine::Segment;
use tidelane_time::Instant;

use crate::{echo::EchoProgram, embedded::Server, engine::OneFlow, mux::MemoryMux, rig::Machine};

/// Passes a segment to the TCP engine and ends the batch, so that the engine sends an ACK.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_receive(one: &mut OneFlow, segment: &Segment<'_>) {
    one.receive(segment);
}

/// Tells the TCP engine that the program has written bytes, so that the engine sends a segment.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_send(one: &mut OneFlow) {
    one.send();
}

/// Runs one step of a host, the TCP/IP stack of one polling thread of the Tidelane service.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_service(machine: &mut Machine, now: Instant) {
    machine.host.step(now);
}

/// Handles one wake-up of a program with the client library.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_library(program: &mut EchoProgram) {
    program.handle_wakeup();
}

/// Runs one step of the mux, which passes packets between a NIC and the packet rings of many
/// programs.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_mux(mux: &mut MemoryMux) {
    mux.step();
}

/// Writes one request of the client on each connection.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_write_requests(program: &mut EchoProgram) {
    program.write_requests();
}

/// Handles one wake-up of a server on the embedded stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn tidelane_micro_embedded(server: &mut Server, now: Instant) {
    server.handle_wakeup(now);
}
