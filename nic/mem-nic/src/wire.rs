//! The wire at a NIC: two queues of frames, one for each direction.

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

/// The two queues of a wire, and the state of the NIC that the far end may read.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// Frames that wait for the NIC's stack, oldest first.
    pub arrived: VecDeque<Vec<u8>>,
    /// Frames that the NIC has sent, oldest first.
    pub sent: Vec<Vec<u8>>,
    /// Largest number of frames that may wait for the NIC's stack.
    pub room: usize,
    /// Result of [`WireEnd::is_complete`], as of the NIC's last update.
    pub is_complete: bool,
    /// True if the NIC had no room for a frame at the stack's most recent attempt to send.
    pub is_full: bool,
}

/// The far end of a NIC's wire. The value stays usable after the NIC is dropped.
#[derive(Clone, Debug)]
pub struct WireEnd(Rc<RefCell<Wire>>);

impl WireEnd {
    pub(crate) fn new(wire: Rc<RefCell<Wire>>) -> Self {
        Self(wire)
    }

    /// Passes a frame to the NIC. Returns false, without any effect, if the queue of received
    /// frames is full.
    pub fn deliver(&self, frame: &[u8]) -> bool {
        let mut wire = self.0.borrow_mut();
        let has_room = wire.arrived.len() < wire.room;
        if has_room {
            wire.arrived.push_back(frame.to_vec());
        }
        has_room
    }

    /// Returns true if frames wait for the NIC's stack.
    pub fn has_arrived(&self) -> bool {
        !self.0.borrow().arrived.is_empty()
    }

    /// Takes the frames that the NIC has sent, oldest first.
    pub fn take_sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.borrow_mut().sent)
    }

    /// Returns true if the NIC had no room for a frame at its stack's most recent attempt to send.
    pub fn is_full(&self) -> bool {
        self.0.borrow().is_full
    }

    /// Returns true if no burst holds a frame of the NIC, no transmission is pending, and the stack
    /// has taken back all frames that it lent. The NIC updates the result when the stack receives
    /// frames, releases a burst, requests a transmit frame, lends a frame, flushes, or takes frames
    /// back.
    pub fn is_complete(&self) -> bool {
        self.0.borrow().is_complete
    }
}
