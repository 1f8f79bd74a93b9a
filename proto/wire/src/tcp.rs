//! Parser and emitter of TCP segments (RFC 9293 §3.1).

use core::{
    fmt,
    ops::{BitOr, BitOrAssign},
};

use crate::{
    address::IpAddress,
    checksum::{self, Sum},
    drop_reason::DropReason,
    options::{self, OPTIONS_LEN_MAX, TcpOptions, Timestamps},
    packet::protocol,
    sequence::SeqNumber,
};

/// Length of a TCP header without options, in bytes.
pub const TCP_HEADER_LEN: usize = 20;
/// Largest length of a TCP header, in bytes.
pub const TCP_HEADER_LEN_MAX: usize = TCP_HEADER_LEN + OPTIONS_LEN_MAX;
/// Byte offsets of the checksum field in the header.
const CHECKSUM_AT: core::ops::Range<usize> = 16..18;

/// The control bits (RFC 9293 §3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// The sender has no more data.
    pub const FIN: Self = Self(1);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(1 << 1);
    /// Reset the connection.
    pub const RST: Self = Self(1 << 2);
    /// The receiver should pass the data to the application without delay.
    pub const PSH: Self = Self(1 << 3);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(1 << 4);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(1 << 5);
    /// ECN echo (RFC 3168 §6.1).
    pub const ECE: Self = Self(1 << 6);
    /// Congestion window reduced (RFC 3168 §6.1).
    pub const CWR: Self = Self(1 << 7);

    /// Returns true if all bits of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if any bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Sets the bits of `other`.
    #[inline]
    pub const fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Clears the bits of `other`.
    #[inline]
    pub const fn remove(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    /// Returns the union of both sets of flags.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for TcpFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for TcpFlags {
    fn bitor_assign(&mut self, other: Self) {
        self.insert(other);
    }
}

impl fmt::Display for TcpFlags {
    /// Writes the flags as the letters of tcpdump, with `.` for ACK.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (bit, letter) in "FSRP.UEW".chars().enumerate() {
            if self.0 & 1 << bit != 0 {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

/// A received segment. The fields are the RFC's SEG.SEQ, SEG.ACK, SEG.WND and so on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    /// Port of the sender.
    pub src_port: u16,
    /// Port of the receiver.
    pub dst_port: u16,
    /// SEG.SEQ.
    pub seq: SeqNumber,
    /// SEG.ACK. Valid with [`TcpFlags::ACK`] only.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window field of the header. The caller shifts the value left by the peer's window scale.
    pub wnd: u16,
    /// Urgent pointer field of the header. Valid with [`TcpFlags::URG`] only.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
    /// Payload.
    pub payload: &'a [u8],
}

/// Access to the fields of a received segment, for the TCP engine's code for in-order segments.
/// [`Segment`] has all fields in parsed form. [`TimestampsOnly`] loads a field from the frame only
/// when the method of this field is called.
pub trait SegmentView {
    /// Returns the control bits.
    fn flags(&self) -> TcpFlags;
    /// Returns SEG.SEQ.
    fn seq(&self) -> SeqNumber;
    /// Returns SEG.ACK, which is valid with [`TcpFlags::ACK`] only.
    fn ack(&self) -> SeqNumber;
    /// Returns the window field, which the caller shifts left by the peer's window scale.
    fn wnd(&self) -> u16;
    /// Returns the timestamps option, or `None` if the segment has none.
    fn timestamps(&self) -> Option<Timestamps>;
    /// Returns true if there are SACK blocks.
    fn has_sack(&self) -> bool;
    /// Returns the payload.
    fn payload(&self) -> &[u8];
    /// Returns all fields.
    fn segment(&self) -> Segment<'_>;
}

impl SegmentView for Segment<'_> {
    #[inline(always)]
    fn flags(&self) -> TcpFlags {
        self.flags
    }

    #[inline(always)]
    fn seq(&self) -> SeqNumber {
        self.seq
    }

    #[inline(always)]
    fn ack(&self) -> SeqNumber {
        self.ack
    }

    #[inline(always)]
    fn wnd(&self) -> u16 {
        self.wnd
    }

    #[inline(always)]
    fn timestamps(&self) -> Option<Timestamps> {
        self.options.timestamps
    }

    #[inline(always)]
    fn has_sack(&self) -> bool {
        !self.options.sack.is_empty()
    }

    #[inline(always)]
    fn payload(&self) -> &[u8] {
        self.payload
    }

    #[inline(always)]
    fn segment(&self) -> Segment<'_> {
        *self
    }
}

impl Segment<'_> {
    /// Returns SEG.LEN: the bytes of payload, plus one for SYN and one for FIN (RFC 9293 §3.4).
    #[inline]
    #[allow(
        clippy::len_without_is_empty,
        reason = "the RFC's term, not a container"
    )]
    pub fn len(&self) -> u32 {
        let controls = u32::from(self.flags.contains(TcpFlags::SYN))
            + u32::from(self.flags.contains(TcpFlags::FIN));
        self.payload.len() as u32 + controls
    }

    /// Returns all fields except the payload, as input for [`emit_tcp`].
    pub const fn header(&self) -> SegmentHeader {
        SegmentHeader {
            src_port: self.src_port,
            dst_port: self.dst_port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            wnd: self.wnd,
            urgent: self.urgent,
            options: self.options,
        }
    }
}

/// Header fields of a segment, as input for [`emit_tcp`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SegmentHeader {
    /// Port of the sender.
    pub src_port: u16,
    /// Port of the receiver.
    pub dst_port: u16,
    /// SEG.SEQ.
    pub seq: SeqNumber,
    /// SEG.ACK. Zero without [`TcpFlags::ACK`].
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window field of the header. The caller has shifted the window right by the window scale of
    /// this host.
    pub wnd: u16,
    /// Urgent pointer field. Zero without [`TcpFlags::URG`].
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
}

impl SegmentHeader {
    /// Returns the length of the header with its options, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        TCP_HEADER_LEN + self.options.len()
    }

    /// Returns false: a header has at least [`TCP_HEADER_LEN`] bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// A segment that was split into header, options and payload after a check of the header length.
/// [`RawSegment::segment`] parses the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawSegment<'a> {
    header: &'a [u8; TCP_HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

/// Parses a segment, but does not check the checksum: see [`tcp_checksum_ok`].
#[inline(always)]
pub fn parse_tcp(transport: &[u8]) -> Result<Segment<'_>, DropReason> {
    Ok(RawSegment::new_checked(transport)?.segment())
}

impl<'a> RawSegment<'a> {
    /// Splits a segment into header, options and payload: the fallible first half of [`parse_tcp`].
    /// A receive loop calls the two halves separately to avoid copying a [`Segment`] out of a
    /// `Result`.
    #[inline(always)]
    pub fn new_checked(transport: &'a [u8]) -> Result<Self, DropReason> {
        let header = transport
            .first_chunk::<TCP_HEADER_LEN>()
            .ok_or(DropReason::Truncated)?;
        let header_len = usize::from(header[12] >> 4) * 4;
        if header_len < TCP_HEADER_LEN {
            return Err(DropReason::BadTcpHeader);
        }
        let Some((with_options, payload)) = transport.split_at_checked(header_len) else {
            return Err(DropReason::BadTcpHeader);
        };
        Ok(Self {
            header,
            options: with_options.get(TCP_HEADER_LEN..).unwrap_or(&[]),
            payload,
        })
    }

    /// Returns source port and destination port.
    #[inline(always)]
    pub fn ports(&self) -> (u16, u16) {
        let [a, b, c, d, ..] = *self.header;
        (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }

    /// Parses all fields: the second half of [`parse_tcp`].
    pub fn segment(&self) -> Segment<'a> {
        self.with(TcpOptions::parse(self.options))
    }

    /// If the options are empty or exactly `nop, nop, timestamps`, returns the segment, otherwise
    /// `None`. A receive loop has separate code for this type. The separate code copies no options
    /// and loads each field on demand.
    #[inline(always)]
    pub fn timestamps_only(&self) -> Option<TimestampsOnly<'a>> {
        let timestamps = options::aligned_timestamps(self.options);
        (timestamps.is_some() || self.options.is_empty()).then_some(TimestampsOnly {
            raw: *self,
            timestamps,
        })
    }

    #[inline(always)]
    fn with(&self, options: TcpOptions) -> Segment<'a> {
        let header = self.header;
        Segment {
            src_port: u16::from_be_bytes([header[0], header[1]]),
            dst_port: u16::from_be_bytes([header[2], header[3]]),
            seq: SeqNumber(u32::from_be_bytes([
                header[4], header[5], header[6], header[7],
            ])),
            ack: SeqNumber(u32::from_be_bytes([
                header[8], header[9], header[10], header[11],
            ])),
            flags: TcpFlags(header[13]),
            wnd: u16::from_be_bytes([header[14], header[15]]),
            urgent: u16::from_be_bytes([header[18], header[19]]),
            options,
            payload: self.payload,
        }
    }
}

/// A segment without options other than timestamps. [`RawSegment::timestamps_only`] creates it.
#[derive(Clone, Copy, Debug)]
pub struct TimestampsOnly<'a> {
    raw: RawSegment<'a>,
    /// Bytes of TSval and TSecr. `None` if the segment has no options.
    timestamps: Option<&'a [u8; 8]>,
}

impl SegmentView for TimestampsOnly<'_> {
    #[inline(always)]
    fn flags(&self) -> TcpFlags {
        TcpFlags(self.raw.header[13])
    }

    #[inline(always)]
    fn seq(&self) -> SeqNumber {
        let [_, _, _, _, a, b, c, d, ..] = *self.raw.header;
        SeqNumber(u32::from_be_bytes([a, b, c, d]))
    }

    #[inline(always)]
    fn ack(&self) -> SeqNumber {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *self.raw.header;
        SeqNumber(u32::from_be_bytes([a, b, c, d]))
    }

    #[inline(always)]
    fn wnd(&self) -> u16 {
        u16::from_be_bytes([self.raw.header[14], self.raw.header[15]])
    }

    #[inline(always)]
    fn timestamps(&self) -> Option<Timestamps> {
        self.timestamps.map(options::parse_timestamps)
    }

    #[inline(always)]
    fn has_sack(&self) -> bool {
        false
    }

    #[inline(always)]
    fn payload(&self) -> &[u8] {
        self.raw.payload
    }

    #[inline(always)]
    fn segment(&self) -> Segment<'_> {
        self.raw
            .with(TcpOptions::from_timestamps(self.timestamps()))
    }
}

/// Returns true if the checksum is valid.
///
/// If `partial_allowed` is true, also returns true if the checksum field has only the sum of the
/// pseudo-header. A Linux peer behind a veth leaves the field in this state (CHECKSUM_PARTIAL),
/// because the segment never reaches a physical link. Allow this state on a veth only.
#[inline(always)]
pub fn tcp_checksum_ok(
    src: IpAddress,
    dst: IpAddress,
    transport: &[u8],
    partial_allowed: bool,
) -> bool {
    let pseudo = checksum::pseudo_header(src, dst, protocol::TCP, transport.len() as u32);
    if partial_allowed && has_partial_checksum(transport, pseudo) {
        return true;
    }
    has_valid_checksum(transport, pseudo)
}

#[inline(never)]
fn has_valid_checksum(transport: &[u8], pseudo: Sum) -> bool {
    transport.len() >= TCP_HEADER_LEN && pseudo.plus(checksum::sum(transport)).is_valid()
}

/// Returns true if the checksum field equals the sum `pseudo`. A field of 0 also equals a sum of
/// 0xffff, because one's complement has two representations of zero.
#[inline(always)]
fn has_partial_checksum(transport: &[u8], pseudo: Sum) -> bool {
    let Some(&[high, low]) = transport.get(CHECKSUM_AT) else {
        return false;
    };
    let field = u16::from_be_bytes([high, low]);
    let pseudo = pseudo.fold();
    field == pseudo || (field == 0 && pseudo == 0xffff)
}

/// Writes a TCP header with a checksum of zero. Returns the header's length in bytes.
///
/// # Panics
///
/// If `buf` is shorter than [`SegmentHeader::len`].
#[inline]
pub fn emit_tcp(buf: &mut [u8], header: &SegmentHeader) -> usize {
    emit_tcp_with(buf, header, &header.options)
}

/// Writes a TCP header like [`emit_tcp`], but with `options` instead of `header.options`, which
/// saves a copy.
///
/// # Panics
///
/// If `buf` is shorter than the header.
#[inline(always)]
pub fn emit_tcp_with(buf: &mut [u8], header: &SegmentHeader, options: &TcpOptions) -> usize {
    let (fixed, rest) = buf.split_at_mut(TCP_HEADER_LEN);
    let header_len = TCP_HEADER_LEN + options.emit(rest);
    fixed[0..2].copy_from_slice(&header.src_port.to_be_bytes());
    fixed[2..4].copy_from_slice(&header.dst_port.to_be_bytes());
    fixed[4..8].copy_from_slice(&header.seq.0.to_be_bytes());
    fixed[8..12].copy_from_slice(&header.ack.0.to_be_bytes());
    fixed[12] = (header_len as u8 / 4) << 4;
    fixed[13] = header.flags.0;
    fixed[14..16].copy_from_slice(&header.wnd.to_be_bytes());
    fixed[CHECKSUM_AT].copy_from_slice(&[0, 0]);
    fixed[18..20].copy_from_slice(&header.urgent.to_be_bytes());
    header_len
}

/// Writes the checksum of an emitted header, given the sums of the pseudo-header and the payload.
///
/// # Panics
///
/// If `header` ends before the end of the checksum field.
#[inline]
pub fn write_tcp_checksum(header: &mut [u8], pseudo: Sum, payload: Sum) {
    header[CHECKSUM_AT].copy_from_slice(&[0, 0]);
    let checksum = pseudo.plus(payload).plus(checksum::sum(header)).checksum();
    header[CHECKSUM_AT].copy_from_slice(&checksum.to_be_bytes());
}

/// Prepares checksum offload: writes the sum of the pseudo-header to the checksum field. The NIC
/// then adds the sum of header and payload, and complements the result.
///
/// # Panics
///
/// If `header` ends before the end of the checksum field.
#[inline]
pub fn write_partial_checksum(header: &mut [u8], pseudo: Sum) {
    header[CHECKSUM_AT].copy_from_slice(&pseudo.fold().to_be_bytes());
}
