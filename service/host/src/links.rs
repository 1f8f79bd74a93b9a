//! The links of a host: frames and segments in and out.
//!
//! ```text
//!   link      carries
//!   0         the local path: segments between programs of this host (`links/local_path.rs`)
//!   1, 2, ..  NIC queues: frames to and from the wire
//!   u16::MAX  the link in memory to the mux ports (`links/mux_link.rs`)
//! ```
//!
//! A *mux port* is a pair of packet rings through which a program with a TCP/IP stack of its own
//! shares the NIC. The links know no flow: the caller passes each segment with its headers and its
//! payload.

mod late_resets;
mod local_path;
mod mux_link;
mod transmitter;

use tidelane_engine::{LinkId, SegmentOut, TxFull};
use tidelane_packet_io::{BURST_MAX, Captured, PacketIo, Tap, Tapped, TxChecksum};
use tidelane_wire::{ETHERNET_HEADER_LEN, FRAME_HEADERS_LEN_MAX, HeaderTemplate};

use self::{late_resets::LateResets, local_path::LocalPath, transmitter::Transmitter};
pub use self::{
    local_path::{Batch, LOCAL_PATH_LINK, LOCAL_PATH_ROUTE},
    mux_link::{MUX_LINK, MUX_ROUTE, MuxLink, MuxQueue},
    transmitter::{Source, is_cut},
};
use crate::counters::HostCounters;

/// Largest length in bytes of the Ethernet, IP and TCP headers of a frame together.
const HEADERS_LEN_MAX: u32 = (FRAME_HEADERS_LEN_MAX + 60) as u32;
/// Number of bursts that fill the RX ring of a NIC queue. The ring of an AF_XDP port has 2048
/// frames by default.
const RING_BURSTS: usize = 2048 / BURST_MAX;

/// The links of a host with NIC queues of type `P`.
///
/// Input: [`rx_burst`](Self::rx_burst), [`take_segments`](Self::take_segments). Output:
/// [`transmit`](Self::transmit) and its variants, [`flush`](Self::flush).
pub struct Links<P: PacketIo> {
    nic_queues: Vec<NicQueue<P>>,
    /// Number of consecutive steps, up to the most recent step, in which a NIC queue had a full
    /// burst.
    full_bursts: usize,
    local_path: LocalPath,
    mux_link: MuxLink,
    /// RSTs of ended flows for which a link had no room.
    late_resets: LateResets,
    /// True if a link has a frame that is not flushed.
    queued: bool,
    /// True if the engine has to resume sending, for example because a link had no room for a
    /// segment.
    blocked: bool,
    /// Payload limit in bytes of a GSO frame on all NIC queues; zero if a NIC queue has no GSO.
    super_payload_max: u32,
}

/// A NIC queue.
struct NicQueue<P: PacketIo> {
    port: Tapped<P>,
    /// The received frames; `None` while the host processes the frames.
    burst: Option<P::Burst>,
}

/// The links that the packets of mux ports use.
pub struct MuxWays<'a, P> {
    /// The NIC queue that sends the packets.
    pub queue: &'a mut Tapped<P>,
    /// The link to the engine.
    pub mux_link: &'a mut MuxLink,
}

impl<P: PacketIo> Links<P> {
    /// Returns idle links with `ports` as NIC queues.
    pub fn new(ports: Vec<P>) -> Self {
        let super_len = ports.iter().map(|port| port.capabilities().tx_gso_len_max);
        let super_payload_max = super_len.min().unwrap_or(0).saturating_sub(HEADERS_LEN_MAX);
        Self {
            nic_queues: ports.into_iter().map(NicQueue::new).collect(),
            full_bursts: 0,
            local_path: LocalPath::default(),
            mux_link: MuxLink::default(),
            late_resets: LateResets::default(),
            queued: false,
            blocked: false,
            super_payload_max,
        }
    }

    /// Returns the largest MTU that all NIC queues support.
    pub fn nic_mtu_max(&self) -> u32 {
        let frame_len = |queue: &NicQueue<P>| queue.port.capabilities().tx_frame_len_max;
        let frame_len = self.nic_queues.iter().map(frame_len).min();
        let frame_len = frame_len.unwrap_or(u32::MAX);
        frame_len.saturating_sub(ETHERNET_HEADER_LEN as u32)
    }

    /// Returns the payload limit in bytes of a GSO frame. Returns zero if a NIC queue has no GSO.
    pub fn super_payload_max(&self) -> u32 {
        self.super_payload_max
    }

    /// Returns true if a received frame may have a partial checksum (only the pseudo-header sum).
    pub fn checksum_may_be_partial(&self) -> bool {
        let partial = |queue: &NicQueue<P>| queue.port.capabilities().rx_checksum_may_be_partial;
        self.nic_queues.iter().any(partial)
    }

    /// Returns the number of received frames that the NIC queues lost for lack of space.
    pub fn rx_overruns(&self) -> u64 {
        let overruns = |queue: &NicQueue<P>| queue.port.rx_overruns();
        self.nic_queues.iter().map(overruns).sum()
    }

    /// Receives a burst from NIC queue `index`. Returns the number of frames. Returns `None` if
    /// there is no queue with this index.
    #[inline]
    pub fn rx_burst(&mut self, index: usize) -> Option<usize> {
        let NicQueue { port, burst } = self.nic_queues.get_mut(index)?;
        let burst = burst.as_mut();
        Some(burst.map_or(0, |burst| port.rx_burst(burst, BURST_MAX)))
    }

    /// Takes the burst of NIC queue `index`. The boolean is true if the frames may have a partial
    /// checksum. The caller then passes the burst to [`release`](Self::release).
    #[inline]
    pub fn take_burst(&mut self, index: usize) -> Option<(P::Burst, bool)> {
        let NicQueue { port, burst } = self.nic_queues.get_mut(index)?;
        Some((
            burst.take()?,
            port.capabilities().rx_checksum_may_be_partial,
        ))
    }

    /// Returns the frames of a processed burst to NIC queue `index`.
    #[inline]
    pub fn release(&mut self, index: usize, mut burst: P::Burst) {
        if let Some(queue) = self.nic_queues.get_mut(index) {
            queue.port.rx_release(&mut burst);
            queue.burst = Some(burst);
        }
    }

    /// Records that the longest burst of this step had `len` frames.
    #[inline]
    pub fn note_longest_burst(&mut self, len: usize) {
        let full = len == BURST_MAX;
        self.full_bursts = if full { self.full_bursts + 1 } else { 0 };
    }

    /// Returns true if the RX ring of a NIC queue may still have frames that arrived before a timer
    /// was due. An ACK among these frames may make a retransmission needless. A ring that is never
    /// empty delays timers for at most one pass over the ring.
    pub fn frames_wait(&self) -> bool {
        (1..RING_BURSTS).contains(&self.full_bursts)
    }

    /// Returns true if the local path has segments to deliver.
    #[inline]
    pub fn has_segments(&self) -> bool {
        !self.local_path.is_empty()
    }

    /// Takes the segments of the local path for delivery. The caller then passes the batch to
    /// [`recycle`](Self::recycle).
    pub fn take_segments(&mut self) -> Batch {
        self.local_path.take()
    }

    /// Takes a delivered batch back, and keeps its memory for a later batch.
    pub fn recycle(&mut self, batch: Batch) {
        self.local_path.recycle(batch);
    }

    /// Returns the link to the mux ports.
    #[inline]
    pub fn mux_link(&mut self) -> &mut MuxLink {
        &mut self.mux_link
    }

    /// Returns the links for the packets of mux ports. Returns `None` without a NIC queue.
    #[inline]
    pub fn mux_ways(&mut self) -> Option<MuxWays<'_, P>> {
        Some(MuxWays {
            queue: &mut self.nic_queues.first_mut()?.port,
            mux_link: &mut self.mux_link,
        })
    }

    /// Returns true if this step of the host gives no turns to the mux ports, because the engine
    /// waits for room in the NIC.
    pub fn is_turn_of_engine(&mut self) -> bool {
        self.mux_link.is_turn_of_engine(self.blocked)
    }

    /// Borrows the parts of the links that a transmission over the NIC queue `link` uses. Returns
    /// `None` if the host has no NIC queue with this number.
    #[inline(always)]
    fn nic<'a>(
        &'a mut self,
        link: LinkId,
        counters: &'a mut HostCounters,
    ) -> Option<Transmitter<'a, Tapped<P>>> {
        let index = usize::from(link.0).wrapping_sub(1);
        Some(Transmitter {
            port: &mut self.nic_queues.get_mut(index)?.port,
            counters,
            queued: &mut self.queued,
            blocked: &mut self.blocked,
        })
    }

    /// Sends `out` over its NIC queue, with payload from `source`. If the payload is longer than
    /// the segment size, sends a GSO frame, which the link cuts into segments.
    #[inline(always)]
    pub fn transmit(
        &mut self,
        counters: &mut HostCounters,
        out: &SegmentOut,
        template: &mut HeaderTemplate,
        source: Source<'_>,
    ) -> Result<(), TxFull> {
        match self.nic(out.link, counters) {
            Some(nic) => nic.transmit(out, template, source),
            None => Ok(()),
        }
    }

    /// Sends `out` over its NIC queue in one frame. The payload must fit into one segment.
    #[inline(always)]
    pub fn transmit_single(
        &mut self,
        counters: &mut HostCounters,
        out: &SegmentOut,
        template: &mut HeaderTemplate,
        source: Source<'_>,
    ) -> Result<(), TxFull> {
        match self.nic(out.link, counters) {
            Some(nic) => nic.transmit_single(out, template, source),
            None => Ok(()),
        }
    }

    /// Sends a SYN-ACK over its NIC queue.
    #[inline(always)]
    pub fn transmit_syn_ack(
        &mut self,
        counters: &mut HostCounters,
        out: &SegmentOut,
        template: &HeaderTemplate,
    ) -> Result<(), TxFull> {
        match self.nic(out.link, counters) {
            Some(nic) => nic.transmit_syn_ack(out, template),
            None => Ok(()),
        }
    }

    /// Queues `out` for the mux port that has claimed its destination.
    pub fn transmit_to_mux(
        &mut self,
        counters: &mut HostCounters,
        out: &SegmentOut,
        template: &mut HeaderTemplate,
        source: Source<'_>,
    ) -> Result<(), TxFull> {
        let mux_link = Transmitter {
            port: self.mux_link.as_port(),
            counters,
            queued: &mut self.queued,
            blocked: &mut self.blocked,
        };
        mux_link.transmit_single(out, template, source)
    }

    /// Queues `out` for delivery over the local path. `fill` writes the payload.
    #[inline]
    pub fn transmit_local(
        &mut self,
        out: &SegmentOut,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), TxFull> {
        let pushed = self.local_path.push(out, fill);
        self.blocked |= !pushed;
        pushed.then_some(()).ok_or(TxFull)
    }

    /// Sends a frame over the first NIC queue. `write` writes the frame, and returns the length of
    /// the frame, or `None` if the frame does not fit. Returns false if no frame was sent.
    pub fn send_frame(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let Some(NicQueue { port, .. }) = self.nic_queues.first_mut() else {
            return false;
        };
        let Some(len) = port.tx_frame().and_then(write) else {
            return false;
        };
        port.tx_commit(len, TxChecksum::Done);
        self.queued = true;
        true
    }

    /// Keeps the RST `out` of an ended flow until its link has room. `template` has the Ethernet
    /// and IP headers; `None` for the local path.
    pub fn put_off_reset(&mut self, out: &SegmentOut, template: Option<HeaderTemplate>) {
        self.late_resets.push(out, template);
    }

    /// Sends the waiting RSTs while there is room.
    pub fn send_late_resets(&mut self, counters: &mut HostCounters) {
        while let Some((out, mut template)) = self.late_resets.first() {
            let sent = match &mut template {
                Some(template) if out.link == MUX_LINK => {
                    self.transmit_to_mux(counters, &out, template, None)
                }
                Some(template) => self.transmit_single(counters, &out, template, None),
                None => self.transmit_local(&out, |_| ()),
            };
            if sent.is_err() {
                self.blocked = true;
                return;
            }
            self.late_resets.pop();
        }
        // Free the memory of the list, which may have grown large.
        self.late_resets = LateResets::default();
    }

    /// Records that a link has a frame to flush.
    #[inline]
    pub fn note_queued(&mut self) {
        self.queued = true;
    }

    /// Returns true if a link has a frame to flush.
    #[inline]
    pub fn has_queued(&self) -> bool {
        self.queued
    }

    /// Passes queued frames to the NIC. If a NIC queue has no room for frames, the next flush
    /// offers these frames again.
    #[inline]
    pub fn flush(&mut self) {
        self.queued = false;
        for NicQueue { port, .. } in &mut self.nic_queues {
            port.tx_flush();
            self.queued |= port.tx_pending();
        }
    }

    /// Records that the engine has to resume sending.
    pub fn note_blocked(&mut self) {
        self.blocked = true;
    }

    /// Returns true if the engine has to resume sending. Later calls return false until the engine
    /// has to resume again.
    #[inline]
    pub fn take_blocked(&mut self) -> bool {
        std::mem::take(&mut self.blocked)
    }

    /// Returns true if frames wait for a flush, or if the engine has to resume sending.
    pub fn has_waiting(&self) -> bool {
        self.blocked || self.queued
    }

    /// Starts a capture on all NIC queues. `tap` makes the buffer of each queue.
    pub fn open_tap(&mut self, capture: u64, tap: impl Fn() -> Tap) {
        for NicQueue { port, .. } in &mut self.nic_queues {
            port.open_tap(capture, tap());
        }
    }

    /// Takes the frames that a capture has copied. Returns `None` if the capture does not exist.
    pub fn take_tap(&mut self, capture: u64) -> Option<Captured> {
        let mut all = Captured::default();
        for NicQueue { port, .. } in &mut self.nic_queues {
            all.append(port.take_tap(capture)?);
        }
        Some(all)
    }

    /// Ends a capture on all NIC queues.
    pub fn close_tap(&mut self, capture: u64) {
        for NicQueue { port, .. } in &mut self.nic_queues {
            port.close_tap(capture);
        }
    }
}

impl<P: PacketIo> NicQueue<P> {
    fn new(port: P) -> Self {
        Self {
            burst: Some(port.new_burst()),
            port: Tapped::of_nic(port),
        }
    }
}

/// Returns the MTU in bytes of a link in memory. Returns `None` for a NIC queue.
pub fn memory_mtu(link: LinkId) -> Option<u32> {
    match link {
        LOCAL_PATH_LINK => Some(LOCAL_PATH_ROUTE.mtu),
        MUX_LINK => Some(MUX_ROUTE.mtu),
        _ => None,
    }
}
