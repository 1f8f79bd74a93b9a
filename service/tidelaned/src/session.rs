//! A session serves one program's registration socket on the control thread of the Tidelane
//! service, and passes checked requests to the cores. A core is a polling thread that drives one
//! TCP/IP host.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use tidelane_abi::{Message, message, refusal};
use tidelane_host::{
    Holder, ProgramId,
    accounts::{Refused, User, UserId},
};
use tidelane_ring::{
    Doorbell, Layout, Memories, ProgramRegion,
    registration::{Received, RecvError, new_message, recv_untrusted, send_message},
};
use tidelane_time::Instant;

use crate::{
    claims::Owner, clock::now, core_link::NicPort, descriptors, pace, peer::Peer,
    service_state::ServiceState, sys,
};

mod admission;
mod charges;
mod children;
mod contexts;
mod listeners;
mod next;
mod ports;
mod reservations;
mod tcp_info;
mod with_descriptors;

use charges::{ProgramCharges, SessionCharges};

pub use admission::Admission;
pub use next::NextStep;
pub use ports::OpenPort;

/// Maximum number of connection slots of one program. A slot is the record of a connection in
/// shared memory.
const SLOTS_MAX: u32 = 1 << 16;
/// Address space in bytes of each of a program's two buffer areas: for received data, and for data
/// to send. Pages are allocated on first use.
const AREA_LEN: u64 = 4 << 30;
/// SO_SNDBUF in bytes that a session sets for its socket. The buffer holds the answers that the
/// program has not read. If these answers fill the buffer, the session ends.
const ANSWERS_LEN_MAX: usize = 8192;
/// Maximum number of messages that are read from a session in a row. Other sessions then get their
/// turn.
const MESSAGES_PER_TURN: usize = 32;

/// The service's record of a registered program: its id on each core, its doorbells and its
/// listeners.
pub struct Registered {
    /// The program's id on each core.
    ids: Vec<ProgramId>,
    /// An eventfd (doorbell) for each core, by which the program wakes the core.
    doorbells: Vec<Doorbell>,
    listeners: Vec<listeners::HeldListener>,
    /// The charges for the program to its user's account.
    charges: ProgramCharges,
    /// The memory files of the region that the program and the service share. `None` once
    /// [`update_mapped`](Self::update_mapped) has found the files sealed.
    unsealed: Option<Memories>,
}

impl Registered {
    /// Returns true if the program has mapped and sealed its memory, so that the service may use
    /// the memory. In this case, drops the memory files.
    fn update_mapped(&mut self) -> bool {
        self.unsealed = self
            .unsealed
            .take()
            .filter(|memories| !memories.are_sealed());
        self.unsealed.is_none()
    }
}

/// A program's connection to the registration socket, with the resources that the program holds.
pub struct Session {
    /// The session's number, unique while the service lives.
    pub number: u64,
    /// The service's end of the connection.
    pub socket: OwnedFd,
    /// The process at the other end.
    pub peer: Peer,
    /// The program's registration. `None` before the program has registered.
    pub registered: Option<Registered>,
    /// The mux port that the program has opened. A mux port connects the NIC to a program that has
    /// a TCP/IP stack of its own. A session with a mux port registers no program.
    pub port: Option<OpenPort>,
    /// True for the session of a forked child, which inherits connections of its parent.
    is_child: bool,
    /// For a child: the ancestor that connected to the service. `None` for other sessions.
    connected_ancestor: Option<Peer>,
    /// The service's decision whether the program may use the service.
    pub admission: Admission,
    /// Name of the program, for listings.
    pub name: String,
    /// Inodes of sockets that the kernel handles instead of the service. Each inode has a reason
    /// from [`tidelane_abi::not_accelerated`].
    pub not_accelerated: Vec<(u64, u32)>,
    /// Sessions of children that are about to be forked, until the control thread watches them.
    pub children: Vec<Session>,
    /// The charges for the session to its user's account.
    charges: SessionCharges,
    /// For a child: the SO_COOKIE of the listener whose connection the child first took over, and
    /// the time of this takeover.
    first_takeover: Option<(u64, Instant)>,
}

impl Session {
    /// Makes the session of an accepted socket. If the user has reached a limit, sends the refusal
    /// to the program and returns an error.
    pub fn new<P: NicPort>(shared: &mut ServiceState<P>, socket: OwnedFd) -> io::Result<Self> {
        let peer = Peer::of(&socket)?;
        pace::rest();
        Self::of_peer(shared, peer, socket)
    }

    /// Makes the session of a socket with `peer` at the other end.
    pub fn of_peer<P: NicPort>(
        shared: &mut ServiceState<P>,
        peer: Peer,
        socket: OwnedFd,
    ) -> io::Result<Self> {
        let charges = match SessionCharges::take(shared.accounts.of(peer.uid)) {
            Ok(charges) => charges,
            Err(refused) => {
                let descriptors = turn_away(socket.as_fd(), refused);
                shared.descriptors.dispose(peer.uid, descriptors, socket);
                return Err(io::Error::other(refused));
            }
        };
        shared.accounts.pay(charges.user(), now(), 1);
        sockopt::set_socket_send_buffer_size(&socket, ANSWERS_LEN_MAX)?;
        shared.descriptors.join(peer.uid)?;
        Ok(Self {
            number: shared.session_number(),
            socket,
            registered: None,
            port: None,
            is_child: false,
            connected_ancestor: None,
            admission: Admission::default(),
            name: peer.name(),
            peer,
            not_accelerated: Vec::new(),
            children: Vec::new(),
            charges,
            first_takeover: None,
        })
    }

    /// Returns the program's id on core `core`, if the program has registered.
    pub fn program(&self, core: usize) -> Option<ProgramId> {
        self.registered.as_ref()?.ids.get(core).copied()
    }

    /// Makes the session of a future child of `parent`. Also returns the child's end of the new
    /// socket pair.
    fn of_child(
        number: u64,
        charges: SessionCharges,
        parent: &Self,
    ) -> io::Result<(Self, OwnedFd)> {
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        sockopt::set_socket_send_buffer_size(&socket, ANSWERS_LEN_MAX)?;
        // The parent receives the child's end, and later the child sends the messages. With
        // SO_PASSCRED, the kernel reports the sender of each message.
        sockopt::set_socket_passcred(&socket, true)?;
        // SO_PASSPIDFD, from Linux 6.5 on, adds the sender's pidfd.
        let _ = sys::pass_pidfd(socket.as_fd());
        let child = Self {
            number,
            socket,
            peer: parent.peer.successor(),
            registered: None,
            port: None,
            is_child: true,
            connected_ancestor: Some(parent.connected_ancestor().successor()),
            admission: parent.admission,
            name: parent.name.clone(),
            not_accelerated: Vec::new(),
            children: Vec::new(),
            charges,
            first_takeover: None,
        };
        Ok((child, theirs))
    }

    /// Returns the session as a holder (a process that may use connections) on core `core`.
    fn holder(&self, core: usize) -> Option<Holder> {
        match &self.registered {
            Some(registered) => registered.ids.get(core).copied().map(Holder::Program),
            None => self.is_child.then_some(Holder::Child(self.number)),
        }
    }

    /// Returns the user who is charged for the session.
    pub fn user(&self) -> &User {
        self.charges.user()
    }

    /// Returns the uid of the user who is charged, whichever process uses the session.
    pub(crate) fn charged_uid(&self) -> u32 {
        let UserId(number) = self.user().id();
        number
    }

    /// Returns true if the session may stay open after the time limit for registration. Sessions in
    /// use and sessions of children may stay. A program that is not admitted may stay, because the
    /// program reports why its sockets stay with the kernel.
    pub fn may_stay(&self) -> bool {
        self.is_in_use() || self.is_child || self.admission.denied.is_some()
    }

    /// Returns true if the session has a registered program or a mux port.
    pub fn is_in_use(&self) -> bool {
        self.registered.is_some() || self.port.is_some()
    }

    /// Reads waiting messages: at most [`MESSAGES_PER_TURN`], and no more than the user's message
    /// rate allows. A message with descriptors ends the turn.
    pub fn receive<P: NicPort>(&mut self, shared: &mut ServiceState<P>) -> NextStep {
        for _ in 0..MESSAGES_PER_TURN {
            if let Some(due) = shared.accounts.message_due(self.user(), now()) {
                return NextStep::Pause(due);
            }
            let next = self.receive_one(shared);
            pace::rest();
            if next != NextStep::More {
                return next;
            }
        }
        NextStep::Continue
    }

    fn receive_one<P: NicPort>(&mut self, shared: &mut ServiceState<P>) -> NextStep {
        let Received {
            message,
            descriptors,
            sender,
            pidfd,
        } = recv_untrusted(self.socket.as_fd());
        if self.is_child
            && let Some(sender) = sender
        {
            self.peer.becomes(sender, pidfd);
        }
        let message = match message {
            Ok(Some(message)) => message,
            _ if !descriptors.is_empty() => {
                shared.descriptors.close(self.charged_uid(), descriptors);
                return NextStep::End;
            }
            Ok(None) | Err(RecvError::Malformed) => return NextStep::End,
            Err(RecvError::Version(_)) => {
                shared.accounts.pay(self.user(), now(), 1);
                let answered = self.answer(message::REGISTERED, refusal::ABI_VERSION);
                return NextStep::after(&answered);
            }
            Err(RecvError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                return NextStep::Continue;
            }
            Err(RecvError::Io(_)) => return NextStep::End,
        };
        shared
            .accounts
            .pay(self.user(), now(), self.charges.cost(message.kind));
        if !descriptors.is_empty() || descriptors::descriptors_required(message.kind) > 0 {
            self.check_descriptors(shared, message, descriptors);
            return NextStep::Wait;
        }
        NextStep::after(&self.handle(shared, &message))
    }

    fn handle<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        request: &Message,
    ) -> io::Result<()> {
        if self.port.is_some() {
            return self.handle_of_port(shared, request);
        }
        match (request.kind, self.registered.is_some()) {
            (message::PROBE, false) => self.answer(message::PROBE, self.denial()),
            (message::REGISTER, false) => self.register_if_admitted(shared, request),
            (message::UNLISTEN, true) => {
                self.unlisten(shared, request.listener);
                self.answer(message::UNLISTEN, 0)
            }
            (message::INHERIT, _) => self.inherit(shared),
            (message::TAKE_CONNECTION, true) => self.take(shared, request),
            (message::TCP_INFO, true) => self.tcp_info(shared, request),
            (message::RELEASE_CONNECTION, _) => {
                self.release_connection(shared, request.connection);
                Ok(())
            }
            (message::REPORT_NOT_ACCELERATED, registered)
                if registered || self.admission.denied.is_some() =>
            {
                self.report_not_accelerated(request);
                Ok(())
            }
            _ => self.answer(request.kind, refusal::MALFORMED),
        }
    }

    /// Answers a message. `refusal` is 0 for success, or a constant of [`refusal`].
    fn answer(&self, kind: u32, refusal: u32) -> io::Result<()> {
        let answer = Message {
            refusal,
            ..new_message(kind)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }

    /// Returns the program's name and process id, for listings.
    fn named(&self) -> (String, u32) {
        (self.name.clone(), self.peer.pid_number())
    }

    /// Answers that the user has reached a limit.
    fn refuse(&self, kind: u32, refused: Refused) -> io::Result<()> {
        let answer = Message {
            refusal: refusal::LIMIT,
            reason: refused.reason(),
            ..new_message(kind)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }

    /// Handles REGISTER of an admitted program: makes the program's shared memory and doorbells,
    /// adds the program to all cores, and sends the descriptors to the program.
    fn register<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        request: &Message,
    ) -> io::Result<()> {
        self.set_name(request);
        let cores = shared.cores.len();
        let charges = match ProgramCharges::take(self.charges.account(), cores) {
            Ok(charges) => charges,
            Err(refused) => return self.refuse(message::REGISTERED, refused),
        };
        let Some(layout) = Layout::new(SLOTS_MAX, AREA_LEN, AREA_LEN) else {
            return self.answer(message::REGISTERED, refusal::LIMIT);
        };
        let (region, memories) = match ProgramRegion::create("tidelane-program", &layout) {
            Ok(created) => created,
            Err(_) => return self.answer(message::REGISTERED, refusal::LIMIT),
        };
        pace::rest();
        let doorbells: Vec<Doorbell> = (0..cores)
            .map(|_| Doorbell::new())
            .collect::<io::Result<_>>()?;
        shared.cores.watch(&doorbells)?;
        let region = Arc::new(region);
        shared.reclaimer.hold_until_unused(region.clone());
        let child = self.is_child.then_some(self.number);
        pace::rest();
        let (policy, keys) = shared.fast_open.read();
        let allowed = shared.congestion.allowed_to(&self.peer);
        let within_host = self.admission.within_host;
        pace::rest();
        let added = shared.cores.call_each(|_| {
            let (named, region) = (self.named(), region.clone());
            let user = self.charges.user().clone();
            let credentials = self.peer.credentials();
            move |host, _| {
                host.set_fast_open(policy, keys);
                let id = host.add_program_of(&user, named, region);
                host.set_allowed_congestion(id, allowed);
                host.set_credentials(id, credentials);
                host.allow_within_host(id, within_host);
                if let Some(child) = child {
                    host.child_registered(child, id);
                }
                id
            }
        });
        let Some(ids) = added else {
            return self.answer(message::REGISTERED, refusal::LIMIT);
        };
        pace::rest();
        let answer = Message {
            region_len: layout.region_len(),
            within_host: u32::from(within_host && shared.loopback),
            ..new_message(message::REGISTERED)
        };
        let page = std::iter::once(shared.page_fd.as_fd());
        let bells = doorbells.iter().map(Doorbell::fd);
        let memory = memories.descriptors().into_iter().chain(page);
        let descriptors: Vec<BorrowedFd<'_>> = memory.chain(bells).collect();
        let sent = send_message(self.socket.as_fd(), &answer, &descriptors);
        self.registered = Some(Registered {
            ids,
            doorbells,
            listeners: Vec::new(),
            charges,
            unsealed: Some(memories),
        });
        sent
    }

    /// Ends the session, and frees all resources of its program.
    pub fn end<P: NicPort>(mut self, shared: &mut ServiceState<P>) {
        shared.unclaim_all(Owner::Session(self.number), now());
        self.record_child_lifetime(shared);
        if let Some(port) = self.port.take() {
            port.close(shared);
        }
        pace::rest();
        match self.registered.take() {
            Some(registered) => Self::free(registered, shared),
            None => {
                shared.cores.call_each(|core| {
                    let holder = self.holder(core);
                    move |host, now| {
                        if let Some(holder) = holder {
                            host.leave_all(now, holder, false);
                        }
                    }
                });
            }
        }
        pace::rest();
        shared.descriptors.leave(self.charged_uid(), self.socket);
        pace::rest();
    }

    fn free<P: NicPort>(registered: Registered, shared: &mut ServiceState<P>) {
        shared.cores.unwatch(&registered.doorbells);
        shared.cores.call_each(|core| {
            let id = registered.ids[core];
            move |host, now| host.remove_program(now, id)
        });
        pace::rest();
        shared.reclaimer.release(registered.unsealed);
        for held in registered.listeners {
            shared.release_listener(held.cookie);
        }
    }
}

/// Reads the first message of a program whose user has reached a limit, and answers with the limit
/// as the reason. Returns the message's descriptors.
fn turn_away(socket: BorrowedFd<'_>, refused: Refused) -> Vec<OwnedFd> {
    // If the socket were closed with unread messages, the program would get ECONNRESET instead of
    // the answer.
    let descriptors = recv_untrusted(socket).descriptors;
    let answer = Message {
        refusal: refusal::LIMIT,
        reason: refused.reason(),
        ..new_message(message::REGISTERED)
    };
    let _ = send_message(socket, &answer, &[]);
    descriptors
}

#[cfg(test)]
mod tests;
