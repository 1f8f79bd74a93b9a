//! The link in memory between the engine of the host and the mux ports. A mux port is a pair of
//! packet rings through which a program with a TCP/IP stack of its own shares the NIC. Programs
//! with sockets on the service and programs with TCP/IP stacks of their own reach each other over
//! this link.

use tidelane_engine::{FlowRoute, LinkId};
use tidelane_mux::copy_to;
use tidelane_packet_io::{Burst, Capabilities, PacketIo, TxChecksum};
use tidelane_time::Instant;

/// Number of the link to the mux ports.
pub const MUX_LINK: LinkId = LinkId(u16::MAX);
/// Length in bytes of the largest frame of the link.
const FRAME_LEN_MAX: usize = 2048;
/// The route over the link. The MTU is the length of the largest frame without its Ethernet header.
pub const MUX_ROUTE: FlowRoute = FlowRoute {
    link: MUX_LINK,
    mtu: FRAME_LEN_MAX as u32 - 14,
};
/// Limit of frames that wait in each queue of the link.
const FRAMES_MAX: usize = 1024;

/// A queue of frames, oldest first.
#[derive(Default)]
pub struct FrameQueue {
    bytes: Vec<u8>,
    /// Offset in `bytes` of the end of each frame.
    ends: Vec<usize>,
}

impl FrameQueue {
    /// Returns true if no frame waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the offset in `bytes` of the end of the newest frame. Returns zero without a frame.
    fn end(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Removes all frames.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

impl Burst for FrameQueue {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn frame(&self, at: usize) -> Option<&[u8]> {
        let end = *self.ends.get(at)?;
        let start = match at {
            0 => 0,
            _ => *self.ends.get(at - 1)?,
        };
        self.bytes.get(start..end)
    }
}

/// A `Transmitter` (`transmitter.rs`) writes frames to the queue through this interface. `rx_burst`
/// returns no frames: [`MuxLink::take`] takes the frames from the queue.
impl PacketIo for FrameQueue {
    type Burst = Self;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: FRAME_LEN_MAX as u32,
            tx_checksum: false,
            rx_checksum_may_be_partial: false,
            tx_gso_len_max: 0,
        }
    }

    fn new_burst(&self) -> Self {
        Self::default()
    }

    fn rx_burst(&mut self, _burst: &mut Self, _max: usize) -> usize {
        0
    }

    fn rx_release(&mut self, burst: &mut Self) {
        burst.clear();
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        if self.ends.len() >= FRAMES_MAX {
            return None;
        }
        let start = self.end();
        self.bytes.resize(start + FRAME_LEN_MAX, 0);
        self.bytes.get_mut(start..)
    }

    fn tx_commit(&mut self, len: usize, _checksum: TxChecksum) {
        let end = self.end() + len;
        self.bytes.truncate(end);
        self.ends.push(end);
    }

    fn tx_flush(&mut self) {}
}

/// A queue of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MuxQueue {
    /// Frames from the engine to mux ports.
    ToPorts,
    /// Frames from mux ports to the engine.
    ToEngine,
    /// Frames that the operator's rules have refused on the way from one mux port to another. The
    /// host answers these frames.
    Refused,
}

/// The frames that wait on the link, in both directions.
#[derive(Default)]
pub struct MuxLink {
    to_ports: FrameQueue,
    to_engine: FrameQueue,
    refused: FrameQueue,
    /// True if the last step gave the mux ports no turns, so that the engine could send packets
    /// that had waited for room in the NIC.
    engine_had_turn: bool,
    /// Time since which the NIC has had no room for packets of mux ports. `None` if the NIC had
    /// room at the last attempt.
    full_since: Option<Instant>,
}

impl MuxLink {
    #[inline(always)]
    fn queue(&mut self, queue: MuxQueue) -> &mut FrameQueue {
        match queue {
            MuxQueue::ToPorts => &mut self.to_ports,
            MuxQueue::ToEngine => &mut self.to_engine,
            MuxQueue::Refused => &mut self.refused,
        }
    }

    /// Copies a frame to a queue. Returns false if the queue has no room, or if the frame is too
    /// long.
    #[inline]
    pub fn push(&mut self, queue: MuxQueue, frame: &[u8]) -> bool {
        copy_to(self.queue(queue), frame)
    }

    /// Returns true if a frame waits for the mux ports.
    #[inline]
    pub fn has_frames_to_ports(&self) -> bool {
        !self.to_ports.is_empty()
    }

    /// Takes the frames of a queue. Returns `None` if no frame waits. The caller then passes the
    /// frames to [`recycle`](Self::recycle).
    #[inline]
    pub fn take(&mut self, queue: MuxQueue) -> Option<FrameQueue> {
        let queue = self.queue(queue);
        (!queue.is_empty()).then(|| std::mem::take(queue))
    }

    /// Takes processed frames back, and keeps their memory for later frames. Drops the frames that
    /// the queue got meanwhile.
    #[inline]
    pub fn recycle(&mut self, queue: MuxQueue, mut frames: FrameQueue) {
        frames.clear();
        *self.queue(queue) = frames;
    }

    /// Returns the queue to the mux ports, to which a `Transmitter` writes frames.
    pub fn as_port(&mut self) -> &mut FrameQueue {
        &mut self.to_ports
    }

    /// Returns true if this step gives the mux ports no turns. `engine_waits` is true while the
    /// engine waits for room in the NIC. The engine and the ports then alternate.
    pub fn is_turn_of_engine(&mut self, engine_waits: bool) -> bool {
        self.engine_had_turn = engine_waits && !self.engine_had_turn;
        self.engine_had_turn
    }

    /// Returns true if the NIC had no room for a packet of a mux port at the last attempt.
    #[inline]
    pub fn is_nic_full(&self) -> bool {
        self.full_since.is_some()
    }

    /// Records that the NIC has room for packets of mux ports.
    #[inline]
    pub fn note_nic_room(&mut self) {
        self.full_since = None;
    }

    /// Records that the NIC has no room for packets of mux ports. Returns the time since which the
    /// NIC has had no room.
    #[inline]
    pub fn note_nic_full(&mut self, now: Instant) -> Instant {
        *self.full_since.get_or_insert(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_order_and_the_queue_is_bounded() {
        let mut queue = FrameQueue::default();
        for number in 0..FRAMES_MAX {
            let frame = queue.tx_frame().expect("room");
            frame[0] = number as u8;
            queue.tx_commit(1 + number % 3, TxChecksum::Done);
        }
        assert!(queue.tx_frame().is_none());
        assert_eq!(Burst::len(&queue), FRAMES_MAX);
        for (number, frame) in queue.iter().enumerate() {
            assert_eq!((frame[0], frame.len()), (number as u8, 1 + number % 3));
        }
        queue.clear();
        assert!(FrameQueue::is_empty(&queue) && queue.tx_frame().is_some());
        // The queue has no frame until `tx_commit`.
        assert!(queue.frame(0).is_none());
    }
}
