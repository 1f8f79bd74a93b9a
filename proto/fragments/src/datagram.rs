//! A packet that waits for fragments.

use tidelane_time::Instant;
use tidelane_wire::{DatagramId, DropReason, Ecn, Fragment, WholeHeaders};

use crate::{PIECES_MAX, ecn::EcnSet};

/// Memory of a packet besides its fragments, in bytes.
pub const DATAGRAM_COST: usize = 512;
/// Memory of a fragment besides its payload, in bytes.
pub const PIECE_COST: usize = 64;

/// Largest IP header that is kept for an ICMP error. Only IPv6 has longer ones.
const HEADER_KEPT_MAX: usize = 128;

const _: () = assert!(size_of::<Datagram>() + HEADER_KEPT_MAX <= DATAGRAM_COST);
const _: () = assert!(size_of::<Piece>() <= PIECE_COST);

/// A packet that was not completed in time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfinished {
    /// The first fragment if it has arrived: the headers of its frame, and the packet up to the
    /// fragment's end.
    pub first: Option<(WholeHeaders, Vec<u8>)>,
}

/// Payload of a fragment.
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

/// Data of the fragment at offset zero.
#[derive(Debug)]
struct First {
    headers: WholeHeaders,
    ecn: Ecn,
    /// Header of the packet as received, or `None` if it is too long.
    header: Option<Box<[u8]>>,
}

/// Fragments of one packet.
#[derive(Debug)]
pub struct Datagram {
    id: DatagramId,
    deadline: Instant,
    younger: u32,
    /// Payloads in order, without overlap.
    pieces: Vec<Piece>,
    /// Bytes in `pieces`.
    len: usize,
    /// Length of the packet's payload, known once the last fragment has arrived.
    end: Option<usize>,
    first: Option<First>,
    ecn: EcnSet,
    /// Reason why the packet can never be completed.
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

    /// Id of the packet.
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

    /// Memory of the packet in bytes.
    pub fn cost(&self) -> usize {
        DATAGRAM_COST + self.pieces.len() * PIECE_COST + self.len
    }

    /// Counts a later packet if it has the same source.
    pub fn note_younger(&mut self, id: &DatagramId) {
        self.younger += u32::from(self.id.src == id.src);
    }

    /// Number of later packets of the same source.
    pub fn younger(&self) -> u32 {
        self.younger
    }

    /// Adds a fragment. A fragment that contradicts others breaks the packet; an exact duplicate
    /// does not.
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

    /// Checks the end of a fragment: the last fragment ends at the end of the payload, and others
    /// end before.
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

    /// Returns the frame of the whole packet.
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

    /// Returns the data for an ICMP error.
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
