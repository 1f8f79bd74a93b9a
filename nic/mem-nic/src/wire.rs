//! The wire at a NIC: two queues of frames, one for each direction.

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

/// Frames between a NIC and its wire.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// Frames that wait for the NIC's stack.
    pub arrived: VecDeque<Vec<u8>>,
    /// Frames that the NIC has sent.
    pub sent: Vec<Vec<u8>>,
    /// Largest number of frames that may wait for the NIC's stack.
    pub room: usize,
    /// True if the NIC has all frames that belong to it.
    pub is_complete: bool,
    /// True if the NIC had no room for the last transmission.
    pub is_full: bool,
}

/// The far end of a NIC's wire. The value stays usable after the end of the NIC.
#[derive(Clone, Debug)]
pub struct WireEnd(Rc<RefCell<Wire>>);

impl WireEnd {
    pub(crate) fn new(wire: Rc<RefCell<Wire>>) -> Self {
        Self(wire)
    }

    /// Passes a frame to the NIC. Returns false, without any effect, if the NIC has no room.
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

    /// Returns true if the NIC had no room for the last transmission that its stack tried.
    pub fn is_full(&self) -> bool {
        self.0.borrow().is_full
    }

    /// Returns true if the NIC has all frames that belong to it: no burst and no transmission holds
    /// one. A NIC that is gone is complete.
    pub fn is_complete(&self) -> bool {
        self.0.borrow().is_complete
    }
}
