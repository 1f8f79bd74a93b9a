//! Sends a UDP datagram. If possible, the headers are written before the payload in the buffer of
//! the payload, and the port (the packet interface) sends from this buffer. Otherwise, the payload
//! is copied to a frame of the port.

use tidelane_packet_io::{LinkFull, PacketIo, TxChecksum};
use tidelane_rings::Cause;
use tidelane_wire::{
    Ecn, HeaderTemplate, UDP_CHECKSUM_AT, UDP_HEADER_LEN, checksum, partial_udp_header, udp_header,
};

use crate::{counters::DirectCounters, datagrams::Sent, loans_unsafe::SentBuffer};

/// The headers of a UDP datagram to send.
#[derive(Clone, Copy, Debug)]
pub struct DatagramOut {
    /// Ethernet and IP headers.
    pub template: HeaderTemplate,
    /// Identification of the IPv4 packet.
    pub ip_id: u16,
    /// Source port and destination port.
    pub ports: (u16, u16),
    /// True if the port completes the checksum (checksum offload).
    pub offloads_checksum: bool,
}

impl DatagramOut {
    /// Returns the length of all headers in bytes.
    pub fn headers_len(&self) -> usize {
        self.template.headers_len() + UDP_HEADER_LEN
    }

    /// Writes the headers to the start of `frame`. The payload already fills the rest of `frame`.
    /// Returns the state of the UDP checksum. Returns `None` if `frame` is shorter than the
    /// headers, or if UDP header and payload have more than 65,535 bytes.
    pub fn write_headers(&self, frame: &mut [u8]) -> Option<TxChecksum> {
        let start = self.template.headers_len();
        let len = u16::try_from(frame.len().checked_sub(start)?).ok()?;
        let datagram = self
            .template
            .write_before(frame, len, Ecn::NotEct, self.ip_id)?;
        let (header, payload) = datagram.split_first_chunk_mut::<UDP_HEADER_LEN>()?;
        let (pseudo, (from, to)) = (self.template.pseudo_header(len), self.ports);
        if self.offloads_checksum {
            *header = partial_udp_header(from, to, len, pseudo);
            return Some(TxChecksum::Partial {
                start: start as u16,
                offset: UDP_CHECKSUM_AT as u16,
            });
        }
        *header = udp_header(from, to, len, pseudo, checksum::sum(payload));
        Some(TxChecksum::Done)
    }

    /// Sends the datagram on `port`, from `buffer` if possible, otherwise as a copy.
    pub fn send<P: PacketIo>(
        &self,
        port: &mut P,
        buffer: &mut SentBuffer,
        counters: &mut DirectCounters,
    ) -> Sent {
        if let Some(sent) = self.lend(port, buffer) {
            counters.tx_lent += u64::from(matches!(sent, Sent::Done));
            return sent;
        }
        let sent = self.copy(port, buffer.payload());
        let is_copy = matches!(sent, Sent::Done) && buffer.len() > 0;
        counters.tx_copies += u64::from(is_copy);
        sent
    }

    /// Writes the headers before the payload, and lends the buffer to the port, which sends from
    /// the buffer. Returns `None` if the payload has to be copied instead.
    fn lend<P: PacketIo>(&self, port: &mut P, buffer: &mut SentBuffer) -> Option<Sent> {
        let (data, headers_len) = (buffer.range(), self.headers_len() as u32);
        let checksum = self.write_headers(buffer.frame_mut(data.clone(), headers_len)?)?;
        let frame = data.start - headers_len..data.end;
        match buffer.lend(port, frame, checksum) {
            Ok(()) => Some(Sent::Done),
            Err(LinkFull) => Some(Sent::Blocked),
        }
    }

    /// Copies the payload to a frame of the port, and sends the frame.
    fn copy<P: PacketIo>(&self, port: &mut P, payload: &[u8]) -> Sent {
        let Some(frame) = port.tx_frame() else {
            return Sent::Blocked;
        };
        let payload_at = self.headers_len();
        let len = payload_at + payload.len();
        let written = frame.get_mut(..len).and_then(|frame| {
            frame.get_mut(payload_at..)?.copy_from_slice(payload);
            self.write_headers(frame)
        });
        match written {
            Some(checksum) => {
                port.tx_commit(len, checksum);
                Sent::Done
            }
            None => Sent::Failed(Cause::TooLong),
        }
    }
}
