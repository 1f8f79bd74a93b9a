//! The mux's end of a mux port. A mux port is a pair of packet rings through which a program with a
//! TCP/IP stack of its own shares the NIC. The program has the other end.

use tidelane_packet_io::{MemPort, PacketIo, Tapped};
use tidelane_packet_ring::ServiceEnd;

/// The mux's end of a mux port's packet rings. Frames that the mux received lie in memory that the
/// program cannot write, so that the program cannot change a packet after the check.
pub trait PortEnd: PacketIo {
    /// True if the mux polls idle mux ports for frames. False if the program's end rings a
    /// [`Doorbell`](crate::Doorbell) after each flush.
    const POLLED: bool;

    /// Returns true if the program has sent frames that the mux has not received.
    fn has_frames(&self) -> bool;

    /// Prefetches the memory of at most the next `count` frames from the program. A prefetch saves
    /// time, and has no other effect. By default, there is no prefetch.
    #[inline]
    fn prefetch_rx(&self, _count: usize) {}

    /// Prefetches the ring memory to which a frame of `len` bytes for the program will be written,
    /// after `before` other frames of about the same length. By default, there is no prefetch.
    #[inline]
    fn prefetch_tx(&self, _before: usize, _len: usize) {}

    /// Returns true if the packet rings are unusable, because the program has written invalid
    /// values into the rings, or because the mux failed to wake the program. The owner of the mux
    /// ports then closes the port.
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

    #[inline]
    fn prefetch_rx(&self, count: usize) {
        ServiceEnd::prefetch_rx(self, count);
    }

    #[inline]
    fn prefetch_tx(&self, before: usize, len: usize) {
        ServiceEnd::prefetch_tx(self, before, len);
    }

    fn is_corrupt(&self) -> bool {
        ServiceEnd::is_corrupt(self)
    }
}

impl<P: PortEnd> PortEnd for Tapped<P> {
    const POLLED: bool = P::POLLED;

    #[inline]
    fn has_frames(&self) -> bool {
        self.port().has_frames()
    }

    #[inline]
    fn prefetch_rx(&self, count: usize) {
        self.port().prefetch_rx(count);
    }

    #[inline]
    fn prefetch_tx(&self, before: usize, len: usize) {
        self.port().prefetch_tx(before, len);
    }

    fn is_corrupt(&self) -> bool {
        self.port().is_corrupt()
    }
}
