//! Multicast and broadcast over a mux port of the service: a program that answers and asks over
//! UDP, with a stack of its own that has only UDP over IPv4. A mux port consists of packet rings
//! through which a program with a TCP/IP stack of its own shares the NIC.
//!
//! The program claims a UDP port at all local addresses, so that the mux port receives the
//! datagrams for this UDP port. The program answers each datagram `ask` by `answer`. With `--ask`,
//! the program also sends `ask` to a group or a broadcast address until an answer arrives. Each
//! datagram whose payload is not `ask` counts as an answer.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use tidelane_packet_io::{BURST_MAX, Burst, PacketIo, TxChecksum};
use tidelane_port::{Port, PortConfig};
use tidelane_wire::{
    Ecn, HeaderTemplate, IpAddress, MacAddress, UDP_HEADER_LEN, checksum, parse_frame, parse_udp,
    protocol, udp_header,
};

/// Longest time between two questions. If a frame without an answer arrives, the program sends the
/// next question without waiting for the end of this time.
const ASK_TIME: Duration = Duration::from_millis(100);

/// Answers and asks over UDP, on a mux port of the Tidelane service.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// Own address: an address of the service's interface
    #[arg(long)]
    address: Ipv4Addr,
    /// UDP port
    #[arg(long)]
    port: u16,
    /// Address and port to ask; the address is a group or a broadcast address
    #[arg(long)]
    ask: Option<SocketAddrV4>,
    /// Seconds until the program ends
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// A received datagram.
struct Received {
    /// Source link address of the frame.
    mac: MacAddress,
    /// Address and port of the sender.
    from: SocketAddrV4,
    /// Destination address: an own address, a group, or a broadcast address.
    to: IpAddress,
    /// True if the payload is `ask`. Otherwise the datagram counts as an answer.
    is_question: bool,
}

/// The stack: UDP over IPv4 on a mux port.
struct Stack {
    port: Port,
    /// Source address and port of the datagrams that the stack sends.
    own: SocketAddrV4,
}

impl Stack {
    fn open(options: &Options) -> io::Result<Self> {
        let mut port = Port::open(&PortConfig::new("tidelane-groups")).map_err(io::Error::other)?;
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, options.port);
        // The claim reserves the UDP port, so the program does not need the socket that `bind_udp`
        // returns.
        port.bind_udp(any.into())?;
        let own = SocketAddrV4::new(options.address, options.port);
        Ok(Self { port, own })
    }

    /// Sends a datagram from the own address to `to`. `mac` is the destination link address. The
    /// datagram is lost if the port has no free frame.
    fn send(&mut self, mac: MacAddress, to: SocketAddrV4, payload: &[u8]) {
        let [src, dst] = [self.own, to].map(|end| IpAddress::from_v4(end.ip().octets()));
        let own_mac = MacAddress(self.port.mac());
        let template = HeaderTemplate::with_protocol(protocol::UDP, own_mac, mac, src, dst);
        let Some((template, frame)) = template.zip(self.port.tx_frame()) else {
            return;
        };
        let udp_len = (UDP_HEADER_LEN + payload.len()) as u16;
        let sum = checksum::sum(payload);
        let pseudo = template.pseudo_header(udp_len);
        let header = udp_header(self.own.port(), to.port(), udp_len, pseudo, sum);
        let start = template.write(frame, udp_len, Ecn::NotEct, 0);
        let end = start + usize::from(udp_len);
        frame[start..end].copy_from_slice(&[&header, payload].concat());
        self.port.tx_commit(end, TxChecksum::Done);
        self.port.tx_flush();
    }

    /// Receives datagrams that wait, at most `BURST_MAX`.
    fn receive(&mut self) -> Vec<Received> {
        let mut burst = self.port.new_burst();
        self.port.rx_burst(&mut burst, BURST_MAX);
        let partial = self.port.capabilities().rx_checksum_may_be_partial;
        let read = |frame: &[u8]| {
            let packet = parse_frame(frame).ok()?;
            let datagram = parse_udp(&packet, partial).ok()?;
            Some(Received {
                mac: packet.src_mac,
                from: SocketAddrV4::new(packet.src.as_v4()?.into(), datagram.src_port),
                to: packet.dst,
                is_question: datagram.payload == b"ask",
            })
        };
        let received = burst.iter().filter_map(read).collect();
        self.port.rx_release(&mut burst);
        received
    }
}

/// Returns the link address of a group (RFC 1112 §6.4). If `group` is not a multicast address,
/// returns the broadcast link address.
fn link_address(group: Ipv4Addr) -> MacAddress {
    match group.octets() {
        [_, b, c, d] if group.is_multicast() => MacAddress([1, 0, 0x5e, b & 0x7f, c, d]),
        _ => MacAddress([0xff; 6]),
    }
}

fn run(options: &Options) -> io::Result<()> {
    let mut stack = Stack::open(options)?;
    println!("ready");
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut ask = options.ask;
    while Instant::now() < end {
        if let Some(to) = ask {
            stack.send(link_address(*to.ip()), to, b"ask");
        }
        stack.port.wait(Some(ASK_TIME))?;
        for received in stack.receive() {
            let (from, to) = (received.from, received.to);
            match received.is_question {
                true => {
                    println!("question to {to} from {from}");
                    stack.send(received.mac, from, b"answer");
                }
                false => {
                    println!("answer to {to} from {from}");
                    ask = None;
                }
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidelane-groups: {error}");
            ExitCode::FAILURE
        }
    }
}
