//! Mux ports. A mux port carries frames between the NIC and a program with a TCP/IP stack of its
//! own. The program thereby shares the NIC with the service and with other programs. A session is a
//! program's connection to the service. A doorbell is an eventfd by which the program and a core (a
//! polling thread of the service) wake each other.
//!
//! A program opens a mux port, maps and seals the shared memories of the mux port, and then claims
//! 3-tuples (address, protocol, port number). The mux port gets the packets of the claimed
//! 3-tuples. The service uses only sealed memories, so the cores get the mux port only with the
//! first claim. The demux is the XDP program that redirects the packets of a claim to the cores.
//! The cores learn of a claim before the demux does, and the demux gives a claim up before the
//! cores do. A packet of a claimed 3-tuple therefore never reaches the service's own TCP/IP stack.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use tidelane_abi::{
    Message, message,
    port::{PORT_RING_LEN_MAX, PORT_RING_LEN_MIN, PacketPort, RX_CHECKSUM_MAY_BE_PARTIAL},
    refusal,
};
use tidelane_host::{
    Host, PortOwner,
    accounts::{Charge, Resource, User},
};
use tidelane_mux::{ClaimError, PortId, SendRate};
use tidelane_packet_ring::ServiceEnd;
use tidelane_ring::{
    Doorbell, PortMemories, PortRegions,
    registration::{new_message, send_message},
};
use tidelane_wire::{Endpoint, IpAddress};

use super::{Session, charges::PortCharges};
use crate::{
    claims::Terms, clock::now, core_link::NicPort, descriptors::TupleProof, pace,
    port_book::Claimed, service_state::ServiceState,
};

/// The packet rings of a mux port for one core: the service's mappings of the two memories, and
/// their descriptors for the program.
type Rings = (PortRegions, PortMemories);

/// A mux port that a session has opened.
pub struct OpenPort {
    id: PortId,
    /// Length of each packet ring in bytes.
    ring_len: u32,
    /// For each core, the doorbell by which the program wakes the core.
    doorbells: Vec<Doorbell>,
    /// The doorbell by which the cores wake the program.
    bell: Arc<Doorbell>,
    /// The owner of the mux port in the form that the operator's rules use.
    owner: PortOwner,
    /// The user whose rate limits apply to the mux port.
    user: Arc<User>,
    /// The shared memories with the packet rings, for each core. `None` once the cores have the mux
    /// port.
    offered: Option<Vec<Rings>>,
    _charges: PortCharges,
}

impl OpenPort {
    /// Returns the number of the mux port.
    pub fn id(&self) -> PortId {
        self.id
    }

    /// Returns the length of each packet ring in bytes.
    pub fn ring_len(&self) -> u32 {
        self.ring_len
    }

    /// Gives the mux port to the cores, unless the cores already have it. Returns a constant of
    /// [`refusal`] if the program has not sealed its memories, or if a core cannot open the mux
    /// port.
    fn start<P: NicPort>(&mut self, shared: &ServiceState<P>) -> Result<(), u32> {
        let Some(offered) = &self.offered else {
            return Ok(());
        };
        if !offered.iter().all(|(_, memories)| memories.are_sealed()) {
            return Err(refusal::MALFORMED);
        }
        let id = self.id;
        if !shared.rules.accepts_all() {
            self.owner.associations.prepare();
        }
        let opened = shared.cores.call_each(|core| {
            let end = ServiceEnd::new(&offered[core].0, Some(self.bell.clone()));
            let owner = self.owner.clone();
            let rate = self.rate(shared.cores.len());
            move |host: &mut Host<P>, _| {
                let opened = host.open_port(id, end, owner);
                host.mux_ports_mut().set_rate(id, rate);
                opened
            }
        });
        if !opened.is_some_and(|opened| opened.iter().all(|opened| *opened)) {
            return Err(refusal::LIMIT);
        }
        self.offered = None;
        Ok(())
    }

    /// Applies the rate limits of the user to the mux port, if the cores have the mux port.
    pub fn limit<P: NicPort>(&self, shared: &ServiceState<P>) {
        if self.offered.is_some() {
            return;
        }
        let (id, rate) = (self.id, self.rate(shared.cores.len()));
        let set = |_| move |host: &mut Host<P>, _| host.mux_ports_mut().set_rate(id, rate);
        shared.cores.call_each(set);
    }

    /// Returns the rate at which the mux port may send over one core, if there are `cores` cores.
    fn rate(&self, cores: usize) -> SendRate {
        let part = |resource| match self.user.limit(resource) {
            u64::MAX => None,
            limit => Some(limit.div_ceil(cores.max(1) as u64)),
        };
        SendRate {
            packets: part(Resource::PortPackets),
            bytes: part(Resource::PortBytes),
        }
    }

    /// Ends the mux port's claims, and then closes the port on all cores.
    pub(super) fn close<P: NicPort>(self, shared: &mut ServiceState<P>) {
        let id = self.id;
        while let Some(claimed) = shared.ports.pop(id) {
            end_claim(shared, id, &claimed);
            pace::rest();
        }
        shared.cores.unwatch(&self.doorbells);
        let closed = shared
            .cores
            .call_each(|_| move |host: &mut Host<P>, _| host.close_port(id));
        // A core that does not answer may still have the mux port, so the port's number stays in
        // use.
        if let Some(ends) = closed {
            shared.ports.free(id);
            // Unmapping takes long if the program has filled much memory, so another thread unmaps
            // it.
            shared.reclaimer.work(move || drop((ends, self)));
        }
    }
}

impl Session {
    /// Handles a message without descriptors on a session with a mux port.
    pub(super) fn handle_of_port<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        request: &Message,
    ) -> io::Result<()> {
        match request.kind {
            message::RELEASE_TUPLE => self.release_tuple(shared, request),
            kind => self.answer(kind, refusal::MALFORMED),
        }
    }

    /// Handles OPEN_PORT: opens a mux port for the program. Sends the descriptors of the mux port's
    /// memories, of the service page (the memory with state that all programs may read), and of the
    /// doorbells that wake the cores.
    pub(super) fn open_port<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        request: &Message,
        bell: Doorbell,
    ) -> io::Result<()> {
        let ring_len = request.packet_port.ring_len;
        let is_possible = ring_len.is_power_of_two()
            && (PORT_RING_LEN_MIN..=PORT_RING_LEN_MAX).contains(&ring_len);
        if self.is_child || self.is_in_use() || !is_possible {
            return self.answer(message::PORT_OPENED, refusal::MALFORMED);
        }
        if self.denial() != 0 {
            return self.answer(message::PORT_OPENED, self.denial());
        }
        let Some(mac) = shared.link_address else {
            return self.answer(message::PORT_OPENED, refusal::NOT_ACCELERATED);
        };
        let cores = shared.cores.len();
        let charges = match PortCharges::take(self.charges.account(), cores, ring_len) {
            Ok(charges) => charges,
            Err(refused) => return self.refuse(message::PORT_OPENED, refused),
        };
        let Some(frames) = frame_terms(shared) else {
            return self.answer(message::PORT_OPENED, refusal::LIMIT);
        };
        let id = shared.ports.open(self.charges.user().id());
        let opened = id.and_then(|id| Some((id, shared.ports.associations(id)?)));
        let Some((id, associations)) = opened else {
            return self.answer(message::PORT_OPENED, refusal::LIMIT);
        };
        let Ok((offered, doorbells)) = create_rings(shared, id, ring_len) else {
            shared.ports.free(id);
            return self.answer(message::PORT_OPENED, refusal::LIMIT);
        };
        self.set_name(request);
        let answer = Message {
            packet_port: PacketPort {
                number: id.0,
                cores: cores as u32,
                ring_len,
                link_address: mac.0,
                ..frames
            },
            ..new_message(message::PORT_OPENED)
        };
        let rings = offered
            .iter()
            .flat_map(|(_, memories)| memories.descriptors());
        let page = std::iter::once(shared.page_fd.as_fd());
        let bells = doorbells.iter().map(Doorbell::fd);
        let descriptors: Vec<BorrowedFd<'_>> = rings.chain(page).chain(bells).collect();
        let sent = send_message(self.socket.as_fd(), &answer, &descriptors);
        self.port = Some(OpenPort {
            id,
            ring_len,
            doorbells,
            bell: Arc::new(bell),
            owner: PortOwner {
                credentials: Arc::new(self.peer.credentials()),
                associations,
            },
            user: self.charges.user().clone(),
            offered: Some(offered),
            _charges: charges,
        });
        sent
    }

    /// Handles CLAIM_TUPLE: claims the 3-tuple of the socket in `proof` for the session's mux port.
    /// If another mux port of the same user has the claim, moves the claim to this mux port.
    pub(super) fn claim_tuple<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        proof: TupleProof,
    ) -> io::Result<()> {
        let user = self.charges.user().id();
        let Some(port) = &mut self.port else {
            return self.answer(message::CLAIM_TUPLE, refusal::MALFORMED);
        };
        if let Err(refusal) = port.start(shared) {
            return self.answer(message::CLAIM_TUPLE, refusal);
        }
        let (id, local) = (port.id, proof.socket.local);
        if !shared.is_served(local.addr) {
            return self.answer(message::CLAIM_TUPLE, refusal::NOT_ACCELERATED);
        }
        let claimed = match shared.ports.holder(proof.socket.cookie) {
            Some((holder, _)) if holder == id => Ok(()),
            // A program that has the socket has the right to the socket's claim. However, a program
            // of another user may have received the socket by accident, so the claim does not move
            // to another user.
            Some((holder, owner)) if owner == user => take_over(shared, &proof, holder, id),
            Some(_) => Err(refusal::IN_USE),
            None => {
                let ends = proof.socket.ends().count() as u64;
                match self.charges.account().charge(Resource::Ports, ends) {
                    Ok(charge) => claim(shared, proof, id, charge),
                    Err(refused) => return self.refuse(message::CLAIM_TUPLE, refused),
                }
            }
        };
        let answer = Message {
            refusal: claimed.err().unwrap_or(0),
            local_addr: local.addr.0,
            port: local.port.into(),
            ..new_message(message::CLAIM_TUPLE)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }

    /// Handles RELEASE_TUPLE: ends the mux port's claim of a 3-tuple.
    fn release_tuple<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        request: &Message,
    ) -> io::Result<()> {
        let protocol = u8::try_from(request.packet_port.protocol);
        let (Some(port), Ok(protocol), Ok(number)) =
            (&self.port, protocol, u16::try_from(request.port))
        else {
            return self.answer(message::RELEASE_TUPLE, refusal::MALFORMED);
        };
        let local = Endpoint::new(IpAddress(request.local_addr), number);
        let refusal = match shared.ports.remove(port.id, protocol, local) {
            Some(claimed) => {
                end_claim(shared, port.id, &claimed);
                0
            }
            None => refusal::NOT_ENTITLED,
        };
        self.answer(message::RELEASE_TUPLE, refusal)
    }
}

/// Returns the part of the answer PORT_OPENED that describes frames: their maximum length, and
/// whether the checksum field of a received packet may hold only the sum of the pseudo-header.
/// Returns `None` if core 0 does not answer.
fn frame_terms<P: NicPort>(shared: &ServiceState<P>) -> Option<PacketPort> {
    let (frame_len_max, partial) = shared.cores.call(0, |host, _| host.frame_terms())?;
    Some(PacketPort {
        flags: u32::from(partial) * RX_CHECKSUM_MAY_BE_PARTIAL,
        frame_len_max,
        ..PacketPort::default()
    })
}

/// Creates the packet rings of mux port `id` and a doorbell for each core. The cores watch these
/// doorbells.
fn create_rings<P: NicPort>(
    shared: &mut ServiceState<P>,
    id: PortId,
    ring_len: u32,
) -> io::Result<(Vec<Rings>, Vec<Doorbell>)> {
    let cores = 0..shared.cores.len();
    let memories = cores.clone().map(|_| {
        pace::rest();
        PortMemories::create(id.0, ring_len)
    });
    let memories = memories.collect::<io::Result<_>>()?;
    let doorbells = cores.map(|_| Doorbell::new());
    let doorbells = doorbells.collect::<io::Result<Vec<_>>>()?;
    shared.cores.watch(&doorbells)?;
    Ok((memories, doorbells))
}

/// Claims the 3-tuple of a socket, first on the cores, then in the demux. The socket must not back
/// a claim yet. Returns a constant of [`refusal`] on failure.
fn claim<P: NicPort>(
    shared: &mut ServiceState<P>,
    proof: TupleProof,
    port: PortId,
    charge: Charge,
) -> Result<(), u32> {
    let claimed = Claimed::of(&proof.socket);
    let is_taken = claimed.keys.iter().any(|key| shared.claims.clashes(*key));
    let shared_port = proof.shared;
    let Some(reservation) = proof.reservation.filter(|_| !is_taken) else {
        return Err(refusal::IN_USE);
    };
    let tuple = claimed.tuple;
    let on_cores = shared
        .cores
        .call_each(|_| move |host: &mut Host<P>, _| host.mux_ports_mut().claim(tuple, port));
    let on_cores = on_cores.map(|cores| cores.into_iter().collect::<Result<(), ClaimError>>());
    let refusal = match on_cores {
        Some(Ok(())) => None,
        Some(Err(ClaimError::InUse)) => Some(refusal::IN_USE),
        Some(Err(_)) | None => Some(refusal::LIMIT),
    };
    if let Some(refusal) = refusal {
        end_claim(shared, port, &claimed);
        return Err(refusal);
    }
    let (mut charge, mut reservation) = (Some(charge), Some(reservation));
    let in_demux = claimed.keys.iter().try_for_each(|key| {
        let terms = Terms {
            charge: charge.take(),
            reservation: reservation.take(),
            shared: shared_port,
            program: None,
        };
        shared.claims.claim(*key, terms, now())
    });
    if let Err(error) = in_demux {
        eprintln!("tidelaned: cannot claim {}: {error}", tuple.local);
        end_claim(shared, port, &claimed);
        return Err(refusal::LIMIT);
    }
    shared.ports.add(port, claimed);
    Ok(())
}

/// Moves the claim of a socket from mux port `from` to mux port `to`. Each core moves the claim
/// between the handling of two packets. The demux and the reservation stay as they are. Returns a
/// constant of [`refusal`] on failure.
fn take_over<P: NicPort>(
    shared: &mut ServiceState<P>,
    proof: &TupleProof,
    from: PortId,
    to: PortId,
) -> Result<(), u32> {
    let tuple = Claimed::of(&proof.socket).tuple;
    let moved = shared.cores.call_each(|_| {
        move |host: &mut Host<P>, _| host.mux_ports_mut().move_claim(tuple, from, to)
    });
    if !moved.is_some_and(|moved| moved.iter().all(|moved| *moved)) {
        return Err(refusal::LIMIT);
    }
    if let Some(claimed) = shared.ports.remove(from, tuple.protocol, tuple.local) {
        shared.ports.add(to, claimed);
    }
    Ok(())
}

/// Ends a claim, first in the demux, then on the cores. The reservation of the TCP or UDP port in
/// the kernel ends with the claim in the demux.
fn end_claim<P: NicPort>(shared: &mut ServiceState<P>, port: PortId, claimed: &Claimed) {
    for key in &claimed.keys {
        if let Err(error) = shared.claims.end_claim(*key) {
            eprintln!("tidelaned: cannot give up the claim on {}: {error}", key.1);
        }
    }
    let tuple = claimed.tuple;
    shared
        .cores
        .call_each(|_| move |host: &mut Host<P>, _| host.mux_ports_mut().release(tuple, port));
}

#[cfg(test)]
pub(super) mod tests;
