//! The frames of `tidelane-load mux`: one TCP segment for each mux port. A mux port is a pair of
//! packet rings, through which a program with a TCP/IP stack of its own uses a NIC that it shares
//! with other programs.

use std::{io, sync::Arc};

use tidelane_wire::{
    Ecn, Endpoint, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, SeqNumber, TCP_HEADER_LEN,
    TcpFlags, TcpOptions, checksum, emit_tcp, write_tcp_checksum,
};

use super::{Direction, FIRST_PORT, Options};

/// Length of the Ethernet frame check sequence in bytes.
const FCS_LEN: usize = 4;
/// TCP port of the peer.
const PEER_PORT: u16 = 9;

/// One frame for each mux port of a mux thread. Clones share the frames.
#[derive(Clone)]
pub struct Frames {
    /// Link address of the interface.
    pub mac: MacAddress,
    frames: Arc<Vec<Vec<u8>>>,
}

impl Frames {
    /// Builds a frame for each mux port. For [`Direction::Receive`], the mux port receives the
    /// frame from the NIC. For the other directions, the mux port sends the frame. If this program
    /// sends without a mux (`--bare`), the mux ports belong to a mux at the peer, and receive the
    /// frames.
    pub fn new(options: &Options) -> io::Result<Self> {
        let mac = parse_mac(&options.mac)?;
        let peer_mac = parse_mac(&options.peer_mac)?;
        let [local, peer] = [options.address, options.peer].map(|addr| addr.octets());
        let [local, peer] = [local, peer].map(IpAddress::from_v4);
        let len = options.bytes.saturating_sub(FCS_LEN);
        let frames = (0..options.ports).map(|number| {
            let own = Endpoint::new(local, FIRST_PORT + number);
            let outside = Endpoint::new(peer, PEER_PORT);
            let next = FIRST_PORT + (number + 1) % options.ports;
            match (options.direction, options.without_mux) {
                // A sender without a mux acts as the peer of a receiving mux. The sender sends a
                // frame to each mux port of this mux.
                (Direction::Send, true) => {
                    let from = Endpoint::new(local, PEER_PORT);
                    let to = Endpoint::new(peer, FIRST_PORT + number);
                    frame(mac, peer_mac, from, to, len)
                }
                (Direction::Send, false) => frame(mac, peer_mac, own, outside, len),
                (Direction::Receive, _) => frame(peer_mac, mac, outside, own, len),
                (Direction::Between, _) => frame(mac, mac, own, Endpoint::new(local, next), len),
            }
        });
        let frames: Option<Vec<_>> = frames.collect();
        let frames = frames.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a frame has 58 to 1518 bytes, with its check sequence",
            )
        })?;
        Ok(Self {
            mac,
            frames: Arc::new(frames),
        })
    }

    /// Returns the frame of the mux port with the index `at` modulo the number of mux ports.
    #[inline]
    pub fn of(&self, at: usize) -> &[u8] {
        &self.frames[at % self.frames.len()]
    }

    /// Returns the frames of all mux ports, each `len` times in a row.
    pub fn trains(&self, len: usize) -> Vec<Vec<u8>> {
        let train = |frame: &Vec<u8>| vec![frame.clone(); len];
        self.frames.iter().flat_map(train).collect()
    }
}

/// Returns a frame of `len` bytes with a TCP segment, or `None` if `len` has no room for the
/// headers or is above 1514.
fn frame(
    src_mac: MacAddress,
    dst_mac: MacAddress,
    src: Endpoint,
    dst: Endpoint,
    len: usize,
) -> Option<Vec<u8>> {
    let template = HeaderTemplate::new(src_mac, dst_mac, src.addr, dst.addr)?;
    let tcp_len = len.checked_sub(template.headers_len())?;
    if tcp_len < TCP_HEADER_LEN || len > 1514 {
        return None;
    }
    let mut frame = vec![0; len];
    let start = template.write(&mut frame, tcp_len as u16, Ecn::NotEct, 0);
    let (header, payload) = frame[start..].split_at_mut(TCP_HEADER_LEN);
    let fields = SegmentHeader {
        src_port: src.port,
        dst_port: dst.port,
        seq: SeqNumber(1),
        ack: SeqNumber(1),
        flags: TcpFlags::ACK,
        wnd: 1000,
        urgent: 0,
        options: TcpOptions::NONE,
    };
    emit_tcp(header, &fields);
    let pseudo = template.pseudo_header(tcp_len as u16);
    write_tcp_checksum(header, pseudo, checksum::sum(payload));
    Some(frame)
}

/// Parses a link address such as `02:00:00:00:00:01`.
pub fn parse_mac(text: &str) -> io::Result<MacAddress> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    let wrong = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("not a link address: {text}"),
        )
    };
    bytes.map(MacAddress).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_addresses_have_six_bytes() {
        let parsed = parse_mac("02:00:00:00:00:ff").expect("a link address");
        assert_eq!(parsed, MacAddress([2, 0, 0, 0, 0, 255]));
        for wrong in ["", "02:00", "02:00:00:00:00:01:02", "02:00:00:00:00:xx"] {
            assert!(parse_mac(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn frames_have_the_requested_length() {
        let mac = MacAddress([2; 6]);
        let end = Endpoint::v4([10, 0, 0, 1], 1);
        for len in [60, 100, 1514] {
            let frame = frame(mac, mac, end, end, len).expect("a possible length");
            assert_eq!(frame.len(), len);
        }
        assert!(frame(mac, mac, end, end, 53).is_none());
        assert!(frame(mac, mac, end, end, 1515).is_none());
    }
}
