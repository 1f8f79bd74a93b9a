//! Loads and stores on a slot, with their memory order.
//!
//! A slot is the shared record of one connection. The program writes one half, the service the
//! other half. The program may write any value, and no function here validates loaded values.
//! Positions are stream positions: byte counts modulo 2^32.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use tidelane_abi::BufferWord;
use tidelane_ring::SlotView;

/// The values of a slot's program half, each read once.
#[derive(Clone, Copy, Debug)]
pub struct ProgramView {
    /// Generation of the slot for which the program wrote these values.
    pub generation: u32,
    /// Bits of [`tidelane_abi::program_flags`].
    pub flags: u32,
    /// Position up to which the program has written.
    pub tx_head: u32,
    /// Position up to which the program has read.
    pub rx_read: u32,
    /// Send buffer.
    pub tx_buffer: BufferWord,
    /// Word of the receive buffer that the program reads.
    pub rx_buffer_seen: BufferWord,
}

/// Reads the program's half. Positions are read before the buffers that they refer to.
pub fn read_program(slot: SlotView<'_>) -> ProgramView {
    let half = slot.program();
    let flags = half.flags.load(Acquire);
    let tx_head = half.tx_head.load(Acquire);
    let rx_read = half.rx_read.load(Acquire);
    ProgramView {
        generation: half.generation.load(Relaxed),
        flags,
        tx_head,
        rx_read,
        tx_buffer: half.tx_buffer.load(Relaxed),
        rx_buffer_seen: half.rx_buffer_seen.load(Relaxed),
    }
}

/// Returns the position up to which the program has read.
pub fn rx_read(slot: SlotView<'_>) -> u32 {
    slot.program().rx_read.load(Acquire)
}

/// Announces a receive buffer. Later stores of `rx_head` refer to this buffer.
pub fn set_rx_buffer(slot: SlotView<'_>, word: BufferWord) {
    slot.service().rx_buffer.store(word, Release);
}

/// Tells the program that the service uses send buffer `word`, so that the program may reuse
/// earlier send buffers.
pub fn set_tx_buffer_seen(slot: SlotView<'_>, word: BufferWord) {
    slot.service().tx_buffer_seen.store(word, Release);
}

/// The state of a connection that [`publish`] shows to the program at the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Position up to which data was received.
    pub rx_head: u32,
    /// Position up to which data was acknowledged.
    pub tx_acked: u32,
    /// Bits of [`tidelane_abi::service_flags`].
    pub flags: u32,
    /// Close cause; 0 while the connection lives.
    pub cause: u32,
}

/// Publishes positions and state. The flags are stored last, since the end of file refers to
/// `rx_head`.
pub fn publish(slot: SlotView<'_>, publication: &Publication) {
    let half = slot.service();
    half.tx_acked.store(publication.tx_acked, Release);
    half.rx_head.store(publication.rx_head, Release);
    half.cause.store(publication.cause, Relaxed);
    half.flags.store(publication.flags, Release);
}

/// Sets the limit in bytes of the data that the program has written and the peer has not
/// acknowledged.
pub fn set_tx_limit(slot: SlotView<'_>, tx_limit: u32) {
    slot.service().tx_limit.store(tx_limit, Relaxed);
}

/// Sets the receive window in bytes, by which the program decides when to announce its reads.
pub fn set_rx_window(slot: SlotView<'_>, rx_window: u32) {
    slot.service().rx_window.store(rx_window, Relaxed);
}

/// Publishes the position up to which data was sent. The caller publishes the flags later.
pub fn set_tx_sent(slot: SlotView<'_>, tx_sent: u32) {
    slot.service().tx_sent.store(tx_sent, Release);
}

/// Publishes an error that did not end the connection. The caller publishes the flags later.
pub fn set_soft_error(slot: SlotView<'_>, word: u32) {
    slot.service().soft_error.store(word, Release);
}

/// Publishes urgent data. The caller marks the receive buffer's word later.
pub fn set_urgent(slot: SlotView<'_>, word: u64, before: u32) {
    let half = slot.service();
    half.urgent_before.store(before, Relaxed);
    half.urgent.store(word, Release);
}

/// Clears both halves for a new connection. Returns the new, odd generation.
pub fn begin_use(slot: SlotView<'_>) -> u32 {
    let program = slot.program();
    program.tx_buffer.store(0, Relaxed);
    program.rx_buffer_seen.store(0, Relaxed);
    program.tx_head.store(0, Relaxed);
    program.rx_read.store(0, Relaxed);
    program.flags.store(0, Relaxed);
    program.linger.store(0, Relaxed);
    program.busy.store(0, Relaxed);
    let service = slot.service();
    service.rx_buffer.store(0, Relaxed);
    service.tx_buffer_seen.store(0, Relaxed);
    service.cause.store(0, Relaxed);
    service.tx_sent.store(0, Relaxed);
    service.soft_error.store(0, Relaxed);
    service.urgent.store(0, Relaxed);
    let zero = Publication {
        rx_head: 0,
        tx_acked: 0,
        flags: 0,
        cause: 0,
    };
    publish(slot, &zero);
    let generation = service.generation.load(Relaxed).wrapping_add(1) | 1;
    service.generation.store(generation, Release);
    program.generation.store(generation, Release);
    generation
}

/// The state with which a moved connection continues in a new slot.
#[derive(Clone, Copy, Debug)]
pub struct Resumption {
    /// Bits of [`tidelane_abi::program_flags`].
    pub flags: u32,
    /// Position up to which the program has written.
    pub tx_head: u32,
    /// Position up to which the program has read.
    pub rx_read: u32,
    /// Send buffer.
    pub tx_buffer: BufferWord,
    /// Receive buffer.
    pub rx_buffer: BufferWord,
}

/// Writes both halves of a slot whose use has just begun.
pub fn resume_use(slot: SlotView<'_>, resumption: &Resumption) {
    let program = slot.program();
    program.flags.store(resumption.flags, Relaxed);
    program.tx_head.store(resumption.tx_head, Relaxed);
    program.rx_read.store(resumption.rx_read, Relaxed);
    program.tx_buffer.store(resumption.tx_buffer, Relaxed);
    set_rx_buffer(slot, resumption.rx_buffer);
}

/// Sets bits of [`tidelane_abi::service_flags`]. The other bits keep their values.
pub fn add_flags(slot: SlotView<'_>, bits: u32) {
    slot.service().flags.fetch_or(bits, SeqCst);
}

/// Clears bits of [`tidelane_abi::service_flags`].
pub fn remove_flags(slot: SlotView<'_>, bits: u32) {
    slot.service().flags.fetch_and(!bits, SeqCst);
}

/// Returns the slot's generation.
pub fn generation(slot: SlotView<'_>) -> u32 {
    slot.service().generation.load(Relaxed)
}

/// Returns true if the program is copying data from or to the buffers. Call this function after
/// [`add_flags`]: a program that is not copying then sees the flags before its next copy.
pub fn is_held(slot: SlotView<'_>) -> bool {
    slot.program().busy.load(SeqCst) != 0
}

/// Ends the use of a slot, whose generation becomes even.
pub fn end_use(slot: SlotView<'_>) {
    let generation = slot.service().generation.load(Relaxed).wrapping_add(1) & !1;
    slot.service().generation.store(generation, Release);
}
