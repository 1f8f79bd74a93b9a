//! The registration socket, as the program sees it.

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

use crate::ListenerHandle;

/// An answer that does not come within this time never comes.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Own descriptors are moved to this number or above, if the program may have such numbers: low
/// ones are for the program, which may expect to get them in order.
const DESCRIPTOR_MIN: i32 = 768;

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
    /// The service does not admit this program.
    NotAdmitted(NotAdmitted),
    /// The user may not open the registration socket.
    NotPermitted,
    /// An operating system call failed.
    Io(io::Error),
}

/// The connection of a program that the service does not admit: it still takes notes.
#[derive(Debug)]
pub struct NotAdmitted {
    control: Control,
    why: u32,
}

impl NotAdmitted {
    /// Why its sockets stay with the kernel: one of [`tidelane_abi::not_accelerated`].
    pub fn reason(&self) -> u32 {
        self.why
    }

    /// Tells `tidelane ss` that the kernel socket with this inode stays with the kernel.
    pub fn note(&self, inode: u64) {
        let mut request = new_message(message::NOTE);
        request.inode = inode;
        request.reason = self.why;
        self.control.tell(&request);
    }

    /// The descriptor of the registration socket, which the program must not close.
    pub fn descriptor(&self) -> RawFd {
        self.control.socket.as_fd().as_raw_fd()
    }
}

/// Why the service did not do what was asked.
#[derive(Debug)]
pub enum Refusal {
    /// One of [`tidelane_abi::refusal`].
    Refused(u32),
    /// A limit was reached: which one, as [`tidelane_abi::not_accelerated`] has it.
    Limit(u32),
    /// The service is gone.
    ServiceGone,
    /// An operating system call failed.
    Io(io::Error),
}

/// The connected registration socket.
#[derive(Debug)]
pub(crate) struct Control {
    socket: Descriptor,
    /// Held from a request to its answer.
    exchange: Mutex<()>,
}

impl Control {
    /// Connects to the service.
    pub(crate) fn connect(path: &Path) -> Result<Control, RegisterError> {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Self::over(socket)
    }

    /// Talks over a socket that is connected to the service.
    pub(crate) fn over(socket: OwnedFd) -> Result<Control, RegisterError> {
        let socket = out_of_the_way(socket);
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(ANSWER_TIME_MAX))?;
        }
        Ok(Control {
            socket,
            exchange: Mutex::new(()),
        })
    }

    /// Introduces the program. The answer comes with its memories and doorbells.
    pub(crate) fn register(&self, name: &str) -> Result<(Message, Vec<OwnedFd>), RegisterError> {
        let mut request = new_message(message::REGISTER);
        let len = name.floor_char_boundary(request.name.len() - 1);
        request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
        self.send_first(&request)?;
        self.first_answer(message::REGISTERED)
    }

    /// Asks whether the service has the same version.
    pub(crate) fn probe(&self) -> Result<(), RegisterError> {
        self.send_first(&new_message(message::PROBE))?;
        self.first_answer(message::PROBE).map(|_| ())
    }

    /// Sends the first message. A service that hung up before it came may have said why.
    fn send_first(&self, request: &Message) -> io::Result<()> {
        match send_message(self.socket.as_fd(), request, &[]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent,
        }
    }

    /// The answer to the first message: the service may be of another version.
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

    /// Keeps the socket of a program that the service does not admit.
    pub(crate) fn keep_if_not_admitted(self, error: RegisterError) -> RegisterError {
        match error {
            RegisterError::Refused(
                why @ (refusal::NAMESPACE | refusal::USER | refusal::CGROUP),
            ) => RegisterError::NotAdmitted(NotAdmitted { control: self, why }),
            error => error,
        }
    }

    /// Sends a request and waits for its answer. `ServiceGone`: no further call makes sense.
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

    /// Sends a request; its answer, a refusal too, and what came beside it.
    pub(crate) fn exchange(
        &self,
        request: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Message, Vec<OwnedFd>), Refusal> {
        let _exchange = self
            .exchange
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // A request that was not sent leaves the connection as it was, unless the service is gone.
        send_message(self.socket.as_fd(), request, descriptors).map_err(|error| {
            match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Refusal::ServiceGone,
                _ => Refusal::Io(error),
            }
        })?;
        // Without its answer, the next one could be taken for it: the session ends.
        let Ok(Some((answer, descriptors))) = recv_message(self.socket.as_fd()) else {
            return Err(Refusal::ServiceGone);
        };
        if answer.refusal == 0 && answer.kind != request.kind {
            return Err(Refusal::ServiceGone);
        }
        Ok((answer, descriptors))
    }

    /// Makes the session of a child that is about to come: it will hold what this process holds.
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
        let given_up = (answer.listener != 0).then_some(ListenerHandle(answer.listener));
        Ok((control, given_up))
    }

    /// This process does not hold `connection` any more, for which it has no slot.
    pub(crate) fn disown(&self, connection: u64) {
        let mut request = new_message(message::DISOWN);
        request.connection = connection;
        self.tell(&request);
    }

    /// Sends a request that has no answer. A service that does not take it is not waited for.
    pub(crate) fn tell(&self, request: &Message) {
        let _exchange = self
            .exchange
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = send_message(self.socket.as_fd(), request, &[]);
    }

    /// Whether the service still holds its end.
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

    /// The socket.
    pub(crate) fn socket(&self) -> &Descriptor {
        &self.socket
    }
}

impl Refusal {
    /// Returns the refusal that an answer carries.
    pub(crate) fn of(answer: &Message) -> Self {
        match (answer.refusal, answer.reason) {
            (refusal::LIMIT, 0) => Self::Limit(not_accelerated::LIMIT),
            (refusal::LIMIT, reason) => Self::Limit(reason),
            (why, _) => Self::Refused(why),
        }
    }
}

/// Moves a descriptor of our own to a high number, if possible.
pub(crate) fn out_of_the_way(fd: impl Into<Descriptor>) -> Descriptor {
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
                "this user may not use the service: it is not in the group of its socket"
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
