//! [`FrameWriter`]: writes segments to frames of the port.

use tidelane_engine::{SegmentOut, TxFull};
use tidelane_packet_io::{GsoParameters, GsoPayload, PacketIo, TxChecksum};
use tidelane_wire::{
    DropReason, HeaderTemplate, TCP_HEADER_LEN, TCP_HEADER_LEN_MAX, checksum, emit_tcp,
    write_partial_checksum, write_tcp_checksum,
};

use crate::{
    buffer::StreamBuffer,
    drops::Drops,
    options::{OPTION_LEN_MAX, OptionHandler},
};

/// Offset of the field Data Offset in the TCP header, in bytes.
const DATA_OFFSET_AT: usize = 12;
/// Kind of the TCP option "no operation".
const NO_OPERATION: u8 = 1;

/// Writes segments to frames of the port. A `FrameWriter` borrows only the fields of
/// [`Io`](crate::io::Io) that every segment needs, so that the caller can borrow the buffers of a
/// connection at the same time.
pub struct FrameWriter<'a, P> {
    pub port: &'a mut P,
    /// Handler of the program's TCP options, if any.
    pub options: &'a mut Option<Box<dyn OptionHandler>>,
    /// Set to true if the port has no free frame, or no room for a GSO frame.
    pub blocked: &'a mut bool,
    /// Number of dropped packets by reason.
    pub drops: &'a mut Drops,
}

impl<P: PacketIo> FrameWriter<'_, P> {
    /// Writes the segment `out` to a frame of the port, and queues the frame. `payload` is the
    /// buffer that holds the segment's payload. If the segment does not fit in the frame, drops the
    /// segment and counts the drop. Returns `TxFull` if the port has no free frame.
    pub fn write_frame(
        &mut self,
        out: &SegmentOut,
        template: &mut HeaderTemplate,
        payload: Option<&StreamBuffer>,
    ) -> Result<(), TxFull> {
        let checksum_by_port = self.port.capabilities().tx_checksum;
        let Some(frame) = self.port.tx_frame() else {
            *self.blocked = true;
            return Err(TxFull);
        };
        let own_len = TCP_HEADER_LEN + out.options.len();
        let handler = self.options.as_mut();
        let extra = handler.map(|handler| (usize::from(handler.len_max()), handler));
        let extra = extra.filter(|(len, _)| own_len + len <= TCP_HEADER_LEN_MAX);
        let header_len = own_len + extra.as_ref().map_or(0, |(len, _)| *len);
        let tcp_len = header_len + out.payload_len as usize;
        let ip_id = template.ip_id();
        let segment = template.write_before(frame, tcp_len as u16, out.ecn, ip_id);
        let Some(segment) = segment.and_then(|segment| segment.get_mut(..tcp_len)) else {
            self.drops[DropReason::TooLong.index()] += 1;
            return Ok(());
        };
        let (header, mut room) = segment.split_at_mut(header_len);
        emit_tcp(header, &out.segment(&[]).header());
        if let Some((len, handler)) = extra {
            let mut room = [NO_OPERATION; OPTION_LEN_MAX as usize];
            handler.write(&out.key, out.flags, &mut room[..len]);
            header[own_len..].copy_from_slice(&room[..len]);
            // Data Offset is in the upper four bits, in units of four bytes.
            header[DATA_OFFSET_AT] = (header_len as u8 / 4) << 4;
        }
        if let Some(buffer) = payload {
            for part in buffer.slices(out.payload_pos, out.payload_len) {
                let (here, rest) = room.split_at_mut(part.len());
                here.copy_from_slice(part);
                room = rest;
            }
        }
        let tcp_start = template.headers_len();
        let pseudo = template.pseudo_header(tcp_len as u16);
        let (header, payload) = segment.split_at_mut(header_len);
        let checksum = if checksum_by_port {
            write_partial_checksum(header, pseudo);
            TxChecksum::partial_tcp(tcp_start)
        } else {
            write_tcp_checksum(header, pseudo, checksum::sum(payload));
            TxChecksum::Done
        };
        self.port.tx_commit(tcp_start + tcp_len, checksum);
        template.advance_ip_id(1);
        Ok(())
    }

    /// Sends `out` as a GSO frame, which the link splits into segments. `buffer` holds the payload.
    /// If the headers do not fit in the port's header buffer, drops `out` and counts the drop.
    /// Returns `TxFull` if the link has no room.
    pub fn write_gso_frame(
        &mut self,
        out: &SegmentOut,
        template: &mut HeaderTemplate,
        buffer: &StreamBuffer,
    ) -> Result<(), TxFull> {
        let header_len = TCP_HEADER_LEN + out.options.len();
        let tcp_len = header_len + out.payload_len as usize;
        let headers = self.port.tx_gso_headers();
        let ip_id = template.ip_id();
        let header = template.write_before(headers, tcp_len as u16, out.ecn, ip_id);
        let Some(header) = header.and_then(|header| header.get_mut(..header_len)) else {
            self.drops[DropReason::TooLong.index()] += 1;
            return Ok(());
        };
        emit_tcp(header, &out.segment(&[]).header());
        write_partial_checksum(header, template.pseudo_header(tcp_len as u16));
        let tcp_start = template.headers_len();
        let gso = GsoParameters {
            headers_len: (tcp_start + header_len) as u16,
            segment_size: out.segment_size,
            tcp_start: tcp_start as u16,
            is_v6: template.is_v6(),
        };
        let payload = buffer.slices(out.payload_pos, out.payload_len);
        if self
            .port
            .tx_gso_send(GsoPayload::Private(payload), gso)
            .is_err()
        {
            *self.blocked = true;
            return Err(TxFull);
        }
        let segments = out.payload_len.div_ceil(u32::from(out.segment_size.max(1)));
        template.advance_ip_id(segments as u16);
        Ok(())
    }
}
