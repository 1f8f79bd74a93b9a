//! The destinations of packets that leave a set of mux ports: the NIC and the host. A mux port is a
//! pair of packet rings through which a program with a TCP/IP stack of its own shares the NIC.

use tidelane_packet_io::{Capabilities, PacketIo, TxChecksum};

use crate::{filter::Filter, gso::GsoFrame};

/// The NIC and the host (the stack that gets unclaimed packets) as destinations of the packets that
/// mux ports send, with the filter for these packets. Each method that sends or gives a packet
/// returns false if the NIC or the host did not take the packet.
pub trait Egress: Filter {
    /// Returns the capabilities of the NIC.
    fn nic_capabilities(&self) -> Capabilities;

    /// Sends a GSO frame through the NIC. The frame is no longer than `tx_gso_len_max` of the NIC.
    /// If the NIC does not take the frame now, the caller sends the segments one by one.
    fn send_gso_to_nic(&mut self, frame: &GsoFrame<'_>) -> bool;

    /// Sends a packet through the NIC.
    fn send_to_nic(&mut self, frame: &[u8]) -> bool;

    /// Returns true if the NIC has no room and a packet for the NIC has to wait. Returns false if
    /// the NIC has room. Also returns false if a packet that finds no room is lost instead, for
    /// example because packets have waited too long.
    fn waits_for_nic(&mut self) -> bool;

    /// Gives a packet to the host.
    fn give_to_host(&mut self, frame: &[u8]) -> bool;

    /// Answers a packet from one mux port to another. The filter has refused the packet at the
    /// receiving mux port. The source of the answer is the destination of the packet. The default
    /// implementation does not answer.
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
