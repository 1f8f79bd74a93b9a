//! Sockets that are left to the kernel though the service would take them.
//!
//! * The user of `tidelane run` said so.
//! * The program hands its connections to other programs (`exec`), for which a connection of the
//!   service means nothing. Some programs are known for that. Of others it is known once one of
//!   their processes has done it: the listeners of all are the kernel's from then on.
//! * The program forks for each connection, and its children live for a short time: the service
//!   says so of a listener.

use std::{ffi::OsStr, os::fd::RawFd, sync::atomic::Ordering};

use tidelane_abi::not_accelerated;
use tidelane_client::{
    ListenerHandle,
    exceptions::{Exceptions, VARIABLE},
};

use super::session;
use crate::sys::{self, Address, SharedWord, StaticCell, line};

/// Servers that execute another program for each connection, by the names of their files.
const HANDING_OVER: [&str; 7] = [
    "sshd",
    "git-daemon",
    "inetd",
    "xinetd",
    "tcpserver",
    "tcpsvd",
    "systemd-socket-activate",
];

/// The choice of the user, and of the program.
#[derive(Debug)]
struct Choice {
    exceptions: Exceptions,
    /// Not zero: this program, or one that it forked, has handed a connection over.
    hands_over: Option<SharedWord>,
}

static CHOICE: StaticCell<Choice> = StaticCell::new();

/// To be called before the process forks.
pub(crate) fn prepare() {
    choice();
}

fn choice() -> &'static Choice {
    if let Some(choice) = CHOICE.load() {
        return choice;
    }
    let choice: &'static Choice = Box::leak(Box::new(Choice::new()));
    CHOICE.store(Some(choice));
    choice
}

impl Choice {
    fn new() -> Self {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let exceptions = text.parse().unwrap_or_else(|error| {
            line(format_args!("{VARIABLE}: {error}"));
            Exceptions::default()
        });
        let hands_over = SharedWord::new();
        let name = std::env::current_exe().unwrap_or_default();
        let known = |server: &&str| name.file_name() == Some(OsStr::new(server));
        if let Some(word) = &hands_over
            && HANDING_OVER.iter().any(known)
        {
            word.get().store(1, Ordering::Relaxed);
        }
        Self {
            exceptions,
            hands_over,
        }
    }
}

/// Returns true if connections that the program accepts go to other programs.
fn hands_over() -> bool {
    let word = choice().hands_over.as_ref();
    word.is_some_and(|word| word.get().load(Ordering::Relaxed) != 0)
}

/// The reason to leave a listener that the service has to the kernel, if there is one now.
pub(crate) fn of_served(listener: ListenerHandle) -> Option<u32> {
    if hands_over() {
        return Some(not_accelerated::HANDED_OVER);
    }
    session::takes_given_up(listener).then_some(not_accelerated::FORKS)
}

/// The program hands a connection to another one. Also for a child between `vfork` and `exec`.
pub(crate) fn note_handing_over() {
    if let Some(word) = CHOICE.load().and_then(|choice| choice.hands_over.as_ref()) {
        word.get().store(1, Ordering::Relaxed);
    }
}

/// The reason to leave a listener to the kernel, if there is one.
pub(crate) fn of_listener(fd: RawFd) -> Option<u32> {
    let choice = choice();
    if hands_over() {
        return Some(not_accelerated::HANDED_OVER);
    }
    if choice.exceptions == Exceptions::default() {
        return None;
    }
    let name = sys::local_name(fd).ok()?;
    let left = choice.exceptions.has_listener(&name.addr, name.port);
    left.then_some(not_accelerated::CHOSEN)
}

/// The reason to leave a connection to `peer` to the kernel, if there is one.
pub(crate) fn of_connection(peer: &Address) -> Option<u32> {
    let left = choice().exceptions.has_connection(&peer.addr, peer.port);
    left.then_some(not_accelerated::CHOSEN)
}
