//! Exceptions: sockets that are left to the kernel although the service (the process `tidelaned`)
//! could carry their connections. There are three reasons:
//!
//! * The user of `tidelane run` chose the socket as an exception.
//! * The program passes its connections to other programs, by `exec` or by a message over a unix
//!   socket. A connection of the service cannot be passed on. This module lists some programs that
//!   pass connections on. The library (`libtidelane.so`, which contains this crate) detects any
//!   other program when the program first passes on a connection. From then on, all listeners of
//!   the program are left to the kernel. If the program passed on the connection in a message, the
//!   connections that the program opens are also left to the kernel.
//! * The program forks for each connection, and its children live only for a short time. The
//!   service detects the listeners of these programs.

use std::{ffi::OsStr, os::fd::RawFd, sync::atomic::Ordering};

use tidelane_abi::not_accelerated;
use tidelane_client::{
    ListenerHandle,
    exceptions::{Exceptions, VARIABLE},
};

use super::session;
use crate::sys::{self, Address, SharedWords, StaticCell, line};

/// Bit that is set if the program passes on connections that it accepted.
const ACCEPTED: u32 = 1;
/// Bit that is set if the program passes on connections that it opened.
const OPENED: u32 = 2;

/// File names of programs that pass connections on, with the kinds of connections ([`ACCEPTED`],
/// [`OPENED`]).
const PASSING_ON: [(&[&str], u32); 3] = [
    // Servers that execute a program for each connection.
    (
        &[
            "sshd",
            "git-daemon",
            "inetd",
            "xinetd",
            "tcpserver",
            "tcpsvd",
            "couriertcpd",
            "s6-tcpserverd",
            "s6-tcpserver4d",
            "s6-tcpserver6d",
            "systemd-socket-activate",
        ],
        ACCEPTED,
    ),
    // Clients that execute a program for their connection.
    (&["tcpclient", "s6-tcpclient"], OPENED),
    // Servers that pass connections in messages over a unix socket: Dante, Dovecot, Postfix and
    // vsftpd. Each process of Dovecot passes on only one connection, so a detection at the first
    // passed connection would come too late. A child of vsftpd also sets RLIMIT_NOFILE to 0 before
    // its first call on the connection, and could then not open the descriptors of a session.
    (
        &[
            "danted",
            "sockd",
            "imap-login",
            "pop3-login",
            "submission-login",
            "managesieve-login",
            "postscreen",
            "vsftpd",
        ],
        ACCEPTED | OPENED,
    ),
];

/// The exceptions that the user chose, and the kinds of connections that the program passes on.
#[derive(Debug)]
struct ExceptionState {
    exceptions: Exceptions,
    /// A word that this process shares with its forked children. The bits [`ACCEPTED`] and
    /// [`OPENED`] of the word are the kinds of connections that these processes pass on. `None` if
    /// there was no memory for the word.
    passes_on: Option<SharedWords<1>>,
}

/// The state of this process. Empty until the first call of `state`.
static STATE: StaticCell<ExceptionState> = StaticCell::new();

/// Creates the state, whose word `passes_on` this process shares with its forked children. The
/// library calls this function before the process can fork with a tracked socket (a TCP socket that
/// the library may accelerate).
pub(crate) fn prepare() {
    state();
}

fn state() -> &'static ExceptionState {
    if let Some(state) = STATE.load() {
        return state;
    }
    let state: &'static ExceptionState = Box::leak(Box::new(ExceptionState::new()));
    STATE.store(Some(state));
    state
}

impl ExceptionState {
    fn new() -> Self {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let exceptions = text.parse().unwrap_or_else(|error| {
            line(format_args!("{VARIABLE}: {error}"));
            Exceptions::default()
        });
        let passes_on = SharedWords::new();
        let name = std::env::current_exe().unwrap_or_default();
        let known = |names: &[&str]| {
            names
                .iter()
                .any(|n| name.file_name() == Some(OsStr::new(n)))
        };
        for (names, what) in PASSING_ON {
            if let Some(word) = passes_on.as_ref().filter(|_| known(names)) {
                word.all()[0].store(what, Ordering::Relaxed);
            }
        }
        Self {
            exceptions,
            passes_on,
        }
    }
}

/// Returns true if the program passes accepted connections on.
fn passes_on() -> bool {
    has(ACCEPTED)
}

/// Returns true if one of the bits `what` ([`ACCEPTED`], [`OPENED`]) is set for the program.
fn has(what: u32) -> bool {
    let word = state().passes_on.as_ref();
    word.is_some_and(|word| word.all()[0].load(Ordering::Relaxed) & what != 0)
}

/// Returns the [`not_accelerated`] reason if `listener`, which the service has, must be left to the
/// kernel from now on. Returns `None` if `listener` stays in the service.
pub(crate) fn of_attached_listener(listener: ListenerHandle) -> Option<u32> {
    if passes_on() {
        return Some(not_accelerated::PASSED_ON);
    }
    session::take_listener_left_to_kernel(listener).then_some(not_accelerated::FORKS)
}

/// Records that the program passes a connection on by `exec`. A child between `vfork` and `exec`
/// may call this function.
pub(crate) fn note_exec() {
    note_passed_on(ACCEPTED);
}

/// Records that the program passes a connection to another process in a message.
pub(crate) fn note_message() {
    note_passed_on(ACCEPTED | OPENED);
}

fn note_passed_on(what: u32) {
    if let Some(word) = STATE.load().and_then(|state| state.passes_on.as_ref()) {
        word.all()[0].fetch_or(what, Ordering::Relaxed);
    }
}

/// Returns the [`not_accelerated`] reason if the listener `fd` must be left to the kernel. Returns
/// `None` if the service may carry the listener's connections.
pub(crate) fn of_listener(fd: RawFd) -> Option<u32> {
    let state = state();
    if passes_on() {
        return Some(not_accelerated::PASSED_ON);
    }
    if state.exceptions == Exceptions::default() {
        return None;
    }
    let name = sys::local_name(fd).ok()?;
    let left = state.exceptions.has_listener(&name.addr, name.port);
    left.then_some(not_accelerated::CHOSEN)
}

/// Returns the [`not_accelerated`] reason if a connection to `peer` must be left to the kernel.
/// Returns `None` if the service may carry the connection.
pub(crate) fn of_connection(peer: &Address) -> Option<u32> {
    if has(OPENED) {
        return Some(not_accelerated::PASSED_ON);
    }
    let left = state().exceptions.has_connection(&peer.addr, peer.port);
    left.then_some(not_accelerated::CHOSEN)
}
