//! The filter of ports: the owner of the ports decides which packets pass.

use crate::claims::PortId;

/// Direction of a packet, from the view of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The port receives the packet.
    In,
    /// The port sends the packet.
    Out,
}

/// Decision on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The packet passes.
    Pass,
    /// The packet does not pass. The sender of a received packet gets an answer.
    Refuse,
    /// The packet does not pass, and its sender gets no answer.
    Drop,
}

/// Outcome for a packet that the NIC or the host offers to the ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reception {
    /// No port has claimed the packet's 3-tuple.
    Unclaimed,
    /// A port has the packet, or the packet is lost.
    Taken,
    /// The filter has refused the packet. The caller answers the sender.
    Refused,
}

/// Decides which packets of ports pass. The unit type is a filter that passes all packets.
pub trait Filter {
    /// Returns true if all packets pass, so that [`judge`](Self::judge) need not be called.
    #[inline]
    fn passes_all(&self) -> bool {
        true
    }

    /// Returns the verdict on a packet of `port`, a TCP segment, a datagram or an ICMP error. The
    /// 3-tuple of the packet, or that of the packet which an ICMP error quotes, is the port's. A
    /// GSO frame is judged as one packet.
    fn judge(&mut self, _port: PortId, _way: Way, _frame: &[u8]) -> Verdict {
        Verdict::Pass
    }
}

impl Filter for () {}
