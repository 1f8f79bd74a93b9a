//! The events that a context reports. A context is a thread's access to the service (the process
//! `tidelaned`).
//!
//! A slot is the record of one connection in the memory that program and service share. The
//! generation of a slot counts the uses and the releases of the slot. A cookie is a number that the
//! program has chosen for a socket.

use crate::listener_handle::ListenerHandle;

/// An event that `Context::poll` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The service opens the connection. Create its stream with `Program::stream`.
    ConnectStarted {
        /// Cookie of the connect request.
        cookie: u64,
        /// Slot of the connection.
        slot: u32,
        /// Generation of the slot.
        generation: u32,
        /// Number of payload bytes that the SYN can carry (TCP Fast Open), or 0 if the service has
        /// sent the SYN. If the number is not 0, the service sends the SYN when the program writes
        /// payload or sets the flag `OPEN_NOW`.
        syn_room: u32,
    },
    /// The active open failed.
    ConnectFailed {
        /// Cookie of the connect request.
        cookie: u64,
        /// One of [`tidelane_abi::close_cause`].
        cause: u32,
    },
    /// The service does not run TCP for this connection. The program has to connect through the
    /// kernel.
    ConnectKernel {
        /// Cookie of the connect request.
        cookie: u64,
        /// The reason: one of [`tidelane_abi::not_accelerated`].
        reason: u32,
    },
    /// A listener has a new established connection.
    ///
    /// Create the connection's stream with `Program::stream`, and put the stream into the program's
    /// accept queue. When `accept` returns the connection, set the stream's flag `TAKEN` and call
    /// `Context::accept_taken`.
    Accepted {
        /// Cookie of the listener.
        cookie: u64,
        /// Handle of the listener.
        listener: ListenerHandle,
        /// Slot of the connection.
        slot: u32,
        /// Generation of the slot.
        generation: u32,
    },
    /// The service has changed the slot. The program has to check the slot's stream.
    Ready {
        /// Slot of the connection.
        slot: u32,
    },
    /// The service has released the slot of a closed stream. The stream's send buffers have been
    /// freed.
    Released {
        /// Slot of the closed stream.
        slot: u32,
    },
}
