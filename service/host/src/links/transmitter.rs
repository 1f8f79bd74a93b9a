//! Transmission of the engine's segments: writes headers, payload and checksum to frames of a port.

use tidelane_engine::{SegmentOut, TxFull};
use tidelane_packet_io::{GsoParameters, GsoPayload, PacketIo, TxChecksum};
use tidelane_ring::{ProgramRegion, StreamBuffer};
use tidelane_wire::{
    DropReason, HeaderTemplate, SegmentHeader, TCP_HEADER_LEN, TcpOptions, checksum, emit_tcp_with,
    write_partial_checksum, write_tcp_checksum,
};

use crate::counters::HostCounters;

/// The parts of the links that a transmission over a port borrows.
pub struct Transmitter<'a, P> {
    /// The port that sends the segment.
    pub port: &'a mut P,
    /// Counters of frames and drops.
    pub counters: &'a mut HostCounters,
    /// Set to true when a port takes a frame that waits for a flush. A GSO frame does not wait.
    pub queued: &'a mut bool,
    /// Set to true when a port has no room.
    pub blocked: &'a mut bool,
}

/// The source of a payload: the memory of a program, and the send buffer there. `None` for a
/// segment without payload.
pub type Source<'a> = Option<(&'a ProgramRegion, StreamBuffer)>;

impl<P: PacketIo> Transmitter<'_, P> {
    /// Sends `out` over its port, with payload from `source`.
    #[inline(always)]
    pub fn transmit(
        self,
        out: &SegmentOut,
        template: &mut HeaderTemplate,
        source: Source<'_>,
    ) -> Result<(), TxFull> {
        if is_cut(out) {
            return match source {
                Some((region, buffer)) => self.transmit_super(out, template, region, buffer),
                None => Ok(()),
            };
        }
        self.transmit_single(out, template, source)
    }

    /// Sends a SYN-ACK with identification (IP ID) zero, as Linux does.
    #[inline(never)]
    pub fn transmit_syn_ack(
        self,
        out: &SegmentOut,
        template: &HeaderTemplate,
    ) -> Result<(), TxFull> {
        let mut unnumbered = *template;
        unnumbered.set_ip_id(0);
        self.transmit_single(out, &mut unnumbered, None)
    }

    /// Sends `out` in one frame. The payload must fit into one segment. Inlined, so that the fields
    /// of `out` stay in registers.
    #[inline(always)]
    pub fn transmit_single(
        self,
        out: &SegmentOut,
        template: &mut HeaderTemplate,
        source: Source<'_>,
    ) -> Result<(), TxFull> {
        let port = self.port;
        let checksum_by_port = port.capabilities().tx_checksum;
        let Some(frame) = port.tx_frame() else {
            *self.blocked = true;
            return Err(TxFull);
        };
        let Some((segment, header_len)) = write_headers(frame, template, out) else {
            self.counters.drops[DropReason::TooLong.index()] += 1;
            return Ok(());
        };
        let tcp_len = header_len + out.payload_len as usize;
        let Some(segment) = segment.get_mut(..tcp_len) else {
            self.counters.drops[DropReason::TooLong.index()] += 1;
            return Ok(());
        };
        let (tcp_header, payload) = segment.split_at_mut(header_len);
        // Drop the frame if its payload was not written, because the memory of the frame may have
        // bytes of another flow.
        if let Some((region, buffer)) = source
            && !buffer.read(region, out.payload_pos, payload)
        {
            self.counters.drops[DropReason::TooLong.index()] += 1;
            return Ok(());
        }
        let tcp_start = template.headers_len();
        let pseudo = template.pseudo_header(tcp_len as u16);
        let checksum = if checksum_by_port {
            write_partial_checksum(tcp_header, pseudo);
            TxChecksum::partial_tcp(tcp_start)
        } else {
            write_tcp_checksum(tcp_header, pseudo, checksum::sum(payload));
            TxChecksum::Done
        };
        port.tx_commit(tcp_start + tcp_len, checksum);
        *self.queued = true;
        template.advance_ip_id(1);
        self.counters.out_segments += 1;
        Ok(())
    }

    /// Sends `out` as a GSO frame, which the link cuts into segments. This function writes only the
    /// headers. The link reads the payload from the program's memory. A program that changes the
    /// payload meanwhile changes only its own data, because the link computes the checksums.
    #[inline(never)]
    fn transmit_super(
        self,
        out: &SegmentOut,
        template: &mut HeaderTemplate,
        region: &ProgramRegion,
        buffer: StreamBuffer,
    ) -> Result<(), TxFull> {
        let port = self.port;
        let segments = out.payload_len.div_ceil(u32::from(out.segment_size.max(1)));
        let room = port.capabilities().tx_gso_len_max as usize;
        let len = out.payload_len as usize;
        let runs = buffer.runs(region, out.payload_pos, len);
        let headers = port.tx_gso_headers();
        let written = write_headers(headers, template, out);
        let tcp_start = template.headers_len();
        let written = written.filter(|(_, header_len)| tcp_start + header_len + len <= room);
        let (Some((segment, header_len)), Some(runs)) = (written, runs) else {
            self.counters.drops[DropReason::TooLong.index()] += 1;
            return Ok(());
        };
        let pseudo = template.pseudo_header((header_len + len) as u16);
        write_partial_checksum(&mut segment[..header_len], pseudo);
        let gso = GsoParameters {
            headers_len: (tcp_start + header_len) as u16,
            segment_size: out.segment_size,
            tcp_start: tcp_start as u16,
            is_v6: template.is_v6(),
        };
        if port.tx_gso_send(GsoPayload::Shared(runs), gso).is_err() {
            *self.blocked = true;
            return Err(TxFull);
        }
        template.advance_ip_id(segments as u16);
        self.counters.out_segments += u64::from(segments);
        Ok(())
    }
}

/// Returns true if the link cuts `out` into several segments. The segment size is zero only if
/// `out` has no payload.
#[inline]
pub fn is_cut(out: &SegmentOut) -> bool {
    out.payload_len > u32::from(out.segment_size)
}

/// Writes all headers of `out` except the TCP checksum. Returns the part of `frame` from the TCP
/// header on, and the length of the TCP header. Returns `None` if the headers do not fit.
#[inline(always)]
fn write_headers<'f>(
    frame: &'f mut [u8],
    template: &HeaderTemplate,
    out: &SegmentOut,
) -> Option<(&'f mut [u8], usize)> {
    let header_len = TCP_HEADER_LEN + out.options.len();
    let tcp_len = header_len + out.payload_len as usize;
    let segment = template.write_before(frame, tcp_len as u16, out.ecn, template.ip_id())?;
    let tcp_header = segment.get_mut(..header_len)?;
    emit_tcp_with(tcp_header, &header_without_options(out), &out.options);
    Some((segment, header_len))
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
        urgent: out.urgent,
        options: TcpOptions::from_timestamps(None),
    }
}
