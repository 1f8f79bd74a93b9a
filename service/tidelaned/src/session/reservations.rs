//! Ports to which a program has bound a kernel socket in order to connect from them. The service
//! claims the socket's address and port: packets to this address and port then go to the service
//! instead of the kernel.

use std::{io, os::fd::AsFd};

use tidelane_abi::{Message, message, refusal};
use tidelane_host::accounts::Resource;
use tidelane_ring::registration::{new_message, send_message};
use tidelane_steering::SteeringError;
use tidelane_wire::{Endpoint, IpAddress};

use super::Session;
use crate::{
    claims::{Owner, Terms},
    clock::now,
    core_link::NicPort,
    descriptors::Entitled,
    service_state::ServiceState,
};

impl Session {
    /// Handles RESERVE: lets the program connect from the port of `entitled.socket`. The socket is
    /// bound and not connected.
    pub(super) fn reserve<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        request: &Message,
        entitled: Entitled,
    ) -> io::Result<()> {
        let Some(registered) = &self.registered else {
            return Ok(());
        };
        let socket = entitled.socket;
        // For a connection within this host, the request contains the connection's local address.
        // For other connections, the request contains no address.
        let within = IpAddress(request.local_addr);
        let addr = if !within.is_unspecified() {
            let covered = socket.local.addr.covers(within) && shared.addresses_within.has(within);
            Some(within).filter(|_| covered && self.admission.within_host)
        } else if socket.local.addr.is_unspecified() {
            shared.first_address(socket.local.addr)
        } else {
            Some(socket.local.addr).filter(|addr| shared.is_served(*addr))
        };
        let Some(addr) = addr else {
            return self.answer(message::RESERVE, refusal::NOT_ACCELERATED);
        };
        let endpoint = Endpoint {
            addr,
            port: socket.local.port,
        };
        if shared.claims.is_claimed_by_mux_port(endpoint) {
            return self.answer(message::RESERVE, refusal::IN_USE);
        }
        let key = (Owner::Session(self.number), endpoint);
        let charge = match shared.claims.has(key) {
            true => None,
            false => match self.charges.account().charge(Resource::Ports, 1) {
                Ok(charge) => Some(charge),
                Err(refused) => return self.refuse(message::RESERVE, refused),
            },
        };
        let terms = Terms {
            charge,
            reservation: Some(entitled.reservation),
            shared: socket.reuse_address,
            program: Some(registered.ids.clone()),
        };
        if let Err(error) = shared.claims.claim(key, terms, now()) {
            return self.refuse_claim(message::RESERVE, endpoint, &error);
        }
        shared.cores.call_each(|core| {
            let id = registered.ids[core];
            move |host, _| host.reserve(id, endpoint)
        });
        let answer = Message {
            port: u32::from(endpoint.port),
            ..new_message(message::RESERVE)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }

    /// Logs the error of a refused claim, and answers with the refusal LIMIT.
    pub(super) fn refuse_claim(
        &self,
        kind: u32,
        endpoint: Endpoint,
        error: &SteeringError,
    ) -> io::Result<()> {
        eprintln!("tidelaned: cannot claim {endpoint}: {error}");
        self.answer(kind, refusal::LIMIT)
    }
}
