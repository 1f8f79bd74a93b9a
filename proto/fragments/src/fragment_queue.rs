//! An IP packet whose fragments are being collected.

use tidelane_time::Instant;
use tidelane_wire::{DropReason, Ecn, Fragment, FrameHeaders, PacketId};

use crate::{FRAGMENTS_MAX, ecn::EcnSet};

/// Memory charged for a packet in addition to its fragments, in bytes.
pub const QUEUE_COST: usize = 512;
/// Memory charged for a fragment in addition to its payload, in bytes.
pub const FRAGMENT_COST: usize = 64;

/// Largest IP header that is kept for an ICMP error, in bytes. Only an IPv6 header with extensions
/// can be longer.
const HEADER_KEPT_MAX: usize = 128;

const _: () = assert!(size_of::<FragmentQueue>() + HEADER_KEPT_MAX <= QUEUE_COST);
const _: () = assert!(size_of::<StoredFragment>() <= FRAGMENT_COST);

/// An incomplete packet that timed out, as input for the ICMP error to its sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimedOutPacket {
    /// Header fields of the frame with the first fragment (the fragment at offset zero), and the
    /// packet's bytes up to the end of this fragment. `None` if the first fragment has not arrived,
    /// or if its IP header was too long to keep.
    pub first: Option<(FrameHeaders, Vec<u8>)>,
}

/// Payload of a received fragment. `start` is its offset in the packet's payload, in bytes.
#[derive(Debug)]
struct StoredFragment {
    start: usize,
    bytes: Box<[u8]>,
}

impl StoredFragment {
    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }
}

/// Data of the fragment at offset zero, from which the reassembled packet takes its headers.
#[derive(Debug)]
struct FirstFragment {
    /// Header fields for the frame of the reassembled packet.
    headers: FrameHeaders,
    ecn: Ecn,
    /// IP header as received, or `None` if it exceeds [`HEADER_KEPT_MAX`].
    header: Option<Box<[u8]>>,
}

/// The fragments of one incomplete packet.
#[derive(Debug)]
pub struct FragmentQueue {
    id: PacketId,
    /// Time at which the packet times out.
    deadline: Instant,
    /// Number of later packets from the same source (compare `ipfrag_max_dist` in Linux). A packet
    /// is later if its queue was created after this queue.
    distance: u32,
    /// Payloads in order of their offsets, without overlap.
    fragments: Vec<StoredFragment>,
    /// Total length of the payloads in `fragments`, in bytes.
    len: usize,
    /// Length of the packet's payload in bytes. Known once the last fragment has arrived.
    end: Option<usize>,
    first: Option<FirstFragment>,
    ecn: EcnSet,
    /// Reason why the packet can never be completed, such as an overlap.
    invalid: Option<DropReason>,
}

impl FragmentQueue {
    /// Creates the queue of a packet, without fragments.
    pub fn new(id: PacketId, deadline: Instant) -> Self {
        Self {
            id,
            deadline,
            distance: 0,
            fragments: Vec::new(),
            len: 0,
            end: None,
            first: None,
            ecn: EcnSet::default(),
            invalid: None,
        }
    }

    /// Returns the identification of the packet.
    pub fn id(&self) -> &PacketId {
        &self.id
    }

    /// Returns the time at which the packet times out.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns true if the packet can never be completed.
    pub fn is_invalid(&self) -> bool {
        self.invalid.is_some()
    }

    /// Returns true if all fragments have arrived.
    pub fn is_complete(&self) -> bool {
        self.end == Some(self.len)
    }

    /// Returns the memory charged for the packet and its fragments, in bytes.
    pub fn cost(&self) -> usize {
        QUEUE_COST + self.fragments.len() * FRAGMENT_COST + self.len
    }

    /// Counts the later packet `id` if it has the same source as this packet.
    pub fn count_later(&mut self, id: &PacketId) {
        self.distance += u32::from(self.id.src == id.src);
    }

    /// Returns the number of later packets from the same source.
    pub fn distance(&self) -> u32 {
        self.distance
    }

    /// Adds a fragment. `checked` is the result of [`check`](Self::check) for this fragment.
    /// Returns an error if the fragment is dropped.
    ///
    /// A fragment that overlaps earlier fragments, contradicts the end of the packet, or exceeds
    /// [`FRAGMENTS_MAX`] marks the packet as invalid and frees the packet's data. An exact
    /// duplicate has no effect on the packet.
    pub fn insert(
        &mut self,
        fragment: &Fragment<'_>,
        checked: Result<usize, DropReason>,
    ) -> Result<(), DropReason> {
        if let Err(reason) = checked
            && reason != DropReason::FragmentDuplicate
        {
            self.invalid = Some(reason);
            self.fragments = Vec::new();
            self.first = None;
            self.end = None;
            self.len = 0;
        }
        checked.map(|at| self.store(at, fragment))
    }

    /// Checks a fragment. Returns the index at which the fragment will be stored, or the reason why
    /// it will be dropped.
    pub fn check(&self, fragment: &Fragment<'_>) -> Result<usize, DropReason> {
        if let Some(reason) = self.invalid {
            return Err(reason);
        }
        let (start, end) = (usize::from(fragment.offset), fragment.end());
        self.check_end(fragment)?;
        let at = self
            .fragments
            .partition_point(|stored| stored.start < start);
        let (before, behind) = self.fragments.split_at(at);
        if let Some(same) = behind.first()
            && same.start == start
            && *same.bytes == *fragment.payload
        {
            return Err(DropReason::FragmentDuplicate);
        }
        let overlaps = before.last().is_some_and(|stored| stored.end() > start)
            || behind.first().is_some_and(|stored| stored.start < end);
        if overlaps {
            return Err(DropReason::FragmentOverlap);
        }
        if self.fragments.len() >= FRAGMENTS_MAX {
            return Err(DropReason::FragmentLimit);
        }
        Ok(at)
    }

    fn store(&mut self, at: usize, fragment: &Fragment<'_>) {
        let (start, end) = (usize::from(fragment.offset), fragment.end());
        let bytes = fragment.payload.into();
        self.fragments.insert(at, StoredFragment { start, bytes });
        self.len += fragment.payload.len();
        self.ecn.add(fragment.ecn);
        if !fragment.more {
            self.end = Some(end);
        }
        if start == 0 {
            let header = fragment.header;
            self.first = Some(FirstFragment {
                headers: fragment.reassembled_headers(),
                ecn: fragment.ecn,
                header: (header.len() <= HEADER_KEPT_MAX).then(|| header.into()),
            });
        }
    }

    /// Checks the end of a fragment. The last fragment ends where the packet's payload ends, and
    /// all other fragments must end before this point.
    fn check_end(&self, fragment: &Fragment<'_>) -> Result<(), DropReason> {
        let furthest = self.fragments.last().map_or(0, StoredFragment::end);
        let fits = match (self.end, fragment.more) {
            (Some(known), true) => fragment.end() < known,
            (Some(known), false) => fragment.end() == known,
            (None, true) => true,
            (None, false) => furthest <= usize::from(fragment.offset),
        };
        if fits {
            return Ok(());
        }
        Err(DropReason::FragmentOverlap)
    }

    /// Returns the frame of the reassembled packet. Returns an error if the ECN codepoints of the
    /// fragments contradict each other, or if the packet is too long.
    pub fn frame(self) -> Result<Vec<u8>, DropReason> {
        let first = self.first.ok_or(DropReason::BadFragment)?;
        let ecn = self.ecn.combined(first.ecn);
        let ecn = ecn.ok_or(DropReason::FragmentEcn)?;
        let len = u16::try_from(self.len).map_err(|_| DropReason::BadFragment)?;
        let (headers, headers_len) = first.headers.emit(ecn, len);
        let mut frame = Vec::with_capacity(headers_len + self.len);
        frame.extend_from_slice(headers.get(..headers_len).unwrap_or(&headers));
        for stored in &self.fragments {
            frame.extend_from_slice(&stored.bytes);
        }
        Ok(frame)
    }

    /// Returns the data for the ICMP error (Time Exceeded) about a packet that timed out.
    pub fn into_timed_out(self) -> TimedOutPacket {
        let start = |first: FirstFragment| {
            let mut packet = Vec::from(first.header?);
            packet.extend_from_slice(&self.fragments.first()?.bytes);
            Some((first.headers, packet))
        };
        TimedOutPacket {
            first: self.first.and_then(start),
        }
    }
}
