//! The session of a forked child with the service (the process `tidelaned`), and the migration of a
//! TCP connection from one process to another.
//!
//! After `fork`, parent and child share the connections: both have descriptors of each connection.
//! The payload of a connection is in the memory of only one of the processes. The request
//! TAKE_CONNECTION migrates the connection to the process that sends the request.
//! `docs/design/fork.md` describes the design.

use std::{
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::Arc,
    thread,
    time::Duration,
};

use tidelane_abi::{message, not_accelerated, refusal};
use tidelane_ring::{StreamBuffer, registration::new_message};

use crate::{
    Refusal, Stream, control::Control, listener_handle::ListenerHandle, session::ClientSession,
};

/// Largest number of repeated requests for a busy connection, whose bytes another process is
/// reading or writing. The number is high, because the other process may be stopped for a while.
const ATTEMPTS_MAX: u32 = 2_000;
/// Time between two requests for a busy connection.
const PAUSE: Duration = Duration::from_micros(500);
/// Binary logarithm of the smallest send buffer in bytes: one page.
const TX_LOG2_MIN: u8 = 12;

/// The session of a child, which its parent prepares before `fork`. The child holds the inherited
/// connections: a connection stays open as long as at least one process holds the connection. The
/// child gives up its holds when the child drops this value or exits.
#[derive(Debug)]
pub struct ChildSession {
    /// The registration socket of the child.
    control: Control,
    /// See [`ChildSession::listener_left_to_kernel`].
    listener_left_to_kernel: Option<ListenerHandle>,
}

impl ChildSession {
    /// Wraps the child's registration socket and, if there is one, the listener that the parent has
    /// to leave to the kernel.
    pub(crate) fn new(
        (control, listener_left_to_kernel): (Control, Option<ListenerHandle>),
    ) -> Self {
        Self {
            control,
            listener_left_to_kernel,
        }
    }

    /// Returns a listener that the parent has to leave to the kernel from now on, because the
    /// parent forks for each connection ([`tidelane_abi::not_accelerated::FORKS`]). Returns `None`
    /// if there is no such listener.
    pub fn listener_left_to_kernel(&self) -> Option<ListenerHandle> {
        self.listener_left_to_kernel
    }

    /// Returns the descriptor of the child's registration socket, which the program must not close.
    pub fn descriptor(&self) -> RawFd {
        self.control.socket().as_fd().as_raw_fd()
    }

    /// Prepares the session of a child that this child is about to fork.
    pub fn inherit(&self) -> Result<ChildSession, Refusal> {
        self.control.inherit().map(ChildSession::new)
    }

    /// Tells the service that this process closed the inherited connection with the number
    /// `connection`.
    pub fn release_connection(&self, connection: u64) {
        self.control.release_connection(connection);
    }

    /// Returns the registration socket, over which the child can register as a program.
    pub(crate) fn into_control(self) -> Control {
        self.control
    }
}

/// Implements [`Program::migrate_here`](crate::Program::migrate_here).
pub(crate) fn migrate_here(
    session: &Arc<ClientSession>,
    control: &Control,
    connection: u64,
    context: u32,
) -> Result<Stream, Refusal> {
    let mut tx_buffer: Option<StreamBuffer> = None;
    let mut attempts = 0;
    let refused = loop {
        let mut request = new_message(message::TAKE_CONNECTION);
        request.connection = connection;
        request.context = context;
        request.tx_buffer = tx_buffer.map_or(0, StreamBuffer::to_word);
        let (answer, _) = match control.exchange(&request, &[]) {
            Ok(answered) => answered,
            Err(error) => break error,
        };
        match answer.refusal {
            0 => {
                let stream = Stream::resume(session, answer.slot, answer.generation, tx_buffer);
                return stream.ok_or(Refusal::ServiceGone);
            }
            refusal::BUSY if attempts < ATTEMPTS_MAX => {
                attempts += 1;
                thread::sleep(PAUSE);
            }
            refusal::BUFFER_TOO_SMALL => {
                // In this refusal, `slot` is the number of unacknowledged bytes.
                let log2 = answer.slot.next_power_of_two().ilog2() as u8;
                let mut buffers = session.buffers();
                if let Some(small) = tx_buffer.take() {
                    buffers.allocator.free(small);
                }
                tx_buffer = buffers.allocator.alloc(log2.max(TX_LOG2_MIN));
                if tx_buffer.is_none() {
                    return Err(Refusal::Limit(not_accelerated::LIMIT));
                }
            }
            _ => break Refusal::of(&answer),
        }
    };
    if let Some(unused) = tx_buffer {
        session.buffers().allocator.free(unused);
    }
    Err(refused)
}
