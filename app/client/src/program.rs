//! A program's session with the service.

use std::{fmt, io, os::fd::BorrowedFd, path::Path, sync::Arc};

use tidelane_ring::{ProgramRegion, ServicePageMap};

use crate::{Context, Stream};

/// The session of this process with the service. Cheap to clone; all clones are one session.
#[derive(Clone, Debug)]
pub struct Program {}

/// Why `register` failed.
#[derive(Debug)]
pub enum RegisterError {
    /// Nothing answers at the socket's path.
    NotRunning,
    /// The two sides were built from different versions of the ABI.
    VersionMismatch {
        /// This library's version.
        ours: u32,
        /// The service's version.
        theirs: u32,
    },
    /// The service refused: one of [`tidelane_abi::refusal`].
    Refused(u32),
    /// An operating system call failed.
    Io(io::Error),
}

/// Why the service did not do what was asked.
#[derive(Debug)]
pub enum Refusal {
    /// One of [`tidelane_abi::refusal`].
    Refused(u32),
    /// The service is gone.
    ServiceGone,
    /// An operating system call failed.
    Io(io::Error),
}

/// The service's number for a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerHandle(pub u32);

#[allow(unused_variables)]
impl Program {
    /// Registers with the service that listens at `socket_path`. `name` is for `tidelane ss`.
    pub fn register(socket_path: &Path, name: &str) -> Result<Program, RegisterError> {
        unimplemented!()
    }

    /// A session over memory that the caller also gave to a service in this process (simulator).
    /// There are no sockets; `ring_service` is called instead of ringing the service's doorbell.
    pub fn in_memory(
        region: Arc<ProgramRegion>,
        page: Arc<ServicePageMap>,
        ring_service: impl Fn() + Send + Sync + 'static,
    ) -> Program {
        unimplemented!()
    }

    /// Becomes readable or hangs up when the service has died. None in memory.
    pub fn control_fd(&self) -> Option<BorrowedFd<'_>> {
        unimplemented!()
    }

    /// Asks the registration socket (one system call) whether the service still lives. Once false,
    /// always false; also false after the service wrote impossible values to its half of a ring.
    pub fn is_service_alive(&self) -> bool {
        unimplemented!()
    }

    /// What the last check knew, without a system call.
    pub fn service_known_gone(&self) -> bool {
        unimplemented!()
    }

    /// In memory: the service is gone from now on.
    pub fn mark_service_gone(&self) {
        unimplemented!()
    }

    /// Whether connections to `addr` (IPv4 as `::ffff:a.b.c.d`) are accelerated.
    pub fn route_accelerated(&self, addr: [u8; 16]) -> bool {
        unimplemented!()
    }

    /// Makes a context with its own doorbell and tells the service.
    pub fn new_context(&self) -> Result<Context, Refusal> {
        unimplemented!()
    }

    /// The kernel socket `fd` listens: asks the service to take its port too. Contexts then
    /// `listener_join` to get its connections; `cookie` comes back in `Accepted`.
    pub fn listen(
        &self,
        fd: BorrowedFd<'_>,
        cookie: u64,
        backlog: u32,
    ) -> Result<ListenerHandle, Refusal> {
        unimplemented!()
    }

    /// The program closed its descriptor of the listener.
    pub fn unlisten(&self, listener: ListenerHandle) {
        unimplemented!()
    }

    /// The bound kernel socket `fd` reserves its port for connections of this program.
    pub fn reserve(&self, fd: BorrowedFd<'_>) -> Result<u16, Refusal> {
        unimplemented!()
    }

    /// Tells `tidelane ss` why the kernel socket with this inode is not accelerated
    /// (one of [`tidelane_abi::not_accelerated`]).
    pub fn note(&self, inode: u64, reason: u32) {
        unimplemented!()
    }

    /// Takes up the connection that an event announced. `flags` are
    /// [`tidelane_abi::program_flags`] that hold from the start. None if `slot` is out of range.
    pub fn stream(&self, slot: u32, generation: u32, flags: u32) -> Option<Stream> {
        unimplemented!()
    }

    /// Gives the pages of free send buffers back to the system.
    pub fn trim(&self) {
        unimplemented!()
    }

    /// For the child after fork: closes this process's copies without telling the service. No
    /// memory of the region is touched from now on (it is not mapped in the child).
    pub fn abandon(&self) {
        unimplemented!()
    }
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::NotRunning => write!(f, "the tidelane service is not running"),
            RegisterError::VersionMismatch { ours, theirs } => write!(
                f,
                "shared-memory version mismatch: this library has {ours}, the service {theirs}"
            ),
            RegisterError::Refused(why) => write!(f, "the service refused (reason {why})"),
            RegisterError::Io(error) => write!(f, "cannot register: {error}"),
        }
    }
}

impl std::error::Error for RegisterError {}
