//! Admission of a program, and the user who answers for it.

use std::io;

use tidelane_abi::{Message, message};

use super::Session;
use crate::{access::Denial, core::Port, netns::NetView, peer::Peer, shared::Shared};

/// Reasons that are kept for `tidelane ss`, per program.
const NOTES_MAX: usize = 4096;

/// The service's decision about a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Why it is not admitted; it may send notes all the same.
    pub denied: Option<Denial>,
    /// The network namespace that its children must be in.
    pub view: Option<NetView>,
    /// It is in the service's own network namespace, as far as the kernel says so for sure: the
    /// host's loopback is its own.
    pub within_host: bool,
}

impl Session {
    /// The program that the service judges by its user and namespace.
    pub fn sponsor(&self) -> &Peer {
        self.sponsor.as_ref().unwrap_or(&self.peer)
    }

    /// Zero, or why the program is not admitted.
    pub(super) fn denial(&self) -> u32 {
        self.standing.denied.map_or(0, Denial::code)
    }

    /// Registers the program if it is admitted. A child may have another user, group or namespace
    /// than its parent by now.
    pub(super) fn enter<P: Port>(
        &mut self,
        shared: &mut Shared<P>,
        request: &Message,
    ) -> io::Result<()> {
        if self.heir {
            let view = self.standing.view;
            let judged = shared.access.judge_heir(self.sponsor(), &self.peer, view);
            self.standing.denied = judged.err();
            self.peer.look_at_groups();
        }
        self.standing.within_host = shared.access.is_within_host(self.sponsor(), &self.peer);
        match self.denial() {
            0 => self.register(shared, request),
            why => self.answer(message::REGISTERED, why),
        }
    }

    /// The program says why one of its sockets stays with the kernel.
    pub(super) fn note(&mut self, request: &Message) {
        self.notes.retain(|(inode, _)| *inode != request.inode);
        if self.notes.len() < NOTES_MAX {
            self.notes.push((request.inode, request.reason));
        }
    }
}
