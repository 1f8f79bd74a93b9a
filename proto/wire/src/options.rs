//! TCP options. The parser ignores unknown and invalid options and never rejects a segment. The
//! emitter uses the order and alignment of Linux.
//!
//! Some peers and middleboxes identify a stack by the layout of its options, or mishandle unusual
//! layouts. A SYN therefore carries `mss, sackOK, TS, nop, wscale`, followed by the Fast Open
//! option if it is in use. Other segments carry `nop, nop, TS`, followed by `nop, nop, SACK` if
//! there are blocks to report.

use crate::{
    fast_open::{self, FastOpenOption},
    sequence::SeqNumber,
};

/// Largest length of all options of a segment, in bytes.
pub const OPTIONS_LEN_MAX: usize = 40;
/// Largest number of SACK blocks without timestamps (RFC 2018 §3). With timestamps, three blocks
/// fit.
pub const SACK_BLOCKS_MAX: usize = 4;
/// Largest window shift. A larger received shift counts as this value (RFC 7323 §2.3).
const WSCALE_MAX: u8 = 14;

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND_MSS: u8 = 2;
const KIND_WSCALE: u8 = 3;
const KIND_SACK_PERMITTED: u8 = 4;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;

/// The options of most segments are two no-operations and then timestamps. The first constant is
/// the length of these options in bytes, the second is their first four bytes.
const ALIGNED_TIMESTAMPS_LEN: usize = 12;
const ALIGNED_TIMESTAMPS: [u8; 4] = [KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10];

/// The timestamps option (RFC 7323 §3.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Timestamps {
    /// TSval: the timestamp clock of the sender.
    pub tsval: u32,
    /// TSecr: the echoed timestamp. Valid only in a segment with the ACK flag.
    pub tsecr: u32,
}

impl Timestamps {
    /// Subtracts `offset` from a received TSecr. The peer echoes a TSval to which this host had
    /// added the offset (RFC 7323 §7.1). A TSecr of zero echoes no timestamp and is not changed.
    pub const fn subtract_offset(&mut self, offset: u32) {
        if self.tsecr != 0 {
            self.tsecr = self.tsecr.wrapping_sub(offset);
        }
    }
}

/// Blocks of a SACK option (RFC 2018 §3). The first block contains the segment that was received
/// most recently.
///
/// Nearly every segment has no blocks. One byte marks this state, so that the memory of the blocks
/// is neither written nor read. In a SYN, which has no blocks, the Fast Open option uses this
/// memory ([`TcpOptions::fast_open`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SackBlocks(SackOrFastOpen);

/// SACK blocks or a Fast Open option. Few segments have one of these options. No valid segment has
/// both options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum SackOrFastOpen {
    #[default]
    None,
    Sack(Blocks),
    FastOpen(FastOpenOption),
}

/// One to four SACK blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Blocks {
    blocks: [(SeqNumber, SeqNumber); SACK_BLOCKS_MAX],
    len: BlockCount,
}

/// Number of SACK blocks. The type is an enum, so that the compiler can use its invalid values as
/// the discriminant of [`SackOrFastOpen`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
enum BlockCount {
    One = 1,
    Two,
    Three,
    Four,
}

impl BlockCount {
    /// Returns the next number, or `None` if there is no room for another block.
    const fn increment(self) -> Option<Self> {
        match self {
            Self::One => Some(Self::Two),
            Self::Two => Some(Self::Three),
            Self::Three => Some(Self::Four),
            Self::Four => None,
        }
    }
}

const _: () = {
    assert!(BlockCount::Four as usize == SACK_BLOCKS_MAX);
    assert!(size_of::<SackBlocks>() == 36);
};

impl SackBlocks {
    /// No SACK option.
    pub const EMPTY: Self = Self(SackOrFastOpen::None);

    /// Appends the block `[left, right)`. Returns false and changes nothing if there are already
    /// [`SACK_BLOCKS_MAX`] blocks. The first block replaces a stored Fast Open option.
    pub fn push(&mut self, left: SeqNumber, right: SeqNumber) -> bool {
        let SackOrFastOpen::Sack(filled) = &mut self.0 else {
            let mut blocks = [(SeqNumber(0), SeqNumber(0)); SACK_BLOCKS_MAX];
            blocks[0] = (left, right);
            let len = BlockCount::One;
            self.0 = SackOrFastOpen::Sack(Blocks { blocks, len });
            return true;
        };
        let Some(more) = filled.len.increment() else {
            return false;
        };
        if let Some(block) = filled.blocks.get_mut(filled.len as usize) {
            *block = (left, right);
        }
        filled.len = more;
        true
    }

    /// Returns the blocks as `(left edge, right edge)`.
    #[inline]
    pub fn as_slice(&self) -> &[(SeqNumber, SeqNumber)] {
        match &self.0 {
            SackOrFastOpen::Sack(Blocks { blocks, len }) => {
                blocks.get(..*len as usize).unwrap_or(&[])
            }
            _ => &[],
        }
    }

    /// Returns the number of blocks.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Returns true if there are no blocks. A Fast Open option may be stored nevertheless.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        matches!(self.0, SackOrFastOpen::None | SackOrFastOpen::FastOpen(_))
    }

    /// Returns true if there are neither blocks nor a Fast Open option.
    #[inline]
    const fn is_vacant(&self) -> bool {
        matches!(self.0, SackOrFastOpen::None)
    }
}

impl FromIterator<(SeqNumber, SeqNumber)> for SackBlocks {
    /// Collects the first [`SACK_BLOCKS_MAX`] blocks.
    fn from_iter<I: IntoIterator<Item = (SeqNumber, SeqNumber)>>(blocks: I) -> Self {
        let mut all = Self::EMPTY;
        for (left, right) in blocks {
            if !all.push(left, right) {
                break;
            }
        }
        all
    }
}

/// The supported TCP options of a segment. The parser ignores all other options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TcpOptions {
    /// Maximum segment size in bytes (RFC 9293 §3.7.1), in a SYN only.
    pub mss: Option<u16>,
    /// Window shift, at most 14 (RFC 7323 §2), in a SYN only.
    pub wscale: Option<u8>,
    /// SACK-permitted option (RFC 2018 §2), in a SYN only.
    pub sack_permitted: bool,
    /// Timestamps option (RFC 7323 §3).
    pub timestamps: Option<Timestamps>,
    /// SACK blocks (RFC 2018 §3), or the Fast Open option of a SYN.
    pub sack: SackBlocks,
}

impl TcpOptions {
    /// The empty set of options.
    pub const NONE: Self = Self {
        mss: None,
        wscale: None,
        sack_permitted: false,
        timestamps: None,
        sack: SackBlocks::EMPTY,
    };

    /// Returns timestamps without other options.
    #[inline]
    pub const fn timestamps(tsval: u32, tsecr: u32) -> Self {
        Self::from_timestamps(Some(Timestamps { tsval, tsecr }))
    }

    /// Returns the options of most segments: only timestamps, or no options. Each field is set
    /// separately, because a copy of [`TcpOptions::NONE`] would also copy the memory of the absent
    /// SACK blocks.
    #[inline(always)]
    pub const fn from_timestamps(timestamps: Option<Timestamps>) -> Self {
        Self {
            mss: None,
            wscale: None,
            sack_permitted: false,
            timestamps,
            sack: SackBlocks(SackOrFastOpen::None),
        }
    }

    /// Returns the Fast Open option: a cookie or a request (RFC 7413 §4.1.1), in a SYN only.
    pub const fn fast_open(&self) -> Option<FastOpenOption> {
        match self.sack.0 {
            SackOrFastOpen::FastOpen(option) => Some(option),
            _ => None,
        }
    }

    /// Adds a Fast Open option. Returns true if the option was added. Changes nothing if there is
    /// no room, or if there are SACK blocks.
    pub fn set_fast_open(&mut self, option: FastOpenOption) -> bool {
        let fits = self.sack.is_empty() && self.base_len() + option.len() <= OPTIONS_LEN_MAX;
        if fits {
            self.sack = SackBlocks(SackOrFastOpen::FastOpen(option));
        }
        fits
    }

    /// Parses the bytes between the fixed header and the payload.
    ///
    /// The parser skips unknown options, and options whose length is wrong for their kind. Parsing
    /// ends at an option whose length is less than two or reaches beyond the end of `bytes`. The
    /// options before this option remain valid (RFC 9293 §3.1 MUST-6, MUST-7).
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Self {
        Self::parse_timestamps_only(bytes).unwrap_or_else(|| Self::parse_any(bytes))
    }

    /// If `bytes` is empty or exactly `nop, nop, timestamps`, returns the result of
    /// [`TcpOptions::parse`]. Returns `None` in all other cases.
    #[inline(always)]
    pub fn parse_timestamps_only(bytes: &[u8]) -> Option<Self> {
        let timestamps = aligned_timestamps(bytes).map(parse_timestamps);
        (timestamps.is_some() || bytes.is_empty()).then(|| Self::from_timestamps(timestamps))
    }

    #[cold]
    #[inline(never)]
    fn parse_any(bytes: &[u8]) -> Self {
        let mut options = Self::NONE;
        options.parse_options(bytes);
        options
    }

    fn parse_options(&mut self, mut bytes: &[u8]) {
        loop {
            match bytes {
                [KIND_NOP, rest @ ..] => bytes = rest,
                [] | [KIND_END, ..] => return,
                [kind, len, ..] => {
                    let Some((option, rest)) = bytes.split_at_checked(usize::from(*len)) else {
                        return;
                    };
                    let [_, _, body @ ..] = option else {
                        return;
                    };
                    self.set_option(*kind, body);
                    bytes = rest;
                }
                [_] => return,
            }
        }
    }

    fn set_option(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (KIND_MSS, &[high, low]) => self.mss = Some(u16::from_be_bytes([high, low])),
            (KIND_WSCALE, &[shift]) => self.wscale = Some(shift.min(WSCALE_MAX)),
            (KIND_SACK_PERMITTED, []) => self.sack_permitted = true,
            (KIND_TIMESTAMPS, body) if body.len() == 8 => {
                self.timestamps = body.first_chunk().map(parse_timestamps);
            }
            (KIND_SACK, body) => {
                let (blocks, rest) = body.as_chunks::<8>();
                if rest.is_empty() {
                    self.sack = blocks.iter().map(parse_block).collect();
                }
            }
            (fast_open::KIND | fast_open::KIND_EXPERIMENT, body) => {
                if let Some(option) = FastOpenOption::parse(kind, body) {
                    self.set_fast_open(option);
                }
            }
            _ => {}
        }
    }

    /// Returns the number of bytes that [`TcpOptions::emit`] writes: a multiple of four, at most
    /// [`OPTIONS_LEN_MAX`].
    #[inline]
    pub fn len(&self) -> usize {
        if self.has_at_most_timestamps() {
            return if self.timestamps.is_some() {
                ALIGNED_TIMESTAMPS_LEN
            } else {
                0
            };
        }
        self.full_len()
    }

    #[inline(never)]
    fn full_len(self) -> usize {
        let len = self.base_len();
        match (self.fast_open(), self.sack_blocks_that_fit(len)) {
            (Some(option), _) => len + option.len(),
            (None, 0) => len,
            (None, blocks) => len + 4 + 8 * blocks,
        }
    }

    /// Returns the length of the options other than SACK blocks and Fast Open, in bytes.
    fn base_len(&self) -> usize {
        let mut len = 0;
        if self.timestamps.is_some() {
            len += ALIGNED_TIMESTAMPS_LEN;
        } else if self.sack_permitted {
            len += 4;
        }
        len += if self.mss.is_some() { 4 } else { 0 };
        len += if self.wscale.is_some() { 4 } else { 0 };
        len
    }

    /// Returns true if there are no options other than timestamps, as in most segments.
    #[inline]
    const fn has_at_most_timestamps(&self) -> bool {
        let others = !self.sack.is_vacant()
            | self.sack_permitted
            | self.mss.is_some()
            | self.wscale.is_some();
        !others
    }

    /// Returns true if there are no options.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of SACK blocks that fit after `len` bytes of other options. The remaining
    /// blocks are not sent.
    #[inline]
    fn sack_blocks_that_fit(&self, len: usize) -> usize {
        self.sack
            .len()
            .min((OPTIONS_LEN_MAX - len).saturating_sub(4) / 8)
    }

    /// Writes the options. Returns their length in bytes, which is [`TcpOptions::len`].
    ///
    /// # Panics
    ///
    /// If `buf` is shorter than the options.
    #[inline(always)]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        if !self.has_at_most_timestamps() {
            return self.emit_any(buf);
        }
        match self.timestamps {
            Some(timestamps) => emit_timestamps(buf, [KIND_NOP; 2], timestamps),
            None => 0,
        }
    }

    #[inline(never)]
    fn emit_any(self, buf: &mut [u8]) -> usize {
        let mut at = 0;
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            buf[..4].copy_from_slice(&[KIND_MSS, 4, high, low]);
            at += 4;
        }
        if let Some(timestamps) = self.timestamps {
            let lead = if self.sack_permitted {
                [KIND_SACK_PERMITTED, 2]
            } else {
                [KIND_NOP; 2]
            };
            at += emit_timestamps(&mut buf[at..], lead, timestamps);
        } else if self.sack_permitted {
            buf[at..at + 4].copy_from_slice(&[KIND_NOP, KIND_NOP, KIND_SACK_PERMITTED, 2]);
            at += 4;
        }
        if let Some(shift) = self.wscale {
            buf[at..at + 4].copy_from_slice(&[KIND_NOP, KIND_WSCALE, 3, shift]);
            at += 4;
        }
        if let Some(option) = self.fast_open() {
            at += option.emit(&mut buf[at..]);
        }
        let blocks = self.sack_blocks_that_fit(at);
        if blocks > 0 {
            let len = 2 + 8 * blocks as u8;
            buf[at..at + 4].copy_from_slice(&[KIND_NOP, KIND_NOP, KIND_SACK, len]);
            at += 4;
            for (left, right) in self.sack.as_slice().iter().take(blocks) {
                buf[at..at + 4].copy_from_slice(&left.0.to_be_bytes());
                buf[at + 4..at + 8].copy_from_slice(&right.0.to_be_bytes());
                at += 8;
            }
        }
        at
    }
}

/// Returns the bytes of TSval and TSecr if the options are exactly `nop, nop, timestamps`, as in
/// most segments.
#[inline(always)]
pub(crate) fn aligned_timestamps(bytes: &[u8]) -> Option<&[u8; 8]> {
    let bytes: &[u8; ALIGNED_TIMESTAMPS_LEN] = bytes.try_into().ok()?;
    let (lead, body) = bytes.split_first_chunk::<4>()?;
    if *lead != ALIGNED_TIMESTAMPS {
        return None;
    }
    body.first_chunk()
}

#[inline(always)]
pub(crate) fn parse_timestamps(body: &[u8; 8]) -> Timestamps {
    let [a, b, c, d, e, f, g, h] = *body;
    Timestamps {
        tsval: u32::from_be_bytes([a, b, c, d]),
        tsecr: u32::from_be_bytes([e, f, g, h]),
    }
}

fn parse_block(body: &[u8; 8]) -> (SeqNumber, SeqNumber) {
    let Timestamps {
        tsval: left,
        tsecr: right,
    } = parse_timestamps(body);
    (SeqNumber(left), SeqNumber(right))
}

/// Writes `lead` (two no-operations or SACK-permitted) and timestamps. Returns their length in
/// bytes.
#[inline(always)]
fn emit_timestamps(buf: &mut [u8], lead: [u8; 2], timestamps: Timestamps) -> usize {
    let buf = &mut buf[..ALIGNED_TIMESTAMPS_LEN];
    let [first, second] = lead;
    buf[..4].copy_from_slice(&[first, second, KIND_TIMESTAMPS, 10]);
    buf[4..8].copy_from_slice(&timestamps.tsval.to_be_bytes());
    buf[8..12].copy_from_slice(&timestamps.tsecr.to_be_bytes());
    ALIGNED_TIMESTAMPS_LEN
}
