//! TCP segments.

use core::{
    fmt,
    ops::{BitOr, BitOrAssign},
};

use crate::{
    address::IpAddress,
    checksum::{self, Sum},
    drop_reason::DropReason,
    ipv4::protocol,
    options::{self, OPTIONS_LEN_MAX, TcpOptions, Timestamps},
    sequence::SeqNumber,
};

/// Bytes of a header without options.
pub const TCP_HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const TCP_HEADER_LEN_MAX: usize = TCP_HEADER_LEN + OPTIONS_LEN_MAX;
/// Where the checksum field is.
const CHECKSUM_AT: core::ops::Range<usize> = 16..18;

/// The control bits (RFC 9293 §3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// None.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(1);
    /// Synchronize sequence numbers.
    pub const SYN: Self = Self(1 << 1);
    /// Reset the connection.
    pub const RST: Self = Self(1 << 2);
    /// Push.
    pub const PSH: Self = Self(1 << 3);
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(1 << 4);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(1 << 5);
    /// ECN echo (RFC 3168 §6.1).
    pub const ECE: Self = Self(1 << 6);
    /// Congestion window reduced (RFC 3168 §6.1).
    pub const CWR: Self = Self(1 << 7);

    /// Whether all of `other`'s bits are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other`'s bits is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Sets `other`'s bits.
    #[inline]
    pub const fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Clears `other`'s bits.
    #[inline]
    pub const fn remove(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    /// The bits of both.
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
    /// The letters that tcpdump uses, `.` for ACK.
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

/// An arriving segment: the RFC's SEG.SEQ, SEG.ACK, SEG.WND and so on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment<'a> {
    /// Port of the sender.
    pub src_port: u16,
    /// Port of the receiver.
    pub dst_port: u16,
    /// SEG.SEQ.
    pub seq: SeqNumber,
    /// SEG.ACK; means something only with [`TcpFlags::ACK`].
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// The window field as it stands in the header: not scaled.
    pub wnd: u16,
    /// The urgent pointer field.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
    /// Text.
    pub payload: &'a [u8],
}

/// An arriving segment as a fast path looks at it: a field costs something when it is asked for.
pub trait SegmentView {
    /// Control bits.
    fn flags(&self) -> TcpFlags;
    /// SEG.SEQ.
    fn seq(&self) -> SeqNumber;
    /// SEG.ACK.
    fn ack(&self) -> SeqNumber;
    /// The window field as it stands in the header.
    fn wnd(&self) -> u16;
    /// Timestamps.
    fn timestamps(&self) -> Option<Timestamps>;
    /// Whether there are SACK blocks.
    fn has_sack(&self) -> bool;
    /// Text.
    fn payload(&self) -> &[u8];
    /// All of it.
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
    /// SEG.LEN: payload, SYN and FIN (RFC 9293 §3.4).
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

    /// Everything but the payload.
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

/// What [`emit_tcp`] writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SegmentHeader {
    /// Our port.
    pub src_port: u16,
    /// The peer's port.
    pub dst_port: u16,
    /// First sequence number.
    pub seq: SeqNumber,
    /// Acknowledgment number; zero without [`TcpFlags::ACK`].
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// The window field, scaled already.
    pub wnd: u16,
    /// The urgent pointer field.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
}

impl SegmentHeader {
    /// Bytes of the header with its options.
    #[inline]
    pub fn len(&self) -> usize {
        TCP_HEADER_LEN + self.options.len()
    }

    /// Never: a header has at least [`TCP_HEADER_LEN`] bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }
}

/// The parts of a segment's bytes, within bounds. See [`TcpParts::segment`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpParts<'a> {
    header: &'a [u8; TCP_HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

/// Parses a segment. Its checksum is the caller's matter: see [`tcp_checksum_ok`].
#[inline(always)]
pub fn parse_tcp(transport: &[u8]) -> Result<Segment<'_>, DropReason> {
    Ok(split_tcp(transport)?.segment())
}

/// The first half of [`parse_tcp`], all that can fail: a receive loop that calls the halves one
/// after the other has no segment moved out of a result.
#[inline(always)]
pub fn split_tcp(transport: &[u8]) -> Result<TcpParts<'_>, DropReason> {
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
    Ok(TcpParts {
        header,
        options: with_options.get(TCP_HEADER_LEN..).unwrap_or(&[]),
        payload,
    })
}

impl<'a> TcpParts<'a> {
    /// Source and destination port.
    #[inline(always)]
    pub fn ports(&self) -> (u16, u16) {
        let [a, b, c, d, ..] = *self.header;
        (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }

    /// What they say.
    pub fn segment(&self) -> Segment<'a> {
        self.with(TcpOptions::parse(self.options))
    }

    /// The same, if the only options are timestamps, or there are none: a receive loop that has
    /// code of its own for this carries no others around, and reads each field where it lies.
    #[inline(always)]
    pub fn usual(&self) -> Option<UsualSegment<'a>> {
        let timestamps = options::aligned_timestamps(self.options);
        (timestamps.is_some() || self.options.is_empty()).then_some(UsualSegment {
            parts: *self,
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

/// A segment whose only options are timestamps, if it has any. See [`TcpParts::usual`].
#[derive(Clone, Copy, Debug)]
pub struct UsualSegment<'a> {
    parts: TcpParts<'a>,
    timestamps: Option<&'a [u8; 8]>,
}

impl SegmentView for UsualSegment<'_> {
    #[inline(always)]
    fn flags(&self) -> TcpFlags {
        TcpFlags(self.parts.header[13])
    }

    #[inline(always)]
    fn seq(&self) -> SeqNumber {
        let [_, _, _, _, a, b, c, d, ..] = *self.parts.header;
        SeqNumber(u32::from_be_bytes([a, b, c, d]))
    }

    #[inline(always)]
    fn ack(&self) -> SeqNumber {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *self.parts.header;
        SeqNumber(u32::from_be_bytes([a, b, c, d]))
    }

    #[inline(always)]
    fn wnd(&self) -> u16 {
        u16::from_be_bytes([self.parts.header[14], self.parts.header[15]])
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
        self.parts.payload
    }

    #[inline(always)]
    fn segment(&self) -> Segment<'_> {
        self.parts.with(TcpOptions::ordinary(self.timestamps()))
    }
}

/// Whether a segment's checksum is right, or may be taken for right.
///
/// With `partial_allowed`, a field that holds the pseudo-header's sum alone passes too: a kernel
/// peer behind a veth leaves it so (CHECKSUM_PARTIAL), because the segment has not left the host.
/// Allow it on such a link only.
#[inline(always)]
pub fn tcp_checksum_ok(
    src: IpAddress,
    dst: IpAddress,
    transport: &[u8],
    partial_allowed: bool,
) -> bool {
    let pseudo = checksum::pseudo_header(src, dst, protocol::TCP, transport.len() as u32);
    if partial_allowed && holds_partial(transport, pseudo) {
        return true;
    }
    is_whole(transport, pseudo)
}

#[inline(never)]
fn is_whole(transport: &[u8], pseudo: Sum) -> bool {
    transport.len() >= TCP_HEADER_LEN && pseudo.plus(checksum::sum(transport)).is_valid()
}

/// Whether the checksum field is `pseudo`, of whose zero there are two forms.
#[inline(always)]
fn holds_partial(transport: &[u8], pseudo: Sum) -> bool {
    let Some(&[high, low]) = transport.get(CHECKSUM_AT) else {
        return false;
    };
    let field = u16::from_be_bytes([high, low]);
    let pseudo = pseudo.fold();
    field == pseudo || (field == 0 && pseudo == 0xffff)
}

/// Writes a header with zero checksum and returns its length.
///
/// # Panics
///
/// If `buf` is shorter than [`SegmentHeader::len`].
#[inline]
pub fn emit_tcp(buf: &mut [u8], header: &SegmentHeader) -> usize {
    emit_tcp_with(buf, header, &header.options, 0)
}

/// [`emit_tcp`] with the `options` of somewhere else: those of `header` do not count, so that
/// nobody has to copy them there. TSval is sent `offset` ahead ([`TcpOptions::emit_from`]).
///
/// # Panics
///
/// If `buf` is shorter than the header.
#[inline(always)]
pub fn emit_tcp_with(
    buf: &mut [u8],
    header: &SegmentHeader,
    options: &TcpOptions,
    offset: u32,
) -> usize {
    let (fixed, rest) = buf.split_at_mut(TCP_HEADER_LEN);
    let header_len = TCP_HEADER_LEN + options.emit_from(offset, rest);
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

/// Completes the checksum of an emitted header, given the sums of pseudo-header and payload.
///
/// # Panics
///
/// If `header` is shorter than [`TCP_HEADER_LEN`].
#[inline]
pub fn write_tcp_checksum(header: &mut [u8], pseudo: Sum, payload: Sum) {
    header[CHECKSUM_AT].copy_from_slice(&[0, 0]);
    let checksum = pseudo.plus(payload).plus(checksum::sum(header)).checksum();
    header[CHECKSUM_AT].copy_from_slice(&checksum.to_be_bytes());
}

/// Leaves the checksum to the driver or NIC: writes the pseudo-header's sum, as they expect it.
///
/// # Panics
///
/// If `header` is shorter than [`TCP_HEADER_LEN`].
#[inline]
pub fn write_partial_checksum(header: &mut [u8], pseudo: Sum) {
    header[CHECKSUM_AT].copy_from_slice(&pseudo.fold().to_be_bytes());
}
