//! An IP packet whose fragments are being collected.

use tidelane_time::Instant;
use tidelane_wire::{DatagramId, DropReason, Ecn, Fragment, WholeHeaders};

use crate::{PIECES_MAX, ecn::EcnSet};

/// Memory charged for a packet in addition to its fragments, in bytes.
pub const DATAGRAM_COST: usize = 512;
/// Memory charged for a fragment in addition to its payload, in bytes.
pub const PIECE_COST: usize = 64;

/// Largest IP header that is kept for an ICMP error, in bytes. Only IPv6 headers with extensions
/// are longer.
const HEADER_KEPT_MAX: usize = 128;

const _: () = assert!(size_of::<Datagram>() + HEADER_KEPT_MAX <= DATAGRAM_COST);
const _: () = assert!(size_of::<Piece>() <= PIECE_COST);

/// An incomplete packet that timed out, as input for the ICMP error to its sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfinished {
    /// Headers of the first fragment's frame, and the packet's bytes up to the end of that
    /// fragment. `None` if the first fragment has not arrived, or if its IP header was too long to
    /// keep.
    pub first: Option<(WholeHeaders, Vec<u8>)>,
}

/// Payload of a received fragment. `start` is its offset in the packet's payload, in bytes.
#[derive(Debug)]
struct Piece {
    start: usize,
    bytes: Box<[u8]>,
}

impl Piece {
    fn end(&self) -> usize {
        self.start + self.bytes.len()
    }
}

/// Data of the fragment at offset zero, from which the reassembled packet takes its headers.
#[derive(Debug)]
struct First {
    headers: WholeHeaders,
    ecn: Ecn,
    /// IP header as received, or `None` if it exceeds [`HEADER_KEPT_MAX`].
    header: Option<Box<[u8]>>,
}

/// Fragments of one packet. Owned by the reassembler.
#[derive(Debug)]
pub struct Datagram {
    id: DatagramId,
    deadline: Instant,
    /// Number of packets of this source whose first arrival was later.
    younger: u32,
    /// Payloads in order of their offsets, without overlap.
    pieces: Vec<Piece>,
    /// Total length of the payloads in `pieces`, in bytes.
    len: usize,
    /// Length of the packet's payload in bytes. Known once the last fragment has arrived.
    end: Option<usize>,
    first: Option<First>,
    ecn: EcnSet,
    /// Reason why the packet can never be completed, such as an overlap.
    broken: Option<DropReason>,
}

impl Datagram {
    /// Creates a packet without fragments.
    pub fn new(id: DatagramId, deadline: Instant) -> Self {
        Self {
            id,
            deadline,
            younger: 0,
            pieces: Vec::new(),
            len: 0,
            end: None,
            first: None,
            ecn: EcnSet::default(),
            broken: None,
        }
    }

    /// Identification of the packet.
    pub fn id(&self) -> &DatagramId {
        &self.id
    }

    /// Time at which the packet times out.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns true if the packet can never be completed.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Returns true if all fragments have arrived.
    pub fn is_complete(&self) -> bool {
        self.end == Some(self.len)
    }

    /// Memory charged for the packet and its fragments, in bytes.
    pub fn cost(&self) -> usize {
        DATAGRAM_COST + self.pieces.len() * PIECE_COST + self.len
    }

    /// Counts the later packet `id` if it has the same source as this packet.
    pub fn note_younger(&mut self, id: &DatagramId) {
        self.younger += u32::from(self.id.src == id.src);
    }

    /// Number of later packets from the same source.
    pub fn younger(&self) -> u32 {
        self.younger
    }

    /// Adds a fragment. Returns an error if the fragment is dropped.
    ///
    /// A fragment that overlaps earlier fragments, or that contradicts the known end, marks the
    /// packet as broken and frees its data. An exact duplicate has no effect on the packet.
    pub fn take(&mut self, fragment: &Fragment<'_>) -> Result<(), DropReason> {
        if let Some(reason) = self.broken {
            return Err(reason);
        }
        let taken = self.place(fragment);
        if let Err(reason) = taken
            && reason != DropReason::FragmentDuplicate
        {
            self.broken = Some(reason);
            self.pieces = Vec::new();
            self.first = None;
            self.end = None;
            self.len = 0;
        }
        taken
    }

    fn place(&mut self, fragment: &Fragment<'_>) -> Result<(), DropReason> {
        let (start, end) = (usize::from(fragment.offset), fragment.end());
        self.check_end(fragment)?;
        let at = self.pieces.partition_point(|piece| piece.start < start);
        let (before, behind) = self.pieces.split_at(at);
        if let Some(same) = behind.first()
            && same.start == start
            && *same.bytes == *fragment.payload
        {
            return Err(DropReason::FragmentDuplicate);
        }
        let overlaps = before.last().is_some_and(|piece| piece.end() > start)
            || behind.first().is_some_and(|piece| piece.start < end);
        if overlaps {
            return Err(DropReason::FragmentOverlap);
        }
        if self.pieces.len() >= PIECES_MAX {
            return Err(DropReason::FragmentLimit);
        }
        let bytes = fragment.payload.into();
        self.pieces.insert(at, Piece { start, bytes });
        self.len += fragment.payload.len();
        self.ecn.add(fragment.ecn);
        if !fragment.more {
            self.end = Some(end);
        }
        if start == 0 {
            let header = fragment.header;
            self.first = Some(First {
                headers: fragment.whole(),
                ecn: fragment.ecn,
                header: (header.len() <= HEADER_KEPT_MAX).then(|| header.into()),
            });
        }
        Ok(())
    }

    /// Checks the end of a fragment. The last fragment must end at the end of the packet's payload.
    /// All other fragments must end before it.
    fn check_end(&self, fragment: &Fragment<'_>) -> Result<(), DropReason> {
        let furthest = self.pieces.last().map_or(0, Piece::end);
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

    /// Returns the frame of the reassembled packet.
    pub fn frame(self) -> Result<Vec<u8>, DropReason> {
        let first = self.first.ok_or(DropReason::BadFragment)?;
        let ecn = self.ecn.combined(first.ecn);
        let ecn = ecn.ok_or(DropReason::FragmentEcn)?;
        let len = u16::try_from(self.len).map_err(|_| DropReason::BadFragment)?;
        let (headers, headers_len) = first.headers.emit(ecn, len);
        let mut frame = Vec::with_capacity(headers_len + self.len);
        frame.extend_from_slice(headers.get(..headers_len).unwrap_or(&headers));
        for piece in &self.pieces {
            frame.extend_from_slice(&piece.bytes);
        }
        Ok(frame)
    }

    /// Returns the data for the ICMP error about a packet that timed out.
    pub fn unfinished(self) -> Unfinished {
        let start = |first: First| {
            let mut packet = Vec::from(first.header?);
            packet.extend_from_slice(&self.pieces.first()?.bytes);
            Some((first.headers, packet))
        };
        Unfinished {
            first: self.first.and_then(start),
        }
    }
}
