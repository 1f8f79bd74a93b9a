//! A program's session with the service.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tidelane_abi::{FlowNumbers, OpenOptions, ROUTE_KERNEL, message, not_accelerated};
use tidelane_ring::{
    Descriptor, Doorbell, LayoutError, MEMORIES, MapError, ProgramRegion, ServicePageMap,
    contexts_max, registration::new_message,
};

use crate::{
    Context, Refusal, RegisterError, Stream,
    control::{Control, out_of_the_way},
    heir::Heir,
    session::{ServiceBell, Session},
};

/// The session of this process with the service. Cheap to clone; all clones are one session.
#[derive(Clone, Debug)]
pub struct Program {
    session: Arc<Session>,
    /// The service's configuration: programs without a choice of their own want connections
    /// within the host (loopback).
    within_host: bool,
}

/// The service's number for a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerHandle(pub u32);

/// A listener that a program wants. See [`Program::listen`].
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// The program's number for it.
    pub cookie: u64,
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// Options that its connections begin with.
    pub options: OpenOptions,
    /// Connections within the host (loopback) shall be the service's, too.
    pub within_host: bool,
}

impl Program {
    /// Registers with the service that listens at `socket_path`. `name` is for `tidelane ss`.
    pub fn register(socket_path: &Path, name: &str) -> Result<Program, RegisterError> {
        Self::register_over(Control::connect(socket_path)?, name)
    }

    pub(crate) fn register_over(control: Control, name: &str) -> Result<Program, RegisterError> {
        let (answer, descriptors) = match control.register(name) {
            Ok(registered) => registered,
            Err(error) => return Err(control.keep_if_not_admitted(error)),
        };
        let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
        let mut descriptors = descriptors.into_iter().map(Descriptor::from);
        let memories = descriptors.by_ref().take(MEMORIES).collect::<Vec<_>>();
        let (Ok(memories), Some(page)) = (<[_; MEMORIES]>::try_from(memories), descriptors.next())
        else {
            return Err(nonsense().into());
        };
        let memories = memories.each_ref().map(AsFd::as_fd);
        let region = ProgramRegion::map(memories, answer.region_len).map_err(unmappable)?;
        let page = ServicePageMap::map(page.as_fd()).map_err(unmappable)?;
        region.dont_fork()?;
        let bells = descriptors.map(|bell| Doorbell::from_trusted(out_of_the_way(bell)));
        let bells: Vec<Doorbell> = bells.collect();
        if bells.len() != page.cores() as usize {
            return Err(nonsense().into());
        }
        let bell = ServiceBell::Doorbells(bells);
        let session = Session::new(Arc::new(region), Arc::new(page), Some(control), bell);
        Ok(Program {
            session: Arc::new(session),
            within_host: answer.within_host != 0,
        })
    }

    /// Whether a service of this version listens at `socket_path`; nothing is registered.
    pub fn probe(socket_path: &Path) -> Result<(), RegisterError> {
        let control = Control::connect(socket_path)?;
        control
            .probe()
            .map_err(|error| control.keep_if_not_admitted(error))
    }

    /// A session over memory that the caller also gave to a service in this process (simulator).
    /// There are no sockets; `ring_service` is called instead of ringing the service's doorbell.
    pub fn in_memory(
        region: Arc<ProgramRegion>,
        page: Arc<ServicePageMap>,
        ring_service: impl Fn() + Send + Sync + 'static,
    ) -> Program {
        let bell = ServiceBell::InMemory(Box::new(ring_service));
        Program {
            session: Arc::new(Session::new(region, page, None, bell)),
            within_host: false,
        }
    }

    /// Returns true if the service's configuration is that a program without a choice of its own
    /// wants connections within the host (loopback).
    pub fn wants_within_host(&self) -> bool {
        self.within_host
    }

    /// Hangs up when the service has died. None in memory.
    pub fn control_fd(&self) -> Option<BorrowedFd<'_>> {
        self.session
            .control
            .as_ref()
            .map(|control| control.socket().as_fd())
    }

    /// The session's own descriptors (without those of contexts), which the program must not close.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let bells = match &self.session.bell {
            ServiceBell::Doorbells(bells) => &bells[..],
            ServiceBell::InMemory(_) => &[],
        };
        self.control_fd()
            .map(|fd| fd.as_raw_fd())
            .into_iter()
            .chain(bells.iter().map(|bell| bell.fd().as_raw_fd()))
    }

    /// Asks the registration socket (one system call) whether the service still lives. Once false,
    /// always false; also false after the service wrote impossible values to its side of a ring.
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

    /// What the last check knew, without a system call.
    #[inline]
    pub fn service_known_gone(&self) -> bool {
        self.session.is_gone()
    }

    /// Set once [`service_known_gone`](Self::service_known_gone) is true. It outlives the session.
    pub fn gone_flag(&self) -> Arc<AtomicBool> {
        self.session.told_gone.clone()
    }

    /// Returns true if no clone, context or stream refers to the session any more.
    pub fn is_last(&self) -> bool {
        Arc::strong_count(&self.session) == 1
    }

    /// The service is gone from now on: for who saw `control_fd` hang up, and for the simulator.
    pub fn mark_service_gone(&self) {
        self.session.set_gone();
    }

    /// What the route table says about `addr` (IPv4 as `::ffff:a.b.c.d`):
    /// [`tidelane_abi::ROUTE_KERNEL`], `ROUTE_ACCELERATED` or `ROUTE_ASK`.
    pub fn route(&self, addr: [u8; 16]) -> u32 {
        if self.session.is_gone() {
            return ROUTE_KERNEL;
        }
        self.session.page.lookup(addr).unwrap_or(ROUTE_KERNEL)
    }

    /// Whether connections to `addr` may be accelerated. With `ROUTE_ASK` the service may still
    /// answer `ConnectKernel`.
    pub fn route_accelerated(&self, addr: [u8; 16]) -> bool {
        self.route(addr) != ROUTE_KERNEL
    }

    /// Makes a context with its own doorbell and tells the service.
    pub fn new_context(&self) -> Result<Context, Refusal> {
        let session = &self.session;
        let contexts_max = contexts_max(session.page.cores());
        let next = |id| (id < contexts_max).then_some(id + 1);
        let id = session
            .next_context
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .map_err(|_| Refusal::Limit(not_accelerated::LIMIT))?;
        let bell = match &session.control {
            Some(_) => {
                let bell = out_of_the_way(Doorbell::new().map_err(Refusal::Io)?);
                let bell = Doorbell::from_trusted(bell);
                let mut request = new_message(message::CONTEXT);
                request.context = id;
                self.ask(&request, &[bell.fd()])?;
                Some(bell)
            }
            None => None,
        };
        Context::new(session.clone(), id, bell).ok_or(Refusal::Limit(not_accelerated::LIMIT))
    }

    /// The kernel socket `fd` listens: asks the service to take its port too. Contexts then
    /// `listener_join` to get its connections; the cookie comes back in `Accepted`.
    pub fn listen(&self, fd: BorrowedFd<'_>, listen: &Listen) -> Result<ListenerHandle, Refusal> {
        let mut request = new_message(message::LISTEN);
        request.options = listen.options;
        request.cookie = listen.cookie;
        request.backlog = listen.backlog;
        request.within_host = listen.within_host.into();
        Ok(ListenerHandle(self.ask(&request, &[fd])?.listener))
    }

    /// The program closed its descriptor of the listener. Returns when the service holds the port
    /// no longer than the kernel would.
    pub fn unlisten(&self, listener: ListenerHandle) {
        let mut request = new_message(message::UNLISTEN);
        request.cookie = u64::from(listener.0);
        request.listener = listener.0;
        // A service that does not answer is gone, and with it the listener.
        let _ = self.ask(&request, &[]);
    }

    /// The bound kernel socket `fd` reserves its port for connections of this program. With
    /// `within` they come from that address, and stay within the host.
    pub fn reserve(&self, fd: BorrowedFd<'_>, within: Option<[u8; 16]>) -> Result<u16, Refusal> {
        let mut request = new_message(message::RESERVE);
        request.local_addr = within.unwrap_or_default();
        let answer = self.ask(&request, &[fd])?;
        let nonsense = || Refusal::Io(io::ErrorKind::InvalidData.into());
        answer.port.try_into().map_err(|_| nonsense())
    }

    /// Tells `tidelane ss` why the kernel socket with this inode is not accelerated
    /// (one of [`tidelane_abi::not_accelerated`]).
    pub fn note(&self, inode: u64, reason: u32) {
        let mut request = new_message(message::NOTE);
        request.inode = inode;
        request.reason = reason;
        self.tell(&request);
    }

    /// Takes up the connection that an event announced. `flags` are
    /// [`tidelane_abi::program_flags`] that hold from the start. None if `slot` is out of range.
    pub fn stream(&self, slot: u32, generation: u32, flags: u32) -> Option<Stream> {
        Stream::new(self.session.clone(), slot, generation, flags)
    }

    /// What the service knows of a connection of this program.
    pub fn numbers(&self, stream: &Stream) -> Result<FlowNumbers, Refusal> {
        let mut request = new_message(message::NUMBERS);
        request.slot = stream.slot();
        request.generation = stream.generation();
        Ok(self.ask(&request, &[])?.numbers)
    }

    /// Before `fork`: what the child will hold of this program's connections.
    pub fn inherit(&self) -> Result<Heir, Refusal> {
        let control = self.session.control.as_ref();
        control
            .ok_or(Refusal::ServiceGone)?
            .inherit()
            .map(Heir::new)
    }

    /// This program closed a connection that it inherited and never took.
    pub fn disown(&self, connection: u64) {
        if let Some(control) = &self.session.control {
            control.disown(connection);
        }
    }

    /// Brings a connection that this program holds, and does not have, to context `context`.
    pub fn take(&self, connection: u64, context: u32) -> Result<Stream, Refusal> {
        let control = self.session.control.as_ref();
        let control = control.ok_or(Refusal::ServiceGone)?;
        crate::heir::take(&self.session, control, connection, context)
    }

    /// Bytes of send buffers in use.
    pub fn send_buffer_bytes(&self) -> u64 {
        self.session.buffers().allocator.allocated_bytes()
    }

    /// For the child after fork: gives the parent's session up without telling the service. The
    /// control socket and the doorbells are closed here (their numbers name idle eventfds from now
    /// on), and where the region was is private zero memory, so that a late access to a stream or
    /// context is harmless. Contexts close their own doorbells when dropped.
    pub fn abandon(&self) {
        self.session.set_gone();
        let Some(control) = &self.session.control else {
            return;
        };
        // What fails here leaves the descriptor to the end of the process.
        if let Ok(idle) = Doorbell::new() {
            let _ = control.socket().replace_with(idle.fd());
            if let ServiceBell::Doorbells(bells) = &self.session.bell {
                for bell in bells {
                    let _ = bell.descriptor().replace_with(idle.fd());
                }
            }
        }
        // Without a context there is nothing that could access it, and the child may be one that
        // has little room for mappings (RLIMIT_AS).
        if self.session.next_context.load(Ordering::Relaxed) > 0 {
            let _ = self.session.region.replace_after_fork();
        }
    }

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
        let answer = control.ask(request, descriptors);
        if matches!(answer, Err(Refusal::ServiceGone)) {
            self.session.set_gone();
        }
        answer
    }

    fn tell(&self, request: &tidelane_abi::Message) {
        if let Some(control) = self
            .session
            .control
            .as_ref()
            .filter(|_| !self.session.is_gone())
        {
            control.tell(request);
        }
    }
}

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
