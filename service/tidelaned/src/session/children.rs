//! Connections that forked children inherit from a program: see `docs/design/fork.md`. A holder is
//! a process that may use a connection. Only one holder uses the connection at a time. Another
//! holder that wants to use the connection takes the connection over with TAKE_CONNECTION.

use std::{io, os::fd::AsFd};

use tidelane_abi::{Message, message, refusal};
use tidelane_host::{Take, TakeError, accounts::Refused};
use tidelane_ring::registration::{new_message, send_message};

use super::{Session, SessionCharges};
use crate::{clock::now, core_link::NicPort, service_state::ServiceState};

impl Session {
    /// Handles INHERIT: a future child becomes a holder of all connections of this process.
    pub(super) fn inherit<P: NicPort>(&mut self, shared: &mut ServiceState<P>) -> io::Result<()> {
        if self.holder(0).is_none() {
            return self.answer(message::INHERIT, refusal::MALFORMED);
        }
        let charges = match SessionCharges::take(self.charges.account().clone()) {
            Ok(charges) => charges,
            Err(refused) => return self.refuse(message::INHERIT, refused),
        };
        let number = shared.session_number();
        let Ok((child, theirs)) = Self::of_child(number, charges, self) else {
            return self.answer(message::INHERIT, refusal::LIMIT);
        };
        if shared.descriptors.join(child.charged_uid()).is_err() {
            return self.answer(message::INHERIT, refusal::LIMIT);
        }
        let inherited = shared.cores.call_each(|core| {
            let from = self.holder(core);
            move |host, now| from.map_or(Ok(()), |from| host.inherit(now, from, number))
        });
        let inherited: Option<Result<(), Refused>> =
            inherited.map(|cores| cores.into_iter().collect());
        match inherited {
            Some(Ok(())) => {}
            Some(Err(refused)) => {
                child.end(shared);
                return self.refuse(message::INHERIT, refused);
            }
            // A core does not answer, and the child would lack the connections of that core.
            None => {
                child.end(shared);
                return self.answer(message::INHERIT, refusal::LIMIT);
            }
        }
        self.children.push(child);
        let registered = self.registered.as_ref();
        let given_up = registered.and_then(|registered| registered.listener_to_give_up(shared));
        let answer = Message {
            listener: given_up.unwrap_or(0),
            ..new_message(message::INHERIT)
        };
        send_message(self.socket.as_fd(), &answer, &[theirs.as_fd()])
    }

    /// Handles TAKE_CONNECTION: moves a connection to this process. Until then, another holder uses
    /// the connection.
    pub(super) fn take<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        request: &Message,
    ) -> io::Result<()> {
        let Some(registered) = &mut self.registered else {
            return Ok(());
        };
        if !registered.update_mapped() {
            return self.answer(message::TAKE_CONNECTION, refusal::MALFORMED);
        }
        let core = shared.cores.of_connection(request.connection);
        let id = registered.ids[core];
        let take = Take {
            connection: request.connection,
            context: request.context,
            tx_buffer: request.tx_buffer,
        };
        let taken = shared
            .cores
            .call(core, move |host, now| host.take(now, id, take))
            .unwrap_or(Err(TakeError::NotHeld));
        let mut answer = new_message(message::TAKE_CONNECTION);
        match taken {
            Ok(taken) => {
                if self.is_child && self.first_takeover.is_none() {
                    self.first_takeover = taken.listener.map(|listener| (listener, now()));
                }
                answer.slot = taken.slot;
                answer.generation = taken.generation;
            }
            Err(TakeError::NotHeld) => answer.refusal = refusal::NOT_ENTITLED,
            Err(TakeError::AtHome) => answer.refusal = refusal::AT_HOME,
            Err(TakeError::Busy) => answer.refusal = refusal::BUSY,
            Err(TakeError::Limit) => answer.refusal = refusal::LIMIT,
            Err(TakeError::BufferTooSmall(needed)) => {
                answer.refusal = refusal::BUFFER_TOO_SMALL;
                answer.slot = needed;
            }
        }
        send_message(self.socket.as_fd(), &answer, &[])
    }

    /// Records the end of this session's process if the process is a forked child that has taken
    /// over a connection of a listener. The child's lifetime counts from the first takeover of a
    /// connection of a listener.
    pub(super) fn record_child_lifetime<P: NicPort>(&self, shared: &mut ServiceState<P>) {
        if let Some((listener, since)) = self.first_takeover {
            let now = now();
            shared.child_ended(listener, now, now - since);
        }
    }

    /// Handles RELEASE_CONNECTION: the process has closed an inherited connection that it never
    /// took over.
    pub(super) fn release_connection<P: NicPort>(&self, shared: &ServiceState<P>, connection: u64) {
        let core = shared.cores.of_connection(connection);
        if let Some(holder) = self.holder(core) {
            shared.cores.call(core, move |host, now| {
                host.release_connection(now, holder, connection)
            });
        }
    }
}
