//! Writes a TCP segment: headers before a payload that is already in place.

use tidelane_engine::SegmentOut;
use tidelane_packet_io::TxChecksum;
use tidelane_wire::{
    FRAME_HEADERS_LEN_MAX, HeaderTemplate, TCP_HEADER_LEN, TCP_HEADER_LEN_MAX, checksum, emit_tcp,
    write_partial_checksum, write_tcp_checksum,
};

/// Largest length in bytes of the Ethernet, IP and TCP headers together.
pub const HEADERS_LEN_MAX: usize = FRAME_HEADERS_LEN_MAX + TCP_HEADER_LEN_MAX;

/// Returns the length of all headers of `out` in bytes.
pub fn headers_len(out: &SegmentOut, template: &HeaderTemplate) -> usize {
    template.headers_len() + TCP_HEADER_LEN + out.options.len()
}

/// Writes the headers of `out` to the start of `frame`. The payload already fills the rest of
/// `frame`. `offloads_checksum` is true if the port (the program's packet interface) completes
/// checksums (checksum offload). Returns the state of the TCP checksum. Returns `None` if `frame`
/// is shorter than the headers.
pub fn write_headers(
    frame: &mut [u8],
    out: &SegmentOut,
    template: &mut HeaderTemplate,
    offloads_checksum: bool,
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
    if offloads_checksum {
        write_partial_checksum(header, pseudo);
        return Some(TxChecksum::partial_tcp(tcp_start));
    }
    write_tcp_checksum(header, pseudo, checksum::sum(payload));
    Some(TxChecksum::Done)
}
