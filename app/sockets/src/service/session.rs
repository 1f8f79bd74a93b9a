//! The session of this process: its registration with the service (the process `tidelaned`). The
//! first `connect` or `listen` registers the process. A forked child gives up the parent's session,
//! and registers when it needs a session.
//!
//! The library is `libtidelane.so`, which contains this crate. Its tables (`crate::table`) map
//! descriptors of the program to sockets and epoll instances. The process tracks a descriptor if a
//! table maps the descriptor.

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
use tidelane_client::{ChildSession, ListenerHandle, NotAdmitted, Program, RegisterError};

use crate::{
    sys::{self, Errno, Lock, Rank, Section, StaticCell},
    table,
};

/// Default path of the Unix socket over which programs register with the service. TIDELANE_SOCKET
/// overrides the default.
const SOCKET_PATH: &str = "/run/tidelane/default/control.sock";
/// Shortest time in nanoseconds between two attempts to register after a refusal by the service.
const RETRY_NS: u64 = 1_000_000_000;
/// Shortest time in nanoseconds between two attempts to register while no service answers, because
/// it does not run, or is starting or ending.
const RETRY_ABSENT_NS: u64 = 150_000_000;
/// Default time in nanoseconds for which a thread polls its rings before it sleeps, if the service
/// runs on another CPU. TIDELANE_SPIN_US overrides the default.
const SPIN_NS: u64 = 20_000;

/// A successful registration with the service.
///
/// The value is never freed, because threads refer to it without a lock. The shared memory and the
/// descriptors of the session are freed after the next session has replaced this session.
#[derive(Debug)]
pub(crate) struct ProcessSession {
    /// The program's side of the session. `None` after the next session has replaced this session.
    program: Lock<Option<Program>>,
    /// True if the service is known to be gone. The flag is shared with `program` and outlives it.
    gone: Arc<AtomicBool>,
    /// Number of this session, from 1. Each session of this process has a higher number than the
    /// session before.
    pub(crate) generation: u32,
}

impl ProcessSession {
    fn new(program: Program, generation: u32) -> Self {
        Self {
            gone: program.gone_flag(),
            program: Lock::new(Some(program)),
            generation,
        }
    }

    /// Returns the session's `Program`, through which this process calls the service. Returns
    /// `None` after the next session has replaced this session.
    pub(crate) fn program(&self) -> Option<Program> {
        self.program.enter()?.clone()
    }

    /// Returns true if the service is known to be gone.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

/// Settings from the environment, read once.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Path of the Unix socket over which programs register with the service (TIDELANE_SOCKET).
    socket_path: PathBuf,
    /// True if a call fails instead of leaving its socket to the kernel (TIDELANE_STRICT).
    pub(crate) strict: bool,
    /// True if the program may create io_uring instances (TIDELANE_IO_URING).
    pub(crate) io_uring: bool,
    /// True if connections within the host (loopback) are accelerated when both ends are
    /// accelerated programs (TIDELANE_LOOPBACK). `None` if the service's configuration decides.
    pub(crate) within_host: Option<bool>,
    /// Time in nanoseconds for which a thread polls its rings before it sleeps (TIDELANE_SPIN_US).
    pub(crate) spin_ns: u64,
}

/// The newest session, even if its service is gone. `None` before the first registration.
static SESSION: StaticCell<ProcessSession> = StaticCell::new();
/// Ended sessions to which contexts (rings and doorbells of channels) or streams (connections) may
/// still refer.
static RETIRED: Lock<Vec<Program>> = Lock::new(Vec::new());
/// The settings. Empty until the first call of `settings`.
static SETTINGS: StaticCell<Settings> = StaticCell::new();
/// Serialises attempts to register. The value is the time (CLOCK_MONOTONIC, in nanoseconds) before
/// which no thread makes another attempt.
static REGISTERING: Lock<u64> = Lock::ranked(Rank::Session, 0);
/// Number of sessions that this process has had. A forked child continues the parent's count.
static GENERATIONS: AtomicU32 = AtomicU32::new(0);
/// The id of the process that owns the tables, or 0 before the process tracks a descriptor. A vfork
/// child shares the memory of its parent, and must not change the tables.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// An unconnected TCP socket, whose duplicates serve as placeholder descriptors of accelerated
/// connections. -1 until it is needed.
static TEMPLATE: Lock<RawFd> = Lock::new(-1);
/// True after a failed registration was reported on standard error.
static FAILURE_REPORTED: AtomicBool = AtomicBool::new(false);
/// The connection to a service that does not admit this process. The process still reports its
/// sockets over this connection, so that `tidelane ss` lists them.
static NOT_ADMITTED: Lock<Option<NotAdmitted>> = Lock::new(None);
/// The [`not_accelerated`] reason why there is no session.
static UNAVAILABLE: AtomicU32 = AtomicU32::new(not_accelerated::SERVICE_GONE);
/// The service's number of a listener that the service has asked this process to leave to the
/// kernel, or 0.
static LISTENER_LEFT_TO_KERNEL: AtomicU32 = AtomicU32::new(0);
/// Lowest number to which the library moves its own descriptors, or 0 until it is computed.
static INTERNAL_BASE: AtomicU64 = AtomicU64::new(0);

/// Returns the settings. Reads them from the environment at the first call.
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

/// Returns true if the tables describe the descriptors of this process. Returns false in a child
/// between `vfork` and `exec`, which shares the memory of its parent, but not the descriptors.
///
/// The function makes a system call, so only slow operations call it.
pub(crate) fn owns_tables() -> bool {
    let owner = PROCESS.load(Ordering::Relaxed);
    owner == 0 || owner == sys::process_id()
}

/// Makes this process the owner of the tables, if no process owns them.
pub(crate) fn own_tables() {
    if PROCESS.load(Ordering::Relaxed) == 0 {
        PROCESS.store(sys::process_id(), Ordering::Relaxed);
    }
}

/// Returns the newest session. Returns `None` if there is no session, or if the service of the
/// newest session is known to be gone.
#[inline]
pub(crate) fn current() -> Option<&'static ProcessSession> {
    SESSION.load().filter(|session| !session.is_gone())
}

/// Returns the newest session, whether its service is alive or not.
#[inline]
pub(crate) fn last() -> Option<&'static ProcessSession> {
    SESSION.load()
}

/// Returns the number (generation) of the newest of the sessions whose service is known to be gone,
/// or 0. All earlier sessions are gone, too.
pub(crate) fn last_gone() -> u32 {
    last().map_or(0, |session| {
        let lives = !session.is_gone();
        session.generation - u32::from(lives)
    })
}

/// Returns the current session. If there is none, registers with the service.
pub(crate) fn establish() -> Option<&'static ProcessSession> {
    current().or_else(register)
}

/// Registers with the service. Returns `None` if the registration fails, or if the previous attempt
/// was too recent.
#[cold]
fn register() -> Option<&'static ProcessSession> {
    let mut retry_at_ns = REGISTERING.enter()?;
    if let Some(session) = current() {
        return Some(session);
    }
    let now = sys::monotonic_ns();
    if now < *retry_at_ns {
        return None;
    }
    *retry_at_ns = now + RETRY_NS;
    let name = sys::thread_name();
    let name = CStr::from_bytes_until_nul(&name).map_or(&b"?"[..], CStr::to_bytes);
    let name = String::from_utf8_lossy(name);
    let registered = match take_child_session() {
        Some(child) => Program::register_child(child, &name),
        None => Program::register(Path::new(&settings().socket_path), &name),
    };
    match registered {
        Ok(program) => {
            *retry_at_ns = now + RETRY_ABSENT_NS;
            protect(&program);
            let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed) + 1;
            let session = Box::leak(Box::new(ProcessSession::new(program, generation)));
            let session: &'static ProcessSession = session;
            retire(SESSION.swap(Some(session)));
            forget_refusal(NOT_ADMITTED.lock().take());
            Some(session)
        }
        Err(error) => {
            if matches!(error, RegisterError::NotRunning | RegisterError::Io(_)) {
                *retry_at_ns = now + RETRY_ABSENT_NS;
            }
            report_failure(&error);
            note_refusal(error);
            None
        }
    }
}

/// Adds `last`, the session that a new session has just replaced, to the ended sessions. Frees the
/// ended sessions to which nothing refers. Contexts and connections may still refer to `last`. In
/// that case, a later call frees `last`, when another session begins.
fn retire(last: Option<&'static ProcessSession>) {
    let program = last.and_then(|session| session.program.enter()?.take());
    let mut retired = RETIRED.lock();
    retired.extend(program);
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

/// Waits until the service has cleaned up after programs that have ended. For this purpose, sends a
/// message (PROBE) that the service answers only after the clean-up. Returns true if the service
/// answered.
pub(crate) fn await_ended_programs() -> bool {
    // `enter` returns `None` in a signal handler that interrupted a registration of this thread.
    let Some(_registering) = REGISTERING.enter() else {
        return false;
    };
    owns_tables() && Program::probe(Path::new(&settings().socket_path)).is_ok()
}

/// Records why a registration failed. `tidelane ss` and error messages name this reason for sockets
/// that stay with the kernel.
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

/// Closes the connection to a service that did not admit this process.
fn forget_refusal(refused: Option<NotAdmitted>) {
    if let Some(refused) = refused {
        table::set_internal(refused.descriptor(), false);
    }
}

/// Returns the [`not_accelerated`] reason why [`establish`] returned no session.
pub(crate) fn unavailable() -> u32 {
    UNAVAILABLE.load(Ordering::Relaxed)
}

/// Reports the first failed registration on standard error. If no service runs, the report is made
/// only with TIDELANE_STRICT.
fn report_failure(error: &RegisterError) {
    let silent = matches!(error, RegisterError::NotRunning) && !settings().strict;
    if !silent && !FAILURE_REPORTED.swap(true, Ordering::Relaxed) {
        sys::line(format_args!(
            "{error} ({})",
            settings().socket_path.display()
        ));
    }
}

/// Marks the session's descriptors as the library's own, so that they stay open when the program
/// closes all descriptors that it finds.
fn protect(program: &Program) {
    for fd in program.descriptors() {
        table::set_internal(fd, true);
    }
}

/// Moves one of the library's own descriptors to a high number, away from the program's numbers.
/// Returns the new number.
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

/// Returns the lowest number for the library's own descriptors. The number is high, because the
/// library leaves the low numbers, on which `select` depends, to the program. The number is below
/// RLIMIT_NOFILE, unless this limit is less than 13.
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

/// Creates the placeholder of an accelerated connection, and returns its descriptor. As POSIX
/// requires, the descriptor is the lowest free number. For the kernel, the placeholder is an
/// unconnected TCP socket.
pub(crate) fn placeholder(close_on_exec: bool) -> Result<RawFd, Errno> {
    let command = if close_on_exec {
        libc::F_DUPFD_CLOEXEC
    } else {
        libc::F_DUPFD
    };
    sys::fcntl(template()?, command, 0).map(|fd| fd as RawFd)
}

/// Returns the unconnected TCP socket whose duplicates are the placeholders. Creates the socket at
/// the first call.
pub(crate) fn template() -> Result<RawFd, Errno> {
    let mut template = TEMPLATE.lock();
    if *template < 0 {
        *template = make_internal(sys::tcp_socket(false)?);
    }
    Ok(*template)
}

/// Gives up the parent's session in a child after fork. Also drops a session that the grandparent
/// prepared for the parent and that the parent never used. The child registers later, when it needs
/// a session.
pub(crate) fn reset_after_fork() {
    RETIRED.unlock_after_fork();
    let mut over = std::mem::take(&mut *RETIRED.lock());
    if let Some(session) = SESSION.swap(None) {
        session.program.unlock_after_fork();
        over.extend(session.program.lock().take());
    }
    for program in over {
        program.abandon();
        // Keep the session's addresses mapped, because copies of the parent's streams and contexts
        // refer to them. `abandon` has replaced the shared memory by private zero memory.
        std::mem::forget(program);
    }
    REGISTERING.reset_after_fork(0);
    CHILD_SESSION.unlock_after_fork();
    drop(take_child_session());
    NOT_ADMITTED.unlock_after_fork();
    forget_refusal(NOT_ADMITTED.lock().take());
    TEMPLATE.unlock_after_fork();
    PROCESS.store(sys::process_id(), Ordering::Relaxed);
}

/// The session that the parent prepared for this process, until this process registers.
static CHILD_SESSION: Lock<Option<ChildSession>> = Lock::new(None);

/// Stores the session that the parent prepared for this process.
pub(crate) fn set_child_session(child: ChildSession) {
    table::set_internal(child.descriptor(), true);
    *CHILD_SESSION.lock() = Some(child);
}

fn take_child_session() -> Option<ChildSession> {
    let child = CHILD_SESSION.lock().take()?;
    table::set_internal(child.descriptor(), false);
    Some(child)
}

/// Prepares the session of a child that is about to be forked. The session gives the child a share
/// in the connections of this process. Returns `None` if there is no service, or if the service
/// refuses.
pub(crate) fn prepare_child_session() -> Option<ChildSession> {
    let _section = Section::enter();
    if let Some(child) = &*CHILD_SESSION.enter()? {
        return child.inherit().ok();
    }
    let child = current()?.program()?.inherit().ok()?;
    if let Some(listener) = child.listener_left_to_kernel() {
        LISTENER_LEFT_TO_KERNEL.store(listener.0, Ordering::Relaxed);
    }
    Some(child)
}

/// Returns true if the service has asked this process to leave the listener to the kernel. Further
/// calls return false until the service asks again.
pub(crate) fn take_listener_left_to_kernel(listener: ListenerHandle) -> bool {
    listener.0 != 0
        && LISTENER_LEFT_TO_KERNEL.load(Ordering::Relaxed) == listener.0
        && LISTENER_LEFT_TO_KERNEL.swap(0, Ordering::Relaxed) == listener.0
}

/// Tells the service that this process closed a connection that it inherited and never used.
pub(crate) fn release_connection(connection: u64) {
    let _section = Section::enter();
    if let Some(child) = &*CHILD_SESSION.lock() {
        child.release_connection(connection);
    } else if let Some(program) = current().and_then(ProcessSession::program) {
        program.release_connection(connection);
    }
}

/// Tells the service why the kernel socket `fd` is not accelerated, for `tidelane ss`.
pub(crate) fn report_not_accelerated(fd: RawFd, reason: u32) {
    let _section = Section::enter();
    if let Some(program) = current().and_then(ProcessSession::program) {
        if let Some(inode) = sys::inode(fd) {
            program.report_not_accelerated(inode, reason);
        }
        return;
    }
    if let Some(refused) = NOT_ADMITTED.enter()
        && let Some(refused) = &*refused
        && let Some(inode) = sys::inode(fd)
    {
        refused.report_not_accelerated(inode);
    }
}
