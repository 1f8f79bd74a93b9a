//! The local path: segments between two programs of this host, or from a program to itself.
//!
//! The path replaces the network, but not TCP: both ends have full TCP state, and every segment
//! passes through the engine twice. The path does not serialize headers. The path copies the
//! payload, because the sending program may change its send buffer at any time.
//!
//! Two batches alternate: the engine fills one batch while the host delivers the other batch. If a
//! delivery causes segments, the next step delivers these segments.

use tidelane_engine::{FlowRoute, LinkId, SegmentOut};
use tidelane_wire::{FlowKey, Segment};

/// Link number of the local path, which joins programs of this host. NIC queue `n`, counted from
/// zero, is link `n + 1`.
pub const LOCAL_PATH_LINK: LinkId = LinkId(0);
/// Limit of segments in a batch.
const SEGMENTS_MAX: usize = 4096;
/// Limit of payload bytes in a batch.
const PAYLOAD_MAX: usize = 4 << 20;

/// The route over the local path. The MTU is the largest value of IPv4's total length field.
pub const LOCAL_PATH_ROUTE: FlowRoute = FlowRoute {
    link: LOCAL_PATH_LINK,
    mtu: 65_535,
};

/// Segments that one step delivers, oldest first.
#[derive(Default)]
pub struct Batch {
    segments: Vec<SegmentOut>,
    payload: Vec<u8>,
}

impl Batch {
    /// Returns three values for each segment: the 4-tuple as seen by the receiver, the segment as
    /// the engine queued it, and the segment with payload for the receiver.
    pub fn iter(&self) -> impl Iterator<Item = (FlowKey, &SegmentOut, Segment<'_>)> {
        let mut start = 0;
        self.segments.iter().map(move |out| {
            let end = start + out.payload_len as usize;
            let segment = out.segment(&self.payload[start..end]);
            start = end;
            (out.key.reversed(), out, segment)
        })
    }
}

/// A bounded queue of segments in two alternating batches.
#[derive(Default)]
pub struct LocalPath {
    /// The batch that takes new segments.
    filling: Batch,
    /// An empty batch, whose memory the next batch uses.
    spare: Batch,
}

impl LocalPath {
    /// Returns true if no segment waits for delivery.
    pub fn is_empty(&self) -> bool {
        self.filling.segments.is_empty()
    }

    /// Queues the segment `out`. `fill` writes the payload. Returns false if the batch has no room
    /// for the segment.
    pub fn push(&mut self, out: &SegmentOut, fill: impl FnOnce(&mut [u8])) -> bool {
        let start = self.filling.payload.len();
        let end = start + out.payload_len as usize;
        if self.filling.segments.len() >= SEGMENTS_MAX || end > PAYLOAD_MAX {
            return false;
        }
        self.filling.payload.resize(end, 0);
        fill(&mut self.filling.payload[start..end]);
        self.filling.segments.push(*out);
        true
    }

    /// Takes all queued segments for delivery. The caller then passes the batch to
    /// [`recycle`](Self::recycle).
    pub fn take(&mut self) -> Batch {
        std::mem::replace(&mut self.filling, std::mem::take(&mut self.spare))
    }

    /// Takes a delivered batch back, and keeps its memory for a later batch.
    pub fn recycle(&mut self, mut batch: Batch) {
        batch.segments.clear();
        batch.payload.clear();
        self.spare = batch;
    }
}
