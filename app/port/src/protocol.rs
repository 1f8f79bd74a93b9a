//! The transport protocol of a 3-tuple (protocol, local address and local port). A program claims
//! 3-tuples for its mux port, which then receives the packets of these 3-tuples.

/// The transport protocol of a 3-tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Returns the protocol number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}
