//! The view through which a program reads received frames in memory that the service (the process
//! `tidelaned`) writes.

use tidelane_ring::{PacketConsumer, PacketView};

/// Returns the view of the frames that the service sends to a program.
pub fn of_service(from_service: &PacketConsumer) -> PacketView {
    // SAFETY: the producer is the service, which programs trust. The service does not change a
    // frame before the program releases the frame.
    unsafe { from_service.view() }
}
