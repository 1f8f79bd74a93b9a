//! The session of a program: its registration with the service (the process `tidelaned`), and the
//! requests that do not go through the rings of a thread.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tidelane_abi::{OpenOptions, ROUTE_KERNEL, TcpInfo, message, not_accelerated};
use tidelane_ring::{
    Descriptor, Doorbell, LayoutError, MEMORIES, MapError, ProgramRegion, ServicePageMap,
    contexts_max, registration::new_message,
};

use crate::{
    Context, Refusal, RegisterError, Stream,
    child_session::ChildSession,
    control::{Control, move_to_high_number},
    listener_handle::ListenerHandle,
    session::{ClientSession, ServiceDoorbells},
};

/// The session of this process: its registration with the service. All clones refer to the same
/// session.
#[derive(Clone, Debug)]
pub struct Program {
    session: Arc<ClientSession>,
    /// True if the service's configuration accelerates connections within the host (loopback), and
    /// this program is in the service's network namespace. A choice of the user for this program
    /// (`tidelane run --loopback`) takes precedence.
    within_host: bool,
}

/// The parameters of [`Program::listen`].
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// The program's own number for the listener, which the service repeats in its answer. Events
    /// carry the cookie of `Context::listener_join` instead.
    pub cookie: u64,
    /// Largest number of connections in the accept queue.
    pub backlog: u32,
    /// Options that new connections start with.
    pub options: OpenOptions,
    /// True if connections within the host (loopback) are accelerated, too.
    pub within_host: bool,
}

impl Program {
    /// Registers with the service that listens at `socket_path`. `tidelane ss` shows `name`.
    pub fn register(socket_path: &Path, name: &str) -> Result<Program, RegisterError> {
        Self::register_over(Control::connect(socket_path)?, name)
    }

    /// Registers a forked child as a program, to which the inherited connections can then be
    /// migrated.
    pub fn register_child(child: ChildSession, name: &str) -> Result<Program, RegisterError> {
        Self::register_over(child.into_control(), name)
    }

    /// Registers over a connected registration socket, and maps the memory that the service shares
    /// with this program.
    fn register_over(control: Control, name: &str) -> Result<Program, RegisterError> {
        let (answer, descriptors) = match control.register(name) {
            Ok(registered) => registered,
            Err(error) => return Err(control.keep_if_not_admitted(error)),
        };
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let mut descriptors = descriptors.into_iter().map(Descriptor::from);
        let memories = descriptors.by_ref().take(MEMORIES).collect::<Vec<_>>();
        let (Ok(memories), Some(page)) = (<[_; MEMORIES]>::try_from(memories), descriptors.next())
        else {
            return Err(invalid().into());
        };
        let memories = memories.each_ref().map(AsFd::as_fd);
        let region = ProgramRegion::map(memories, answer.region_len).map_err(unmappable)?;
        let page = ServicePageMap::map(page.as_fd()).map_err(unmappable)?;
        region.dont_fork()?;
        let doorbells =
            descriptors.map(|doorbell| Doorbell::from_trusted(move_to_high_number(doorbell)));
        let doorbells: Vec<Doorbell> = doorbells.collect();
        if doorbells.len() != page.cores() as usize {
            return Err(invalid().into());
        }
        let doorbell = ServiceDoorbells::PerCore(doorbells);
        let session = ClientSession::new(Arc::new(region), Arc::new(page), Some(control), doorbell);
        Ok(Program {
            session: Arc::new(session),
            within_host: answer.within_host != 0,
        })
    }

    /// Checks that a service with the same ABI version listens at `socket_path`, and that the
    /// service admits this program. Returns an error otherwise. Does not register the program.
    pub fn probe(socket_path: &Path) -> Result<(), RegisterError> {
        let control = Control::connect(socket_path)?;
        control
            .probe()
            .map_err(|error| control.keep_if_not_admitted(error))
    }

    /// Creates a session with a service in this process (simulator), which uses the same `region`
    /// and `page`. The session has no registration socket, and calls `ring_service` instead of
    /// ringing a doorbell.
    pub fn in_memory(
        region: Arc<ProgramRegion>,
        page: Arc<ServicePageMap>,
        ring_service: impl Fn() + Send + Sync + 'static,
    ) -> Program {
        let doorbell = ServiceDoorbells::InMemory(Box::new(ring_service));
        Program {
            session: Arc::new(ClientSession::new(region, page, None, doorbell)),
            within_host: false,
        }
    }

    /// Returns true if the service's configuration accelerates connections within the host
    /// (loopback), and this program is in the service's network namespace. A choice of the user for
    /// this program (`tidelane run --loopback`) takes precedence, and is left to the caller.
    pub fn wants_within_host(&self) -> bool {
        self.within_host
    }

    /// Returns the registration socket, on which poll reports a hang-up when the service dies.
    /// Returns `None` if the service is in this process.
    pub fn control_fd(&self) -> Option<BorrowedFd<'_>> {
        self.session
            .control
            .as_ref()
            .map(|control| control.socket().as_fd())
    }

    /// Returns the session's own descriptors, which the program must not close: the registration
    /// socket and the doorbells of the service. The contexts' doorbells are not included.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let doorbells = match &self.session.doorbell {
            ServiceDoorbells::PerCore(doorbells) => &doorbells[..],
            ServiceDoorbells::InMemory(_) => &[],
        };
        self.control_fd()
            .map(|fd| fd.as_raw_fd())
            .into_iter()
            .chain(doorbells.iter().map(|doorbell| doorbell.fd().as_raw_fd()))
    }

    /// Returns true if the service is alive. Checks the registration socket with one system call.
    ///
    /// Returns false also for a living service if the session has ended, for example because the
    /// service has written an impossible index to a ring. Once false, the result stays false.
    pub fn is_service_alive(&self) -> bool {
        let connected = self
            .session
            .control
            .as_ref()
            .is_none_or(Control::is_connected);
        if !connected {
            self.session.set_gone();
        }
        !self.session.is_gone()
    }

    /// Returns true if the service was found to be gone. Makes no system call.
    #[inline]
    pub fn service_known_gone(&self) -> bool {
        self.session.is_gone()
    }

    /// Returns the flag that is set when [`service_known_gone`](Self::service_known_gone) becomes
    /// true. The caller may keep the flag longer than the session.
    pub fn gone_flag(&self) -> Arc<AtomicBool> {
        self.session.gone_flag.clone()
    }

    /// Returns true if no other clone, no context and no stream refers to the session any more.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.session) == 1
    }

    /// Records that the service is gone, because `control_fd` hung up or the simulator ended the
    /// service.
    pub fn mark_service_gone(&self) {
        self.session.set_gone();
    }

    /// Looks up `addr` (IPv4 as `::ffff:a.b.c.d`) in the service's route table. Returns
    /// [`tidelane_abi::ROUTE_KERNEL`], `ROUTE_ACCELERATED`, `ROUTE_ASK_SERVICE` or
    /// `ROUTE_WITHIN_HOST`.
    pub fn route(&self, addr: [u8; 16]) -> u32 {
        if self.session.is_gone() {
            return ROUTE_KERNEL;
        }
        self.session.page.lookup(addr).unwrap_or(ROUTE_KERNEL)
    }

    /// Returns true if connections to `addr` may be accelerated. The service may still answer
    /// `ConnectKernel`, for example if no program listens at a local address.
    pub fn route_accelerated(&self, addr: [u8; 16]) -> bool {
        self.route(addr) != ROUTE_KERNEL
    }

    /// Creates a context (the rings of one thread) with its own doorbell.
    pub fn new_context(&self) -> Result<Context, Refusal> {
        let session = &self.session;
        let contexts_max = contexts_max(session.page.cores());
        let next = |id| (id < contexts_max).then_some(id + 1);
        let id = session
            .next_context
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .map_err(|_| Refusal::Limit(not_accelerated::LIMIT))?;
        let doorbell = match &session.control {
            Some(_) => {
                let doorbell = move_to_high_number(Doorbell::new().map_err(Refusal::Io)?);
                let doorbell = Doorbell::from_trusted(doorbell);
                let mut request = new_message(message::CONTEXT);
                request.context = id;
                self.ask(&request, &[doorbell.fd()])?;
                Some(doorbell)
            }
            None => None,
        };
        Context::new(session.clone(), id, doorbell).ok_or(Refusal::Limit(not_accelerated::LIMIT))
    }

    /// Asks the service to listen at the address and port of the kernel socket `fd`, which must be
    /// listening. Contexts then call `Context::listener_join` to get the listener's connections.
    pub fn listen(&self, fd: BorrowedFd<'_>, listen: &Listen) -> Result<ListenerHandle, Refusal> {
        let mut request = new_message(message::LISTEN);
        request.options = listen.options;
        request.cookie = listen.cookie;
        request.backlog = listen.backlog;
        request.within_host = listen.within_host.into();
        Ok(ListenerHandle(self.ask(&request, &[fd])?.listener))
    }

    /// Gives up this program's hold of the service's listener. After a `fork`, several programs may
    /// hold the listener, which ends when no program holds it. After the end of the listener, a
    /// `bind` to the port succeeds in the same cases as after the close of a kernel listener.
    pub fn unlisten(&self, listener: ListenerHandle) {
        let mut request = new_message(message::UNLISTEN);
        request.cookie = u64::from(listener.0);
        request.listener = listener.0;
        // A service that does not answer is gone, together with the listener.
        let _ = self.ask(&request, &[]);
    }

    /// Suspends the service's listener of the kernel socket `fd` for all programs that hold the
    /// listener. The kernel socket must not listen. A call of [`listen`](Self::listen) by any
    /// program with the socket ends the suspension for all these programs.
    pub fn suspend_listener(&self, fd: BorrowedFd<'_>) {
        // A service that does not answer is gone, together with the listener.
        let _ = self.ask(&new_message(message::SUSPEND_LISTENER), &[fd]);
    }

    /// Reserves the port of the bound kernel socket `fd` for connections of this program. Returns
    /// the port. If `within` is an address, the connections stay within the host and have this
    /// source address.
    pub fn reserve(&self, fd: BorrowedFd<'_>, within: Option<[u8; 16]>) -> Result<u16, Refusal> {
        let mut request = new_message(message::RESERVE);
        request.local_addr = within.unwrap_or_default();
        let answer = self.ask(&request, &[fd])?;
        let invalid = || Refusal::Io(io::ErrorKind::InvalidData.into());
        answer.port.try_into().map_err(|_| invalid())
    }

    /// Tells the service why the kernel socket with this inode is not accelerated, so that
    /// `tidelane ss` can show the reason. `reason` is one of [`tidelane_abi::not_accelerated`].
    pub fn report_not_accelerated(&self, inode: u64, reason: u32) {
        let mut request = new_message(message::REPORT_NOT_ACCELERATED);
        request.inode = inode;
        request.reason = reason;
        self.send(&request);
    }

    /// Creates the stream of a connection that an event announced. `flags` are the stream's initial
    /// [`tidelane_abi::program_flags`]. Returns `None` if `slot` is out of range.
    pub fn stream(&self, slot: u32, generation: u32, flags: u32) -> Option<Stream> {
        Stream::new(self.session.clone(), slot, generation, flags)
    }

    /// Asks the service for the TCP state of a connection of this program, for TCP_INFO.
    pub fn tcp_info(&self, stream: &Stream) -> Result<TcpInfo, Refusal> {
        let mut request = new_message(message::TCP_INFO);
        request.slot = stream.slot();
        request.generation = stream.generation();
        Ok(self.ask(&request, &[])?.tcp_info)
    }

    /// Prepares the session of a child that this process is about to fork. In this session, the
    /// child shares the connections of this program.
    pub fn inherit(&self) -> Result<ChildSession, Refusal> {
        let control = self.session.control.as_ref();
        control
            .ok_or(Refusal::ServiceGone)?
            .inherit()
            .map(ChildSession::new)
    }

    /// Tells the service that this program closed the connection with the number `connection`,
    /// which the program had inherited over `fork` and never used.
    pub fn release_connection(&self, connection: u64) {
        if let Some(control) = &self.session.control {
            control.release_connection(connection);
        }
    }

    /// Moves (migrates) the connection with the number `connection` from another process to the
    /// memory of this program, and its events to `context`. Returns the connection's stream. This
    /// process must share the connection with the other process after a `fork`.
    pub fn migrate_here(&self, connection: u64, context: u32) -> Result<Stream, Refusal> {
        let control = self.session.control.as_ref();
        let control = control.ok_or(Refusal::ServiceGone)?;
        let session = &self.session;
        let migrated = crate::child_session::migrate_here(session, control, connection, context);
        self.note_if_gone(migrated)
    }

    /// Returns the total size in bytes of the send buffers in use.
    pub fn send_buffer_bytes(&self) -> u64 {
        self.session.buffers().allocator.allocated_bytes()
    }

    /// Gives up the parent's session in a child after fork, without telling the service.
    ///
    /// Makes the descriptors of the registration socket and of the service's doorbells refer to an
    /// unused eventfd. If the session ever had a context, also replaces the shared memory by
    /// private zero memory, so that a late access to a stream or context is harmless. A context
    /// closes its doorbell when the context is dropped.
    pub fn abandon(&self) {
        self.session.set_gone();
        let Some(control) = &self.session.control else {
            return;
        };
        // A descriptor that cannot be replaced stays open until the process ends.
        if let Ok(idle) = Doorbell::new() {
            let _ = control.socket().replace_with(idle.fd());
            if let ServiceDoorbells::PerCore(doorbells) = &self.session.doorbell {
                for doorbell in doorbells {
                    let _ = doorbell.descriptor().replace_with(idle.fd());
                }
            }
        }
        // Replace the shared memory only if a context could access it, because the child may have
        // little address space left (RLIMIT_AS).
        if self.session.next_context.load(Ordering::Relaxed) > 0 {
            let _ = self.session.region.replace_after_fork();
        }
    }

    /// Sends a request and waits for the answer. If the service is known to be gone, sends nothing
    /// and returns an error.
    fn ask(
        &self,
        request: &tidelane_abi::Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<tidelane_abi::Message, Refusal> {
        let Some(control) = self
            .session
            .control
            .as_ref()
            .filter(|_| !self.session.is_gone())
        else {
            return Err(Refusal::ServiceGone);
        };
        self.note_if_gone(control.ask(request, descriptors))
    }

    /// Ends the session if the answer to a request is that the service is gone. Returns `answer`.
    fn note_if_gone<T>(&self, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        if matches!(answer, Err(Refusal::ServiceGone)) {
            self.session.set_gone();
        }
        answer
    }

    /// Sends a request that has no answer. Sends nothing if the service is known to be gone.
    fn send(&self, request: &tidelane_abi::Message) {
        if let Some(control) = self
            .session
            .control
            .as_ref()
            .filter(|_| !self.session.is_gone())
        {
            control.send(request);
        }
    }
}

/// Converts the error of mapping shared memory to the error of a registration.
fn unmappable(error: MapError) -> RegisterError {
    match error {
        MapError::Layout(LayoutError::Version(theirs)) => RegisterError::VersionMismatch {
            ours: tidelane_abi::ABI_VERSION,
            theirs,
        },
        MapError::Io(error) => RegisterError::Io(error),
        other => RegisterError::Io(io::Error::new(
            io::ErrorKind::InvalidData,
            other.to_string(),
        )),
    }
}
