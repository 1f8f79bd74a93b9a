//! The destinations of packets that leave a set of ports: the NIC and the host.

use tidelane_packet_io::{Capabilities, PacketIo, TxChecksum};

use crate::{filter::Filter, gso::GsoFrame};

/// The NIC and the host (the stack that gets unclaimed packets), as destinations of packets that
/// ports send, with the filter of these packets. Each method that passes a packet on returns false
/// if the packet was not taken.
pub trait Egress: Filter {
    /// Returns the capabilities of the NIC.
    fn nic_capabilities(&self) -> Capabilities;

    /// Sends a GSO frame through the NIC, whose capabilities allow this length.
    fn send_gso_to_nic(&mut self, frame: &GsoFrame<'_>) -> bool;

    /// Sends a packet through the NIC.
    fn send_to_nic(&mut self, frame: &[u8]) -> bool;

    /// Returns true if a packet waits until the NIC has room. Returns false if the NIC has room, or
    /// if a packet without room is lost.
    fn waits_for_nic(&mut self) -> bool;

    /// Gives a packet to the host.
    fn give_to_host(&mut self, frame: &[u8]) -> bool;

    /// Answers a packet of a port that the filter of the receiving port has refused. The answer
    /// comes from the destination of the packet.
    fn answer_refused(&mut self, _frame: &[u8]) {}
}

/// Copies a frame to the next free frame of `to`. Returns false if `to` has no free frame, or if
/// the frame is too long for `to`.
pub fn copy_to<T: PacketIo>(to: &mut T, frame: &[u8]) -> bool {
    let room = to.tx_frame();
    let Some(room) = room.and_then(|room| room.get_mut(..frame.len())) else {
        return false;
    };
    room.copy_from_slice(frame);
    to.tx_commit(frame.len(), TxChecksum::Done);
    true
}
