//! This process's session with the service: made when first needed, given up in a forked child.

use std::{
    ffi::{CStr, OsStr},
    os::{fd::RawFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use tidelane_abi::not_accelerated;
use tidelane_client::{Heir, ListenerHandle, NotAdmitted, Program, RegisterError};

use crate::{
    sys::{self, Errno, Lock, Rank, Section, StaticCell},
    table,
};

/// Where the service listens unless TIDELANE_SOCKET says otherwise.
const SOCKET_PATH: &str = "/run/tidelane/default/control.sock";
/// After a registration that the service refused, the next attempt comes no sooner.
const RETRY_NS: u64 = 1_000_000_000;
/// The same where there is no service, or one that ends or begins.
const RETRY_ABSENT_NS: u64 = 150_000_000;
/// How long a waiting thread looks at its rings before it sleeps, if the service runs elsewhere.
const SPIN_NS: u64 = 20_000;

/// A registration that worked.
///
/// The value is never freed, since threads refer to it without a lock. The memory and descriptors
/// behind it are, once the next session has taken its place.
#[derive(Debug)]
pub(crate) struct Session {
    /// None once the next session has taken its place.
    program: Lock<Option<Program>>,
    gone: Arc<AtomicBool>,
    /// Counts sessions of this process, from 1.
    pub(crate) generation: u32,
}

impl Session {
    fn new(program: Program, generation: u32) -> Self {
        Self {
            gone: program.gone_flag(),
            program: Lock::new(Some(program)),
            generation,
        }
    }

    /// The client's side of it; none of a session that is over.
    pub(crate) fn program(&self) -> Option<Program> {
        self.program.enter()?.clone()
    }

    /// Returns true if the service is known to be gone.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

/// What the environment says, read once.
#[derive(Debug)]
pub(crate) struct Settings {
    socket_path: PathBuf,
    /// A fall-back to the kernel is an error.
    pub(crate) strict: bool,
    /// The program may make rings of io_uring.
    pub(crate) io_uring: bool,
    /// Whether connections within the host (loopback) are the service's, where both ends are. The
    /// service's configuration decides if there is no choice.
    pub(crate) within_host: Option<bool>,
    pub(crate) spin_ns: u64,
}

static SESSION: StaticCell<Session> = StaticCell::new();
/// Sessions that are over, as long as contexts or streams refer to them.
static RETIRED: Lock<Vec<Program>> = Lock::new(Vec::new());
static SETTINGS: StaticCell<Settings> = StaticCell::new();
/// Serialises registration. Holds the time before which there is no new attempt.
static REGISTERING: Lock<u64> = Lock::ranked(Rank::Session, 0);
static GENERATIONS: AtomicU32 = AtomicU32::new(0);
/// The process that the tables belong to: a vfork child shares them and must not touch them.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// A socket passed to the kernel has a descriptor that the library keeps for placeholders.
static TEMPLATE: Lock<RawFd> = Lock::new(-1);
/// The version-mismatch line was printed.
static COMPLAINED: AtomicBool = AtomicBool::new(false);
/// The service that does not admit this process, to be told of its sockets.
static NOT_ADMITTED: Lock<Option<NotAdmitted>> = Lock::new(None);
/// Why there is no session.
static UNAVAILABLE: AtomicU32 = AtomicU32::new(not_accelerated::SERVICE_GONE);
/// The service's number of a listener that is to be the kernel's; 0 if there is none.
static GIVEN_UP: AtomicU32 = AtomicU32::new(0);
/// Lowest number for the library's own descriptors, 0 until known.
static INTERNAL_BASE: AtomicU64 = AtomicU64::new(0);

/// What the environment says.
pub(crate) fn settings() -> &'static Settings {
    if let Some(settings) = SETTINGS.load() {
        return settings;
    }
    let settings: &'static Settings = Box::leak(Box::new(Settings::from_environment()));
    SETTINGS.store(Some(settings));
    settings
}

impl Settings {
    fn from_environment() -> Self {
        let path = std::env::var_os("TIDELANE_SOCKET");
        let path = path.unwrap_or_else(|| SOCKET_PATH.into());
        let is_on = |name: &str| {
            std::env::var_os(name).is_some_and(|value| value == OsStr::from_bytes(b"1"))
        };
        let spin_us = std::env::var("TIDELANE_SPIN_US")
            .ok()
            .and_then(|us| us.parse().ok());
        Self {
            socket_path: PathBuf::from(path),
            strict: is_on("TIDELANE_STRICT"),
            io_uring: is_on("TIDELANE_IO_URING"),
            within_host: std::env::var_os("TIDELANE_LOOPBACK").map(|_| is_on("TIDELANE_LOOPBACK")),
            spin_ns: spin_us.map_or(SPIN_NS, |us: u64| us.saturating_mul(1_000)),
        }
    }
}

/// Whether this is the process whose memory the tables describe, and not a child between `vfork`
/// and `exec`, which shares it. One system call: for slow operations.
pub(crate) fn owns_tables() -> bool {
    let owner = PROCESS.load(Ordering::Relaxed);
    owner == 0 || owner == sys::process_id()
}

/// This process keeps track of sockets from now on.
pub(crate) fn own_tables() {
    if PROCESS.load(Ordering::Relaxed) == 0 {
        PROCESS.store(sys::process_id(), Ordering::Relaxed);
    }
}

/// The living session, if there is one.
#[inline]
pub(crate) fn current() -> Option<&'static Session> {
    SESSION.load().filter(|session| !session.is_gone())
}

/// The session whatever its state, for what is left of it.
#[inline]
pub(crate) fn last() -> Option<&'static Session> {
    SESSION.load()
}

/// The last session whose service is known to be gone, 0 if none. The sessions before it are gone,
/// too.
pub(crate) fn last_gone() -> u32 {
    last().map_or(0, |session| {
        let lives = !session.is_gone();
        session.generation - u32::from(lives)
    })
}

/// The living session, made now if there is none and the service answers.
pub(crate) fn establish() -> Option<&'static Session> {
    current().or_else(register)
}

#[cold]
fn register() -> Option<&'static Session> {
    let mut retry_at_ns = REGISTERING.enter()?;
    if let Some(session) = current() {
        return Some(session);
    }
    let now = sys::monotonic_ns();
    if now < *retry_at_ns {
        return None;
    }
    *retry_at_ns = now + RETRY_NS;
    let name = sys::program_name();
    let name = CStr::from_bytes_until_nul(&name).map_or(&b"?"[..], CStr::to_bytes);
    let name = String::from_utf8_lossy(name);
    let registered = match take_heir() {
        Some(heir) => heir.register(&name),
        None => Program::register(Path::new(&settings().socket_path), &name),
    };
    match registered {
        Ok(program) => {
            *retry_at_ns = now + RETRY_ABSENT_NS;
            protect(&program);
            let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed) + 1;
            let session = Box::leak(Box::new(Session::new(program, generation)));
            let session: &'static Session = session;
            retire(SESSION.swap(Some(session)));
            forget_refusal(NOT_ADMITTED.lock().take());
            Some(session)
        }
        Err(error) => {
            if matches!(error, RegisterError::NotRunning | RegisterError::Io(_)) {
                *retry_at_ns = now + RETRY_ABSENT_NS;
            }
            complain(&error);
            note_refusal(error);
            None
        }
    }
}

/// Frees the sessions that are over, as soon as nothing refers to them. Mostly that is the case
/// when the session after the next begins: contexts and connections end later than their session.
fn retire(last: Option<&'static Session>) {
    let mut retired = RETIRED.lock();
    retired.extend(last.and_then(|session| session.program.enter()?.take()));
    let (over, in_use) = std::mem::take(&mut *retired)
        .into_iter()
        .partition(Program::is_last);
    *retired = in_use;
    drop(retired);
    let over: Vec<Program> = over;
    for program in over {
        for fd in program.descriptors() {
            table::set_internal(fd, false);
        }
    }
}

/// Returns true if the service answered: it has seen to all programs that ended before.
pub(crate) fn await_ended_programs() -> bool {
    // In a handler of a signal that interrupted a registration there is no waiting.
    let Some(_registering) = REGISTERING.enter() else {
        return false;
    };
    owns_tables() && Program::probe(Path::new(&settings().socket_path)).is_ok()
}

/// Keeps what a registration that failed leaves behind, to say why sockets stay with the kernel.
fn note_refusal(error: RegisterError) {
    let reason = match &error {
        RegisterError::NotAdmitted(refused) => refused.reason(),
        RegisterError::NotPermitted => not_accelerated::USER,
        _ => not_accelerated::SERVICE_GONE,
    };
    UNAVAILABLE.store(reason, Ordering::Relaxed);
    if let RegisterError::NotAdmitted(refused) = error {
        table::set_internal(refused.descriptor(), true);
        forget_refusal(NOT_ADMITTED.lock().replace(refused));
    }
}

fn forget_refusal(refused: Option<NotAdmitted>) {
    if let Some(refused) = refused {
        table::set_internal(refused.descriptor(), false);
    }
}

/// Why [`establish`] gave no session: one of [`not_accelerated`].
pub(crate) fn unavailable() -> u32 {
    UNAVAILABLE.load(Ordering::Relaxed)
}

/// A service that does not run is the normal case of a kernel-only program; anything else is not.
fn complain(error: &RegisterError) {
    let silent = matches!(error, RegisterError::NotRunning) && !settings().strict;
    if !silent && !COMPLAINED.swap(true, Ordering::Relaxed) {
        sys::line(format_args!(
            "{error} ({})",
            settings().socket_path.display()
        ));
    }
}

/// Programs that close all descriptors they find must not close the session's.
fn protect(program: &Program) {
    for fd in program.descriptors() {
        table::set_internal(fd, true);
    }
}

/// Moves one of the library's own descriptors out of the way of the program's.
pub(crate) fn make_internal(fd: RawFd) -> RawFd {
    let moved = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, internal_base());
    let fd = match moved {
        Ok(high) => {
            let _ = sys::close(fd);
            high as RawFd
        }
        Err(_) => fd,
    };
    table::set_internal(fd, true);
    fd
}

/// Closes one of the library's own descriptors.
pub(crate) fn close_internal(fd: RawFd) {
    table::set_internal(fd, false);
    let _ = sys::close(fd);
}

/// High enough to leave `select` and small numbers to the program, low enough for its limit.
fn internal_base() -> usize {
    match INTERNAL_BASE.load(Ordering::Relaxed) {
        0 => {
            let limit = sys::descriptor_limit().clamp(16, 8192);
            let base = limit - (limit / 4).min(256);
            INTERNAL_BASE.store(base, Ordering::Relaxed);
            base as usize
        }
        base => base as usize,
    }
}

/// A new descriptor, the lowest free one, that looks like a TCP socket to the kernel.
pub(crate) fn placeholder(close_on_exec: bool) -> Result<RawFd, Errno> {
    let command = if close_on_exec {
        libc::F_DUPFD_CLOEXEC
    } else {
        libc::F_DUPFD
    };
    sys::fcntl(template()?, command, 0).map(|fd| fd as RawFd)
}

/// An unconnected TCP socket of the library's own.
pub(crate) fn template() -> Result<RawFd, Errno> {
    let mut template = TEMPLATE.lock();
    if *template < 0 {
        *template = make_internal(sys::tcp_socket(false)?);
    }
    Ok(*template)
}

/// For the child after fork: the session is the parent's, and so is what that inherited itself. A
/// new one comes when it is needed.
pub(crate) fn reset_after_fork() {
    RETIRED.unlock_after_fork();
    let mut over = std::mem::take(&mut *RETIRED.lock());
    if let Some(session) = SESSION.swap(None) {
        session.program.unlock_after_fork();
        over.extend(session.program.lock().take());
    }
    for program in over {
        program.abandon();
        // Streams and contexts of the parent are never dropped here.
        std::mem::forget(program);
    }
    REGISTERING.reset_after_fork(0);
    HEIR.unlock_after_fork();
    drop(take_heir());
    NOT_ADMITTED.unlock_after_fork();
    forget_refusal(NOT_ADMITTED.lock().take());
    TEMPLATE.unlock_after_fork();
    PROCESS.store(sys::process_id(), Ordering::Relaxed);
}

/// A child's session, until it registers.
static HEIR: Lock<Option<Heir>> = Lock::new(None);

/// What the parent of this process had made for it.
pub(crate) fn set_heir(heir: Heir) {
    table::set_internal(heir.descriptor(), true);
    *HEIR.lock() = Some(heir);
}

fn take_heir() -> Option<Heir> {
    let heir = HEIR.lock().take()?;
    table::set_internal(heir.descriptor(), false);
    Some(heir)
}

/// For a child that is about to be made: what it will hold of this process' connections. None: the
/// service is not there, or refuses.
pub(crate) fn make_heir() -> Option<Heir> {
    let _section = Section::enter();
    if let Some(heir) = &*HEIR.enter()? {
        return heir.inherit().ok();
    }
    let heir = current()?.program()?.inherit().ok()?;
    if let Some(listener) = heir.given_up() {
        GIVEN_UP.store(listener.0, Ordering::Relaxed);
    }
    Some(heir)
}

/// Returns true, once, if the service wants this listener to be the kernel's.
pub(crate) fn takes_given_up(listener: ListenerHandle) -> bool {
    listener.0 != 0
        && GIVEN_UP.load(Ordering::Relaxed) == listener.0
        && GIVEN_UP.swap(0, Ordering::Relaxed) == listener.0
}

/// This process closed a connection that it inherited and never used.
pub(crate) fn disown(connection: u64) {
    let _section = Section::enter();
    if let Some(heir) = &*HEIR.lock() {
        heir.disown(connection);
    } else if let Some(program) = current().and_then(Session::program) {
        program.disown(connection);
    }
}

/// Tells `tidelane ss` why the kernel socket `fd` is not accelerated.
pub(crate) fn note(fd: RawFd, reason: u32) {
    let _section = Section::enter();
    if let Some(program) = current().and_then(Session::program) {
        if let Some(inode) = sys::inode(fd) {
            program.note(inode, reason);
        }
        return;
    }
    if let Some(refused) = NOT_ADMITTED.enter()
        && let Some(refused) = &*refused
        && let Some(inode) = sys::inode(fd)
    {
        refused.note(inode);
    }
}
