//! Parsers and emitters for frames, packets and segments.
//!
//! ```text
//! frame --parse_frame--> Packet --parse_tcp--> Segment          (no check of the TCP checksum)
//!                          |  `--tcp_checksum_ok                (checks the TCP checksum)
//!                          |--parse_udp-----------> UdpDatagram  (checks the UDP checksum, too)
//!                          `--parse_icmp_error--> IcmpError     (quotes a segment that we sent)
//!
//! frame --parse_fragment--> Fragment                           (for the crate tidelane-fragments)
//!
//! frame <--HeaderTemplate::write + emit_tcp + write_tcp_checksum-- SegmentHeader
//! ```
//!
//! Parsers borrow from the frame, do not allocate and never panic. A parser rejects input with a
//! [`DropReason`]. An [`IpAddress`] has 16 bytes for both IP versions (IPv4 in the form
//! `::ffff:a.b.c.d`), so that little code outside the parsers and emitters depends on the IP
//! version.
#![forbid(unsafe_code)]
#![no_std]

mod address;
pub mod checksum;
mod drop_reason;
mod fast_open;
mod flow_key;
mod fragment;
mod icmp;
mod icmp_error;
mod icmp_output;
mod icmpv6;
mod ipv4;
mod ipv6;
mod options;
mod packet;
mod sequence;
mod tcp;
mod template;
mod udp;

pub use crate::{
    address::{Endpoint, IpAddress, MacAddress},
    drop_reason::DropReason,
    fast_open::{FastOpenCookie, FastOpenOption},
    flow_key::FlowKey,
    fragment::{Fragment, FrameHeaders, PacketId, parse_fragment},
    icmp::{parse_icmp_error, parse_quoted_packet},
    icmp_error::{IcmpError, IcmpErrorKind, QuotedPacket},
    icmp_output::{ICMP_ERROR_LEN_MAX, emit_packet_too_big, emit_time_exceeded},
    icmpv6::parse_icmpv6_error,
    ipv4::{parse_frame, parse_frame_v4, parse_ipv4},
    ipv6::parse_ipv6,
    options::{OPTIONS_LEN_MAX, SACK_BLOCKS_MAX, SackBlocks, TcpOptions, Timestamps},
    packet::{Ecn, Packet, protocol},
    sequence::SeqNumber,
    tcp::{
        RawSegment, Segment, SegmentHeader, SegmentView, TCP_HEADER_LEN, TCP_HEADER_LEN_MAX,
        TcpFlags, TimestampsOnly, emit_tcp, emit_tcp_with, parse_tcp, tcp_checksum_ok,
        write_partial_checksum, write_tcp_checksum,
    },
    template::{
        ETHERNET_HEADER_LEN, FRAME_HEADERS_LEN_MAX, FRAME_HEADERS_LEN_V4, FRAME_HEADERS_LEN_V6,
        HeaderTemplate, IPV4_HEADER_LEN, IPV6_HEADER_LEN, IpFields,
    },
    udp::{
        UDP_CHECKSUM_AT, UDP_HEADER_LEN, UdpDatagram, parse_udp, partial_udp_header, udp_header,
    },
};

#[cfg(test)]
mod props;
#[cfg(test)]
mod tests;
