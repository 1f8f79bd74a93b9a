//! The bytes and flags of one connection.

use std::io::{IoSlice, IoSliceMut};

use tidelane_abi::SlotNames;

/// One connection, from the event that announced it to `close`.
///
/// All methods look at shared memory, none makes a system call. After a method that changes
/// something, call `Context::submit`: it does nothing when there is nothing to tell.
/// Dropping without `close` aborts the connection as soon as the service looks at the slot.
#[derive(Debug)]
pub struct Stream {}

#[allow(unused_variables)]
impl Stream {
    /// Its slot's number.
    pub fn slot(&self) -> u32 {
        unimplemented!()
    }

    /// Its slot's generation.
    pub fn generation(&self) -> u32 {
        unimplemented!()
    }

    /// The connection's addresses.
    pub fn names(&self) -> SlotNames {
        unimplemented!()
    }

    /// Bytes that `read` would give now.
    pub fn readable(&mut self) -> usize {
        unimplemented!()
    }

    /// Moves received bytes to `into`; returns their number. 0 with `peer_closed`: end of file.
    pub fn read(&mut self, into: &mut [u8]) -> usize {
        unimplemented!()
    }

    /// `read` into several buffers.
    pub fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> usize {
        unimplemented!()
    }

    /// Copies received bytes without consuming them.
    pub fn peek(&mut self, into: &mut [u8]) -> usize {
        unimplemented!()
    }

    /// Consumes up to `count` received bytes unseen.
    pub fn discard(&mut self, count: usize) -> usize {
        unimplemented!()
    }

    /// Bytes that `write` would take now (if there is memory).
    pub fn writable(&mut self) -> usize {
        unimplemented!()
    }

    /// Takes bytes to send; returns how many. 0: the limit is reached, or no memory is left, or the
    /// stream is shut for writing or closed.
    pub fn write(&mut self, from: &[u8]) -> usize {
        unimplemented!()
    }

    /// `write` from several buffers.
    pub fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> usize {
        unimplemented!()
    }

    /// Bytes written and not yet acknowledged by the peer (SIOCOUTQ).
    pub fn unacked(&mut self) -> u32 {
        unimplemented!()
    }

    /// The service's limit for `unacked` (SO_SNDBUF).
    pub fn tx_limit(&self) -> u32 {
        unimplemented!()
    }

    /// The service's receive window limit (SO_RCVBUF).
    pub fn rx_window(&self) -> u32 {
        unimplemented!()
    }

    /// [`tidelane_abi::service_flags`] as they are now (ABORTED when the service is gone).
    pub fn service_flags(&self) -> u32 {
        unimplemented!()
    }

    /// The handshake is complete.
    pub fn established(&self) -> bool {
        unimplemented!()
    }

    /// No byte comes after the readable ones: the peer's FIN was received, or the connection ended.
    pub fn peer_closed(&self) -> bool {
        unimplemented!()
    }

    /// The connection is over: one of [`tidelane_abi::close_cause`].
    pub fn closed(&self) -> Option<u32> {
        unimplemented!()
    }

    /// The peer acknowledged our FIN.
    pub fn fin_acked(&self) -> bool {
        unimplemented!()
    }

    /// Both ends are programs of this service.
    pub fn memory_wire(&self) -> bool {
        unimplemented!()
    }

    /// [`tidelane_abi::program_flags`] as set.
    pub fn flags(&self) -> u32 {
        unimplemented!()
    }

    /// Sets [`tidelane_abi::program_flags`] bits (NODELAY, CORK, KEEPALIVE, QUICKACK, TAKEN).
    pub fn set_flag(&mut self, bits: u32) {
        unimplemented!()
    }

    /// Clears such bits.
    pub fn clear_flag(&mut self, bits: u32) {
        unimplemented!()
    }

    /// No more bytes will be written: FIN after what was written.
    pub fn shutdown_write(&mut self) {
        unimplemented!()
    }

    /// What arrives from now on is discarded.
    pub fn shutdown_read(&mut self) {
        unimplemented!()
    }

    /// The program is done. Submit once more; `Released` follows when the service is done too.
    /// `linger`: SO_LINGER seconds, for `tidelane ss` and the service's timeout; 0 with `abort`.
    pub fn close(&mut self, abort: bool, linger: Option<u32>) {
        unimplemented!()
    }

    /// Whether `Context::submit` has something to tell.
    pub fn submit_due(&self) -> bool {
        unimplemented!()
    }

    /// Frees the send buffer if all bytes are acknowledged. True if the stream now holds none.
    pub fn trim(&mut self) -> bool {
        unimplemented!()
    }
}
