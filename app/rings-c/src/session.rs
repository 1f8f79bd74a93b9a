//! One open context: a back end, its ready list, and the owners of its buffers.

use std::{net::SocketAddr, os::fd::AsRawFd, ptr::NonNull, time::Duration};

use tidelane_kernel::{KernelContext, KernelOptions};
use tidelane_rings::{Context, Descriptor, ListenOptions, ReadyList, SendRefusal, Wait};

use crate::{
    buffers_unsafe::{Buffers, Owner},
    error::Error,
    types::{CEntry, CSlot, Counters, IO_URING, NONE, Options, to_c},
};

/// A context of a C program.
pub struct Session {
    back_end: Box<dyn Context>,
    /// The entries of the last sync. The slots are in `slots`.
    list: ReadyList,
    slots: Vec<CSlot>,
    buffers: Buffers,
    syncs: u64,
}

impl Session {
    /// Opens a context on a back end. `number` is the number of the context.
    pub fn open(options: &Options, number: u32) -> Result<Self, Error> {
        if options.reserved != [0; 3] {
            return Err(Error::ARGUMENT);
        }
        let back_end: Box<dyn Context> = match options.back_end {
            0 | IO_URING => Box::new(KernelContext::open(&kernel_options(options))?),
            _ => return Err(Error::BACK_END),
        };
        Ok(Self {
            buffers: Buffers::new(back_end.pool().clone(), number),
            back_end,
            list: ReadyList::new(),
            slots: Vec::new(),
            syncs: 0,
        })
    }

    /// Opens a listener.
    pub fn listen(&mut self, local: SocketAddr, backlog: u32) -> Result<i32, Error> {
        let options = match backlog {
            0 => ListenOptions::default(),
            _ => ListenOptions { backlog },
        };
        Ok(to_c(self.back_end.listen(local, &options)?))
    }

    /// Starts a connection.
    pub fn connect(&mut self, peer: SocketAddr) -> Result<i32, Error> {
        Ok(to_c(self.back_end.connect(peer)?))
    }

    /// Sends and receives. Returns the number of entries of the list.
    pub fn sync(&mut self, timeout_ns: i64) -> Result<i32, Error> {
        self.buffers.end_list(&self.slots);
        let result = self.back_end.sync(&mut self.list, wait(timeout_ns));
        self.take_slots();
        result?;
        Ok(self.entry_count())
    }

    /// Receives. Returns the number of entries of the list.
    pub fn rx_sync(&mut self, timeout_ns: i64) -> Result<i32, Error> {
        self.buffers.end_list(&self.slots);
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

    /// Makes the program's slots of the list that the back end has filled.
    fn take_slots(&mut self) {
        self.syncs += 1;
        self.slots.clear();
        for arrival in self.list.take_slots() {
            let len = arrival.buffer.len() as u32;
            self.slots.push(CSlot {
                buffer: self.buffers.give(arrival.buffer, Owner::List),
                descriptor: to_c(arrival.descriptor),
                len,
                next: arrival.next.map_or(NONE, |next| next as i32),
                reserved: 0,
            });
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

    /// Returns the address and the length of the payload of a buffer.
    pub fn payload(&self, buffer: i64) -> Result<(NonNull<u8>, u32), Error> {
        self.buffers.payload(buffer)
    }

    /// Returns the room for the payload of a buffer.
    pub fn capacity(&self, buffer: i64) -> Result<u32, Error> {
        self.buffers.capacity(buffer)
    }

    /// Sets the payload of a buffer.
    pub fn set_payload(&mut self, buffer: i64, skip: u32, len: u32) -> Result<(), Error> {
        self.buffers.set_payload(buffer, skip, len)
    }

    /// Gives a free buffer to the program.
    pub fn allocate(&mut self) -> Result<i64, Error> {
        let buffer = self.buffers.pool().allocate().ok_or(Error::NO_BUFFER)?;
        Ok(self.buffers.give(buffer, Owner::Program))
    }

    /// Makes the program the owner of a buffer of the list.
    pub fn hold(&mut self, buffer: i64) -> Result<(), Error> {
        self.buffers.hold(buffer)
    }

    /// Returns a buffer to the pool.
    pub fn release(&mut self, buffer: i64) -> Result<(), Error> {
        self.buffers.take(buffer).map(drop)
    }

    /// Queues the payload of a buffer. The owner does not change if this fails.
    pub fn send(&mut self, descriptor: i32, buffer: i64) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        let (buffer, owner) = self.buffers.take(buffer)?;
        let Err(error) = self.back_end.send(descriptor, buffer) else {
            return Ok(());
        };
        self.buffers.give_back(error.buffer, owner);
        Err(match error.refusal {
            SendRefusal::Full => Error::FULL,
            SendRefusal::NotConnected => Error::NOT_CONNECTED,
        })
    }

    /// Stops receiving on a connection, or accepting on a listener.
    pub fn pause(&mut self, descriptor: i32) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        self.back_end.pause(descriptor);
        Ok(())
    }

    /// Receives or accepts again.
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

    /// Closes a descriptor.
    pub fn close(&mut self, descriptor: i32) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        self.back_end.close(descriptor);
        Ok(())
    }

    /// Resets a connection.
    pub fn abort(&mut self, descriptor: i32) -> Result<(), Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        self.back_end.abort(descriptor);
        Ok(())
    }

    /// Returns the kernel's socket of a descriptor.
    pub fn socket(&self, descriptor: i32) -> Result<i32, Error> {
        let descriptor = self.open_descriptor(descriptor)?;
        let socket = self.back_end.socket(descriptor);
        socket
            .map(|socket| socket.as_raw_fd())
            .ok_or(Error::DESCRIPTOR)
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        let pool = self.buffers.pool();
        Counters {
            syncs: self.syncs,
            system_calls: self.back_end.system_calls(),
            buffers: pool.count(),
            buffers_free: pool.free_count(),
            buffers_held: self.buffers.held(),
            buffer_len: pool.buffer_len(),
        }
    }

    /// Returns the descriptor for its number in C, if it is open.
    fn open_descriptor(&self, descriptor: i32) -> Result<Descriptor, Error> {
        let descriptor = u32::try_from(descriptor).map(Descriptor);
        let open = descriptor.ok().filter(|d| self.back_end.is_open(*d));
        open.ok_or(Error::DESCRIPTOR)
    }
}

/// Returns the options of the kernel's back end. Zero stands for the default.
fn kernel_options(options: &Options) -> KernelOptions {
    let mut kernel = KernelOptions {
        busy_poll_us: options.busy_poll_us,
        ..KernelOptions::default()
    };
    if options.buffers != 0 {
        kernel.buffers = options.buffers;
    }
    if options.buffer_len != 0 {
        kernel.buffer_len = options.buffer_len;
    }
    if options.send_queue_max != 0 {
        kernel.send_queue_max = options.send_queue_max as usize;
    }
    kernel
}

/// Returns the wait of a sync. A negative time has no limit.
fn wait(timeout_ns: i64) -> Wait {
    match u64::try_from(timeout_ns) {
        Ok(0) => Wait::No,
        Ok(limit) => Wait::For(Duration::from_nanos(limit)),
        Err(_) => Wait::Forever,
    }
}
