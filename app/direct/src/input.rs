//! [`Input`]: receives frames from the port (the packet interface), and checks the frames. Passes
//! TCP segments and ICMP errors to the TCP engine. Passes UDP datagrams to their socket.

use std::net::SocketAddr;

use tidelane_embedded::Addresses;
use tidelane_engine::{Arrival, Endpoint, Engine, FlowKey, Instant};
use tidelane_packet_io::{BURST_MAX, Burst, PacketIo};
use tidelane_wire::{
    DropReason, Packet, parse_frame, parse_icmp_error, parse_icmpv6_error, parse_tcp, parse_udp,
    protocol, tcp_checksum_ok,
};

use crate::{
    io::{Io, LINK},
    ip::ip_of,
};

/// The receive path of a context (the sockets of one thread).
pub struct Input<P: PacketIo> {
    /// A reusable burst (a batch of received frames). `None` while its frames are processed.
    burst: Option<P::Burst>,
    addresses: Addresses,
    /// True if a packet from a sender on this machine may arrive with a partial checksum: the
    /// checksum field then holds only the sum of the pseudo-header.
    partial_checksums: bool,
}

impl<P: PacketIo> Input<P> {
    /// Returns the receive path for a port.
    pub fn new(port: &P, addresses: Addresses) -> Self {
        Self {
            burst: Some(port.new_burst()),
            addresses,
            partial_checksums: port.capabilities().rx_checksum_may_be_partial,
        }
    }

    /// Returns the context's local addresses.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Receives and processes one burst of frames. Returns the number of frames.
    pub fn receive(&mut self, now: Instant, engine: &mut Engine, io: &mut Io<P>) -> usize {
        let Some(mut burst) = self.burst.take() else {
            return 0;
        };
        let count = io.port.rx_burst(&mut burst, BURST_MAX);
        for at in 0..burst.len() {
            let Some(frame) = burst.frame(at) else { break };
            io.begin_frame(frame);
            if let Err(reason) = self.receive_frame(now, frame, engine, io) {
                io.drops[reason.index()] += 1;
            }
            io.end_frame(&mut burst, at);
            io.link.set_arrival(None);
        }
        io.port.rx_release(&mut burst);
        self.burst = Some(burst);
        count
    }

    fn receive_frame(
        &self,
        now: Instant,
        frame: &[u8],
        engine: &mut Engine,
        io: &mut Io<P>,
    ) -> Result<(), DropReason> {
        let packet = parse_frame(frame)?;
        self.addresses.check(&packet)?;
        let error = match (packet.protocol, packet.dst.is_v4()) {
            (protocol::TCP, _) => return self.receive_tcp(now, &packet, engine, io),
            (protocol::UDP, _) => return self.receive_udp(&packet, io),
            (protocol::ICMP, true) => parse_icmp_error(packet.payload)?,
            (protocol::ICMPV6, false) => parse_icmpv6_error(&packet)?,
            _ => return Err(DropReason::UnsupportedProtocol),
        };
        engine.icmp_error(now, &error, io);
        Ok(())
    }

    fn receive_udp(&self, packet: &Packet<'_>, io: &mut Io<P>) -> Result<(), DropReason> {
        let datagram = parse_udp(packet, self.partial_checksums)?;
        let sender = SocketAddr::new(ip_of(packet.src), datagram.src_port);
        let local = Endpoint::new(packet.dst, datagram.dst_port);
        io.place_datagram(local, (sender, packet.src_mac), datagram.payload)
    }

    fn receive_tcp(
        &self,
        now: Instant,
        packet: &Packet<'_>,
        engine: &mut Engine,
        io: &mut Io<P>,
    ) -> Result<(), DropReason> {
        let partial = self.partial_checksums;
        if !tcp_checksum_ok(packet.src, packet.dst, packet.payload, partial) {
            return Err(DropReason::BadChecksum);
        }
        let segment = parse_tcp(packet.payload)?;
        let arrival = Arrival {
            key: FlowKey {
                local: Endpoint::new(packet.dst, segment.dst_port),
                peer: Endpoint::new(packet.src, segment.src_port),
            },
            link: LINK,
            ecn: packet.ecn,
        };
        io.link.set_arrival(Some(packet.src_mac));
        engine.segment_arrives(now, &arrival, &segment, io);
        Ok(())
    }
}
