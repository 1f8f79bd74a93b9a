//! Tidelane's engine as a stack under test, in virtual time.
//!
//! The driver (`Driver`, from the crate in `tests/packetdrill`) gives the engine sockets, a clock
//! and a network device.

use tidelane_engine::{Endpoint, Instant};
use tidelane_packetdrill::{
    address::Address,
    errno::{CallResult, Errno},
    settings::{Reading, Settings},
    socket::Shutdown,
    stack::Stack as Driver,
};

use crate::{calls::Fd, ip::Version, sockets::Sockets, virtual_time::VirtualTime};

/// The engine as a stack under test.
pub type Engine = VirtualTime<Driver>;

/// Most methods call the inherent method of `Driver` with the same name. Rust prefers an inherent
/// method to a trait method, so that the call does not recurse.
impl Sockets for Driver {
    fn new(settings: Settings, _version: Version) -> Self {
        let mut driver = Self::new(settings, Reading::default());
        driver.end_preamble(&Reading::default());
        driver
    }

    fn now(&self) -> Instant {
        self.now()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.next_timeout()
    }

    fn advance_to(&mut self, to: Instant) {
        self.advance_to(to);
    }

    fn inject(&mut self, packet: &[u8]) {
        self.inject(packet);
    }

    fn next_sent(&mut self) -> Option<(Instant, Vec<u8>)> {
        self.pop_sent().map(|sent| (sent.at, sent.bytes))
    }

    fn socket(&mut self, fd: Fd, domain: i32, kind: i32, protocol: i32) -> CallResult<()> {
        self.socket_call(fd, domain, kind, protocol)
    }

    fn bind(&mut self, fd: Fd, local: Endpoint) -> CallResult<()> {
        self.bind(fd, local)
    }

    fn listen(&mut self, fd: Fd, backlog: i32) -> CallResult<()> {
        self.listen(fd, backlog)
    }

    fn accept(&mut self, fd: Fd, new: Fd) -> CallResult<()> {
        match self.accept_ready(fd)? {
            true => self.accept(fd, new, false).map(|_peer| ()),
            false => Err(Errno::AGAIN),
        }
    }

    fn connect(&mut self, fd: Fd, peer: Endpoint) -> CallResult<()> {
        self.connect(fd, peer)
    }

    fn connect_result(&mut self, fd: Fd) -> CallResult<()> {
        self.connect_result(fd)
    }

    fn shutdown(&mut self, fd: Fd, how: Shutdown) -> CallResult<()> {
        self.shutdown(fd, how)
    }

    fn close(&mut self, fd: Fd) -> CallResult<()> {
        self.close(fd)
    }

    fn receive(&mut self, fd: Fd, len: usize, flags: i32) -> CallResult<Vec<u8>> {
        self.recv(fd, len, flags, 1).map(|received| received.bytes)
    }

    fn send(&mut self, fd: Fd, bytes: &[u8], flags: i32) -> CallResult<usize> {
        self.send(fd, bytes, flags)
    }

    fn more_to_come(&mut self, fd: Fd, more: bool) -> CallResult<()> {
        self.more_to_come(fd, more)
    }

    fn sends_with_syn(&self, fd: Fd, flags: i32) -> CallResult<bool> {
        self.sends_with_syn(fd, flags)
    }

    fn send_with_syn(
        &mut self,
        fd: Fd,
        bytes: &[u8],
        to: Option<Endpoint>,
        waits: bool,
    ) -> CallResult<Option<usize>> {
        self.send_with_syn(fd, bytes, to.map(Address::Of), waits)
    }

    fn set_option(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> CallResult<()> {
        self.set_option(fd, level, name, value)
    }

    fn option(&mut self, fd: Fd, level: i32, name: i32) -> CallResult<Vec<u8>> {
        self.option(fd, level, name)
    }

    fn control(&mut self, fd: Fd, command: i32, argument: i32) -> CallResult<i64> {
        let result = self.control(fd, command, argument);
        result
            .unwrap_or(Err(Errno::INVAL))
            .map(|value| value as i64)
    }

    fn readiness(&self, fd: Fd) -> u32 {
        self.readiness(fd)
    }

    fn unread(&self, fd: Fd) -> CallResult<u32> {
        self.unread(fd)
    }

    fn unacknowledged(&self, fd: Fd) -> CallResult<u32> {
        self.unacknowledged(fd)
    }

    fn unsent(&self, fd: Fd) -> CallResult<u32> {
        self.unsent(fd)
    }

    fn at_mark(&self, fd: Fd) -> CallResult<u32> {
        self.at_mark(fd)
    }
}
