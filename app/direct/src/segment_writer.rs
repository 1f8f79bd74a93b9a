//! The bytes of a segment: headers before a payload that is in its place already.

use tidelane_engine::SegmentOut;
use tidelane_packet_io::TxChecksum;
use tidelane_wire::{
    FRAME_HEADERS_LEN_MAX, HeaderTemplate, TCP_HEADER_LEN, TCP_HEADER_LEN_MAX, checksum, emit_tcp,
    write_partial_checksum, write_tcp_checksum,
};

/// Length of all headers of a segment with all options, in bytes.
pub const HEADERS_LEN_MAX: usize = FRAME_HEADERS_LEN_MAX + TCP_HEADER_LEN_MAX;
/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM_AT: u16 = 16;

/// Returns the length of the headers of `out` in bytes.
pub fn headers_len(out: &SegmentOut, template: &HeaderTemplate) -> usize {
    template.headers_len() + TCP_HEADER_LEN + out.options.len()
}

/// Writes the headers of `out` to the start of `frame`, which has the payload behind them and ends
/// with it. Returns the state of the checksum; `None` if the frame is shorter than its headers.
/// `by_port` is true if the port finishes checksums.
pub fn write_headers(
    frame: &mut [u8],
    out: &SegmentOut,
    template: &mut HeaderTemplate,
    by_port: bool,
) -> Option<TxChecksum> {
    let tcp_start = template.headers_len();
    let header_len = TCP_HEADER_LEN + out.options.len();
    let tcp_len = frame.len().checked_sub(tcp_start)?;
    let ip_id = template.ip_id();
    let segment = template.write_before(frame, tcp_len as u16, out.ecn, ip_id)?;
    let (header, payload) = segment.split_at_mut_checked(header_len)?;
    emit_tcp(header, &out.segment(&[]).header());
    template.advance_ip_id(1);
    let pseudo = template.pseudo_header(tcp_len as u16);
    if by_port {
        write_partial_checksum(header, pseudo);
        return Some(TxChecksum::Partial {
            start: tcp_start as u16,
            offset: TCP_CHECKSUM_AT,
        });
    }
    write_tcp_checksum(header, pseudo, checksum::sum(payload));
    Some(TxChecksum::Done)
}
