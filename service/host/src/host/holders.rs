//! The calls of the driver about connections that several processes share after a fork.
//!
//! A *holder* of a connection is a process that has a descriptor of the connection: a registered
//! program, or a forked child that has not registered yet. The slot (the connection's record) and
//! the buffers lie in the memory of one program, the *home* of the connection.

use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;

use super::Host;
use crate::{
    accounts::Refused,
    ids::ProgramId,
    shared::{Holder, Take, TakeError, Taken},
};

impl<P: PacketIo> Host<P> {
    /// Makes a child process a holder of all connections that `from` holds. The driver calls this
    /// function before the fork, and selects the number `child`. After a refusal by the accounts of
    /// the users, the child holds no connection.
    pub fn inherit(&mut self, now: Instant, from: Holder, child: u64) -> Result<(), Refused> {
        self.stack.io.now = now;
        self.sockets.inherit(now, from, child, &mut self.stack)
    }

    /// Replaces the holder `child` by the program `id`, after the child has registered as this
    /// program.
    pub fn child_registered(&mut self, child: u64, id: ProgramId) {
        self.sockets.child_registered(child, id);
    }

    /// Removes a holder that has ended. Closes the connections that have no other holder, with a
    /// reset if `abort` is true.
    pub fn leave_all(&mut self, now: Instant, holder: Holder, abort: bool) {
        self.stack.io.now = now;
        self.sockets.leave_all(now, holder, abort, &mut self.stack);
    }

    /// Removes `holder` from the holders of a connection. The holder has closed the connection, and
    /// never had a slot for the connection.
    pub fn release_connection(&mut self, now: Instant, holder: Holder, connection: u64) {
        self.stack.io.now = now;
        let stack = &mut self.stack;
        self.sockets.leave(now, connection, holder, false, stack);
    }

    /// Moves a connection to the program `id`, which is a holder of the connection. After an error,
    /// the connection stays at its home.
    pub fn take(&mut self, now: Instant, id: ProgramId, take: Take) -> Result<Taken, TakeError> {
        self.stack.io.now = now;
        self.sockets.take(now, id, take, &mut self.stack)
    }
}
