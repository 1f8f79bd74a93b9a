//! RST segments for which the NIC queue (or the link in memory) had no room when their flows ended.
//!
//! A program that ends may leave more connections than a NIC queue has free frames. If the RSTs
//! were lost, peers that have sent all their data would wait for ever. The host therefore keeps the
//! RSTs, and sends each RST when there is room.

use std::collections::VecDeque;

use tidelane_engine::SegmentOut;
use tidelane_wire::HeaderTemplate;

/// Limit of waiting RSTs. Further RSTs are lost.
const WAITING_MAX: usize = 65_536;

/// RSTs that wait for room, oldest first. A RST for the NIC queue has the Ethernet and IP headers
/// for its frame, because the flow no longer exists. A RST for the link in memory has no headers.
#[derive(Default)]
pub struct LateResets(VecDeque<(SegmentOut, Option<HeaderTemplate>)>);

impl LateResets {
    /// Appends a RST, if fewer than `WAITING_MAX` RSTs wait.
    #[cold]
    pub fn push(&mut self, out: &SegmentOut, template: Option<HeaderTemplate>) {
        if self.0.len() < WAITING_MAX {
            self.0.push_back((*out, template));
        }
    }

    /// Returns a copy of the oldest RST.
    pub fn first(&self) -> Option<(SegmentOut, Option<HeaderTemplate>)> {
        self.0.front().copied()
    }

    /// Removes the oldest RST.
    pub fn pop(&mut self) {
        self.0.pop_front();
    }
}
