//! The embedded stack (`app/embedded`) as a stack under test, in virtual time.
//!
//! The scripts make socket calls, but the stack has no descriptors: its public functions act on
//! handles, and it reports events. [`EmbeddedSockets`] therefore implements the socket calls and
//! errors of Linux with the public functions of the stack. Packets pass through two queues. The
//! stack's network device is an `FnPort`, which consists of two functions: one function takes
//! packets from one queue, and the other function puts packets into the other queue. `Stack::poll`
//! receives the packets that the script injects.
//!
//! ```text
//!   script ── calls ──> EmbeddedSockets ── Socket ──> Stack ── FnPort ──> queues of packets
//! ```

mod fast_open;
mod host;
mod reader;
mod socket;
mod urgent;
mod waits;
mod writer;

use std::collections::BTreeMap;

use tidelane_embedded::{Endpoint, Instant};
use tidelane_packetdrill::{
    errno::{CallResult, Errno},
    settings::Settings,
    socket::Shutdown,
};

use self::{host::Host, socket::Socket, urgent::UrgentReader};
use crate::{calls::Fd, ip::Version, sockets::Sockets, virtual_time::VirtualTime};

/// The embedded stack as a stack under test.
pub type Embedded = VirtualTime<EmbeddedSockets>;

/// The sockets of a host with the embedded stack.
pub struct EmbeddedSockets {
    host: Host,
    sockets: BTreeMap<Fd, Socket>,
}

impl EmbeddedSockets {
    fn socket_of(&self, fd: Fd) -> CallResult<&Socket> {
        self.sockets.get(&fd).ok_or(Errno::BADF)
    }

    /// Makes a call on the socket `fd`. Afterwards lets the stack send, and lets the sockets handle
    /// the stack's events.
    fn call<R>(
        &mut self,
        fd: Fd,
        call: impl FnOnce(&mut Socket, &mut Host) -> CallResult<R>,
    ) -> CallResult<R> {
        let socket = self.sockets.get_mut(&fd).ok_or(Errno::BADF)?;
        let result = call(socket, &mut self.host);
        self.end_call();
        result
    }

    fn end_call(&mut self) {
        self.host.stack.flush();
        self.take_events();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.host.stack.next_event() {
            let mut sockets = self.sockets.values_mut();
            if let Some(socket) = sockets.find(|socket| socket.has(&event)) {
                socket.on_event(&mut self.host, event);
            }
        }
    }
}

impl Sockets for EmbeddedSockets {
    fn new(settings: Settings, version: Version) -> Self {
        Self {
            host: Host::new(settings, version),
            sockets: BTreeMap::new(),
        }
    }

    fn now(&self) -> Instant {
        self.host.now()
    }

    fn next_timeout(&self) -> Option<Instant> {
        let next = self.host.stack.next_timeout()?;
        Some(next.max(self.host.now()))
    }

    fn advance_to(&mut self, to: Instant) {
        self.host.advance_to(to);
        self.take_events();
    }

    fn inject(&mut self, packet: &[u8]) {
        for socket in self.sockets.values_mut() {
            socket.before_packet(&mut self.host);
        }
        self.host.inject(packet);
        for socket in self.sockets.values_mut() {
            socket.after_packet(&mut self.host);
        }
        self.take_events();
    }

    fn next_sent(&mut self) -> Option<(Instant, Vec<u8>)> {
        self.host.next_sent()
    }

    fn socket(&mut self, fd: Fd, domain: i32, kind: i32, protocol: i32) -> CallResult<()> {
        let socket = Socket::new(&self.host, domain, kind, protocol)?;
        self.sockets.insert(fd, socket);
        Ok(())
    }

    fn bind(&mut self, fd: Fd, local: Endpoint) -> CallResult<()> {
        self.call(fd, |socket, _| socket.bind(local))
    }

    fn listen(&mut self, fd: Fd, backlog: i32) -> CallResult<()> {
        self.call(fd, |socket, host| socket.listen(host, backlog))
    }

    fn accept(&mut self, fd: Fd, new: Fd) -> CallResult<()> {
        let listener = self.sockets.get_mut(&fd).ok_or(Errno::BADF)?;
        let accepted = listener.accept(&mut self.host)?;
        self.sockets.insert(new, accepted);
        self.end_call();
        Ok(())
    }

    fn connect(&mut self, fd: Fd, peer: Endpoint) -> CallResult<()> {
        self.call(fd, |socket, host| socket.connect(host, peer))
    }

    fn connect_result(&mut self, fd: Fd) -> CallResult<()> {
        self.call(fd, |socket, host| socket.connect_result(host))
    }

    fn shutdown(&mut self, fd: Fd, how: Shutdown) -> CallResult<()> {
        self.call(fd, |socket, host| socket.shutdown(host, how))
    }

    fn close(&mut self, fd: Fd) -> CallResult<()> {
        let socket = self.sockets.remove(&fd).ok_or(Errno::BADF)?;
        socket.close(&mut self.host);
        self.end_call();
        Ok(())
    }

    fn receive(&mut self, fd: Fd, len: usize, flags: i32) -> CallResult<Vec<u8>> {
        self.call(fd, |socket, host| socket.receive(host, len, flags))
    }

    fn send(&mut self, fd: Fd, bytes: &[u8], flags: i32) -> CallResult<usize> {
        self.call(fd, |socket, host| socket.send(host, bytes, flags))
    }

    fn more_to_come(&mut self, fd: Fd, more: bool) -> CallResult<()> {
        // Do not let the stack send here, so that corked bytes leave together with the next write.
        let socket = self.sockets.get_mut(&fd).ok_or(Errno::BADF)?;
        socket.more_to_come(&mut self.host, more);
        Ok(())
    }

    fn sends_with_syn(&self, fd: Fd, flags: i32) -> CallResult<bool> {
        Ok(self.socket_of(fd)?.sends_with_syn(flags))
    }

    fn send_with_syn(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        to: Option<Endpoint>,
        _waits: bool,
    ) -> CallResult<Option<usize>> {
        // `_waits` announces that the call sends further bytes after the SYN. The embedded stack
        // has no parameter for this announcement, because a program can write these bytes before
        // the handshake is complete.
        self.call(fd, |socket, host| socket.send_with_syn(host, bytes, to))
    }

    fn set_option(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> CallResult<()> {
        let option = (level, name);
        self.call(fd, |socket, host| socket.set_option(host, option, value))
    }

    fn option(&mut self, fd: Fd, level: i32, name: i32) -> CallResult<Vec<u8>> {
        self.call(fd, |socket, host| socket.option(host, level, name))
    }

    fn control(&mut self, fd: Fd, command: i32, argument: i32) -> CallResult<i64> {
        self.call(fd, |socket, _| socket.control(command, argument))
    }

    fn readiness(&self, fd: Fd) -> u32 {
        let socket = self.sockets.get(&fd);
        socket.map_or(0, |socket| socket.readiness(&self.host) as u32)
    }

    fn unread(&self, fd: Fd) -> CallResult<u32> {
        Ok(self.socket_of(fd)?.unread(&self.host))
    }

    fn unacknowledged(&self, fd: Fd) -> CallResult<u32> {
        let status = self.socket_of(fd)?.status(&self.host);
        Ok(status.map_or(0, |status| status.unacknowledged))
    }

    fn unsent(&self, fd: Fd) -> CallResult<u32> {
        Ok(self.socket_of(fd)?.unsent(&self.host))
    }

    fn at_mark(&self, fd: Fd) -> CallResult<u32> {
        let status = self.socket_of(fd)?.status(&self.host);
        Ok(status.as_ref().is_some_and(UrgentReader::is_next).into())
    }
}
