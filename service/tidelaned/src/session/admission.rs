//! Admission: the decision whether a program may use the Tidelane service. The decision depends on
//! the user and the network namespace of the process that connected to the service, and on the
//! program's cgroup. The process that connected is the program itself or, for a forked child, an
//! ancestor. A session is a program's connection to the registration socket.

use std::io;

use tidelane_abi::{Message, message};

use super::Session;
use crate::{
    access::Denial, core_link::NicPort, netns::NetView, peer::Peer, service_state::ServiceState,
};

/// Maximum number of sockets for which a session records why the socket stays with the kernel.
/// `tidelane ss` prints these reasons.
const NOT_ACCELERATED_MAX: usize = 4096;

/// The service's decision about a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// The reason why the program is not admitted, or `None` for an admitted program. A program
    /// that is not admitted may still report why its sockets stay with the kernel.
    pub denied: Option<Denial>,
    /// The program's network namespace when the program connected. Forked children must be in this
    /// namespace, unless all namespaces are admitted. `None` if the namespace cannot be read.
    pub view: Option<NetView>,
    /// True if the kernel confirms that the program is in the service's own network namespace. The
    /// program and the service then have the same loopback interface.
    pub within_host: bool,
}

impl Session {
    /// Returns the process whose user and namespace decide the admission.
    pub fn connected_ancestor(&self) -> &Peer {
        self.connected_ancestor.as_ref().unwrap_or(&self.peer)
    }

    /// Returns zero for an admitted program, or the reason why the program is not admitted.
    pub(super) fn denial(&self) -> u32 {
        self.admission.denied.map_or(0, Denial::code)
    }

    /// Registers the program if the program is admitted. Otherwise answers with the reason. A
    /// forked child is judged again, because the child's network namespace or cgroup may have
    /// changed since the fork. The child's own user is not judged.
    pub(super) fn register_if_admitted<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        request: &Message,
    ) -> io::Result<()> {
        if self.is_child {
            let view = self.admission.view;
            let judged = shared
                .access
                .judge_child(self.connected_ancestor(), &self.peer, view);
            self.admission.denied = judged.err();
            self.peer.read_groups();
        }
        self.admission.within_host = shared
            .access
            .is_within_host(self.connected_ancestor(), &self.peer);
        match self.denial() {
            0 => self.register(shared, request),
            refusal => self.answer(message::REGISTERED, refusal),
        }
    }

    /// Sets the program's name to the name in the request. If the request has no name, keeps the
    /// present name.
    pub(super) fn set_name(&mut self, request: &Message) {
        let given = request.name.split(|byte| *byte == 0).next().unwrap_or(&[]);
        let given = String::from_utf8_lossy(given);
        if !given.is_empty() {
            self.name = given.chars().filter(|c| !c.is_control()).collect();
        }
    }

    /// Records why a socket of the program stays with the kernel.
    pub(super) fn report_not_accelerated(&mut self, request: &Message) {
        self.not_accelerated
            .retain(|(inode, _)| *inode != request.inode);
        if self.not_accelerated.len() < NOT_ACCELERATED_MAX {
            self.not_accelerated.push((request.inode, request.reason));
        }
    }
}
