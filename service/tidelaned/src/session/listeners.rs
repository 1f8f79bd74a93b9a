//! Listeners of a program: on all cores, behind one claim.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use tidelane_abi::{Message, message, refusal};
use tidelane_engine::ListenerId;
use tidelane_host::{Holder, Listen, ListenError};
use tidelane_ring::registration::{new_message, send_message};

use super::Session;
use crate::{claims::Owner, control::Shared, core::CoreHost, fast_open, sockets};

/// A listener that a program holds.
pub(super) struct Held {
    /// What programs call it.
    number: u32,
    /// Its number on each core.
    ids: Vec<ListenerId>,
    /// Of its kernel socket.
    pub(super) cookie: u64,
}

impl Session {
    pub(super) fn listen(
        &mut self,
        shared: &mut Shared,
        request: &Message,
        socket: Option<OwnedFd>,
    ) -> io::Result<()> {
        let Some(registered) = &mut self.registered else {
            return Ok(());
        };
        let set = fast_open::of_listener(socket.as_ref());
        let (policy, keys) = (fast_open::policy(), fast_open::keys());
        let examined = socket.and_then(|fd| sockets::examine(&fd).ok().flatten());
        let Some(socket) = examined.filter(|socket| socket.listens) else {
            return self.answer(message::LISTEN, refusal::NOT_ENTITLED);
        };
        if !shared.is_served(socket.local.addr) {
            return self.answer(message::LISTEN, refusal::NOT_ACCELERATED);
        }
        let (backlog, options) = (request.backlog, request.options);
        let listen = Listen {
            number: shared.listener_number(socket.cookie),
            key: socket.cookie,
            local: socket.local,
            v6_only: socket.v6_only,
            backlog,
        };
        let listened = shared.cores.call_each(|core| {
            let id = registered.ids[core];
            move |host: &mut CoreHost, _| {
                let listener = host.listen(id, &listen)?;
                host.set_listener_options(listener, &options);
                host.set_fast_open(policy, keys);
                host.set_listener_fast_open(listener, &set);
                Ok(listener)
            }
        });
        let ids: Result<Vec<ListenerId>, ListenError> = match listened {
            Some(ids) => ids.into_iter().collect(),
            None => Err(ListenError::Limit),
        };
        let ids = match ids {
            Ok(ids) => ids,
            Err(error) => return self.listen_refused(shared, &listen, error),
        };
        let mut known = registered.listeners.iter();
        if !known.any(|known| known.number == listen.number) {
            registered.listeners.push(Held {
                number: listen.number,
                ids,
                cookie: socket.cookie,
            });
        }
        let owner = Owner::Listener(socket.cookie);
        let claimed = socket
            .ends()
            .try_for_each(|end| shared.claims.want(owner, end));
        if let Err(error) = claimed {
            eprintln!("tidelaned: cannot claim {}: {error}", socket.local);
            self.unlisten(shared, listen.number);
            return self.answer(message::LISTEN, refusal::LIMIT);
        }
        let answer = Message {
            listener: listen.number,
            cookie: request.cookie,
            ..new_message(message::LISTEN)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }

    /// A core refused the listener: the others give it up again.
    fn listen_refused(
        &self,
        shared: &mut Shared,
        listen: &Listen,
        error: ListenError,
    ) -> io::Result<()> {
        let key = listen.key;
        let held = self.registered.iter().flat_map(|r| &r.listeners);
        if !held.into_iter().any(|held| held.cookie == key) {
            shared.cores.call_each(|core| {
                let holder = self.holder(core);
                move |host, now| {
                    if let Some(Holder::Program(id)) = holder {
                        host.unlisten_key(now, id, key);
                    }
                }
            });
            forget_unheld(shared, &[key]);
        }
        let why = match error {
            ListenError::InUse => refusal::IN_USE,
            ListenError::Limit | ListenError::NoProgram => refusal::LIMIT,
        };
        self.answer(message::LISTEN, why)
    }

    pub(super) fn unlisten(&mut self, shared: &mut Shared, number: u32) {
        let Some(registered) = &mut self.registered else {
            return;
        };
        let mut held = registered.listeners.iter();
        let Some(at) = held.position(|held| held.number == number) else {
            return;
        };
        let Held { ids, cookie, .. } = registered.listeners.swap_remove(at);
        shared.cores.call_each(|core| {
            let (id, listener) = (registered.ids[core], ids[core]);
            move |host, now| host.unlisten(now, id, listener)
        });
        forget_unheld(shared, &[cookie]);
    }
}

/// Forgets those of these kernel sockets' listeners that no program holds any more.
pub(super) fn forget_unheld(shared: &mut Shared, cookies: &[u64]) {
    if cookies.is_empty() {
        return;
    }
    let left = shared.cores.call_each(|_| |host, _| host.listener_keys());
    let left: Vec<u64> = left.into_iter().flatten().flatten().collect();
    for cookie in cookies {
        if !left.contains(cookie) {
            shared.listener_is_gone(*cookie);
        }
    }
}
