//! The view of frames in memory that the service writes.

use tidelane_ring::{PacketConsumer, PacketView};

/// Returns the view of the frames that the service sends to a program.
pub fn of_service(from_service: &PacketConsumer) -> PacketView {
    // SAFETY: the producer is the service, which programs trust. It does not change a frame before
    // its release.
    unsafe { from_service.view() }
}
