//! Threads of the Tidelane service that check the descriptors in messages of programs.
//!
//! A program chooses the descriptor, so the service's calls on the descriptor may block: `close`
//! waits for the unsent data of a socket with SO_LINGER. `getsockname` and `bind` wait for the
//! socket lock, whose holder may wait for a page of a user's file system (FUSE). Therefore neither
//! a core (a polling thread that handles packets) nor the control thread makes these calls. Each
//! user has a thread that checks and closes all descriptors of the user's programs, one message
//! after another. The service reads a program's next message only after the check of the previous
//! message. At most one message of each session (a connected program) therefore waits for its
//! check.
//!
//! These threads also close the sockets of sessions, because unread messages may contain
//! descriptors.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::fstat,
};
use tidelane_abi::{Message, message};
use tidelane_host::ListenerFastOpen;
use tidelane_ring::Doorbell;
use tidelane_steering::{BoundSocket, PortReservation};
use tidelane_wire::{IpAddress, protocol};

use crate::{
    cores::ring,
    fast_open,
    netns::NetNs,
    pace::{self, IsBesideCore},
    sockets::{self, Entitlement, KernelSocket},
    udp_sockets,
};

/// A message with descriptors.
#[derive(Debug)]
pub struct MessageWithDescriptors {
    /// Number of the session that received the message.
    pub session: u64,
    /// The message.
    pub message: Message,
    /// The descriptors of the message.
    pub descriptors: Vec<OwnedFd>,
    /// Addresses of the served interface when the message was read.
    pub addresses: Vec<IpAddress>,
}

/// A message whose descriptors were checked. The descriptors that remain in `result` are safe to
/// close.
#[derive(Debug)]
pub struct CheckedMessage {
    /// Number of the session that received the message.
    pub session: u64,
    /// The message.
    pub message: Message,
    /// The result of the check.
    pub result: CheckResult,
}

/// The result of the check of a message's descriptors. Words in capitals name the kinds of messages
/// that can have the result.
#[derive(Debug)]
pub enum CheckResult {
    /// The number of descriptors differs from the number that the message's kind requires.
    /// Tidelane's library never sends this message.
    WrongCount,
    /// The check has failed: the descriptor is not of the kind that the message requires, its
    /// socket does not entitle the program to the port, or the port could not be reserved.
    Unfit,
    /// CONTEXT, OPEN_PORT: the doorbell, an eventfd by which the service wakes the program.
    Doorbell(Doorbell),
    /// LISTEN, RESERVE: a socket that entitles the program to the socket's port.
    Entitled(Box<Entitled>),
    /// CLAIM_TUPLE: a socket that proves the program's right to the socket's 3-tuple.
    Proof(Box<TupleProof>),
    /// SUSPEND_LISTENER: the cookie (SO_COOKIE) of a TCP socket that does not listen.
    ListensNoMore(u64),
    /// CLAIM_TUPLE: another socket of the kernel also has the 3-tuple, or the kernel did not answer
    /// the query for other sockets.
    Shared,
}

/// A program's socket that entitles the program to the socket's port. The port is reserved while
/// `reservation` exists.
#[derive(Debug)]
pub struct Entitled {
    /// The socket's addresses, options and state.
    pub socket: KernelSocket,
    /// The kernel's reservation of the socket's port.
    pub reservation: PortReservation,
    /// The listener's Fast Open options. The default options for RESERVE.
    pub fast_open: ListenerFastOpen,
    /// True if the listener also gets the service's connections from programs of this host. The
    /// value is true only if the program has requested these connections, and if the kernel would
    /// deliver all of them to this listener.
    pub within_host: bool,
}

/// A program's socket that is bound to a 3-tuple (address, protocol, port) and has no other use.
#[derive(Debug)]
pub struct TupleProof {
    /// The socket's addresses, options and state.
    pub socket: KernelSocket,
    /// The kernel's reservation of the socket's port. `None` for a UDP socket if an earlier
    /// reservation, or another socket without SO_REUSEADDR, has the port.
    pub reservation: Option<PortReservation>,
    /// True if other TCP sockets with SO_REUSEADDR can be bound to the port, and can then connect
    /// from the port.
    pub shared: bool,
}

/// A task of a user's thread.
enum Job {
    Check(Box<MessageWithDescriptors>),
    Close(Vec<OwnedFd>),
}

/// The threads that check and close descriptors, by user.
pub struct DescriptorThreads {
    /// The users' threads, by uid.
    users: HashMap<u32, User>,
    /// The channel from the threads to the control thread.
    checked: (Sender<CheckedMessage>, Receiver<CheckedMessage>),
    /// An eventfd that is readable when a check is complete.
    bell: Arc<OwnedFd>,
    namespace: NetNs,
    /// Index of the served interface.
    ifindex: u32,
    /// True if the kernel can be queried for the socket that gets a SYN.
    asks: bool,
    /// The argument of [`pace::install_check`] for new threads. `None` if the threads do not pause.
    pace: Option<IsBesideCore>,
    /// The check for tests, which runs in the calling thread. `None` in the service.
    immediate: Option<Entitlement>,
}

/// The number of a user's sessions, and the channel to the user's thread.
struct User {
    /// Number of the user's sessions.
    sessions: usize,
    jobs: Sender<Job>,
}

/// Returns the number of descriptors that a message of this kind must have.
pub fn descriptors_required(kind: u32) -> usize {
    match kind {
        message::CONTEXT
        | message::LISTEN
        | message::RESERVE
        | message::SUSPEND_LISTENER
        | message::OPEN_PORT
        | message::CLAIM_TUPLE => 1,
        _ => 0,
    }
}

impl DescriptorThreads {
    /// Returns a set without threads, for sockets of the calling thread's network namespace and the
    /// interface `ifindex`. A user's first session starts the user's thread.
    pub fn new(ifindex: u32) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            users: HashMap::new(),
            checked: channel(),
            bell: Arc::new(bell),
            namespace: NetNs::current()?,
            ifindex,
            asks: Entitlement::can_ask(),
            pace: None,
            immediate: None,
        })
    }

    /// Returns a set that never starts threads, for tests. Each check runs within
    /// [`check`](Self::check), which therefore may block and does not ring the bell.
    pub fn immediate(ifindex: u32) -> io::Result<Self> {
        let threads = Self::new(ifindex)?;
        let entitlement = Entitlement::new(threads.namespace, ifindex, threads.asks)?;
        Ok(Self {
            immediate: Some(entitlement),
            ..threads
        })
    }

    /// Makes the threads that start later pause while a core is awake on their CPU ([`pace`]).
    pub fn set_pace(&mut self, is_beside_core: IsBesideCore) {
        self.pace = Some(is_beside_core);
    }

    /// Returns a descriptor that is readable when [`next`](Self::next) has a result.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Adds a session of `user` to the count. The first session starts the user's thread.
    pub fn join(&mut self, user: u32) -> io::Result<()> {
        if self.immediate.is_some() {
            return Ok(());
        }
        if let Some(known) = self.users.get_mut(&user) {
            known.sessions += 1;
            return Ok(());
        }
        let (jobs, receiver) = channel();
        let checked = self.checked.0.clone();
        let bell = self.bell.clone();
        let pace = self.pace.clone();
        let entitlement = Entitlement::new(self.namespace, self.ifindex, self.asks)?;
        thread::Builder::new()
            .name("tdl-descriptors".into())
            .spawn(move || {
                pace.into_iter().for_each(pace::install_check);
                serve(&receiver, &checked, &bell, entitlement);
            })?;
        self.users.insert(user, User { sessions: 1, jobs });
        Ok(())
    }

    /// Removes a session of `user` from the count, and closes the session's socket. The user's
    /// thread ends after the user's last session.
    pub fn leave(&mut self, user: u32, socket: OwnedFd) {
        let Some(known) = self.users.get_mut(&user) else {
            return;
        };
        let _ = known.jobs.send(Job::Close(vec![socket]));
        known.sessions -= 1;
        if known.sessions == 0 {
            self.users.remove(&user);
        }
    }

    /// Closes descriptors that a program of `user` sent.
    pub fn close(&self, user: u32, descriptors: Vec<OwnedFd>) {
        if let Some(known) = self.users.get(&user) {
            let _ = known.jobs.send(Job::Close(descriptors));
        }
    }

    /// Closes the socket and the descriptors of a session that was refused.
    pub fn dispose(&mut self, user: u32, descriptors: Vec<OwnedFd>, socket: OwnedFd) {
        if self.join(user).is_ok() {
            self.close(user, descriptors);
            self.leave(user, socket);
        }
    }

    /// Checks the descriptors of a message of `user`. [`next`](Self::next) returns the result.
    pub fn check(&mut self, user: u32, sent: MessageWithDescriptors) {
        if let Some(entitlement) = &mut self.immediate {
            let _ = self.checked.0.send(check(sent, entitlement));
            return;
        }
        if let Some(known) = self.users.get(&user) {
            let _ = known.jobs.send(Job::Check(Box::new(sent)));
        }
    }

    /// Returns the next checked message, if there is one.
    pub fn next(&self) -> Option<CheckedMessage> {
        self.checked.1.try_recv().ok()
    }
}

fn serve(
    jobs: &Receiver<Job>,
    checked: &Sender<CheckedMessage>,
    bell: &OwnedFd,
    mut entitlement: Entitlement,
) {
    for job in jobs {
        pace::begin();
        match job {
            Job::Close(descriptors) => drop(descriptors),
            Job::Check(sent) => {
                if checked.send(check(*sent, &mut entitlement)).is_err() {
                    return;
                }
                ring(bell);
            }
        }
    }
}

fn check(sent: MessageWithDescriptors, entitlement: &mut Entitlement) -> CheckedMessage {
    let (session, message) = (sent.session, sent.message);
    CheckedMessage {
        session,
        message,
        result: check_message(sent, entitlement),
    }
}

/// Checks the descriptors of a message, and closes all of them except a doorbell.
fn check_message(sent: MessageWithDescriptors, entitlement: &mut Entitlement) -> CheckResult {
    let mut sent = sent;
    let count = sent.descriptors.len();
    let mut descriptors = std::mem::take(&mut sent.descriptors).into_iter();
    let first = descriptors.next();
    let result = match first {
        Some(first) if count == descriptors_required(sent.message.kind) => {
            match sent.message.kind {
                message::CONTEXT | message::OPEN_PORT => Doorbell::from_untrusted(first)
                    .ok()
                    .map(CheckResult::Doorbell),
                message::CLAIM_TUPLE => check_bound(&first, entitlement, &sent),
                message::LISTEN => check_listener(&first, entitlement, &sent),
                message::SUSPEND_LISTENER => check_shut(&first),
                _ => check_reserved(&first, entitlement),
            }
        }
        _ => Some(CheckResult::WrongCount),
    };
    result.unwrap_or(CheckResult::Unfit)
}

/// Checks a listening socket. The port is reserved before the kernel is asked which socket gets the
/// port's SYNs, so that the program cannot release the port to another program's socket meanwhile.
fn check_listener(
    fd: &OwnedFd,
    entitlement: &mut Entitlement,
    sent: &MessageWithDescriptors,
) -> Option<CheckResult> {
    let socket = entitlement.examine(fd.as_fd())?;
    pace::rest();
    let reservation = PortReservation::beside(&socket.bound_socket()).ok()?;
    pace::rest();
    let fast_open = fast_open::of_listener(fd);
    let covered = covered(&socket, &sent.addresses);
    let delivered = entitlement.is_delivered_to(&socket, &covered);
    let wanted = delivered && sent.message.within_host != 0;
    let within_host = wanted && entitlement.is_delivered_within_host(&socket);
    delivered.then(|| {
        CheckResult::Entitled(Box::new(Entitled {
            socket,
            reservation,
            fast_open,
            within_host,
        }))
    })
}

/// Checks that a TCP socket does not listen. After `shutdown`, the socket may have no port, because
/// the kernel releases a port that it chose itself. This check therefore does not call
/// [`Entitlement::examine`], which needs a port.
fn check_shut(fd: &OwnedFd) -> Option<CheckResult> {
    let (cookie, listens) = sockets::listening_state(fd.as_fd())?;
    (!listens).then_some(CheckResult::ListensNoMore(cookie))
}

/// Returns the addresses of the interface that the socket's local address covers. If the local
/// address covers none, returns the local address itself.
fn covered(socket: &KernelSocket, addresses: &[IpAddress]) -> Vec<IpAddress> {
    let covers = |addr: &&IpAddress| socket.ends().any(|end| end.addr.covers(**addr));
    let covered: Vec<IpAddress> = addresses.iter().filter(covers).copied().collect();
    match covered.is_empty() {
        true => vec![socket.local.addr],
        false => covered,
    }
}

/// Checks a socket that is to prove the right to its 3-tuple. The socket must be bound to its port,
/// not connected, not listening, and the only socket that gets packets of the 3-tuple. The port is
/// reserved before the checks. The reservation of a UDP port keeps other UDP sockets from the port.
/// The reservation of a TCP port keeps other TCP sockets from listening on the port, but some
/// kernels still let TCP sockets with SO_REUSEADDR bind the port (see [`TupleProof::shared`]).
fn check_bound(
    fd: &OwnedFd,
    entitlement: &mut Entitlement,
    sent: &MessageWithDescriptors,
) -> Option<CheckResult> {
    let socket = entitlement.examine_any(fd.as_fd())?;
    pace::rest();
    // The claim is for this socket alone, so the reservation is in no SO_REUSEPORT group.
    let alone = BoundSocket {
        reuse_port: None,
        ..socket.bound_socket()
    };
    let is_datagram = socket.protocol == protocol::UDP;
    let reservation = match is_datagram {
        true => PortReservation::beside_datagram(&alone, fd.as_fd()),
        false => PortReservation::beside(&alone),
    };
    let reservation = match reservation {
        Ok(reservation) => Some(reservation),
        Err(error) if is_datagram && error.kind() == io::ErrorKind::AddrInUse => None,
        Err(_) => return None,
    };
    pace::rest();
    if !sockets::is_bound_only(fd.as_fd(), &socket) {
        return None;
    }
    let has_another = match &reservation {
        Some(own) if is_datagram => {
            let own = fstat(own).ok()?.st_ino;
            udp_sockets::have_another_socket(&socket, own)
        }
        Some(_) => {
            let covered = covered(&socket, &sent.addresses);
            entitlement.has_listener(&socket, &covered)
        }
        // The reservation of another claim already has the port. The control thread decides with
        // the help of that claim.
        None => false,
    };
    if has_another {
        return Some(CheckResult::Shared);
    }
    Some(CheckResult::Proof(Box::new(TupleProof {
        socket,
        reservation,
        shared: !is_datagram && !PortReservation::is_exclusive(&alone).ok()?,
    })))
}

/// Checks a socket from which a program is going to connect. The socket must be bound to its port,
/// not connected, and not listening.
fn check_reserved(fd: &OwnedFd, entitlement: &Entitlement) -> Option<CheckResult> {
    let socket = entitlement.examine(fd.as_fd())?;
    pace::rest();
    let reservation = PortReservation::beside(&socket.bound_socket()).ok()?;
    pace::rest();
    sockets::is_bound_only(fd.as_fd(), &socket).then(|| {
        CheckResult::Entitled(Box::new(Entitled {
            socket,
            reservation,
            fast_open: ListenerFastOpen::default(),
            within_host: false,
        }))
    })
}

#[cfg(test)]
mod tests;
