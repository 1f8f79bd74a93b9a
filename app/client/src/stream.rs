//! A stream: the program's access to one connection whose TCP runs in the service (the process
//! `tidelaned`). The positions in the diagram count bytes. The slot, the connection's record in
//! shared memory, contains the positions.
//!
//! ```text
//!            tx_acked          tx_head               rx_read           rx_head
//! send:  ....|  unacked bytes  |  room         recv: | readable bytes  |
//!             <- at most tx_limit ->                  (in the service's buffer)
//! ```
//!
//! The send buffer is elastic. An idle stream has none, and the first write allocates it. A write
//! that does not fit replaces the buffer by a buffer of at least twice the size, and copies the
//! unacknowledged bytes to the new buffer.
//!
//! The service may still read the replaced (outgrown) buffer. The stream frees the outgrown buffer
//! after one of two events: the service has echoed the word of the new buffer, which encodes the
//! new buffer's offset and size, or the peer has acknowledged all bytes of the outgrown buffer.

mod in_place;
mod receive;
mod transmit;
mod urgent;

use std::sync::{
    Arc,
    atomic::Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use tidelane_abi::{
    BufferWord, ConnectionIds, OpenOptions, close_cause, program_flags, service_flags,
};
use tidelane_ring::{SlotHandle, StreamBuffer};

pub use self::{in_place::Run, urgent::UrgentByte};
use self::{
    transmit::{Outgrown, UNACKED_MAX},
    urgent::Urgent,
};
use crate::session::ClientSession;

/// The options of a connection that are numbers instead of flags. Zero means the service's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// TCP_KEEPIDLE in seconds.
    pub keepalive_idle_s: u32,
    /// TCP_KEEPINTVL in seconds.
    pub keepalive_interval_s: u32,
    /// TCP_KEEPCNT.
    pub keepalive_probes: u32,
    /// The options that take effect before the connection has a slot.
    pub opening: OpenOptions,
    /// The limits of unacknowledged and unsent bytes.
    pub sending: SendLimits,
}

/// The limits that a program sets for its own writes. Zero means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendLimits {
    /// SO_SNDBUF: largest number of bytes that may be written and not acknowledged.
    pub unacked_max: u32,
    /// TCP_NOTSENT_LOWAT: largest number of bytes that may be written and not sent.
    pub unsent_max: u32,
}

/// The program's access to one connection, from the event that announced the connection to `close`.
///
/// The methods access shared memory, and make no system call. After a method that changes the
/// stream, call `Context::submit`, which does nothing if there is no change. Dropping a stream
/// without `close` aborts the connection as soon as the service checks the slot.
#[derive(Debug)]
pub struct Stream {
    /// The slot: the record of the connection in shared memory, with one half for the program and
    /// one for the service.
    shared: SlotHandle,
    session: Arc<ClientSession>,
    /// Number of the slot.
    slot: u32,
    /// The generation of the slot when this stream got the slot ([`Stream::generation`]).
    generation: u32,
    /// Number of the connection ([`ConnectionIds::connection`]).
    connection: u64,
    /// Bits of `program_flags`.
    flags: u32,
    /// True if `Context::submit` has to tell the service about a change.
    due: bool,

    /// The slot's error word when the method `soft_error` last returned an error. A different word
    /// in the slot is a new error.
    soft_error_seen: u32,

    /// Position up to which the program has read.
    rx_read: u32,
    /// Position up to which bytes are readable: the last valid value that the stream loaded, or the
    /// position of an earlier urgent byte (module `urgent`).
    rx_head: u32,
    /// The value of `rx_read` when the stream was last submitted.
    rx_announced: u32,
    /// The service's word for the receive buffer, from which `rx_buffer` was decoded.
    rx_word: BufferWord,
    rx_buffer: Option<StreamBuffer>,
    /// The word of the receive buffer that the stream last confirmed (slot field `rx_buffer_seen`).
    rx_word_seen: BufferWord,
    /// True if the stream confirms each new receive buffer immediately, so that the service frees
    /// the old buffer. False if the caller confirms new buffers (module `in_place`).
    confirms_rx: bool,

    /// Position up to which the program has written.
    tx_head: u32,
    /// Position up to which the peer has acknowledged: the last valid value that was loaded.
    tx_acked: u32,
    /// Largest number of unacknowledged bytes, computed when the stream last loaded the service's
    /// values.
    tx_limit: u32,
    sending: SendLimits,
    tx_buffer: Option<StreamBuffer>,
    /// True while the program writes directly into parts of the send buffers (module `in_place`).
    room_lent: bool,
    outgrown: Outgrown,
    urgent: Urgent,
}

impl Stream {
    /// Creates the stream of a new connection, and initializes the program's half of the slot.
    /// Returns `None` if there is no slot with this number.
    pub(crate) fn new(
        session: Arc<ClientSession>,
        slot: u32,
        generation: u32,
        flags: u32,
    ) -> Option<Stream> {
        let shared = SlotHandle::new(session.region.clone(), slot)?;
        let half = shared.view().program();
        half.tx_buffer.store(0, Relaxed);
        half.rx_buffer_seen.store(0, Relaxed);
        half.tx_head.store(0, Relaxed);
        half.rx_read.store(0, Relaxed);
        half.linger.store(0, Relaxed);
        half.busy.store(0, Relaxed);
        half.flags.store(flags, Relaxed);
        half.generation.store(generation, Release);
        let mut stream = Self::at(shared, session, slot, generation);
        stream.flags = flags;
        stream.due = flags != 0;
        Some(stream)
    }

    /// Creates a stream at position 0, without changing the slot.
    fn at(shared: SlotHandle, session: Arc<ClientSession>, slot: u32, generation: u32) -> Stream {
        let tx_limit = shared
            .view()
            .service()
            .tx_limit
            .load(Relaxed)
            .min(UNACKED_MAX);
        let urgent = Urgent::of(shared.view().options());
        Stream {
            connection: shared.view().ids().connection,
            shared,
            session,
            slot,
            generation,
            flags: 0,
            due: false,
            soft_error_seen: 0,
            rx_read: 0,
            rx_head: 0,
            rx_announced: 0,
            rx_word: 0,
            rx_buffer: None,
            rx_word_seen: 0,
            confirms_rx: true,
            tx_head: 0,
            tx_acked: 0,
            tx_limit,
            sending: SendLimits::default(),
            tx_buffer: None,
            room_lent: false,
            outgrown: Outgrown::default(),
            urgent,
        }
    }

    /// Creates the stream of a connection that was migrated to this slot. The service has filled in
    /// the values of the slot.
    pub(crate) fn resume(
        session: &Arc<ClientSession>,
        slot: u32,
        generation: u32,
        tx_buffer: Option<StreamBuffer>,
    ) -> Option<Stream> {
        let shared = SlotHandle::new(session.region.clone(), slot)?;
        let half = shared.view().program();
        let (tx_head, rx_read) = (half.tx_head.load(Relaxed), half.rx_read.load(Relaxed));
        let flags = half.flags.load(Relaxed);
        let tx_acked = shared.view().service().tx_acked.load(Acquire);
        // Check the service's position: the unacknowledged bytes cannot exceed the buffer.
        let unacked = tx_head.wrapping_sub(tx_acked);
        let possible = unacked <= tx_buffer.map_or(0, StreamBuffer::len);
        let mut stream = Self::at(shared, session.clone(), slot, generation);
        stream.flags = flags;
        stream.rx_read = rx_read;
        stream.rx_head = rx_read;
        stream.rx_announced = rx_read;
        stream.tx_head = tx_head;
        stream.tx_acked = if possible { tx_acked } else { tx_head };
        stream.tx_buffer = tx_buffer;
        let word = tx_buffer.map_or(0, StreamBuffer::to_word);
        stream
            .shared
            .view()
            .program()
            .tx_buffer
            .store(word, Release);
        Some(stream)
    }

    /// Returns the number of the connection, which is unique during the life of the service.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Marks the slot as busy: until `clear_busy`, the service does not migrate the connection to
    /// another process. Must be called before reads and writes of a connection that several
    /// processes share after `fork` (SHARED). Returns false if another process has the connection.
    pub fn set_busy(&self) -> bool {
        let view = self.shared.view();
        view.program().busy.store(1, SeqCst);
        let migrated = view.service().flags.load(SeqCst) & service_flags::MIGRATED != 0;
        if migrated {
            self.clear_busy();
        }
        !migrated
    }

    /// Returns true if the connection is in this process, and not in another process.
    pub fn is_here(&self) -> bool {
        let generation = self.shared.view().service().generation.load(Acquire);
        generation == self.generation && self.service_flags() & service_flags::MIGRATED == 0
    }

    /// Allows the connection to be migrated after `set_busy`.
    pub fn clear_busy(&self) {
        self.shared.view().program().busy.store(0, SeqCst);
    }

    /// Drops the stream without closing the connection. The connection was migrated to another
    /// process, and then back to another slot of this process. The service has freed the slot of
    /// this stream, and uses none of the stream's buffers.
    pub fn forget(mut self) {
        let buffers = self.tx_buffer.take().into_iter();
        let outgrown = std::mem::take(&mut self.outgrown.buffers);
        let allocator = &mut self.session.buffers().allocator;
        for buffer in buffers.chain(outgrown) {
            allocator.free(buffer);
        }
        // CLOSE keeps `drop` from writing to the slot, which may belong to another connection.
        self.flags |= program_flags::CLOSE;
    }

    /// Returns the number of the slot.
    #[inline]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns the generation of the slot, which counts the uses and the releases of the slot.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the addresses, the number and the MSS of the connection.
    pub fn ids(&self) -> ConnectionIds {
        self.shared.view().ids()
    }

    /// Returns the service's limit of the receive window in bytes (SO_RCVBUF).
    pub fn rx_window(&self) -> u32 {
        self.shared.view().service().rx_window.load(Relaxed)
    }

    /// Returns the present [`tidelane_abi::service_flags`]. CLOSED is set if the service is gone.
    #[inline]
    pub fn service_flags(&self) -> u32 {
        let flags = self.shared.view().service().flags.load(Acquire);
        if self.session.is_gone() {
            flags | service_flags::CLOSED
        } else {
            flags
        }
    }

    /// Returns true if the handshake is complete.
    pub fn established(&self) -> bool {
        self.service_flags() & service_flags::ESTABLISHED != 0
    }

    /// Returns true if the peer's FIN was received or the connection has ended, so that no more
    /// bytes arrive. Bytes that arrived before may still be readable: use `at_end` to detect the
    /// end of file.
    pub fn peer_closed(&self) -> bool {
        self.service_flags() & (service_flags::FIN_RECEIVED | service_flags::CLOSED) != 0
    }

    /// Returns true if the peer's FIN was received, if the program has not read beyond the peer's
    /// last urgent byte, or if the connection has ended.
    pub fn has_end_or_urgent(&self) -> bool {
        /// The flags for which this function returns true.
        const SPECIAL: u32 =
            service_flags::FIN_RECEIVED | service_flags::CLOSED | service_flags::URGENT;
        self.service_flags() & SPECIAL != 0
    }

    /// Returns true if the peer's FIN was received, so that no more bytes will arrive.
    pub fn has_received_fin(&self) -> bool {
        self.service_flags() & service_flags::FIN_RECEIVED != 0
    }

    /// Returns true at the end of file: no bytes are readable, and no more bytes will arrive. The
    /// readable bytes may end at an urgent byte, so call `pass_mark` first.
    pub fn at_end(&mut self) -> bool {
        // The service stores the last bytes before the flags, so load the flags before the
        // positions.
        self.peer_closed() && self.readable() == 0
    }

    /// Returns the [`tidelane_abi::close_cause`] if the connection is over, or else `None`. The
    /// cause is ABORTED if the service died.
    pub fn closed(&self) -> Option<u32> {
        let half = self.shared.view();
        if half.service().flags.load(Acquire) & service_flags::CLOSED != 0 {
            return Some(half.service().cause.load(Relaxed));
        }
        self.session.is_gone().then_some(close_cause::ABORTED)
    }

    /// Returns true if the connection is over, or if it has ever had a soft error, even if
    /// [`soft_error`](Self::soft_error) has already returned the error.
    pub fn has_error(&self) -> bool {
        self.service_flags() & (service_flags::CLOSED | service_flags::SOFT_ERROR) != 0
    }

    /// Returns the last ICMP error that did not end the connection, as a
    /// [`tidelane_abi::close_cause`]. Returns `None` if there is none, or if a previous call has
    /// returned the error.
    pub fn soft_error(&mut self) -> Option<u32> {
        if self.service_flags() & service_flags::SOFT_ERROR == 0 {
            return None;
        }
        let word = self.shared.view().service().soft_error.load(Acquire);
        let is_new = std::mem::replace(&mut self.soft_error_seen, word) != word;
        is_new.then_some(word & 0xff)
    }

    /// Returns true if the peer has acknowledged the FIN.
    pub fn fin_acked(&self) -> bool {
        self.service_flags() & service_flags::FIN_ACKED != 0
    }

    /// Returns true if the connection uses the local path, because both ends are programs of this
    /// service.
    pub fn local_path(&self) -> bool {
        self.service_flags() & service_flags::LOCAL_PATH != 0
    }

    /// Returns the [`tidelane_abi::program_flags`] of the stream.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Sets [`tidelane_abi::program_flags`] bits (NODELAY, CORK, KEEPALIVE, QUICKACK, TAKEN).
    pub fn set_flag(&mut self, bits: u32) {
        self.change_flags(self.flags | bits);
    }

    /// Clears [`tidelane_abi::program_flags`] bits.
    pub fn clear_flag(&mut self, bits: u32) {
        self.change_flags(self.flags & !bits);
    }

    /// Sets all options other than flags. Zero means the service's default. Ignores
    /// `defer_accept`, which has no effect on a connection with a slot.
    pub fn set_options(&mut self, options: &StreamOptions) {
        let StreamOptions {
            keepalive_idle_s,
            keepalive_interval_s,
            keepalive_probes,
            opening,
            sending,
        } = *options;
        self.limit_sending(sending);
        let ip_fields = [
            opening.tos,
            opening.ttl,
            opening.traffic_class,
            opening.hop_limit,
        ];
        let shared = self.shared.view().options();
        for (word, value) in [
            (&shared.keepalive_idle_s, keepalive_idle_s),
            (&shared.keepalive_interval_s, keepalive_interval_s),
            (&shared.keepalive_probes, keepalive_probes),
            (&shared.user_timeout_ms, opening.user_timeout_ms),
            (&shared.mss_max, opening.mss_max.into()),
            (&shared.congestion, opening.congestion.into()),
            (&shared.rx_buffer, opening.rx_buffer),
            (&shared.window_clamp, opening.window_clamp),
            (&shared.rx_low, opening.rx_low),
            (&shared.fin_wait_2_s, opening.fin_wait_2_s),
            (&shared.ip_fields, u32::from_ne_bytes(ip_fields)),
            (&shared.syn_retries, opening.syn_retries.into()),
            (&shared.tx_reports, u32::from(sending.unsent_max > 0)),
        ] {
            word.store(value, Relaxed);
        }
        // A rate that does not fit into the word becomes the service's default.
        let rate = u32::try_from(opening.pacing_rate_max).unwrap_or(0);
        shared.pacing_rate_max.store(rate, Relaxed);
        self.note_options();
    }

    /// Announces changed option words by incrementing the counter in the flags. The caller has
    /// stored the words before, so a service that sees the new count also sees the new words.
    fn note_options(&mut self) {
        let count = self.flags.wrapping_add(program_flags::OPTIONS_ONE) & program_flags::OPTIONS;
        self.change_flags(self.flags & !program_flags::OPTIONS | count);
    }

    fn change_flags(&mut self, flags: u32) {
        if flags != self.flags {
            self.flags = flags;
            self.shared.view().program().flags.store(flags, Release);
            self.due = true;
        }
    }

    /// Asks the service to send a FIN after the bytes that were written. The program can write no
    /// more bytes.
    pub fn shutdown_write(&mut self) {
        self.set_flag(program_flags::SHUT_WRITE);
    }

    /// Asks the service to discard the bytes that arrive from now on.
    pub fn shutdown_read(&mut self) {
        self.set_flag(program_flags::SHUT_READ);
    }

    /// Closes the stream, with a RST if `abort` is true. The caller submits the stream once more
    /// after this call. `ClientEvent::Released` follows when the service no longer uses the slot.
    ///
    /// `linger` is the SO_LINGER time in seconds. The service ends the connection after this time.
    /// `None` means that SO_LINGER is off.
    pub fn close(&mut self, abort: bool, linger: Option<u32>) {
        if self.is_closed_by_us() {
            return;
        }
        // Pass the buffers to the session before the service may release the slot.
        if !self.trim() && !self.session.is_gone() {
            let present = self.tx_buffer.take();
            let outgrown = std::mem::take(&mut self.outgrown.buffers);
            self.session.buffers().keep_until_released(
                self.slot,
                self.generation,
                present,
                outgrown,
            );
        }
        let linger = linger.map_or(0, |seconds| seconds.saturating_add(1));
        self.shared.view().program().linger.store(linger, Relaxed);
        let abort = if abort { program_flags::ABORT } else { 0 };
        self.set_flag(program_flags::CLOSE | abort);
    }

    fn is_closed_by_us(&self) -> bool {
        self.flags & program_flags::CLOSE != 0
    }

    /// Returns true if there is a change for `Context::submit`.
    #[inline]
    pub fn submit_due(&self) -> bool {
        self.due
    }

    /// Returns true if there is a change for `Context::submit`, and marks the change as submitted.
    /// The service reads the changed values from the slot.
    #[inline]
    pub(crate) fn take_due(&mut self) -> bool {
        if self.due {
            self.rx_announced = self.rx_read;
        }
        std::mem::take(&mut self.due)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.session.is_gone() {
            self.close(true, None);
        }
    }
}
