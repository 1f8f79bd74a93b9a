//! The input of TCP segments and ICMP errors into the engine.
//!
//! The functions parse a packet for this core, check its addresses, checksum and headers, and pass
//! the segment or the error to the engine. In all functions, `link` is the link on which the packet
//! arrived. `partial_allowed` is true if the checksum may be partial (only the pseudo-header sum).

use tidelane_engine::{Arrival, LinkId};
use tidelane_packet_io::{Burst, PacketIo};
use tidelane_time::Instant;
use tidelane_wire::{
    DropReason, Ecn, Endpoint, FlowKey, IpAddress, Packet, RawSegment, Segment, SeqNumber,
    TcpFlags, TcpOptions, parse_frame, parse_frame_v4, parse_tcp, protocol, tcp_checksum_ok,
};

use crate::{
    icmp_error::icmp_error,
    links::{LOCAL_PATH_LINK, MUX_LINK, MuxQueue},
    stack::Stack,
};

/// Receives a frame whose flow (connection) belongs to this core.
#[inline(always)]
pub(crate) fn receive<P: PacketIo>(
    stack: &mut Stack<P>,
    now: Instant,
    link: LinkId,
    frame: &[u8],
    partial_allowed: bool,
) -> Result<(), DropReason> {
    match parse_frame_v4(frame) {
        Some(Ok(packet)) if packet.protocol == protocol::TCP => {
            receive_tcp(stack, now, link, packet, partial_allowed)
        }
        Some(Err(reason)) => Err(reason),
        _ => receive_other(stack, now, link, frame, partial_allowed),
    }
}

/// Receives a frame of any kind. [`receive`] has a faster way for TCP over IPv4 without IP options,
/// and passes only the other frames to this function.
#[inline(never)]
pub(crate) fn receive_other<P: PacketIo>(
    stack: &mut Stack<P>,
    now: Instant,
    link: LinkId,
    frame: &[u8],
    partial_allowed: bool,
) -> Result<(), DropReason> {
    let packet = parse_frame(frame)?;
    match packet.protocol {
        protocol::TCP => receive_tcp(stack, now, link, packet, partial_allowed),
        protocol::ICMP | protocol::ICMPV6 => {
            stack.io.neighbours.begin_frame(&packet.src_mac);
            receive_icmp(stack, now, &packet)
        }
        _ => Err(DropReason::UnsupportedProtocol),
    }
}

/// Checks the addresses and the checksum of a packet, and passes its segment to the engine.
#[inline(always)]
fn receive_tcp<P: PacketIo, A: Copy + Into<IpAddress>>(
    stack: &mut Stack<P>,
    now: Instant,
    link: LinkId,
    packet: Packet<'_, A>,
    partial_allowed: bool,
) -> Result<(), DropReason> {
    stack.io.neighbours.begin_frame(&packet.src_mac);
    // Use closures, so that the conversion happens where the value is needed.
    let (src, dst) = (|| packet.src.into(), || packet.dst.into());
    if !stack.io.neighbours.routes().is_local(dst()) {
        return Err(DropReason::NotOurs);
    }
    // Connections between addresses of this host use the local path (in memory), or the link to the
    // mux ports of programs with TCP/IP stacks of their own. `HostIo::check_source` checks other
    // sources, but only for segments without a flow.
    if stack.io.neighbours.routes().is_local_unlikely(src()) && link != MUX_LINK {
        return Err(DropReason::MartianSource);
    }
    if !tcp_checksum_ok(src(), dst(), packet.payload, partial_allowed) {
        return Err(DropReason::BadChecksum);
    }
    let raw = RawSegment::new_checked(packet.payload)?;
    let (src_port, dst_port) = raw.ports();
    let arrival = Arrival {
        key: FlowKey {
            local: Endpoint::new(dst(), dst_port),
            peer: Endpoint::new(src(), src_port),
        },
        link,
        ecn: packet.ecn,
    };
    match raw.timestamps_only() {
        Some(segment) => stack
            .engine
            .segment_arrives(now, &arrival, &segment, &mut stack.io),
        None => receive_other_options(stack, now, arrival, packet.payload),
    }
    Ok(())
}

/// Receives a segment that has options other than timestamps, or timestamps in an unusual place.
#[inline(never)]
fn receive_other_options<P: PacketIo>(
    stack: &mut Stack<P>,
    now: Instant,
    arrival: Arrival,
    transport: &[u8],
) {
    if let Ok(raw) = RawSegment::new_checked(transport) {
        stack
            .engine
            .segment_arrives(now, &arrival, &raw.segment(), &mut stack.io);
    }
}

/// Checks an ICMP error, and passes the error to the engine. A forged error must not end a
/// connection.
#[inline(never)]
fn receive_icmp<P: PacketIo>(
    stack: &mut Stack<P>,
    now: Instant,
    packet: &Packet<'_>,
) -> Result<(), DropReason> {
    let error = icmp_error(packet)?;
    // Process only errors for addresses of the interface, so that no ICMP error ends a
    // connection within the host.
    if error.key.local.addr != packet.dst || !stack.io.neighbours.routes().is_local(packet.dst) {
        return Err(DropReason::NotOurs);
    }
    stack.io.neighbours.routes().check_source(packet.src)?;
    // Segments between two addresses of the interface pass in memory, without routers. An ICMP
    // error about these segments is therefore forged.
    if stack.io.neighbours.routes().is_local(error.key.peer.addr) {
        return Err(DropReason::MartianSource);
    }
    stack.engine.icmp_error(now, &error, &mut stack.io);
    Ok(())
}

/// Delivers the segments of the local path, which programs of this host have sent to each
/// other.
#[inline(never)]
pub(crate) fn receive_local<P: PacketIo>(stack: &mut Stack<P>, now: Instant) {
    let batch = stack.io.links.take_segments();
    for (key, out, segment) in batch.iter() {
        stack.io.counters.memory_segments += 1;
        let arrival = Arrival {
            key,
            link: LOCAL_PATH_LINK,
            ecn: out.ecn,
        };
        stack
            .engine
            .segment_arrives(now, &arrival, &segment, &mut stack.io);
    }
    stack.io.links.recycle(batch);
}

/// Sends a RST in answer to each segment that one mux port has sent to another mux port and that
/// the operator's rules have refused.
pub(crate) fn answer_refused_ports<P: PacketIo>(stack: &mut Stack<P>, now: Instant) {
    let Some(frames) = stack.io.links.mux_link().take(MuxQueue::Refused) else {
        return;
    };
    for frame in frames.iter() {
        answer_refused(stack, now, MUX_LINK, frame, false);
    }
    let mux_link = stack.io.links.mux_link();
    mux_link.recycle(MuxQueue::Refused, frames);
}

/// Sends a RST, as a closed TCP port does, in answer to a segment that the operator's rules have
/// refused. Ignores a packet that is not a valid segment.
#[cold]
pub(crate) fn answer_refused<P: PacketIo>(
    stack: &mut Stack<P>,
    now: Instant,
    link: LinkId,
    frame: &[u8],
    partial_allowed: bool,
) {
    let Ok(packet) = parse_frame(frame) else {
        return;
    };
    let is_right = packet.protocol == protocol::TCP
        && tcp_checksum_ok(packet.src, packet.dst, packet.payload, partial_allowed);
    let Some(segment) = parse_tcp(packet.payload).ok().filter(|_| is_right) else {
        return;
    };
    let arrival = Arrival {
        key: FlowKey {
            local: Endpoint::new(packet.dst, segment.dst_port),
            peer: Endpoint::new(packet.src, segment.src_port),
        },
        link,
        ecn: Ecn::NotEct,
    };
    stack.io.neighbours.begin_frame(&packet.src_mac);
    stack
        .engine
        .answer_refused(now, &arrival, &segment, &mut stack.io);
}

/// Delivers a RST, as a closed TCP port sends it, to the flow of this host that sent `frame`. No
/// mux port got the frame, either because no mux port has claimed the destination, or because the
/// operator's rules have refused the frame. Ignores a frame with a RST.
pub(crate) fn answer_without_port<P: PacketIo>(stack: &mut Stack<P>, now: Instant, frame: &[u8]) {
    let Ok(packet) = parse_frame(frame) else {
        return;
    };
    let Ok(segment) = parse_tcp(packet.payload) else {
        return;
    };
    if segment.flags.contains(TcpFlags::RST) {
        return;
    }
    let arrival = Arrival {
        key: FlowKey {
            local: Endpoint::new(packet.src, segment.src_port),
            peer: Endpoint::new(packet.dst, segment.dst_port),
        },
        link: MUX_LINK,
        ecn: Ecn::NotEct,
    };
    stack
        .engine
        .segment_arrives(now, &arrival, &reset_for(&segment), &mut stack.io);
}

/// Returns the RST of a closed TCP port for `segment` (RFC 9293 §3.10.7.1).
fn reset_for<'a>(segment: &Segment<'_>) -> Segment<'a> {
    let (seq, ack, flags) = if segment.flags.contains(TcpFlags::ACK) {
        (segment.ack, SeqNumber(0), TcpFlags::RST)
    } else {
        let end = segment.seq.add(segment.len());
        (SeqNumber(0), end, TcpFlags::RST.union(TcpFlags::ACK))
    };
    Segment {
        src_port: segment.dst_port,
        dst_port: segment.src_port,
        seq,
        ack,
        flags,
        wnd: 0,
        urgent: 0,
        options: TcpOptions::NONE,
        payload: &[],
    }
}
