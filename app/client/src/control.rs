//! The program's end of the registration socket, a Unix socket over which the program registers
//! with the service (the process `tidelaned`) and sends the requests that do not go through rings.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    path::Path,
    sync::Mutex,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};
use tidelane_abi::{ABI_VERSION, Message, message, not_accelerated, refusal};
use tidelane_ring::{
    Descriptor,
    registration::{RecvError, new_message, recv_message, send_message},
};

use crate::listener_handle::ListenerHandle;

/// Longest wait for an answer of the service. If no answer arrives in this time, the session ends.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Lowest number to which this crate moves its own descriptors, if RLIMIT_NOFILE permits. The lower
/// numbers stay free, because programs may expect to get them in order.
const DESCRIPTOR_MIN: i32 = 768;

/// The error of a failed registration.
#[derive(Debug)]
pub enum RegisterError {
    /// No service listens at the path.
    NotRunning,
    /// The version of the shared memory's layout (ABI) in this crate differs from the version in
    /// the service.
    VersionMismatch {
        /// Version of this crate.
        ours: u32,
        /// Version of the service.
        theirs: u32,
    },
    /// The service refused with one of [`tidelane_abi::refusal`].
    Refused(u32),
    /// The service does not admit this program, but records its sockets.
    NotAdmitted(NotAdmitted),
    /// The user may not open the registration socket.
    NotPermitted,
    /// An operating system call failed.
    Io(io::Error),
}

/// The connection to a service that does not admit this program. The service still records the
/// program's sockets, so that `tidelane ss` can list them.
#[derive(Debug)]
pub struct NotAdmitted {
    control: Control,
    /// NAMESPACE, USER or CGROUP. Their values in [`refusal`] and in [`not_accelerated`] are equal.
    why: u32,
}

impl NotAdmitted {
    /// Returns the [`tidelane_abi::not_accelerated`] reason why sockets stay with the kernel.
    pub fn reason(&self) -> u32 {
        self.why
    }

    /// Tells the service that the kernel socket with this inode stays with the kernel, so that
    /// `tidelane ss` can show the socket and the reason.
    pub fn report_not_accelerated(&self, inode: u64) {
        let mut request = new_message(message::REPORT_NOT_ACCELERATED);
        request.inode = inode;
        request.reason = self.why;
        self.control.send(&request);
    }

    /// Returns the descriptor of the registration socket, which the program must not close.
    pub fn descriptor(&self) -> RawFd {
        self.control.socket.as_fd().as_raw_fd()
    }
}

/// The error of a request that the service did not carry out.
#[derive(Debug)]
pub enum Refusal {
    /// The service refused with one of [`tidelane_abi::refusal`].
    Refused(u32),
    /// A limit is reached: one of [`tidelane_abi::not_accelerated`].
    Limit(u32),
    /// The service is gone.
    ServiceGone,
    /// An operating system call failed.
    Io(io::Error),
}

/// The connected registration socket, over which threads exchange requests and answers in turn.
#[derive(Debug)]
pub(crate) struct Control {
    socket: Descriptor,
    /// Lock that a thread holds from its request to the answer. No other thread may send a request
    /// meanwhile, because an answer does not name its request.
    exchange: Mutex<()>,
}

impl Control {
    /// Connects to the service whose registration socket is at `path`.
    pub(crate) fn connect(path: &Path) -> Result<Control, RegisterError> {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::over(socket)
    }

    /// Wraps a socket that is connected to the service.
    pub(crate) fn over(socket: OwnedFd) -> Result<Control, RegisterError> {
        let socket = move_to_high_number(socket);
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(ANSWER_TIME_MAX))?;
        }
        Ok(Control {
            socket,
            exchange: Mutex::new(()),
        })
    }

    /// Registers the program. The answer comes with these descriptors: the memory that the program
    /// shares with the service, the service page (routes and the state of the cores), and for each
    /// core (polling thread of the service) the doorbell, an eventfd that wakes the core.
    pub(crate) fn register(&self, name: &str) -> Result<(Message, Vec<OwnedFd>), RegisterError> {
        let mut request = new_message(message::REGISTER);
        let len = name.floor_char_boundary(request.name.len() - 1);
        request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
        self.send_first(&request)?;
        self.first_answer(message::REGISTERED)
    }

    /// Returns an error if the service does not answer, refuses, or has another ABI version.
    pub(crate) fn probe(&self) -> Result<(), RegisterError> {
        self.send_first(&new_message(message::PROBE))?;
        self.first_answer(message::PROBE).map(|_| ())
    }

    /// Sends the first message. Ignores that the service has hung up, because the program can still
    /// receive an answer that the service sent before: the reason of a refusal.
    fn send_first(&self, request: &Message) -> io::Result<()> {
        match send_message(self.socket.as_fd(), request, &[]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent,
        }
    }

    /// Receives the answer to the first message, from a service of any ABI version. `kind` is the
    /// expected kind of answer.
    fn first_answer(&self, kind: u32) -> Result<(Message, Vec<OwnedFd>), RegisterError> {
        let mismatch = |theirs| RegisterError::VersionMismatch {
            ours: ABI_VERSION,
            theirs,
        };
        let (answer, descriptors) = match recv_message(self.socket.as_fd()) {
            Ok(Some(received)) => received,
            Ok(None) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Err(RecvError::Version(theirs)) => return Err(mismatch(theirs)),
            Err(error) => return Err(RegisterError::Io(error.into())),
        };
        match answer.refusal {
            0 if answer.kind == kind => Ok((answer, descriptors)),
            0 => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            refusal::ABI_VERSION => Err(mismatch(answer.abi_version)),
            why => Err(RegisterError::Refused(why)),
        }
    }

    /// Converts `error` to `NotAdmitted` with this socket if the service does not admit the
    /// program. Otherwise closes the socket and returns `error`.
    pub(crate) fn keep_if_not_admitted(self, error: RegisterError) -> RegisterError {
        match error {
            RegisterError::Refused(
                why @ (refusal::NAMESPACE | refusal::USER | refusal::CGROUP),
            ) => RegisterError::NotAdmitted(NotAdmitted { control: self, why }),
            error => error,
        }
    }

    /// Sends a request, and waits for the answer. Converts a refusal to an error. After
    /// `ServiceGone`, the session has ended.
    pub(crate) fn ask(
        &self,
        request: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Message, Refusal> {
        match self.exchange(request, descriptors)? {
            (answer, _) if answer.refusal == 0 => Ok(answer),
            (answer, _) => Err(Refusal::of(&answer)),
        }
    }

    /// Sends a request. Returns the answer, even if it is a refusal, and the descriptors that came
    /// with it.
    pub(crate) fn exchange(
        &self,
        request: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Message, Vec<OwnedFd>), Refusal> {
        let _exchange = self
            .exchange
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // A request that was not sent leaves the session intact, unless the service is gone.
        send_message(self.socket.as_fd(), request, descriptors).map_err(|error| {
            match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Refusal::ServiceGone,
                _ => Refusal::Io(error),
            }
        })?;
        // If no answer arrives in time, end the session, because the next request would take the
        // late answer for its own.
        let Ok(Some((answer, descriptors))) = recv_message(self.socket.as_fd()) else {
            return Err(Refusal::ServiceGone);
        };
        if answer.refusal == 0 && answer.kind != request.kind {
            return Err(Refusal::ServiceGone);
        }
        Ok((answer, descriptors))
    }

    /// Prepares the session of a child that this process is about to fork. In this session, the
    /// child shares the connections of this process. Returns the child's registration socket and,
    /// if there is one, a listener that this process has to leave to the kernel.
    pub(crate) fn inherit(&self) -> Result<(Control, Option<ListenerHandle>), Refusal> {
        let (answer, descriptors) = self.exchange(&new_message(message::INHERIT), &[])?;
        if answer.refusal != 0 {
            return Err(Refusal::of(&answer));
        }
        let socket = descriptors.into_iter().next();
        let socket = socket.ok_or(Refusal::ServiceGone)?;
        let control = Control::over(socket).map_err(|error| match error {
            RegisterError::Io(error) => Refusal::Io(error),
            _ => Refusal::ServiceGone,
        })?;
        let listener_left_to_kernel =
            (answer.listener != 0).then_some(ListenerHandle(answer.listener));
        Ok((control, listener_left_to_kernel))
    }

    /// Tells the service that this process has closed the connection with the number `connection`,
    /// which the process had inherited over `fork` and never used.
    pub(crate) fn release_connection(&self, connection: u64) {
        let mut request = new_message(message::RELEASE_CONNECTION);
        request.connection = connection;
        self.send(&request);
    }

    /// Sends a request that has no answer. Waits for room in the socket for at most
    /// [`ANSWER_TIME_MAX`]. Ignores errors.
    pub(crate) fn send(&self, request: &Message) {
        let _exchange = self
            .exchange
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = send_message(self.socket.as_fd(), request, &[]);
    }

    /// Returns true if the service has not closed its end of the socket.
    pub(crate) fn is_connected(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        loop {
            return match poll(
                &mut fds,
                Some(&Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                }),
            ) {
                Ok(0) => true,
                Ok(_) => false,
                Err(Errno::INTR) => continue,
                Err(_) => false,
            };
        }
    }

    /// Returns the socket.
    pub(crate) fn socket(&self) -> &Descriptor {
        &self.socket
    }
}

impl Refusal {
    /// Returns the refusal that an answer of the service contains.
    pub(crate) fn of(answer: &Message) -> Self {
        match (answer.refusal, answer.reason) {
            (refusal::LIMIT, 0) => Self::Limit(not_accelerated::LIMIT),
            (refusal::LIMIT, reason) => Self::Limit(reason),
            (why, _) => Self::Refused(why),
        }
    }
}

/// Moves one of this crate's own descriptors to a number of at least [`DESCRIPTOR_MIN`]. If this
/// fails, the descriptor keeps its number.
pub(crate) fn move_to_high_number(fd: impl Into<Descriptor>) -> Descriptor {
    let fd = fd.into();
    match rustix::io::fcntl_dupfd_cloexec(&fd, DESCRIPTOR_MIN) {
        Ok(high) => high.into(),
        Err(_) => fd,
    }
}

impl From<Errno> for RegisterError {
    fn from(errno: Errno) -> RegisterError {
        match errno {
            Errno::NOENT | Errno::CONNREFUSED => RegisterError::NotRunning,
            Errno::ACCESS | Errno::PERM => RegisterError::NotPermitted,
            other => RegisterError::Io(other.into()),
        }
    }
}

impl From<io::Error> for RegisterError {
    fn from(error: io::Error) -> RegisterError {
        RegisterError::Io(error)
    }
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::NotRunning => write!(f, "the tidelane service is not running"),
            RegisterError::VersionMismatch { ours, theirs } => write!(
                f,
                "shared-memory version mismatch: this release has {ours}, the running service \
                 {theirs}; stop the service and start it from this release"
            ),
            RegisterError::Refused(why) => write!(f, "the service refused (reason {why})"),
            RegisterError::NotAdmitted(NotAdmitted { why, .. }) => f.write_str(match *why {
                refusal::NAMESPACE => "the service does not admit this network namespace",
                refusal::USER => "the service does not admit this user",
                _ => "BPF programs of the cgroup (sandbox, firewall) would be bypassed",
            }),
            RegisterError::NotPermitted => write!(
                f,
                "this user may not use the service: the user is not in the group of the \
                 service's registration socket"
            ),
            RegisterError::Io(error) => write!(f, "cannot register: {error}"),
        }
    }
}

impl std::error::Error for RegisterError {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Refused(why) => write!(f, "the service refused (reason {why})"),
            Refusal::Limit(_) => write!(f, "a limit of the service is reached"),
            Refusal::ServiceGone => write!(f, "the service is gone"),
            Refusal::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refusal {}
