//! Contexts and their doorbells. A context is the set of rings between a thread of a program and
//! the service. Each context has a doorbell: an eventfd by which the cores (polling threads) wake
//! the thread. Each core has its own descriptor of this eventfd.

use std::{io, os::fd::AsFd};

use tidelane_abi::{Message, message, refusal};
use tidelane_host::Bell;
use tidelane_ring::{
    Doorbell,
    registration::{new_message, send_message},
};

use super::Session;
use crate::{core_link::NicPort, service_state::ServiceState};

impl Session {
    /// Handles CONTEXT: gives the program one more context. `bell` is the context's doorbell.
    pub(super) fn context<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        request: &Message,
        bell: Doorbell,
    ) -> io::Result<()> {
        let Some(registered) = &mut self.registered else {
            return Ok(());
        };
        if !registered.update_mapped() {
            return self.answer(message::CONTEXT, refusal::MALFORMED);
        }
        let cores = shared.cores.len();
        let mut bells = bells(&bell, cores)?;
        if let Err(refused) = registered.charges.add_context(cores) {
            return self.refuse(message::CONTEXT, refused);
        }
        let number = request.context;
        let added = shared.cores.call_each(|core| {
            let (id, bell) = (registered.ids[core], bells.pop());
            move |host, _| bell.is_some_and(|bell| host.add_context(id, number, bell))
        });
        let refusal = match added {
            Some(added) if added.iter().all(|added| *added) => 0,
            Some(added) if !added.contains(&true) => {
                registered.charges.drop_context(cores);
                refusal::LIMIT
            }
            // Cores that have added the context keep it, with its doorbells, until the session
            // ends. The charge therefore stays.
            _ => refusal::LIMIT,
        };
        let answer = Message {
            refusal,
            context: number,
            ..new_message(message::CONTEXT)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }
}

/// A core's descriptor of a context's doorbell.
struct EventBell(Doorbell);

impl Bell for EventBell {
    fn ring(&self) -> bool {
        self.0.ring()
    }
}

/// Returns a copy of the descriptor of a context's doorbell for each of `cores` cores.
fn bells(bell: &Doorbell, cores: usize) -> io::Result<Vec<Box<dyn Bell>>> {
    let copy = |_| {
        let bell = Doorbell::from_trusted(bell.fd().try_clone_to_owned()?);
        Ok(Box::new(EventBell(bell)) as Box<dyn Bell>)
    };
    (0..cores).map(copy).collect()
}
