//! A smoltcp socket with the interface of a stream ([`Pipe`]), for the programs of a smoltcp host.

use std::collections::VecDeque;

use smoltcp::{iface::SocketHandle, socket::tcp};
use tidelane_abi::close_cause;
use tidelane_netem::Rng;
use tidelane_time::{Duration, Instant};

use super::Sockets;
use crate::{pipe::Pipe, plan::Role};

/// Longest time that a stream stays in FIN-WAIT-2 after its program has closed the stream. The time
/// is longer than any pause of a program.
const FIN_WAIT_2_MAX: Duration = Duration::from_secs(300);

/// The socket of one connection, with the history that smoltcp does not record.
pub struct SmoltcpStream {
    sockets: Sockets,
    handle: SocketHandle,
    /// True if the peer's FIN has arrived.
    fin: bool,
    /// True if the program has shut down for writing.
    shut: bool,
    /// True if the program has closed the stream.
    closed: bool,
    /// True if the handshake has completed at any time.
    established: bool,
    /// True if the program has closed the stream or shut down for writing, and smoltcp's socket has
    /// yet to be closed.
    close_pending: bool,
    /// Data that the stream has taken from the socket after the peer's FIN, and that the program
    /// has not read. The socket cannot keep this data, because smoltcp discards unread data at the
    /// end of TIME-WAIT.
    read_ahead: VecDeque<u8>,
    /// Number of the connection, if it is known, and role of this end. [`Self::named`] sets both.
    name: (Option<u32>, Role),
    /// Time at which the closed stream was first seen in FIN-WAIT-2.
    fin_wait_2_since: Option<Instant>,
}

impl SmoltcpStream {
    /// Creates the stream of a socket that connects or is connected.
    pub fn new(sockets: Sockets, handle: SocketHandle) -> Self {
        Self {
            sockets,
            handle,
            fin: false,
            shut: false,
            closed: false,
            established: false,
            close_pending: false,
            read_ahead: VecDeque::new(),
            name: (None, Role::Server),
            fin_wait_2_since: None,
        }
    }

    /// Sets the number of the connection, if it is known, and the role.
    pub fn named(self, name: (Option<u32>, Role)) -> Self {
        Self { name, ..self }
    }

    /// Returns the number of the connection, if it is known, and the role.
    pub fn name(&self) -> (Option<u32>, Role) {
        self.name
    }

    fn with<R>(&self, f: impl FnOnce(&mut tcp::Socket<'static>) -> R) -> R {
        f(self.sockets.borrow_mut().get_mut(self.handle))
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        if self.fin {
            let count = into.len().min(self.read_ahead.len());
            let read_ahead = self.read_ahead.drain(..count);
            return read_ahead.zip(into).map(|(from, to)| *to = from).count();
        }
        self.with(|socket| socket.recv_slice(into).unwrap_or(0))
    }

    fn state(&self) -> tcp::State {
        self.with(|socket| socket.state())
    }

    /// Updates the history after a frame. Closes smoltcp's socket if the close was delayed and is
    /// possible by this time.
    pub fn observe(&mut self) {
        use tcp::State::{CloseWait, Closing, Established, FinWait1, FinWait2, LastAck, TimeWait};
        let state = self.state();
        self.fin |= matches!(state, CloseWait | LastAck | Closing | TimeWait);
        self.established |= self.fin || matches!(state, Established | FinWait1 | FinWait2);
        if self.fin {
            let mut rest = vec![0; self.with(|socket| socket.recv_queue())];
            let got = self.with(|socket| socket.recv_slice(&mut rest).unwrap_or(0));
            self.read_ahead.extend(&rest[..got]);
        }
        // A program may shut down for writing before the handshake completes, but smoltcp drops a
        // connection that is closed in SYN-SENT (RFC 9293 §3.10.4). The stream therefore delays the
        // close until the connection is established. In LAST-ACK, smoltcp 0.14 ignores an ACK that
        // acknowledges nothing new, and thus ignores window updates. In CLOSE-WAIT, the stream
        // therefore delays the close until all written data is acknowledged.
        let unsent = state == CloseWait && self.with(|socket| socket.send_queue()) > 0;
        if self.established && !unsent && std::mem::take(&mut self.close_pending) {
            self.with(tcp::Socket::close);
        }
    }

    /// Discards data that no program will read.
    pub fn discard_unread(&mut self) {
        self.with(|socket| {
            while socket
                .recv(|bytes| (bytes.len(), bytes.len()))
                .is_ok_and(|n| n > 0)
            {}
        });
    }

    /// Aborts the closed stream if it has been in FIN-WAIT-2 for `FIN_WAIT_2_MAX`. smoltcp has no
    /// timer for this state, and a dead peer never sends its FIN. Returns the time at which a
    /// further call has to abort the stream. Returns `None` in another state, and after the abort.
    pub fn end_fin_wait_2(&mut self, now: Instant) -> Option<Instant> {
        if self.state() != tcp::State::FinWait2 {
            return None;
        }
        let until = *self.fin_wait_2_since.get_or_insert(now) + FIN_WAIT_2_MAX;
        if now >= until {
            self.with(tcp::Socket::abort);
            return None;
        }
        Some(until)
    }

    /// Returns true if TCP has finished the connection.
    pub fn is_finished(&self) -> bool {
        self.state() == tcp::State::Closed
    }

    /// Removes the socket from smoltcp's set.
    pub fn remove(&mut self) {
        self.sockets.borrow_mut().remove(self.handle);
    }
}

impl Pipe for SmoltcpStream {
    fn readable(&mut self) -> usize {
        self.read_ahead.len() + self.with(|socket| socket.recv_queue())
    }

    fn peek(&mut self, into: &mut [u8]) -> usize {
        // Before the FIN arrives, the data is in the socket. Afterwards, the data is in
        // `read_ahead`.
        if self.fin {
            let read_ahead = self.read_ahead.iter().zip(into);
            return read_ahead.map(|(from, to)| *to = *from).count();
        }
        self.with(|socket| socket.peek_slice(into).unwrap_or(0))
    }

    fn discard(&mut self, count: usize) -> usize {
        let mut scratch = vec![0; count];
        self.take(&mut scratch)
    }

    fn receive(&mut self, _: &mut Rng, into: &mut [u8]) -> usize {
        self.take(into)
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        self.with(|socket| socket.send_slice(bytes).unwrap_or(0))
    }

    fn shutdown_write(&mut self) {
        self.shut = true;
        self.close_pending = true;
        self.observe();
    }

    fn close(&mut self, abort: bool) {
        self.closed = true;
        self.close_pending = !abort;
        if abort {
            self.with(tcp::Socket::abort);
        }
        self.observe();
    }

    fn is_closed(&self) -> bool {
        self.closed
    }

    fn ended(&mut self) -> Option<u32> {
        let orderly = self.fin && self.shut;
        (self.state() == tcp::State::Closed).then_some(if orderly {
            close_cause::FINISHED
        } else {
            close_cause::RESET
        })
    }

    fn fin_received(&self) -> bool {
        self.fin
    }

    fn at_end(&mut self) -> bool {
        self.fin && self.readable() == 0
    }

    fn peer_closed(&mut self) -> bool {
        self.fin || self.state() == tcp::State::Closed
    }

    fn established(&mut self) -> bool {
        self.established
    }

    fn set_nodelay(&mut self) {
        self.with(|socket| socket.set_nagle_enabled(false));
    }
}
