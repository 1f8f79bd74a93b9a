//! The fuzz targets of the parsers of network input. The parsers must return a value or a drop
//! reason for any bytes, and never panic. A TCP header that is encoded and parsed again must be
//! unchanged, except for SACK blocks that do not fit into the options.

use tidelane_wire::{
    OPTIONS_LEN_MAX, SackBlocks, SegmentHeader, TCP_HEADER_LEN_MAX, TcpOptions, emit_tcp,
    parse_frame, parse_icmp_error, parse_ipv4, parse_tcp, tcp_checksum_ok,
};

/// Fuzz target: parses the input in turn as an Ethernet frame with an IPv4 or IPv6 packet, as an
/// IPv4 packet, as a TCP segment and as an ICMP error. The payload of a packet is also parsed as a
/// TCP segment and as an ICMP error.
pub fn wire(data: &[u8]) {
    for packet in [parse_frame(data), parse_ipv4(data)].into_iter().flatten() {
        assert!(packet.payload.len() <= data.len());
        tcp_checksum_ok(packet.src, packet.dst, packet.payload, true);
        segment(packet.payload);
        let _ = parse_icmp_error(packet.payload);
    }
    segment(data);
    let _ = parse_icmp_error(data);
}

/// Parses `bytes` as a TCP segment. Checks that the header is unchanged after encoding and parsing.
fn segment(bytes: &[u8]) {
    let Ok(segment) = parse_tcp(bytes) else {
        return;
    };
    assert!(segment.payload.len() <= bytes.len());
    let mut buffer = [0; TCP_HEADER_LEN_MAX];
    let header = segment.header();
    let len = emit_tcp(&mut buffer, &header);
    let again = parse_tcp(&buffer[..len]).map(|segment| segment.header());
    let expected = SegmentHeader {
        options: fitting_options(&header.options),
        ..header
    };
    assert_eq!(again, Ok(expected), "encoding changed the header");
}

/// Returns the options that fit: SACK blocks for which there is no room are removed. A Fast Open
/// option always fits, because options with a Fast Open option have no SACK blocks.
fn fitting_options(options: &TcpOptions) -> TcpOptions {
    if options.fast_open().is_some() {
        return *options;
    }
    let mut fit = TcpOptions {
        sack: SackBlocks::EMPTY,
        ..*options
    };
    let room = (OPTIONS_LEN_MAX - fit.len()).saturating_sub(4) / 8;
    for (left, right) in options.sack.as_slice().iter().take(room) {
        fit.sack.push(*left, *right);
    }
    fit
}

/// Fuzz target: parses the input as the options of a segment. Checks that the options that fit are
/// unchanged after encoding and parsing.
pub fn options(data: &[u8]) {
    let options = TcpOptions::parse(data);
    let mut buffer = [0; OPTIONS_LEN_MAX];
    let len = options.emit(&mut buffer);
    assert_eq!(len % 4, 0, "options end within a word");
    assert_eq!(len, options.len());
    assert_eq!(
        TcpOptions::parse(&buffer[..len]),
        fitting_options(&options),
        "encoding changed the options"
    );
}
