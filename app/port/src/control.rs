//! The control connection of a mux port: a connection to the registration socket (a Unix socket) of
//! the service (the process `tidelaned`). A mux port consists of packet rings through which a
//! program with a TCP/IP stack of its own shares the NIC of the service. The service closes the mux
//! port when the control connection ends.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
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
use tidelane_abi::{Message, message};
use tidelane_ring::registration::{RecvError, new_message, recv_message, send_message};

use crate::error::{PortError, kind_of};

/// Time limit for sending a request. Also the time limit for receiving the service's answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// The control connection of one mux port: a connected Unix socket (SOCK_SEQPACKET), on which each
/// request has one answer.
#[derive(Debug)]
pub struct Control(OwnedFd);

impl Control {
    /// Connects to the service that listens at `path`.
    pub fn connect(path: &Path) -> Result<Self, PortError> {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(ANSWER_TIME_MAX))?;
        }
        Ok(Self(socket))
    }

    /// Asks the service to open the mux port (message OPEN_PORT). `name` is the name of the program
    /// for `tidelane port list`, and is truncated to the length of the message's field. `ring_len`
    /// is the capacity of each packet ring in bytes. `doorbell` is the eventfd by which the service
    /// wakes the program.
    ///
    /// Returns the answer (PORT_OPENED) and its descriptors: the memory of the packet rings, the
    /// page on which the service's cores (polling threads) announce their sleep, and the doorbells
    /// (eventfds) by which the program wakes the cores.
    pub fn open_port(
        &self,
        name: &str,
        ring_len: u32,
        doorbell: BorrowedFd<'_>,
    ) -> Result<(Message, Vec<OwnedFd>), PortError> {
        let mut request = new_message(message::OPEN_PORT);
        let len = name.floor_char_boundary(request.name.len() - 1);
        request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
        request.packet_port.ring_len = ring_len;
        match send_message(self.0.as_fd(), &request, &[doorbell]) {
            // EPIPE means that the service has closed the connection before this request. If the
            // service sent a refusal before the close, the refusal is still in the receive queue.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent?,
        }
        let (answer, descriptors) = match recv_message(self.0.as_fd()) {
            Ok(Some(received)) => received,
            Ok(None) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Err(RecvError::Version(theirs)) => {
                let why = tidelane_abi::refusal::ABI_VERSION;
                return Err(PortError::of_refusal(why, theirs));
            }
            Err(error) => return Err(io::Error::from(error).into()),
        };
        match answer.refusal {
            0 if answer.kind == message::PORT_OPENED => Ok((answer, descriptors)),
            0 => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            why => Err(PortError::of_refusal(why, answer.abi_version)),
        }
    }

    /// Sends a request, and waits for the answer, which must have the message kind of the request.
    ///
    /// If the service refuses the request, returns an error with the `io::ErrorKind` that `kind_of`
    /// returns. If the request cannot be sent, or if no valid message arrives within
    /// `ANSWER_TIME_MAX`, returns `NotConnected`. If the answer has another message kind, returns
    /// `InvalidData`.
    pub fn ask(&self, request: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<Message> {
        let gone = |_| io::Error::from(io::ErrorKind::NotConnected);
        send_message(self.0.as_fd(), request, descriptors).map_err(gone)?;
        let (answer, _) = recv_message(self.0.as_fd())
            .ok()
            .flatten()
            .ok_or(io::ErrorKind::NotConnected)?;
        match answer.refusal {
            0 if answer.kind == request.kind => Ok(answer),
            0 => Err(io::ErrorKind::InvalidData.into()),
            why => Err(kind_of(why).into()),
        }
    }

    /// Returns true if the service has closed its end of the connection, or if `poll` fails. Does
    /// not wait.
    pub fn is_closed(&self) -> bool {
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
            match poll(&mut fds, Some(&at_once)) {
                Ok(0) => return false,
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return true,
            }
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
