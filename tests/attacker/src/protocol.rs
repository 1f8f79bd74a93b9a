//! The registration protocol, which programs speak with the service (`tidelaned`) over a unix
//! socket. The code omits the checks that the preload library makes before it sends a message.
//!
//! Words in capitals, such as REGISTER, are kinds of messages. The messages name objects of the
//! service: a context is the set of rings (queues in shared memory) of one thread of the program, a
//! doorbell is the eventfd that wakes this thread, and a slot is the record of a connection in
//! shared memory.

use std::{
    fmt, io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::{
    cmsg_space,
    io::Errno,
    net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
        SocketFlags, SocketType, connect, sendmsg, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};
use serde_json::{Value, json};
use tidelane_abi::{Message, message, refusal};
use tidelane_ring::registration::{RecvError, new_message, recv_message, send_message};

/// Maximum number of descriptors that the kernel allows in one message (SCM_MAX_FD).
pub const DESCRIPTORS_MAX: usize = 253;
/// Timeout of each send and each receive on the registration socket.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);

/// A connection to a service's registration socket.
#[derive(Debug)]
pub struct Service {
    socket: OwnedFd,
}

/// A message of the service that is not a refusal, with its descriptors.
#[derive(Debug)]
pub struct Answer {
    /// The message, whose field `refusal` is 0.
    pub message: Message,
    /// Descriptors that came with the message.
    pub descriptors: Vec<OwnedFd>,
}

/// Reason why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// Connecting to the registration socket failed, for example because the socket does not exist
    /// or access was denied.
    Unreachable(io::Error),
    /// The service refused the request, with one of [`refusal`] as the reason.
    Refused(u32),
    /// The service closed the connection, its answer lacks descriptors, or the shared memory has no
    /// rings for the context.
    HungUp,
    /// A system call of this process failed, or the answer was invalid.
    Io(io::Error),
}

impl Service {
    /// Connects to the registration socket at `path`.
    pub fn connect(path: &Path) -> Result<Service, Failure> {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)
            .map_err(|errno| Failure::Unreachable(errno.into()))?;
        Self::over(socket)
    }

    /// Wraps a registration socket, such as the one in the answer to INHERIT.
    pub fn over(socket: OwnedFd) -> Result<Service, Failure> {
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(ANSWER_TIME_MAX))?;
        }
        Ok(Service { socket })
    }

    /// Sends a request and waits for the answer.
    pub fn ask(
        &self,
        request: &Message,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Answer, Failure> {
        self.send(request, descriptors)?;
        self.receive()
    }

    /// Sends a message without waiting for an answer.
    pub fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        send_message(self.socket.as_fd(), message, descriptors).map_err(Failure::of_send)
    }

    /// Sends any bytes, valid message or not, with up to [`DESCRIPTORS_MAX`] descriptors.
    pub fn send_bytes(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
            assert!(pushed, "more descriptors than a message may carry");
        }
        let bytes = [io::IoSlice::new(bytes)];
        sendmsg(&self.socket, &bytes, &mut control, SendFlags::NOSIGNAL)
            .map(drop)
            .map_err(|errno| Failure::of_send(errno.into()))
    }

    /// Receives the next message of the service.
    pub fn receive(&self) -> Result<Answer, Failure> {
        match recv_message(self.socket.as_fd()) {
            Ok(Some((message, descriptors))) if message.refusal == 0 => Ok(Answer {
                message,
                descriptors,
            }),
            Ok(Some((message, _))) => Err(Failure::Refused(message.refusal)),
            Ok(None) => Err(Failure::HungUp),
            Err(RecvError::Io(error)) => Err(Failure::of_send(error)),
            Err(error) => Err(Failure::Io(error.into())),
        }
    }

    /// Sends PROBE and waits for the answer.
    pub fn probe(&self) -> Result<(), Failure> {
        self.ask(&new_message(message::PROBE), &[]).map(drop)
    }

    /// Sends REGISTER with the program's name `name`, and waits for the answer.
    pub fn register(&self, name: &str) -> Result<Answer, Failure> {
        let mut request = new_message(message::REGISTER);
        let len = name.len().min(request.name.len());
        request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
        self.ask(&request, &[])
    }

    /// Sends CONTEXT with the context's number and its doorbell `bell`, and waits for the answer.
    pub fn context(&self, number: u32, bell: BorrowedFd<'_>) -> Result<(), Failure> {
        let mut request = new_message(message::CONTEXT);
        request.context = number;
        self.ask(&request, &[bell]).map(drop)
    }

    /// Sends LISTEN with any descriptor, and waits for the answer. Returns the service's number for
    /// the listener.
    pub fn listen(&self, socket: BorrowedFd<'_>, backlog: u32) -> Result<u32, Failure> {
        let mut request = new_message(message::LISTEN);
        request.backlog = backlog;
        Ok(self.ask(&request, &[socket])?.message.listener)
    }

    /// Sends UNLISTEN with any listener's number, and waits for the answer.
    pub fn unlisten(&self, listener: u32) -> Result<(), Failure> {
        let mut request = new_message(message::UNLISTEN);
        request.listener = listener;
        request.cookie = u64::from(listener);
        self.ask(&request, &[]).map(drop)
    }

    /// Sends RESERVE with any descriptor, and waits for the answer. Returns the reserved port.
    pub fn reserve(&self, socket: BorrowedFd<'_>) -> Result<u32, Failure> {
        let answer = self.ask(&new_message(message::RESERVE), &[socket])?;
        Ok(answer.message.port)
    }

    /// Sends REPORT_NOT_ACCELERATED, which has no answer. `inode` is the inode number of a kernel
    /// socket.
    pub fn report_not_accelerated(&self, inode: u64, reason: u32) -> Result<(), Failure> {
        let mut request = new_message(message::REPORT_NOT_ACCELERATED);
        request.inode = inode;
        request.reason = reason;
        self.send(&request, &[])
    }

    /// Sends INHERIT and waits for the answer. Returns the registration socket for a child, whether
    /// or not a child is forked.
    pub fn inherit(&self) -> Result<Service, Failure> {
        let answer = self.ask(&new_message(message::INHERIT), &[])?;
        let socket = answer.descriptors.into_iter().next();
        Service::over(socket.ok_or(Failure::HungUp)?)
    }

    /// Sends TAKE_CONNECTION for any connection, and waits for the answer. TAKE_CONNECTION requests
    /// that the service move `connection` to the program's context `context`. `tx_buffer` is the
    /// word that encodes the new send buffer, or 0 for no buffer.
    pub fn take(&self, connection: u64, context: u32, tx_buffer: u64) -> Result<Answer, Failure> {
        let mut request = new_message(message::TAKE_CONNECTION);
        request.connection = connection;
        request.context = context;
        request.tx_buffer = tx_buffer;
        self.ask(&request, &[])
    }

    /// Sends RELEASE_CONNECTION for any connection. RELEASE_CONNECTION has no answer.
    pub fn release_connection(&self, connection: u64) -> Result<(), Failure> {
        let mut request = new_message(message::RELEASE_CONNECTION);
        request.connection = connection;
        self.send(&request, &[])
    }

    /// Sends TCP_INFO for any slot, and waits for the answer.
    pub fn tcp_info(&self, slot: u32, generation: u32) -> Result<Answer, Failure> {
        let mut request = new_message(message::TCP_INFO);
        request.slot = slot;
        request.generation = generation;
        self.ask(&request, &[])
    }
}

impl Failure {
    /// Returns the failure of a send or a receive on the registration socket.
    fn of_send(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Failure::HungUp,
            _ => Failure::Io(error),
        }
    }

    /// Returns true if the failure is not [`Failure::Io`]. In most cases, the service has then sent
    /// a refusal or closed the connection, or the connect to the registration socket has failed.
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Failure::Io(_))
    }
}

/// Returns the result of one request as a JSON string for an attack's output: `"obtained"`, or the
/// text of the failure.
pub fn verdict<T>(result: &Result<T, Failure>) -> Value {
    match result {
        Ok(_) => json!("obtained"),
        Err(failure) => json!(failure.to_string()),
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Io(errno.into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self {
            Failure::Unreachable(error) => return write!(f, "unreachable: {error}"),
            Failure::HungUp => "hung up",
            Failure::Io(error) => return error.fmt(f),
            Failure::Refused(refusal::ABI_VERSION) => "refused: version",
            Failure::Refused(refusal::MALFORMED) => "refused: malformed",
            Failure::Refused(refusal::LIMIT) => "refused: limit",
            Failure::Refused(refusal::NOT_ENTITLED) => "refused: not entitled",
            Failure::Refused(refusal::NOT_ACCELERATED) => "refused: not accelerated",
            Failure::Refused(refusal::IN_USE) => "refused: in use",
            Failure::Refused(refusal::BUSY) => "refused: busy",
            Failure::Refused(refusal::BUFFER_TOO_SMALL) => "refused: buffer",
            Failure::Refused(why) => return write!(f, "refused: {why}"),
        };
        write!(f, "{why}")
    }
}

impl std::error::Error for Failure {}
