//! [`Session`]: one open context (the sockets of one thread), with its back end (the TCP/IP stack
//! that carries its connections), its ready list, and the owners of its buffers.
//!
//! The ready list is the result of [`Session::sync`] or [`Session::rx_sync`]: an entry for each
//! descriptor (socket) with events, and a slot for each received buffer.

use std::{net::SocketAddr, os::fd::AsRawFd, ptr::NonNull, time::Duration};

use tidelane_rings::{
    Buffer, Context, Descriptor, ListenOptions, ReadyList, SendError, SendRefusal, Wait,
};

use crate::{
    buffers::{Buffers, Owner},
    error::Error,
    types::{CEntry, CSlot, Counters, NONE, to_c},
};

/// A context of a C program, which names buffers and descriptors by number.
pub struct Session {
    back_end: Box<dyn Context>,
    /// The entries of the ready list. The slots are in `slots`.
    list: ReadyList,
    slots: Vec<CSlot>,
    /// For each slot, the sender of the datagram; `None` if the slot has data of a connection.
    senders: Vec<Option<SocketAddr>>,
    buffers: Buffers,
    /// Number of calls of `sync`, `rx_sync` and `tx_sync` that have called the back end.
    syncs: u64,
}

impl Session {
    /// Returns the context with the number `number` on an open back end.
    pub fn new(back_end: Box<dyn Context>, number: u32) -> Self {
        Self {
            back_end,
            list: ReadyList::new(),
            slots: Vec::new(),
            senders: Vec::new(),
            buffers: Buffers::new(number),
            syncs: 0,
        }
    }

    /// Opens a listener. If `backlog` is zero, the listener has the default backlog.
    pub fn listen(&mut self, local: SocketAddr, backlog: u32) -> Result<i32, Error> {
        let options = match backlog {
            0 => ListenOptions::default(),
            _ => ListenOptions { backlog },
        };
        Ok(to_c(self.back_end.listen(local, &options)?))
    }

    pub fn connect(&mut self, peer: SocketAddr) -> Result<i32, Error> {
        Ok(to_c(self.back_end.connect(peer)?))
    }

    pub fn bind(&mut self, local: SocketAddr) -> Result<i32, Error> {
        Ok(to_c(self.back_end.bind(local)?))
    }

    /// Sends and receives. Returns the number of entries of the list.
    pub fn sync(&mut self, timeout_ns: i64) -> Result<i32, Error> {
        self.end_list()?;
        let result = self.back_end.sync(&mut self.list, wait(timeout_ns));
        self.take_slots();
        result?;
        Ok(self.entry_count())
    }

    /// Receives. Returns the number of entries of the list.
    pub fn rx_sync(&mut self, timeout_ns: i64) -> Result<i32, Error> {
        self.end_list()?;
        let result = self.back_end.rx_sync(&mut self.list, wait(timeout_ns));
        self.take_slots();
        result?;
        Ok(self.entry_count())
    }

    /// Sends. The list stays as it is.
    pub fn tx_sync(&mut self) -> Result<(), Error> {
        self.syncs += 1;
        Ok(self.back_end.tx_sync()?)
    }

    /// Drops the buffers that still belong to the list. Fails, and changes nothing, if the program
    /// holds so many buffers that the buffers of the next list might not all get numbers.
    fn end_list(&mut self) -> Result<(), Error> {
        self.buffers.check_room_for_a_list()?;
        self.buffers.end_list(&self.slots);
        self.slots.clear();
        self.senders.clear();
        Ok(())
    }

    /// Gives a number to each buffer that the back end has added to the list. Fills `slots` and
    /// `senders`.
    fn take_slots(&mut self) {
        self.syncs += 1;
        for arrival in self.list.take_slots() {
            let len = arrival.buffer.len() as u32;
            let Some(buffer) = self.buffers.give(arrival.buffer, Owner::List) else {
                // No number is free, so this list has more than 2^17 buffers. Reset the connection,
                // because the program must not miss a part of the data.
                self.back_end.abort(arrival.descriptor);
                continue;
            };
            self.slots.push(CSlot {
                buffer,
                descriptor: to_c(arrival.descriptor),
                len,
                next: arrival.next.map_or(NONE, |next| next as i32),
                reserved: 0,
            });
            self.senders.push(arrival.sender);
        }
    }

    /// Returns the number of entries of the list.
    pub fn entry_count(&self) -> i32 {
        self.list.len() as i32
    }

    /// Returns the number of slots of the list.
    pub fn slot_count(&self) -> i32 {
        self.slots.len() as i32
    }

    /// Returns an entry of the list.
    pub fn entry(&self, at: i32) -> Result<CEntry, Error> {
        let at = usize::try_from(at).ok().filter(|at| *at < self.list.len());
        Ok(self.list.entry(at.ok_or(Error::ENTRY)?).into())
    }

    /// Returns a slot of the list.
    pub fn slot(&self, at: i32) -> Result<CSlot, Error> {
        let slot = usize::try_from(at).ok().and_then(|at| self.slots.get(at));
        slot.copied().ok_or(Error::ENTRY)
    }

    /// Returns the sender of the datagram in a slot of the list.
    pub fn sender(&self, at: i32) -> Result<SocketAddr, Error> {
        let at = usize::try_from(at).ok();
        let sender = at.and_then(|at| self.senders.get(at));
        sender.ok_or(Error::ENTRY)?.ok_or(Error::NO_DATAGRAM)
    }

    /// Returns the address and the length of the payload of a buffer.
    pub fn payload(&self, buffer: i64) -> Result<(NonNull<u8>, u32), Error> {
        self.buffers.payload(buffer)
    }

    /// Returns the number of bytes from the start of the payload to the end of the buffer.
    pub fn capacity(&self, buffer: i64) -> Result<u32, Error> {
        self.buffers.capacity(buffer)
    }

    /// Makes the payload of a buffer writable. Returns the address and the length of the payload.
    pub fn writable_payload(&mut self, buffer: i64) -> Result<(NonNull<u8>, u32), Error> {
        self.buffers.writable_payload(buffer)
    }

    /// Moves the start of the payload of a buffer forward by `skip` bytes, and sets the length of
    /// the payload to `len`.
    pub fn set_payload(&mut self, buffer: i64, skip: u32, len: u32) -> Result<(), Error> {
        self.buffers.set_payload(buffer, skip, len)
    }

    /// Gives a free buffer of the pool to the program.
    pub fn allocate(&mut self) -> Result<i64, Error> {
        let buffer = self.back_end.pool().allocate();
        self.give(buffer)
    }

    /// Gives the program a buffer for data to send on one descriptor.
    pub fn allocate_for(&mut self, descriptor: i32) -> Result<i64, Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        let buffer = self.back_end.allocate(descriptor);
        if buffer.is_none() && self.back_end.pool().free_count() > 0 {
            // The pool has free buffers, so the connection has no room, or the descriptor cannot
            // send. If the connection has no room, the event WRITABLE reports when there is room.
            return Err(Error::FULL);
        }
        self.give(buffer)
    }

    /// Gives a newly allocated buffer to the program. Fails if `buffer` is `None`.
    fn give(&mut self, buffer: Option<Buffer>) -> Result<i64, Error> {
        let given = buffer.and_then(|buffer| self.buffers.give(buffer, Owner::Program));
        given.ok_or(Error::NO_BUFFER)
    }

    /// Makes the program the owner of a buffer of the list.
    pub fn hold(&mut self, buffer: i64) -> Result<(), Error> {
        self.buffers.hold(buffer)
    }

    /// Returns a buffer to the context.
    pub fn release(&mut self, buffer: i64) -> Result<(), Error> {
        self.buffers.take(buffer).map(drop)
    }

    /// Queues the payload of a buffer for sending on a connection. If the call fails, the buffer
    /// keeps its owner.
    pub fn send(&mut self, descriptor: i32, buffer: i64) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        self.queue(buffer, Error::NOT_CONNECTED, |back_end, buffer| {
            back_end.send(descriptor, buffer)
        })
    }

    /// Queues the payload of a buffer for sending as a datagram to `peer`. If the call fails, the
    /// buffer keeps its owner.
    pub fn send_to(&mut self, descriptor: i32, buffer: i64, peer: SocketAddr) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        self.queue(buffer, Error::NO_UDP_SOCKET, |back_end, buffer| {
            back_end.send_to(descriptor, buffer, peer)
        })
    }

    /// Calls `send`, which passes a buffer to the back end. If the back end refuses the buffer,
    /// gives the buffer back to its owner. `not_connected` is the error for
    /// [`SendRefusal::NotConnected`].
    fn queue(
        &mut self,
        buffer: i64,
        not_connected: Error,
        send: impl FnOnce(&mut dyn Context, Buffer) -> Result<(), SendError>,
    ) -> Result<(), Error> {
        let (buffer, owner) = self.buffers.take(buffer)?;
        let Err(error) = send(&mut *self.back_end, buffer) else {
            return Ok(());
        };
        self.buffers.give_back(error.buffer, owner);
        Err(match error.refusal {
            SendRefusal::Full => Error::FULL,
            SendRefusal::NotConnected => not_connected,
            SendRefusal::TooLong => Error::TOO_LONG,
        })
    }

    /// Stops receiving on a connection or a UDP socket, or stops accepting on a listener.
    pub fn pause(&mut self, descriptor: i32) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        self.back_end.pause(descriptor);
        Ok(())
    }

    pub fn resume(&mut self, descriptor: i32) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        Ok(self.back_end.resume(descriptor)?)
    }

    /// Closes the sending direction of a connection.
    pub fn shutdown(&mut self, descriptor: i32) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        self.back_end.shutdown(descriptor);
        Ok(())
    }

    pub fn close(&mut self, descriptor: i32) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        self.back_end.close(descriptor);
        Ok(())
    }

    pub fn abort(&mut self, descriptor: i32) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        self.back_end.abort(descriptor);
        Ok(())
    }

    /// Returns the file descriptor of the kernel's socket that belongs to a descriptor.
    pub fn socket(&self, descriptor: i32) -> Result<i32, Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        let socket = self.back_end.socket(descriptor);
        socket
            .map(|socket| socket.as_raw_fd())
            .ok_or(Error::NO_SOCKET)
    }

    pub fn counters(&self) -> Counters {
        let pool = self.back_end.pool();
        Counters {
            syncs: self.syncs,
            system_calls: self.back_end.system_calls(),
            buffers: pool.count(),
            buffers_free: pool.free_count(),
            buffers_held: self.buffers.held(),
            buffer_len: pool.buffer_len(),
        }
    }

    /// Returns the descriptor for its number in C. Fails if the descriptor is not open.
    fn open_descriptor(&self, descriptor: i32) -> Result<Descriptor, Error> {
        let descriptor = u32::try_from(descriptor).map(Descriptor);
        let open = descriptor.ok().filter(|d| self.back_end.is_open(*d));
        open.ok_or(Error::DESCRIPTOR)
    }
}

/// Returns how long a sync waits. A negative `timeout_ns` stands for a wait without limit.
fn wait(timeout_ns: i64) -> Wait {
    match u64::try_from(timeout_ns) {
        Ok(0) => Wait::No,
        Ok(limit) => Wait::For(Duration::from_nanos(limit)),
        Err(_) => Wait::Forever,
    }
}

#[cfg(test)]
mod lending_unsafe;
#[cfg(test)]
mod tests_unsafe;
