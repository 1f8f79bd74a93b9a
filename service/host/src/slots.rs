//! The loads and stores on a slot, with their memory order. What is loaded is the program's word
//! and not validated.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use tidelane_abi::BufferWord;
use tidelane_ring::SlotView;

/// The program's half, each field read once.
#[derive(Clone, Copy, Debug)]
pub struct ProgramView {
    /// Generation that the program acts for.
    pub generation: u32,
    /// Bits of [`tidelane_abi::program_flags`].
    pub flags: u32,
    /// Bytes written up to.
    pub tx_head: u32,
    /// Bytes read up to.
    pub rx_read: u32,
    /// Send buffer.
    pub tx_buffer: BufferWord,
    /// Receive buffer in use.
    pub rx_buffer_seen: BufferWord,
}

/// Reads the program's half. The positions come before the buffers that they count in.
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

/// How far the program has read.
pub fn rx_read(slot: SlotView<'_>) -> u32 {
    slot.program().rx_read.load(Acquire)
}

/// Announces a receive buffer; later stores of `rx_head` count in it.
pub fn set_rx_buffer(slot: SlotView<'_>, word: BufferWord) {
    slot.service().rx_buffer.store(word, Release);
}

/// Tells the program that its send buffers before `word` are its own again.
pub fn set_tx_buffer_seen(slot: SlotView<'_>, word: BufferWord) {
    slot.service().tx_buffer_seen.store(word, Release);
}

/// Changes of one step that the program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Bytes received up to.
    pub rx_head: u32,
    /// Bytes acknowledged up to.
    pub tx_acked: u32,
    /// Bits of [`tidelane_abi::service_flags`].
    pub flags: u32,
    /// Close cause.
    pub cause: u32,
}

/// Publishes positions and state. The flags come last: end of file counts from `rx_head`.
pub fn publish(slot: SlotView<'_>, publication: &Publication) {
    let half = slot.service();
    half.tx_acked.store(publication.tx_acked, Release);
    half.rx_head.store(publication.rx_head, Release);
    half.cause.store(publication.cause, Relaxed);
    half.flags.store(publication.flags, Release);
}

/// Sets how many bytes of the program may be unacknowledged, with those that were not sent yet.
pub fn set_tx_limit(slot: SlotView<'_>, tx_limit: u32) {
    slot.service().tx_limit.store(tx_limit, Relaxed);
}

/// Sets the receive window by which the program decides when to announce its reads.
pub fn set_rx_window(slot: SlotView<'_>, rx_window: u32) {
    slot.service().rx_window.store(rx_window, Relaxed);
}

/// Tells a program that asked for it how far its bytes were sent. Before the flags are published.
pub fn set_tx_sent(slot: SlotView<'_>, tx_sent: u32) {
    slot.service().tx_sent.store(tx_sent, Release);
}

/// Tells the program of an error that did not end the connection. Before the flags are published.
pub fn set_soft_error(slot: SlotView<'_>, word: u32) {
    slot.service().soft_error.store(word, Release);
}

/// Tells the program of urgent data. Before the buffer's word is marked.
pub fn set_urgent(slot: SlotView<'_>, word: u64, before: u32) {
    let half = slot.service();
    half.urgent_before.store(before, Relaxed);
    half.urgent.store(word, Release);
}

/// Clears both halves for a new connection; returns its (odd) generation.
pub fn begin_use(slot: SlotView<'_>) -> u32 {
    let program = slot.program();
    program.tx_buffer.store(0, Relaxed);
    program.rx_buffer_seen.store(0, Relaxed);
    program.tx_head.store(0, Relaxed);
    program.rx_read.store(0, Relaxed);
    program.flags.store(0, Relaxed);
    program.linger.store(0, Relaxed);
    program.held.store(0, Relaxed);
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

/// Where a connection goes on that was in another slot before.
#[derive(Clone, Copy, Debug)]
pub struct Resumption {
    /// Bits of [`tidelane_abi::program_flags`].
    pub flags: u32,
    /// Bytes written up to.
    pub tx_head: u32,
    /// Bytes read up to.
    pub rx_read: u32,
    /// Send buffer.
    pub tx_buffer: BufferWord,
    /// Receive buffer.
    pub rx_buffer: BufferWord,
}

/// Fills in the halves of a slot whose use has just begun.
pub fn resume_use(slot: SlotView<'_>, resumption: &Resumption) {
    let program = slot.program();
    program.flags.store(resumption.flags, Relaxed);
    program.tx_head.store(resumption.tx_head, Relaxed);
    program.rx_read.store(resumption.rx_read, Relaxed);
    program.tx_buffer.store(resumption.tx_buffer, Relaxed);
    set_rx_buffer(slot, resumption.rx_buffer);
}

/// Sets bits of [`tidelane_abi::service_flags`] beside those that are published.
pub fn add_flags(slot: SlotView<'_>, bits: u32) {
    slot.service().flags.fetch_or(bits, SeqCst);
}

/// Clears such bits.
pub fn remove_flags(slot: SlotView<'_>, bits: u32) {
    slot.service().flags.fetch_and(!bits, SeqCst);
}

/// The slot's generation.
pub fn generation(slot: SlotView<'_>) -> u32 {
    slot.service().generation.load(Relaxed)
}

/// Returns true if the program is moving bytes. To be asked after [`add_flags`]: a program that
/// moves none by then sees the flags.
pub fn is_held(slot: SlotView<'_>) -> bool {
    slot.program().held.load(SeqCst) != 0
}

/// Ends the use of a slot: its generation becomes even.
pub fn end_use(slot: SlotView<'_>) {
    let generation = slot.service().generation.load(Relaxed).wrapping_add(1) & !1;
    slot.service().generation.store(generation, Release);
}
