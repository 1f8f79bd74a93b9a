//! The packet filter of the mux, by which the service decides which packets reach and leave the mux
//! ports. A mux port is a pair of packet rings through which a program with a TCP/IP stack of its
//! own shares the NIC.

use crate::claims::PortId;

/// Direction of a packet, as seen by a mux port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The mux port receives the packet.
    In,
    /// The mux port sends the packet.
    Out,
}

/// Decision on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The packet passes.
    Pass,
    /// The packet does not pass. If the mux port was the receiver, the service answers a TCP
    /// segment with a RST. No other packet gets an answer.
    Refuse,
    /// The packet does not pass, and its sender gets no answer.
    Drop,
}

/// Outcome for a packet that the NIC or the host offers to the mux ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reception {
    /// No mux port has claimed the packet's 3-tuple, or the packet is malformed or forged. A forged
    /// packet comes from the wire and has an address of the interface as its source.
    Unclaimed,
    /// The packet went to a mux port, or was lost because the mux port had no room, or was dropped
    /// by the filter ([`Verdict::Drop`]). The caller does nothing more with the packet.
    Taken,
    /// The filter has refused the packet ([`Verdict::Refuse`]). The caller answers the sender.
    Refused,
}

/// A filter that decides which packets of mux ports pass. The unit type `()` lets all packets
/// pass.
pub trait Filter {
    /// Returns true if all packets pass. The caller then need not call [`judge`](Self::judge).
    #[inline]
    fn passes_all(&self) -> bool {
        true
    }

    /// Returns the verdict on a packet of `port`: a TCP segment, a UDP datagram or an ICMP error.
    /// The mux port has claimed the 3-tuple (protocol, local address, local port) of the packet.
    /// For an ICMP error, the mux port has claimed the 3-tuple of the packet that the error quotes.
    /// A GSO frame counts as one packet.
    fn judge(&mut self, _port: PortId, _way: Way, _frame: &[u8]) -> Verdict {
        Verdict::Pass
    }
}

impl Filter for () {}
