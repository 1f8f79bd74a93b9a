//! The attack `frames`: opens a TCP connection with raw Ethernet frames. Their source IP address
//! and source MAC address may be forged.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;
use tidelane_wire::{
    Ecn, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, SeqNumber, TcpFlags, TcpOptions,
    checksum, emit_tcp, parse_frame, parse_tcp, protocol, write_tcp_checksum,
};

use crate::{
    link::{Link, parse_mac},
    protocol::Failure,
    report,
};

/// Payload sent after the handshake. An echo server returns this payload.
const PAYLOAD: &[u8] = b"are you there?\n";
/// EtherType of a VLAN tag (IEEE 802.1Q).
const ETHERTYPE_VLAN: u16 = 0x8100;
/// Length of the two MAC addresses at the start of a frame, in bytes. A VLAN tag follows them.
const MAC_ADDRESSES_LEN: usize = 12;
/// Initial sequence number.
const ISS: u32 = 7_000_000;

/// Options of `frames`.
#[derive(Args, Debug)]
pub struct Options {
    /// Interface to send and receive on
    #[arg(long, default_value = "eth1")]
    interface: String,
    /// Source IP address
    #[arg(long)]
    from: IpAddr,
    /// IP address to connect to
    #[arg(long)]
    to: IpAddr,
    /// Port to connect to
    #[arg(long)]
    port: u16,
    /// Source port
    #[arg(long, default_value_t = 4242)]
    from_port: u16,
    /// Destination MAC address
    #[arg(long)]
    to_mac: String,
    /// Source MAC address; by default, the MAC address of the interface
    #[arg(long)]
    from_mac: Option<String>,
    /// VLAN id of a tag to put into each frame
    #[arg(long)]
    vlan: Option<u16>,
    /// Seconds to receive
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

/// Numbers of segments that the peer sent to the source address of the frames, and the first
/// payload of these segments.
#[derive(Default)]
struct Received {
    /// Number of segments with SYN and without RST.
    syn_acks: u32,
    /// Number of RST segments.
    resets: u32,
    /// Number of segments with neither SYN nor RST.
    segments: u32,
    /// Payload of the first segment with payload.
    payload: Vec<u8>,
}

/// Sends a SYN. If the peer answers by a SYN,ACK, completes the handshake and sends payload. Prints
/// a line with the peer's answers.
pub fn run(options: &Options) -> Result<(), Failure> {
    let link = Link::open(&options.interface)?;
    let mac =
        |text: &str| parse_mac(text).ok_or_else(|| std::io::Error::other("not a MAC address"));
    let to_mac = MacAddress(mac(&options.to_mac)?);
    let from_mac = match &options.from_mac {
        Some(text) => MacAddress(mac(text)?),
        None => MacAddress(link.mac),
    };
    let ends = (IpAddress::from(options.from), IpAddress::from(options.to));
    let template = HeaderTemplate::new(from_mac, to_mac, ends.0, ends.1);
    let template =
        template.ok_or_else(|| std::io::Error::other("--from and --to differ in IP version"))?;
    let mut attack = Attack {
        options,
        link,
        template,
        from_mac,
        received: Received::default(),
    };
    attack.send(TcpFlags::SYN, ISS, 0, &[])?;
    attack.receive_all()?;
    let received = attack.received;
    report(&json!({
        "attack": "frames",
        "from": options.from.to_string(),
        "syn_acks": received.syn_acks,
        "resets": received.resets,
        "segments": received.segments,
        "payload": String::from_utf8_lossy(&received.payload),
    }));
    Ok(())
}

/// One connection over raw frames.
struct Attack<'a> {
    options: &'a Options,
    link: Link,
    template: HeaderTemplate,
    from_mac: MacAddress,
    received: Received,
}

impl Attack<'_> {
    /// Sends one segment with `payload`.
    fn send(&self, flags: TcpFlags, seq: u32, ack: u32, payload: &[u8]) -> Result<(), Failure> {
        let header = SegmentHeader {
            src_port: self.options.from_port,
            dst_port: self.options.port,
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags,
            wnd: 60_000,
            urgent: 0,
            options: TcpOptions::NONE,
        };
        let start = self.template.headers_len();
        let tcp_len = (header.len() + payload.len()) as u16;
        let mut frame = vec![0; start + header.len()];
        self.template.write(&mut frame, tcp_len, Ecn::NotEct, 1);
        let tcp = &mut frame[start..];
        emit_tcp(tcp, &header);
        write_tcp_checksum(
            tcp,
            self.template.pseudo_header(tcp_len),
            checksum::sum(payload),
        );
        frame.extend(payload);
        if let Some(vlan) = self.options.vlan {
            let tag = [ETHERTYPE_VLAN.to_be_bytes(), vlan.to_be_bytes()].concat();
            frame.splice(MAC_ADDRESSES_LEN..MAC_ADDRESSES_LEN, tag);
        }
        self.link.send(&frame)
    }

    /// Receives frames for [`Options::seconds`].
    fn receive_all(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + Duration::from_secs_f64(self.options.seconds);
        while let Some(frame) = self.link.receive(until)? {
            self.on_frame(&frame)?;
            if Instant::now() >= until {
                break;
            }
        }
        Ok(())
    }

    /// Counts the segment in `frame` if the segment belongs to the connection. Answers a SYN,ACK by
    /// an ACK and by a segment with payload.
    fn on_frame(&mut self, frame: &[u8]) -> Result<(), Failure> {
        let Ok(packet) = parse_frame(frame) else {
            return Ok(());
        };
        let ends = (
            IpAddress::from(self.options.to),
            IpAddress::from(self.options.from),
        );
        let ours = (packet.src, packet.dst) == ends && packet.dst_mac == self.from_mac;
        if !ours || packet.protocol != protocol::TCP {
            return Ok(());
        }
        let Ok(segment) = parse_tcp(packet.payload) else {
            return Ok(());
        };
        if (segment.src_port, segment.dst_port) != (self.options.port, self.options.from_port) {
            return Ok(());
        }
        let next = segment.seq.to_u32().wrapping_add(1);
        if segment.flags.contains(TcpFlags::RST) {
            self.received.resets += 1;
        } else if segment.flags.contains(TcpFlags::SYN) {
            self.received.syn_acks += 1;
            self.send(TcpFlags::ACK, ISS + 1, next, &[])?;
            self.send(TcpFlags::ACK | TcpFlags::PSH, ISS + 1, next, PAYLOAD)?;
        } else {
            self.received.segments += 1;
            if self.received.payload.is_empty() {
                self.received.payload.extend_from_slice(segment.payload);
            }
        }
        Ok(())
    }
}
