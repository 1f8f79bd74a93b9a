//! Listeners of a program. A listener exists on all cores (polling threads), which accept its
//! connections. A claim is a 3-tuple (protocol, address, port) whose packets the service's XDP
//! program redirects to the service. A listener has a claim for each IP version of its socket. The
//! claims of a listener share one reservation of the port (a kernel socket of the service that
//! keeps other sockets from the port).
//!
//! If a program forks a short-lived child for each connection, its listener is *draining*: the
//! kernel gets the listener's SYNs. A listener whose kernel socket has stopped listening is
//! *suspended*: the service releases the listener's claims, and the cores refuse new connections,
//! until a program sends LISTEN again.

use std::{io, os::fd::AsFd, sync::Arc};

use tidelane_abi::{Message, message, refusal};
use tidelane_host::{
    Holder, Host, Listen, ListenError,
    accounts::{Account, Charge, Refused, Resource},
};
use tidelane_ring::registration::{new_message, send_message};
use tidelane_steering::{PortReservation, SteeringError};

use super::{Registered, Session};
use crate::{
    claims::{Owner, Terms},
    clock::now,
    core_link::NicPort,
    descriptors::Entitled,
    service_state::ServiceState,
    sockets::KernelSocket,
};

/// A listener that a program holds.
pub(super) struct HeldListener {
    /// Number by which all programs that share the kernel socket refer to the listener.
    number: u32,
    /// Cookie of the listener's kernel socket.
    pub(super) cookie: u64,
    /// The charge to the program's user.
    _charge: Charge,
}

impl Registered {
    /// Charges the program's user for one more listener. If the program already holds the listener,
    /// charges nothing and returns `None`.
    fn charge_listener(
        &self,
        account: &Arc<Account>,
        cookie: u64,
    ) -> Result<Option<Charge>, Refused> {
        if self.has_listener(cookie) {
            return Ok(None);
        }
        account.charge(Resource::Listeners, 1).map(Some)
    }

    fn has_listener(&self, cookie: u64) -> bool {
        let mut known = self.listeners.iter();
        known.any(|known| known.cookie == cookie)
    }

    /// Returns a constant of [`refusal`] if the service does not accelerate the listener, so that
    /// its connections stay with the kernel.
    fn refusal_of<P: NicPort>(
        &self,
        shared: &ServiceState<P>,
        socket: &KernelSocket,
        within_host: bool,
    ) -> Option<u32> {
        if !shared.is_reached(socket.local.addr, within_host) {
            return Some(refusal::NOT_ACCELERATED);
        }
        if socket
            .ends()
            .any(|end| shared.claims.is_claimed_by_mux_port(end))
        {
            return Some(refusal::IN_USE);
        }
        let drains = shared.is_draining(socket.cookie) && !self.has_listener(socket.cookie);
        drains.then_some(refusal::FORKS)
    }

    /// Returns the number of a listener that the program has to give up, if there is one. The
    /// listener is draining, and the service has no connection of the listener that is not accepted
    /// yet.
    pub(super) fn listener_to_give_up<P: NicPort>(&self, shared: &ServiceState<P>) -> Option<u32> {
        let mut listeners = self.listeners.iter();
        let given_up = listeners.find(|held| shared.is_drained(held.cookie, now()));
        given_up.map(|held| held.number)
    }

    /// Records a listener of the program. `charge` is `None` if the program already holds the
    /// listener. Returns true if the listener is new to the program.
    fn hold(&mut self, listen: &Listen, charge: Option<Charge>) -> bool {
        let fresh = charge.is_some();
        self.listeners.extend(charge.map(|charge| HeldListener {
            number: listen.number,
            cookie: listen.key,
            _charge: charge,
        }));
        fresh
    }
}

impl Session {
    /// Handles LISTEN: makes the listener of a checked kernel socket on all cores, and claims the
    /// socket's port.
    pub(super) fn listen<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        request: &Message,
        entitled: Entitled,
    ) -> io::Result<()> {
        let Some(registered) = &mut self.registered else {
            return Ok(());
        };
        let Entitled {
            socket,
            reservation,
            fast_open: set,
            within_host,
        } = entitled;
        shared.suspend_if_moved(&socket);
        let (policy, keys) = shared.fast_open.read();
        if let Some(reason) = registered.refusal_of(shared, &socket, within_host) {
            return self.answer(message::LISTEN, reason);
        }
        let charge = match registered.charge_listener(self.charges.account(), socket.cookie) {
            Ok(charge) => charge,
            Err(refused) => return self.refuse(message::LISTEN, refused),
        };
        let backlog = shared.somaxconn.clamp(request.backlog);
        let mut options = request.options;
        let allowed = shared.congestion.allowed_to(&self.peer);
        if !allowed.has(options.congestion) {
            options.congestion = 0;
        }
        let listen = Listen {
            number: shared.listener_number(socket.cookie),
            key: socket.cookie,
            local: socket.local,
            v6_only: socket.v6_only,
            group: socket.group(),
            backlog,
            within_host,
        };
        let listened = shared.cores.call_each(|core| {
            let id = registered.ids[core];
            move |host: &mut Host<P>, _| {
                let listener = host.listen(id, &listen)?;
                host.set_listener_options(listener, &options);
                host.set_fast_open(policy, keys);
                host.set_listener_fast_open(listener, &set);
                Ok(())
            }
        });
        let result = listened.map_or(Err(ListenError::Limit), |all| all.into_iter().collect());
        if let Err::<(), _>(error) = result {
            return self.listen_refused(shared, &listen, error);
        }
        if registered.hold(&listen, charge) {
            shared.hold_listener(socket.cookie);
        }
        if let Err(error) = self.start_listener(shared, &socket, reservation) {
            self.unlisten(shared, listen.number);
            return self.refuse_claim(message::LISTEN, socket.local, &error);
        }
        let answer = Message {
            listener: listen.number,
            cookie: request.cookie,
            ..new_message(message::LISTEN)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }

    /// Resumes a listener that all cores have, and claims its endpoints. A draining listener keeps
    /// its earlier claims instead. If a claim fails, a listener that was suspended is suspended
    /// again, because other programs may hold the listener.
    fn start_listener<P: NicPort>(
        &self,
        shared: &mut ServiceState<P>,
        socket: &KernelSocket,
        reservation: PortReservation,
    ) -> Result<(), SteeringError> {
        let was_suspended = shared.is_suspended(socket.cookie);
        shared.resume_listener(socket);
        if shared.is_draining(socket.cookie) {
            return Ok(());
        }
        let claimed = self.claim_ends(shared, socket, reservation);
        if claimed.is_err() && was_suspended {
            shared.suspend_listener(socket.cookie);
        }
        claimed
    }

    /// Claims the endpoints of a listener, one for each IP version. One reservation holds the port
    /// for both versions.
    fn claim_ends<P: NicPort>(
        &self,
        shared: &mut ServiceState<P>,
        socket: &KernelSocket,
        reservation: PortReservation,
    ) -> Result<(), SteeringError> {
        let mut reservation = Some(reservation);
        socket.ends().try_for_each(|end| {
            let terms = Terms {
                charge: None,
                reservation: reservation.take(),
                shared: socket.reuse_address,
                program: None,
            };
            let key = (Owner::Listener(socket.cookie), end);
            shared.claims.claim(key, terms, now())
        })
    }

    /// Answers a LISTEN that a core has refused or not answered. Removes the program's hold of the
    /// listener from all cores, unless the program already held the listener before this LISTEN.
    fn listen_refused<P: NicPort>(
        &self,
        shared: &mut ServiceState<P>,
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
                        host.unlisten(now, id, key);
                    }
                }
            });
            shared.forget_listener(key);
        }
        if shared.is_suspended(key) {
            // Some cores may have resumed the listener.
            shared.suspend_listener(key);
        }
        let refusal = match error {
            ListenError::InUse => refusal::IN_USE,
            ListenError::Limit | ListenError::NoProgram => refusal::LIMIT,
        };
        self.answer(message::LISTEN, refusal)
    }

    /// Handles UNLISTEN: releases the program's hold of a listener.
    pub(super) fn unlisten<P: NicPort>(&mut self, shared: &mut ServiceState<P>, number: u32) {
        let Some(registered) = &mut self.registered else {
            return;
        };
        let mut held = registered.listeners.iter();
        let Some(at) = held.position(|held| held.number == number) else {
            return;
        };
        let HeldListener { cookie, .. } = registered.listeners.swap_remove(at);
        shared.cores.call_each(|core| {
            let id = registered.ids[core];
            move |host, now| host.unlisten(now, id, cookie)
        });
        shared.release_listener(cookie);
    }
}
