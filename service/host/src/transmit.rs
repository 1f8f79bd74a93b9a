//! From a segment of the engine to frames of a port: headers, payload, checksum.

use tidelane_engine::{SegmentOut, TxFull};
use tidelane_packet_io::{PacketIo, SuperFrame, TxChecksum};
use tidelane_ring::{ProgramRegion, StreamBuffer};
use tidelane_wire::{
    DropReason, HeaderTemplate, SegmentHeader, TCP_HEADER_LEN, TcpOptions, checksum, emit_tcp_with,
    write_partial_checksum, write_tcp_checksum,
};

use crate::HostCounters;

/// The checksum field, from the start of a TCP header.
const TCP_CHECKSUM_AT: u16 = 16;

/// What of a host sends over ports.
pub struct Outlet<'a, P> {
    /// One per NIC queue.
    pub ports: &'a mut [P],
    /// What happened.
    pub counters: &'a mut HostCounters,
    /// Identification of the next IPv4 packet.
    pub ip_id: &'a mut u16,
    /// Something was handed to a port.
    pub queued: &'a mut bool,
    /// A port had no room.
    pub blocked: &'a mut bool,
}

/// Where payload comes from: a program's memory, and its buffer there.
pub type Source<'a> = Option<(&'a ProgramRegion, StreamBuffer)>;

impl<P: PacketIo> Outlet<'_, P> {
    /// Sends `out` over its port, with payload from `source`.
    #[inline(always)]
    pub fn transmit(
        self,
        out: &SegmentOut,
        template: &HeaderTemplate,
        source: Source<'_>,
    ) -> Result<(), TxFull> {
        let segments = segments_of(out);
        if segments > 1 {
            return self.transmit_super(out, template, source, segments);
        }
        let link = usize::from(out.link.0).wrapping_sub(1);
        let Some(port) = self.ports.get_mut(link) else {
            return Ok(());
        };
        let checksum_by_port = port.capabilities().tx_checksum;
        let Some(frame) = port.tx_frame() else {
            *self.blocked = true;
            return Err(TxFull);
        };
        let room = frame.len();
        let Some(headers_len) = write_headers(frame, room, template, out, *self.ip_id) else {
            self.counters.drops[DropReason::TooLong.index()] += 1;
            return Ok(());
        };
        let frame_len = headers_len + out.payload_len as usize;
        let tcp_start = template.headers_len();
        let (tcp_header, payload) =
            frame[tcp_start..frame_len].split_at_mut(headers_len - tcp_start);
        if let Some((region, buffer)) = source {
            buffer.read(region, out.payload_pos, payload);
        }
        let pseudo = template.pseudo_header((frame_len - tcp_start) as u16);
        let checksum = if checksum_by_port {
            write_partial_checksum(tcp_header, pseudo);
            TxChecksum::Partial {
                start: tcp_start as u16,
                offset: TCP_CHECKSUM_AT,
            }
        } else {
            write_tcp_checksum(tcp_header, pseudo, checksum::sum(payload));
            TxChecksum::Done
        };
        port.tx_commit(frame_len, checksum);
        *self.queued = true;
        *self.ip_id = self.ip_id.wrapping_add(1);
        self.counters.out_segments += 1;
        Ok(())
    }

    /// Sends `out`, which the link cuts into `segments`: only the headers are written here, the
    /// payload goes as it lies in the program's memory. A program that changes it meanwhile changes
    /// its own bytes: all that is computed from them, the link computes.
    #[inline(never)]
    fn transmit_super(
        self,
        out: &SegmentOut,
        template: &HeaderTemplate,
        source: Source<'_>,
        segments: u32,
    ) -> Result<(), TxFull> {
        let link = usize::from(out.link.0).wrapping_sub(1);
        let (Some(port), Some((region, buffer))) = (self.ports.get_mut(link), source) else {
            return Ok(());
        };
        let room = port.capabilities().tx_super_len_max as usize;
        let len = out.payload_len as usize;
        let runs = buffer.runs(region, out.payload_pos, len);
        let headers = port.tx_super_headers();
        let headers_len = write_headers(headers, room, template, out, *self.ip_id);
        let (Some(headers_len), Some(runs)) = (headers_len, runs) else {
            self.counters.drops[DropReason::TooLong.index()] += 1;
            return Ok(());
        };
        let tcp_start = template.headers_len();
        let pseudo = template.pseudo_header((headers_len - tcp_start + len) as u16);
        write_partial_checksum(&mut headers[tcp_start..headers_len], pseudo);
        let cut = SuperFrame {
            headers_len: headers_len as u16,
            segment_size: out.segment_size,
            tcp_start: tcp_start as u16,
            is_v6: template.is_v6(),
        };
        if port.tx_super_send(runs, cut).is_err() {
            *self.blocked = true;
            return Err(TxFull);
        }
        *self.ip_id = self.ip_id.wrapping_add(segments as u16);
        self.counters.out_segments += u64::from(segments);
        Ok(())
    }
}

/// How many segments the link makes of `out`.
#[inline]
fn segments_of(out: &SegmentOut) -> u32 {
    let size = u32::from(out.segment_size);
    if out.payload_len <= size || size == 0 {
        1
    } else {
        out.payload_len.div_ceil(size)
    }
}

/// Writes all headers of `out` but the TCP checksum, and returns their length. `None` if the
/// headers do not fit into `frame`, or the whole is longer than `room`.
#[inline(always)]
fn write_headers(
    frame: &mut [u8],
    room: usize,
    template: &HeaderTemplate,
    out: &SegmentOut,
    ip_id: u16,
) -> Option<usize> {
    let tcp_start = template.headers_len();
    let headers_len = tcp_start + TCP_HEADER_LEN + out.options.len();
    let frame_len = headers_len + out.payload_len as usize;
    if frame_len > room || headers_len > frame.len() {
        return None;
    }
    let tcp_len = (frame_len - tcp_start) as u16;
    template.write(frame, tcp_len, out.ecn, ip_id);
    let tcp = &mut frame[tcp_start..headers_len];
    emit_tcp_with(tcp, &header_without_options(out), &out.options);
    Some(headers_len)
}

#[inline(always)]
fn header_without_options(out: &SegmentOut) -> SegmentHeader {
    SegmentHeader {
        src_port: out.key.local.port,
        dst_port: out.key.peer.port,
        seq: out.seq,
        ack: out.ack,
        flags: out.flags,
        wnd: out.wnd,
        urgent: 0,
        options: TcpOptions::ordinary(None),
    }
}
