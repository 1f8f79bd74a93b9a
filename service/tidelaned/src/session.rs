//! One program's registration socket: its requests, checked and passed to the cores.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use tidelane_abi::{Message, message, refusal};
use tidelane_host::{Bell, Holder, ProgramId};
use tidelane_ring::{
    Doorbell, Layout, ProgramRegion,
    registration::{Received, RecvError, new_message, recv_signed, send_message},
};
use tidelane_wire::Endpoint;

use crate::{claims::Owner, control::Shared, fast_open, sockets};

mod heirs;
mod listeners;

/// Connections that one program may have at once.
const SLOTS_MAX: u32 = 1 << 16;
/// Address space of each buffer area of a program; memory comes with use.
const AREA_LEN: u64 = 4 << 30;
/// Reasons that are kept for `tidelane ss`, per program.
const NOTES_MAX: usize = 4096;

struct EventBell(Doorbell);

impl Bell for EventBell {
    fn ring(&self) -> bool {
        self.0.ring()
    }
}

/// A registered program, as the control thread knows it.
pub struct Registered {
    /// Its number on each core.
    ids: Vec<ProgramId>,
    /// One to each core.
    doorbells: Vec<Doorbell>,
    listeners: Vec<listeners::Held>,
}

/// A connection to the registration socket.
pub struct Session {
    /// Number, unique while the service lives.
    pub number: u64,
    /// The socket.
    pub socket: OwnedFd,
    /// Becomes readable when the process ends, whoever else holds the socket.
    pub pidfd: Option<OwnedFd>,
    /// Process id of the peer.
    pub pid: u32,
    /// What it registered.
    pub registered: Option<Registered>,
    /// It is a child's, which holds connections of its parent's.
    heir: bool,
    /// Name that it gave.
    pub name: String,
    /// Sockets that are not accelerated: inode and reason.
    pub notes: Vec<(u64, u32)>,
}

/// Whether a session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It does.
    Continue,
    /// It is over.
    End,
}

impl Session {
    /// The session of a socket that was just accepted.
    pub fn new(number: u64, socket: OwnedFd) -> io::Result<Self> {
        let credentials = sockopt::socket_peercred(&socket)?;
        let pid = credentials.pid;
        let flags = rustix::process::PidfdFlags::empty();
        let pidfd = rustix::process::pidfd_open(pid, flags).ok();
        let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
            .map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned());
        Ok(Self {
            number,
            socket,
            pidfd,
            pid: pid.as_raw_nonzero().get() as u32,
            registered: None,
            heir: false,
            name,
            notes: Vec::new(),
        })
    }

    /// The session of a child that `parent` is about to make, and the child's end of its socket.
    fn heir(number: u64, parent: &Self) -> io::Result<(Self, OwnedFd)> {
        let (socket, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        // The process that made the pair is not the one that will speak.
        sockopt::set_socket_passcred(&socket, true)?;
        let heir = Self {
            number,
            socket,
            pidfd: None,
            pid: parent.pid,
            registered: None,
            heir: true,
            name: parent.name.clone(),
            notes: Vec::new(),
        };
        Ok((heir, theirs))
    }

    /// What it is to a core.
    fn holder(&self, core: usize) -> Option<Holder> {
        match &self.registered {
            Some(registered) => registered.ids.get(core).copied().map(Holder::Program),
            None => self.heir.then_some(Holder::Heir(self.number)),
        }
    }

    /// Takes all messages that have come.
    pub fn receive(&mut self, shared: &mut Shared) -> Next {
        loop {
            match recv_signed(self.socket.as_fd()) {
                Ok(Some(Received {
                    message,
                    descriptors,
                    sender,
                })) => {
                    if self.heir
                        && let Some(sender) = sender
                    {
                        self.pid = sender.as_raw_nonzero().get() as u32;
                    }
                    if self.handle(shared, &message, descriptors).is_err() {
                        return Next::End;
                    }
                }
                Ok(None) | Err(RecvError::Malformed) => return Next::End,
                Err(RecvError::Version(_)) => {
                    if self
                        .answer(message::REGISTERED, refusal::ABI_VERSION)
                        .is_err()
                    {
                        return Next::End;
                    }
                }
                Err(RecvError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Next::Continue;
                }
                Err(RecvError::Io(_)) => return Next::End,
            }
        }
    }

    fn handle(
        &mut self,
        shared: &mut Shared,
        request: &Message,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let mut descriptors = descriptors.into_iter();
        match (request.kind, self.registered.is_some()) {
            (message::PROBE, false) => self.answer(message::PROBE, 0),
            (message::REGISTER, false) => self.register(shared, request),
            (message::CONTEXT, true) => self.context(shared, request, descriptors.next()),
            (message::LISTEN, true) => self.listen(shared, request, descriptors.next()),
            (message::UNLISTEN, true) => {
                self.unlisten(shared, request.listener);
                Ok(())
            }
            (message::INHERIT, _) => self.inherit(shared),
            (message::TAKE, true) => self.take(shared, request),
            (message::NUMBERS, true) => self.numbers(shared, request),
            (message::DISOWN, _) => {
                self.disown(shared, request.connection);
                Ok(())
            }
            (message::RESERVE, true) => self.reserve(shared, descriptors.next()),
            (message::NOTE, true) => {
                self.notes.retain(|(inode, _)| *inode != request.inode);
                if self.notes.len() < NOTES_MAX {
                    self.notes.push((request.inode, request.reason));
                }
                Ok(())
            }
            _ => self.answer(request.kind, refusal::MALFORMED),
        }
    }

    /// `why` is 0, or one of [`refusal`].
    fn answer(&self, kind: u32, why: u32) -> io::Result<()> {
        let answer = Message {
            refusal: why,
            ..new_message(kind)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }

    fn register(&mut self, shared: &mut Shared, request: &Message) -> io::Result<()> {
        let given = request.name.split(|byte| *byte == 0).next().unwrap_or(&[]);
        let given = String::from_utf8_lossy(given);
        if !given.is_empty() {
            self.name = given.chars().filter(|c| !c.is_control()).collect();
        }
        let layout = Layout::new(SLOTS_MAX, AREA_LEN, AREA_LEN);
        let Some(layout) = layout else {
            return self.answer(message::REGISTERED, refusal::LIMIT);
        };
        let (region, fd) = match ProgramRegion::create("tidelane-program", &layout) {
            Ok(created) => created,
            Err(_) => return self.answer(message::REGISTERED, refusal::LIMIT),
        };
        let cores = shared.cores.len();
        let doorbells: Vec<Doorbell> = (0..cores)
            .map(|_| Doorbell::new())
            .collect::<io::Result<_>>()?;
        shared.cores.watch(&doorbells)?;
        let region = Arc::new(region);
        let heir = self.heir.then_some(self.number);
        let (policy, keys) = (fast_open::policy(), fast_open::keys());
        let added = shared.cores.call_each(|_| {
            let (name, pid, region) = (self.name.clone(), self.pid, region.clone());
            move |host, _| {
                host.set_fast_open(policy, keys);
                let id = host.add_program(name, pid, region);
                if let Some(heir) = heir {
                    host.heir_registered(heir, id);
                }
                id
            }
        });
        let Some(ids) = added else {
            return self.answer(message::REGISTERED, refusal::LIMIT);
        };
        let answer = Message {
            region_len: layout.region_len(),
            ..new_message(message::REGISTERED)
        };
        let memories = [fd.as_fd(), shared.page_fd.as_fd()];
        let bells = doorbells.iter().map(Doorbell::fd);
        let descriptors: Vec<BorrowedFd<'_>> = memories.into_iter().chain(bells).collect();
        let sent = send_message(self.socket.as_fd(), &answer, &descriptors);
        self.registered = Some(Registered {
            ids,
            doorbells,
            listeners: Vec::new(),
        });
        sent
    }

    fn context(
        &mut self,
        shared: &mut Shared,
        request: &Message,
        bell: Option<OwnedFd>,
    ) -> io::Result<()> {
        let Some(registered) = &self.registered else {
            return Ok(());
        };
        let bells = bell.map(|bell| bells(bell, shared.cores.len()));
        let Some(Ok(mut bells)) = bells else {
            return self.answer(message::CONTEXT, refusal::MALFORMED);
        };
        let number = request.context;
        let added = shared.cores.call_each(|core| {
            let (id, bell) = (registered.ids[core], bells.pop());
            move |host, _| bell.is_some_and(|bell| host.add_context(id, number, bell))
        });
        let why = match added {
            Some(added) if added.iter().all(|added| *added) => 0,
            _ => refusal::LIMIT,
        };
        let answer = Message {
            refusal: why,
            context: number,
            ..new_message(message::CONTEXT)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }

    fn numbers(&self, shared: &mut Shared, request: &Message) -> io::Result<()> {
        let Some(registered) = &self.registered else {
            return Ok(());
        };
        let (slot, generation) = (request.slot, request.generation);
        // A slot is one core's; the others know nothing of it.
        let numbers = shared.cores.call_each(|core| {
            let id = registered.ids[core];
            move |host, now| host.numbers(now, id, slot, generation)
        });
        let numbers = numbers.unwrap_or_default().into_iter().flatten().next();
        let Some(numbers) = numbers else {
            return self.answer(message::NUMBERS, refusal::NOT_ENTITLED);
        };
        let answer = Message {
            numbers,
            ..new_message(message::NUMBERS)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }

    fn reserve(&mut self, shared: &mut Shared, socket: Option<OwnedFd>) -> io::Result<()> {
        let Some(registered) = &self.registered else {
            return Ok(());
        };
        let examined = socket.and_then(|fd| sockets::examine(&fd).ok().flatten());
        let Some(socket) = examined.filter(|socket| socket.local.port != 0) else {
            return self.answer(message::RESERVE, refusal::NOT_ENTITLED);
        };
        let addr = if socket.local.addr.is_unspecified() {
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
        if shared
            .claims
            .want(Owner::Session(self.number), endpoint)
            .is_err()
        {
            return self.answer(message::RESERVE, refusal::LIMIT);
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

    /// The program is gone: all that it held is freed.
    pub fn end(&mut self, shared: &mut Shared) {
        shared.unclaim_all(Owner::Session(self.number));
        let Some(registered) = self.registered.take() else {
            shared.cores.call_each(|core| {
                let holder = self.holder(core);
                move |host, now| {
                    if let Some(holder) = holder {
                        host.leave_all(now, holder, false);
                    }
                }
            });
            return;
        };
        shared.cores.unwatch(&registered.doorbells);
        shared.cores.call_each(|core| {
            let id = registered.ids[core];
            move |host, now| host.remove_program(now, id)
        });
        let cookies: Vec<u64> = registered
            .listeners
            .iter()
            .map(|held| held.cookie)
            .collect();
        listeners::forget_unheld(shared, &cookies);
    }
}

/// A context's doorbell for each of `cores` cores.
fn bells(bell: OwnedFd, cores: usize) -> io::Result<Vec<Box<dyn Bell>>> {
    let copy = |_| {
        let bell = Doorbell::from_untrusted(bell.try_clone()?)?;
        Ok(Box::new(EventBell(bell)) as Box<dyn Bell>)
    };
    (0..cores).map(copy).collect()
}
