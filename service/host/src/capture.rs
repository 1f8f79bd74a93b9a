//! Captures: copies of frames for the operator (`tidelane capture`).
//!
//! A capture observes the NIC queues of this core, or one mux port. A mux port is a pair of packet
//! rings through which a program with a TCP/IP stack of its own shares the NIC. The mux copies
//! frames between these ports, the NIC and the service's own stack.
//!
//! The NIC queues carry the frames that sockets and mux ports exchange with other machines. The
//! frames of a mux port include the frames that the port exchanges in memory with other mux ports
//! and with sockets of the service, and the frames that the mux refuses to send. Connections
//! between two sockets of the service have no frames.

use tidelane_mux::PortId;
use tidelane_packet_io::{Captured, PacketIo, Tap, TapOptions};
use tidelane_wire::{IpAddress, parse_frame, parse_quoted_packet, protocol};

use crate::Host;

/// The place at which a capture copies frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturePoint {
    /// The NIC queues.
    Nic,
    /// A mux port.
    Port(PortId),
}

/// The filter of a capture. The capture copies a frame if the frame has all properties that are not
/// `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureFilter {
    /// Protocol number of the IP packet.
    pub protocol: Option<u8>,
    /// Source or destination address of the packet.
    pub address: Option<IpAddress>,
    /// Source or destination port of the TCP or UDP packet, or of the packet that an ICMP error
    /// quotes.
    pub port: Option<u16>,
}

impl CaptureFilter {
    /// Returns true if the capture copies `frame`.
    pub fn selects(&self, frame: &[u8]) -> bool {
        if *self == Self::default() {
            return true;
        }
        let Ok(packet) = parse_frame(frame) else {
            return false;
        };
        if self
            .protocol
            .is_some_and(|wanted| wanted != packet.protocol)
        {
            return false;
        }
        let is_end = |wanted| packet.src == wanted || packet.dst == wanted;
        if self.address.is_some_and(|wanted| !is_end(wanted)) {
            return false;
        }
        let Some(wanted) = self.port else {
            return true;
        };
        match packet.protocol {
            protocol::TCP | protocol::UDP => {
                let number = |at: usize| {
                    let bytes = packet.payload.get(at..at + 2)?;
                    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
                };
                number(0) == Some(wanted) || number(2) == Some(wanted)
            }
            protocol::ICMP | protocol::ICMPV6 => parse_quoted_packet(&packet).is_ok_and(|quoted| {
                quoted.key.local.port == wanted || quoted.key.peer.port == wanted
            }),
            _ => false,
        }
    }
}

impl<P: PacketIo> Host<P> {
    /// Starts a capture. The caller chooses a `number` that no other capture of this core has. Each
    /// NIC queue has a buffer of its own for the copied frames. Returns false if the mux port is
    /// not open.
    pub fn open_capture(
        &mut self,
        number: u64,
        point: CapturePoint,
        filter: CaptureFilter,
        options: TapOptions,
    ) -> bool {
        let tap = || Tap::new(options, move |frame| filter.selects(frame));
        match point {
            CapturePoint::Nic => {
                self.stack.io.links.open_tap(number, tap);
                true
            }
            CapturePoint::Port(id) => match self.mux_ports_mut().end_mut(id) {
                Some(end) => {
                    end.open_tap(number, tap());
                    true
                }
                None => false,
            },
        }
    }

    /// Takes the frames that a capture has copied. Returns `None` if there is no capture with this
    /// number, or if the mux port is closed.
    pub fn take_capture(&mut self, number: u64, point: CapturePoint) -> Option<Captured> {
        match point {
            CapturePoint::Nic => self.stack.io.links.take_tap(number),
            CapturePoint::Port(id) => self.mux_ports_mut().end_mut(id)?.take_tap(number),
        }
    }

    /// Ends a capture.
    pub fn close_capture(&mut self, number: u64, point: CapturePoint) {
        match point {
            CapturePoint::Nic => self.stack.io.links.close_tap(number),
            CapturePoint::Port(id) => {
                if let Some(end) = self.mux_ports_mut().end_mut(id) {
                    end.close_tap(number);
                }
            }
        }
    }
}
