//! Loads and stores on a slot, with their memory order.
//!
//! A slot is the record of one connection in the memory that a program shares with the service. The
//! program writes one half of the slot, and the service writes the other half. At the start of a
//! connection, the service initializes both halves. The program may write any value, and no
//! function of this module validates loaded values. Positions are stream positions: byte counts
//! modulo 2^32. The *generation* of a slot is a number that grows at each use and at each release
//! of the slot. The word of a buffer ([`BufferWord`]) encodes the offset and the size of the buffer
//! in the shared memory.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use tidelane_abi::{BufferWord, ConnectionIds};
use tidelane_ring::SlotView;
use tidelane_wire::FlowKey;

/// The values in the program's half of a slot, each read once.
#[derive(Clone, Copy, Debug)]
pub struct ProgramView {
    /// The slot's generation to which these values belong, as the program wrote it.
    pub generation: u32,
    /// Bits of [`tidelane_abi::program_flags`].
    pub flags: u32,
    /// Position up to which the program has written.
    pub tx_head: u32,
    /// Position up to which the program has read.
    pub rx_read: u32,
    /// Word of the send buffer.
    pub tx_buffer: BufferWord,
    /// Word of the receive buffer from which the program reads.
    pub rx_buffer_seen: BufferWord,
}

/// Reads the program's half. Loads each position before the word of the buffer to which the
/// position refers.
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

/// Reads the position up to which the program has read.
pub fn rx_read(slot: SlotView<'_>) -> u32 {
    slot.program().rx_read.load(Acquire)
}

/// Publishes the word of the receive buffer. Later values of `rx_head` refer to this buffer.
pub fn set_rx_buffer(slot: SlotView<'_>, word: BufferWord) {
    slot.service().rx_buffer.store(word, Release);
}

/// Publishes that the service uses send buffer `word`, so that the program may reuse earlier send
/// buffers.
pub fn set_tx_buffer_seen(slot: SlotView<'_>, word: BufferWord) {
    slot.service().tx_buffer_seen.store(word, Release);
}

/// The state of a connection that [`publish`] shows to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Position up to which the service has received data in order.
    pub rx_head: u32,
    /// Position up to which the peer has acknowledged data.
    pub tx_acked: u32,
    /// Bits of [`tidelane_abi::service_flags`].
    pub flags: u32,
    /// One of [`tidelane_abi::close_cause`]; 0 while the connection lives.
    pub cause: u32,
}

/// Publishes the state of a connection. Stores the flags last, because the flag for a received FIN
/// marks `rx_head` as the end of the stream.
pub fn publish(slot: SlotView<'_>, publication: &Publication) {
    let half = slot.service();
    half.tx_acked.store(publication.tx_acked, Release);
    half.rx_head.store(publication.rx_head, Release);
    half.cause.store(publication.cause, Relaxed);
    half.flags.store(publication.flags, Release);
}

/// Publishes the size limit in bytes of the send buffer. The send buffer holds the data that the
/// program has written and that the peer has not acknowledged.
pub fn set_tx_limit(slot: SlotView<'_>, tx_limit: u32) {
    slot.service().tx_limit.store(tx_limit, Relaxed);
}

/// Publishes the limit of the receive window in bytes. The program informs the service of its read
/// position each time it has read a quarter of the limit.
pub fn set_rx_window(slot: SlotView<'_>, rx_window: u32) {
    slot.service().rx_window.store(rx_window, Relaxed);
}

/// Publishes the position up to which the service has sent data. The caller publishes the flags
/// later.
pub fn set_tx_sent(slot: SlotView<'_>, tx_sent: u32) {
    slot.service().tx_sent.store(tx_sent, Release);
}

/// Publishes an error that did not end the connection, encoded as
/// [`tidelane_abi::ServiceHalf::soft_error`]. The caller publishes the flags later.
pub fn set_soft_error(slot: SlotView<'_>, word: u32) {
    slot.service().soft_error.store(word, Release);
}

/// Publishes the most recent urgent byte and the position of the urgent byte before it. `word` is
/// encoded as [`tidelane_abi::ServiceHalf::urgent`], and `previous` is the position of the earlier
/// byte. The caller then publishes the word of the receive buffer with the flag
/// [`tidelane_abi::buffer_word::URGENT`].
pub fn set_urgent(slot: SlotView<'_>, word: u64, previous: u32) {
    let half = slot.service();
    half.previous_urgent.store(previous, Relaxed);
    half.urgent.store(word, Release);
}

/// Clears both halves for a new connection. Three fields of the service's half keep their values:
/// the fields of [`set_rx_window`] and [`set_tx_limit`], and the position of the previous urgent
/// byte. Returns the new generation, which is odd because the slot is in use.
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

/// The state with which a connection continues in a new slot after a move to another process.
#[derive(Clone, Copy, Debug)]
pub struct ResumedState {
    /// Bits of [`tidelane_abi::program_flags`].
    pub flags: u32,
    /// Position up to which the program has written.
    pub tx_head: u32,
    /// Position up to which the program has read.
    pub rx_read: u32,
    /// Word of the send buffer.
    pub tx_buffer: BufferWord,
    /// Word of the receive buffer.
    pub rx_buffer: BufferWord,
}

/// Writes the state of a moved connection to both halves of a slot. The caller calls [`begin_use`]
/// first.
pub fn resume_use(slot: SlotView<'_>, resumption: &ResumedState) {
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

/// Clears bits of [`tidelane_abi::service_flags`]. The other bits keep their values.
pub fn remove_flags(slot: SlotView<'_>, bits: u32) {
    slot.service().flags.fetch_and(!bits, SeqCst);
}

/// Returns the slot's generation.
pub fn generation(slot: SlotView<'_>) -> u32 {
    slot.service().generation.load(Relaxed)
}

/// Returns true if the program is copying data from or to the buffers of a shared connection (flag
/// SHARED: several processes hold the connection). Before the call, the caller sets the flag
/// MIGRATED (another process takes the connection) with [`add_flags`]. A program that is not
/// copying then sees the flag before its next copy.
pub fn is_copying(slot: SlotView<'_>) -> bool {
    slot.program().busy.load(SeqCst) != 0
}

/// Ends the use of a slot. The generation becomes even.
pub fn end_use(slot: SlotView<'_>) {
    let generation = slot.service().generation.load(Relaxed).wrapping_add(1) & !1;
    slot.service().generation.store(generation, Release);
}

/// Returns the identity of a connection for its slot: the addresses and ports in `key`, the number
/// `connection`, and the MSS in bytes.
pub fn ids_of(key: &FlowKey, connection: u64, mss: u32) -> ConnectionIds {
    ConnectionIds {
        local_addr: key.local.addr.0,
        peer_addr: key.peer.addr.0,
        local_port: key.local.port,
        peer_port: key.peer.port,
        mss,
        connection,
        reserved: [0; 2],
    }
}
