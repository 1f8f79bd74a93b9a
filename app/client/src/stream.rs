//! The bytes and flags of one connection.
//!
//! ```text
//!            tx_acked          tx_head               rx_read           rx_head
//! send:  ....|  unacked bytes  |  room         recv: | readable bytes  |
//!             <- at most tx_limit ->                  (in the service's buffer)
//! ```
//!
//! The send buffer is elastic: none while idle, then as large as what is unacknowledged, doubling.
//! When it grows, the bytes are copied to their places in the larger one. The service may send from
//! the outgrown one until it echoes the new word, or until the peer acknowledged all bytes that
//! were in it: later bytes it finds in the new one only.

mod receive;
mod transmit;
mod urgent;

use std::sync::{
    Arc,
    atomic::Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use tidelane_abi::{BufferWord, OpenOptions, SlotNames, close_cause, program_flags, service_flags};
use tidelane_ring::{SlotHandle, StreamBuffer};

pub use self::urgent::UrgentByte;
use self::{
    transmit::{Outgrown, UNACKED_MAX},
    urgent::Urgent,
};
use crate::session::Session;

/// The options of a connection that are no flags. Zero: the service's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// TCP_KEEPIDLE in seconds.
    pub keepalive_idle_s: u32,
    /// TCP_KEEPINTVL in seconds.
    pub keepalive_interval_s: u32,
    /// TCP_KEEPCNT.
    pub keepalive_probes: u32,
    /// Those that matter before there is a connection, too.
    pub opening: OpenOptions,
    /// What bounds the bytes that are written.
    pub sending: SendLimits,
}

/// What a program sets to bound its own writing. Zero: not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendLimits {
    /// SO_SNDBUF: bytes that may be written and not acknowledged.
    pub unacked_max: u32,
    /// TCP_NOTSENT_LOWAT: bytes that may be written and not sent.
    pub unsent_max: u32,
}

/// One connection, from the event that announced it to `close`.
///
/// All methods look at shared memory, none makes a system call. After a method that changes
/// something, call `Context::submit`: it does nothing when there is nothing to tell.
/// Dropping without `close` aborts the connection as soon as the service looks at the slot.
#[derive(Debug)]
pub struct Stream {
    shared: SlotHandle,
    session: Arc<Session>,
    slot: u32,
    generation: u32,
    /// [`SlotNames::connection`].
    connection: u64,
    /// Bits of `program_flags`.
    flags: u32,
    /// `Context::submit` has something to tell.
    due: bool,

    /// The last soft error that was told.
    soft_error_seen: u32,

    rx_read: u32,
    /// As last loaded and found possible.
    rx_head: u32,
    /// `rx_read` as the service last heard of it.
    rx_announced: u32,
    rx_word: BufferWord,
    rx_buffer: Option<StreamBuffer>,

    tx_head: u32,
    /// As last loaded and found possible.
    tx_acked: u32,
    /// Bytes that may be unacknowledged, as far as is known without another look.
    tx_limit: u32,
    sending: SendLimits,
    tx_buffer: Option<StreamBuffer>,
    outgrown: Outgrown,
    urgent: Urgent,
}

impl Stream {
    pub(crate) fn new(
        session: Arc<Session>,
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
        half.held.store(0, Relaxed);
        half.flags.store(flags, Relaxed);
        half.generation.store(generation, Release);
        let mut stream = Self::at(shared, session, slot, generation);
        stream.flags = flags;
        stream.due = flags != 0;
        Some(stream)
    }

    /// A stream at position 0; the slot stays as it is.
    fn at(shared: SlotHandle, session: Arc<Session>, slot: u32, generation: u32) -> Stream {
        let tx_limit = shared
            .view()
            .service()
            .tx_limit
            .load(Relaxed)
            .min(UNACKED_MAX);
        let urgent = Urgent::of(shared.view().options());
        Stream {
            connection: shared.view().names().connection,
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
            tx_head: 0,
            tx_acked: 0,
            tx_limit,
            sending: SendLimits::default(),
            tx_buffer: None,
            outgrown: Outgrown::default(),
            urgent,
        }
    }

    /// A connection that goes on in this slot, as the service has filled it in.
    pub(crate) fn resume(
        session: &Arc<Session>,
        slot: u32,
        generation: u32,
        tx_buffer: Option<StreamBuffer>,
    ) -> Option<Stream> {
        let shared = SlotHandle::new(session.region.clone(), slot)?;
        let half = shared.view().program();
        let (tx_head, rx_read) = (half.tx_head.load(Relaxed), half.rx_read.load(Relaxed));
        let flags = half.flags.load(Relaxed);
        let tx_acked = shared.view().service().tx_acked.load(Acquire);
        // More cannot be unacknowledged than the buffer holds, whatever the service wrote.
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

    /// The connection's number, unique while the service lives.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Before bytes of a SHARED connection are moved: it is not taken away until `release`. False:
    /// it was.
    pub fn hold(&self) -> bool {
        let view = self.shared.view();
        view.program().held.store(1, SeqCst);
        let away = view.service().flags.load(SeqCst) & service_flags::ELSEWHERE != 0;
        if away {
            self.release();
        }
        !away
    }

    /// The reverse of `hold`.
    pub fn release(&self) {
        self.shared.view().program().held.store(0, SeqCst);
    }

    /// Forgets a slot whose connection was taken back into another one: the service has freed it
    /// and uses none of its buffers.
    pub fn forget(mut self) {
        let buffers = self.tx_buffer.take().into_iter();
        let outgrown = std::mem::take(&mut self.outgrown.buffers);
        let allocator = &mut self.session.buffers().allocator;
        for buffer in buffers.chain(outgrown) {
            allocator.free(buffer);
        }
        // The slot may be another connection's by now: nothing is written there.
        self.flags |= program_flags::CLOSE;
    }

    /// Its slot's number.
    #[inline]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Its slot's generation.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The connection's addresses.
    pub fn names(&self) -> SlotNames {
        self.shared.view().names()
    }

    /// The service's receive window limit (SO_RCVBUF).
    pub fn rx_window(&self) -> u32 {
        self.shared.view().service().rx_window.load(Relaxed)
    }

    /// [`tidelane_abi::service_flags`] as they are now; with CLOSED if the service is gone.
    #[inline]
    pub fn service_flags(&self) -> u32 {
        let flags = self.shared.view().service().flags.load(Acquire);
        if self.session.is_gone() {
            flags | service_flags::CLOSED
        } else {
            flags
        }
    }

    /// The handshake is complete.
    pub fn established(&self) -> bool {
        self.service_flags() & service_flags::ESTABLISHED != 0
    }

    /// The peer's FIN was received, or the connection ended: no byte will come after those that are
    /// there *after* this was asked. To tell end of file use `at_end`.
    pub fn peer_closed(&self) -> bool {
        self.service_flags() & (service_flags::FIN_RECEIVED | service_flags::CLOSED) != 0
    }

    /// Whether there may be something to tell beside bytes: an end, or urgent data.
    pub fn is_special(&self) -> bool {
        const SPECIAL: u32 =
            service_flags::FIN_RECEIVED | service_flags::CLOSED | service_flags::URGENT;
        self.service_flags() & SPECIAL != 0
    }

    /// End of file: all was read, and nothing will come.
    pub fn at_end(&mut self) -> bool {
        // In this order: bytes that came before the flags are seen after them.
        self.peer_closed() && self.readable() == 0
    }

    /// The connection is over: one of [`tidelane_abi::close_cause`]; ABORTED if the service died.
    pub fn closed(&self) -> Option<u32> {
        let half = self.shared.view();
        if half.service().flags.load(Acquire) & service_flags::CLOSED != 0 {
            return Some(half.service().cause.load(Relaxed));
        }
        self.session.is_gone().then_some(close_cause::ABORTED)
    }

    /// The connection is over, or there was an error that [`soft_error`](Self::soft_error) says.
    pub fn is_troubled(&self) -> bool {
        self.service_flags() & (service_flags::CLOSED | service_flags::SOFT_ERROR) != 0
    }

    /// An error of the path that did not end the connection, once: a [`tidelane_abi::close_cause`].
    pub fn soft_error(&mut self) -> Option<u32> {
        if self.service_flags() & service_flags::SOFT_ERROR == 0 {
            return None;
        }
        let word = self.shared.view().service().soft_error.load(Acquire);
        let news = std::mem::replace(&mut self.soft_error_seen, word) != word;
        news.then_some(word & 0xff)
    }

    /// The peer acknowledged our FIN.
    pub fn fin_acked(&self) -> bool {
        self.service_flags() & service_flags::FIN_ACKED != 0
    }

    /// Both ends are programs of this service.
    pub fn memory_wire(&self) -> bool {
        self.service_flags() & service_flags::MEMORY_WIRE != 0
    }

    /// [`tidelane_abi::program_flags`] as set.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Sets [`tidelane_abi::program_flags`] bits (NODELAY, CORK, KEEPALIVE, QUICKACK, TAKEN).
    pub fn set_flag(&mut self, bits: u32) {
        self.change_flags(self.flags | bits);
    }

    /// Clears such bits.
    pub fn clear_flag(&mut self, bits: u32) {
        self.change_flags(self.flags & !bits);
    }

    /// Sets the options that are no flags; all of them, and 0 is the service's default.
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
        let rate = u32::try_from(opening.pacing_rate_max).unwrap_or(0);
        shared.pacing_rate_max.store(rate, Relaxed);
        self.note_options();
    }

    /// The words of the slot's options changed. The flags are stored after them, with a count that
    /// makes the change visible.
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

    /// No more bytes will be written: FIN after what was written.
    pub fn shutdown_write(&mut self) {
        self.set_flag(program_flags::SHUT_WRITE);
    }

    /// What arrives from now on is discarded.
    pub fn shutdown_read(&mut self) {
        self.set_flag(program_flags::SHUT_READ);
    }

    /// The program is done. Submit once more; `Released` follows when the service is done too.
    /// `linger`: SO_LINGER seconds, for the service's timeout; 0 with `abort`.
    pub fn close(&mut self, abort: bool, linger: Option<u32>) {
        if self.is_closed_by_us() {
            return;
        }
        // The buffers are handed over before the service can learn that it may release the slot.
        if !self.trim() && !self.session.is_gone() {
            let present = self.tx_buffer.take();
            let outgrown = std::mem::take(&mut self.outgrown.buffers);
            self.session
                .buffers()
                .orphan(self.slot, self.generation, present, outgrown);
        }
        let linger = linger.map_or(0, |seconds| seconds.saturating_add(1));
        self.shared.view().program().linger.store(linger, Relaxed);
        let abort = if abort { program_flags::ABORT } else { 0 };
        self.set_flag(program_flags::CLOSE | abort);
    }

    fn is_closed_by_us(&self) -> bool {
        self.flags & program_flags::CLOSE != 0
    }

    /// Whether `Context::submit` has something to tell.
    #[inline]
    pub fn submit_due(&self) -> bool {
        self.due
    }

    /// Takes what there is to tell; the service will find it in the slot.
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
