//! The tool `xsk-echo`: a stateless TCP echo server directly on AF_XDP. Its rate is a reference for
//! the rates of TCP stacks on the same link.
//!
//! The tool derives each answer from the arriving segment alone. The tool answers a SYN with
//! SYN,ACK, data with the same data and an ACK, and a FIN with a FIN. The tool does less work per
//! segment than any TCP: it has no retransmission, no flow control and no reordering. A TCP stack
//! that waits for frames in the same way can therefore hardly be faster.
//!
//! The tool serves queue 0 of the interface. When no frame has arrived, the tool sleeps in `poll`.
//! With the option `--spin`, the tool checks the queue again immediately instead.

use std::{
    io,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use clap::Args;
use tidelane_af_xdp::{XdpConfig, XdpPort};
use tidelane_packet_io::{BURST_MAX, Burst, PacketIo, TxChecksum};
use tidelane_steering::{Buffers, Claim, Demux, Scope, StackId, Steering};

use crate::sys;

/// Options of `xsk-echo`.
#[derive(Args, Debug)]
pub struct Options {
    /// Interface to serve.
    #[arg(long)]
    interface: String,
    /// IPv4 address of the interface.
    #[arg(long)]
    address: Ipv4Addr,
    /// TCP port to serve.
    #[arg(long)]
    port: u16,
    /// Check the queue continuously (spin) instead of sleeping when no frame has arrived.
    #[arg(long)]
    spin: bool,
}

/// Runs the echo until the process is killed.
pub fn run(options: &Options) -> io::Result<()> {
    let mut port = XdpPort::open(&options.interface, 0, &XdpConfig::for_veth())
        .map_err(|error| io::Error::other(error.to_string()))?;
    let demux = attach(options, &port).map_err(|error| io::Error::other(error.to_string()))?;
    println!("echoing on {}:{}", options.address, options.port);
    let start = Instant::now();
    let partial = port.capabilities().tx_checksum;
    let mut burst = port.new_burst();
    loop {
        if port.rx_burst(&mut burst, BURST_MAX) == 0 {
            if !options.spin {
                sys::wait_readable(port.fd(), Duration::from_secs(10))?;
            }
            continue;
        }
        let clock = start.elapsed().as_millis() as u32;
        for frame in burst.iter() {
            let mut reply = [0; REPLY_MAX];
            let Some(len) = answer(frame, &mut reply, clock, partial) else {
                continue;
            };
            let checksum = if partial {
                TxChecksum::Partial {
                    start: TCP as u16,
                    offset: TCP_CHECKSUM as u16,
                }
            } else {
                TxChecksum::Done
            };
            if let Some(space) = port.tx_frame() {
                space[..len].copy_from_slice(&reply[..len]);
                port.tx_commit(len, checksum);
            }
        }
        port.rx_release(&mut burst);
        port.tx_flush();
        // The demux detaches itself from the interface when it is dropped. This reference only
        // marks the variable as used.
        let _held = &demux;
    }
}

/// Attaches the demux to the interface. The demux is the XDP program that redirects frames to the
/// AF_XDP socket. Claims the TCP port at the address: the demux then redirects its frames.
fn attach(options: &Options, port: &XdpPort) -> Result<Demux, tidelane_steering::SteeringError> {
    let mut demux = Demux::load_and_attach(port.ifindex(), 1, Buffers::One)?;
    demux.register_xsk(0, port.fd())?;
    let addr = options.address.to_ipv6_mapped().octets();
    demux.claim(
        &Claim {
            addr,
            proto: 6,
            port: options.port,
        },
        StackId(0),
        Scope::Whole,
    )?;
    Ok(demux)
}

/// Longest answer in bytes: an Ethernet frame with an MTU of 1500.
const REPLY_MAX: usize = 1514;
/// Offset of the IPv4 header in a frame.
const IP: usize = 14;
/// Offset of the TCP header in a frame. Packets with IPv4 options are ignored.
const TCP: usize = IP + 20;
/// Offset of the checksum in the TCP header.
const TCP_CHECKSUM: usize = 16;

// The control bits of the TCP header.
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
/// Initial sequence number of every connection. The number is constant, because the tool keeps no
/// state of connections.
const ISN: u32 = 0x7154_0000;

/// Writes the answer to `frame` into `reply`. Returns the length of the answer. Returns `None` if
/// the frame is malformed, has IPv4 options, or needs no answer (a RST, or a segment without SYN,
/// FIN and data). Also returns `None` if the frame or the answer is longer than [`REPLY_MAX`].
///
/// `clock` is the TSval of the answer in milliseconds. If `partial` is true, the answer has a
/// partial TCP checksum, which the NIC or the other end of a veth pair completes.
fn answer(frame: &[u8], reply: &mut [u8; REPLY_MAX], clock: u32, partial: bool) -> Option<usize> {
    if frame.len() < TCP + 20 || frame.len() > REPLY_MAX || frame[IP] != 0x45 {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([frame[IP + 2], frame[IP + 3]]));
    let header = usize::from(frame[TCP + 12] >> 4) * 4;
    let segment = frame.get(TCP..IP + total)?;
    let (options, payload) = (segment.get(20..header)?, segment.get(header..)?);
    let flags = segment[13];
    if flags & RST != 0 || (flags & (SYN | FIN) == 0 && payload.is_empty()) {
        return None;
    }
    let word = |at: usize| {
        u32::from_be_bytes([
            segment[at],
            segment[at + 1],
            segment[at + 2],
            segment[at + 3],
        ])
    };
    let (seq, ack) = (word(4), word(8));
    let syn_fin = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    let tcp = &mut reply[TCP..];
    tcp[0..2].copy_from_slice(&segment[2..4]);
    tcp[2..4].copy_from_slice(&segment[0..2]);
    let own_seq = if flags & SYN != 0 { ISN } else { ack };
    let own_ack = seq.wrapping_add(payload.len() as u32).wrapping_add(syn_fin);
    tcp[4..8].copy_from_slice(&own_seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&own_ack.to_be_bytes());
    tcp[13] = ACK | (flags & (SYN | FIN)) | if payload.is_empty() { 0 } else { PSH };
    tcp[14..20].copy_from_slice(&[0xff, 0xff, 0, 0, 0, 0]);
    let mut len = 20;
    if flags & SYN != 0 {
        tcp[len..len + 4].copy_from_slice(&[2, 4, 0x05, 0xb4]);
        len += 4;
    }
    if let Some(timestamp) = timestamp(options) {
        tcp[len..len + 4].copy_from_slice(&[1, 1, 8, 10]);
        tcp[len + 4..len + 8].copy_from_slice(&clock.to_be_bytes());
        tcp[len + 8..len + 12].copy_from_slice(&timestamp);
        len += 12;
    }
    tcp[12] = ((len / 4) << 4) as u8;
    tcp.get_mut(len..len + payload.len())?
        .copy_from_slice(payload);
    len += payload.len();
    write_link_and_ip(frame, reply, len as u16, partial);
    Some(TCP + len)
}

/// Returns the TSval of the segment's timestamps option. The answer echoes this value as TSecr.
/// Returns `None` if `options` has no timestamps option.
fn timestamp(mut options: &[u8]) -> Option<[u8; 4]> {
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [8, 10, a, b, c, d, ..] => return Some([*a, *b, *c, *d]),
            [kind, len, ..] if *kind != 0 && *len >= 2 => {
                options = options.get(usize::from(*len)..)?;
            }
            _ => return None,
        }
    }
}

/// Completes `reply`, the answer to `frame`: writes the Ethernet and IPv4 headers and the checksums
/// into `reply`. At the call, `reply` has the answer's TCP segment of `len` bytes. If `partial` is
/// true, the field of the TCP checksum gets only the sum of the pseudo-header.
fn write_link_and_ip(frame: &[u8], reply: &mut [u8; REPLY_MAX], len: u16, partial: bool) {
    reply[0..6].copy_from_slice(&frame[6..12]);
    reply[6..12].copy_from_slice(&frame[0..6]);
    reply[12..14].copy_from_slice(&frame[12..14]);
    let ip = &mut reply[IP..TCP];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(20 + len).to_be_bytes());
    ip[6..8].copy_from_slice(&[0x40, 0]);
    ip[8..10].copy_from_slice(&[64, 6]);
    ip[12..16].copy_from_slice(&frame[IP + 16..IP + 20]);
    ip[16..20].copy_from_slice(&frame[IP + 12..IP + 16]);
    let sum = !fold(add(0, ip));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let pseudo = add(6 + u32::from(len), &reply[IP + 12..IP + 20]);
    let end = TCP + usize::from(len);
    let field = if partial {
        fold(pseudo)
    } else {
        !fold(add(pseudo, &reply[TCP..end]))
    };
    let at = TCP + TCP_CHECKSUM;
    reply[at..at + 2].copy_from_slice(&field.to_be_bytes());
}

/// Adds the 16-bit words of `bytes` to the sum `start` (RFC 1071).
fn add(start: u32, bytes: &[u8]) -> u32 {
    let words = bytes
        .chunks(2)
        .map(|p| u16::from_be_bytes([p[0], *p.get(1).unwrap_or(&0)]));
    words.fold(start, |sum, word| sum + u32::from(word))
}

/// Folds a sum to 16 bits (RFC 1071).
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an Ethernet frame with a segment from 10.0.0.2:4000 to 10.0.0.1:80 and TSval
    /// 0x01020304.
    fn frame(flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let total = (20 + 32 + payload.len()) as u16;
        frame.extend([0x45, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        frame.extend([0x0f, 0xa0, 0, 80]);
        frame.extend(seq.to_be_bytes());
        frame.extend(ack.to_be_bytes());
        frame.extend([8 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        frame.extend([1, 1, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0]);
        frame.extend(payload);
        frame
    }

    fn check_sums(reply: &[u8]) {
        assert_eq!(
            fold(add(0, &reply[IP..TCP])),
            0xffff,
            "the IPv4 header's sum"
        );
        let len = (reply.len() - TCP) as u32;
        let pseudo = add(6 + len, &reply[IP + 12..IP + 20]);
        assert_eq!(
            fold(add(pseudo, &reply[TCP..])),
            0xffff,
            "the segment's sum"
        );
    }

    fn answer_to(frame: &[u8]) -> Option<Vec<u8>> {
        let mut reply = [0; REPLY_MAX];
        let len = answer(frame, &mut reply, 77, false)?;
        Some(reply[..len].to_vec())
    }

    #[test]
    fn syn_data_and_fin_are_answered() {
        let reply = answer_to(&frame(SYN, 100, 0, b"")).expect("an answer");
        check_sums(&reply);
        assert_eq!(reply[TCP + 13], SYN | ACK);
        assert_eq!(reply[TCP + 8..TCP + 12], 101u32.to_be_bytes());
        assert_eq!(reply[TCP + 20 + 4 + 8..TCP + 20 + 4 + 12], [1, 2, 3, 4]);

        let reply = answer_to(&frame(ACK | PSH, 101, ISN + 1, b"hello")).expect("an answer");
        check_sums(&reply);
        assert_eq!(reply[TCP + 4..TCP + 8], (ISN + 1).to_be_bytes());
        assert_eq!(reply[TCP + 8..TCP + 12], 106u32.to_be_bytes());
        assert!(reply.ends_with(b"hello"));
        assert_eq!(reply[IP + 12..IP + 20], [10, 0, 0, 1, 10, 0, 0, 2]);

        let reply = answer_to(&frame(ACK | FIN, 106, ISN + 6, b"")).expect("an answer");
        check_sums(&reply);
        assert_eq!(reply[TCP + 13], FIN | ACK);
        assert_eq!(reply[TCP + 8..TCP + 12], 107u32.to_be_bytes());
    }

    #[test]
    fn other_segments_get_no_answer() {
        assert!(answer_to(&frame(ACK, 1, 1, b"")).is_none());
        assert!(answer_to(&frame(RST, 1, 1, b"")).is_none());
        let whole = frame(ACK | PSH, 1, 1, b"hello");
        for len in 0..whole.len() {
            assert!(answer_to(&whole[..len]).is_none(), "cut to {len}");
        }
        // From offset 12 to the end of the TCP header, no value of any single byte may cause a
        // panic.
        for at in TCP + 12..TCP + 32 {
            for value in 0..=255 {
                let mut bad = whole.clone();
                bad[at] = value;
                let _ = answer_to(&bad);
            }
        }
    }
}
