//! The memory wire: segments between two programs of this host, or a program and itself.
//!
//! It replaces the network, not TCP: both ends keep full TCP state and every segment passes through
//! the engine twice. Headers stay parsed; the payload is copied once, into the batch, because
//! the sender's buffer is the sending program's memory and may change under a borrow.
//!
//! Two batches take turns: one fills while the other is delivered, so that what a delivery causes
//! to be sent travels with the next turn.

use tidelane_engine::SegmentOut;
use tidelane_wire::{FlowKey, Segment};

/// Segments that one batch may hold.
const SEGMENTS_MAX: usize = 4096;
/// Bytes of payload that one batch may hold.
const PAYLOAD_MAX: usize = 4 << 20;

/// The MTU of the memory wire: the largest that IPv4's length field allows.
pub const MTU: u32 = 65_535;

/// The number of a segment in its batch, and its urgent pointer.
pub type Pointer = (usize, u16);

/// Segments that travel together, oldest first.
#[derive(Default)]
pub struct Batch {
    segments: Vec<SegmentOut>,
    payload: Vec<u8>,
}

impl Batch {
    /// Each segment with the key as its receiver names it.
    pub fn iter(&self) -> impl Iterator<Item = (FlowKey, &SegmentOut, Segment<'_>)> {
        let mut start = 0;
        self.segments.iter().map(move |out| {
            let end = start + out.payload_len as usize;
            let segment = out.segment(&self.payload[start..end]);
            start = end;
            (out.key.reversed(), out, segment)
        })
    }

    /// As `iter`, with these urgent pointers.
    pub fn iter_urgent(
        &self,
        pointers: &[Pointer],
    ) -> impl Iterator<Item = (FlowKey, &SegmentOut, Segment<'_>)> {
        let mut pointers = pointers.iter().peekable();
        let with_pointer = move |(at, (key, out, segment))| {
            let pointer = pointers.next_if(|(of, _)| *of == at);
            let urgent = pointer.map_or(0, |(_, pointer)| *pointer);
            let segment = Segment { urgent, ..segment };
            (key, out, segment)
        };
        self.iter().enumerate().map(with_pointer)
    }
}

/// A bounded queue of segments in two alternating batches.
#[derive(Default)]
pub struct MemoryWire {
    filling: Batch,
    spare: Batch,
    /// Urgent pointers of what is in `filling`, in its order.
    pointers: Vec<Pointer>,
}

impl MemoryWire {
    /// Returns true if no segment waits for delivery.
    pub fn is_empty(&self) -> bool {
        self.filling.segments.is_empty()
    }

    /// Queues `out`; `fill` writes its payload. False if the batch is full.
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

    /// As `push`, with an urgent pointer.
    pub fn push_urgent(
        &mut self,
        out: &SegmentOut,
        pointer: u16,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let at = self.filling.segments.len();
        let pushed = self.push(out, fill);
        if pushed {
            self.pointers.push((at, pointer));
        }
        pushed
    }

    /// Returns true if a queued segment has an urgent pointer.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        !self.pointers.is_empty()
    }

    /// Takes the urgent pointers of the queued segments.
    pub fn take_pointers(&mut self) -> Vec<Pointer> {
        std::mem::take(&mut self.pointers)
    }

    /// Takes all queued segments for delivery.
    pub fn take(&mut self) -> Batch {
        std::mem::replace(&mut self.filling, std::mem::take(&mut self.spare))
    }

    /// Returns a delivered batch, so that its memory is used again.
    pub fn recycle(&mut self, mut batch: Batch) {
        batch.segments.clear();
        batch.payload.clear();
        self.spare = batch;
    }
}
