//! The mux's end of a port.

use tidelane_packet_io::{MemPort, PacketIo};
use tidelane_packet_ring::ServiceEnd;

/// The mux's end of a port's packet rings. The frames that it receives lie in memory that the
/// program cannot write to, so that a packet stays as the mux has checked it.
pub trait PortEnd: PacketIo {
    /// True if the mux looks for frames of idle ports. False if the program's end rings a
    /// [`Doorbell`].
    const POLLED: bool;

    /// Returns true if the program has sent frames that the mux has not received.
    fn has_frames(&self) -> bool;

    /// Returns true if the program has made the port unusable, so that its owner has to close it.
    fn is_corrupt(&self) -> bool;
}

impl PortEnd for MemPort {
    const POLLED: bool = false;

    fn has_frames(&self) -> bool {
        self.rx_queued() > 0
    }

    fn is_corrupt(&self) -> bool {
        false
    }
}

impl PortEnd for ServiceEnd {
    const POLLED: bool = true;

    #[inline]
    fn has_frames(&self) -> bool {
        ServiceEnd::has_frames(self)
    }

    fn is_corrupt(&self) -> bool {
        ServiceEnd::is_corrupt(self)
    }
}
