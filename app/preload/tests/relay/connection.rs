//! One connection of the relay, the fake service of these tests. The relay copies payload between
//! the stream buffers of a program (a send buffer and a receive buffer in shared memory) and a
//! kernel socket.
//!
//! A slot is the record of a connection in the memory that the program shares with the relay. The
//! program writes one half of the slot, and announces changes with the request ADVANCE. The relay
//! writes the other half, and announces changes with the event READY.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
};

use rustix::net::sockopt;
use tidelane_abi::{ConnectionIds, close_cause, program_flags, service_flags};
use tidelane_ring::{BufferAllocator, ProgramRegion, StreamBuffer};

/// Binary logarithm of the size of receive buffers, in bytes.
const RX_LOG2: u8 = 16;
/// Largest number of unacknowledged bytes of a program's connection.
const TX_LIMIT: u32 = 1 << 18;
/// Largest number of bytes that one read or write of the kernel socket moves.
const CHUNK: usize = 16 << 10;

/// A connection of a program, which the relay carries over a kernel socket. Positions are byte
/// counts in one direction of the stream, modulo 2^32.
pub struct Connection {
    /// Number of the slot.
    pub slot: u32,
    /// Number that distinguishes this connection from earlier connections in the same slot.
    pub generation: u32,
    /// Number of the context (the rings of one thread of the program) that gets the events of the
    /// connection.
    pub context: u32,
    /// The kernel socket, or `None` after the relay has closed it.
    pub socket: Option<TcpStream>,
    /// The receive buffer, which the relay fills.
    rx: StreamBuffer,
    /// Position up to which the relay has filled the receive buffer.
    rx_head: u32,
    /// Position up to which the program had read at its last ADVANCE.
    rx_read: u32,
    /// Position up to which the program had written at its last ADVANCE.
    tx_head: u32,
    /// The program's send buffer, or `None` if the program has none.
    tx: Option<StreamBuffer>,
    /// The program's flags: bits of `program_flags`.
    flags: u32,
    /// Position up to which the relay has written to `socket`. The relay reports the bytes before
    /// this position as acknowledged.
    tx_acked: u32,
    /// The relay's flags: bits of `service_flags`.
    service: u32,
    /// True after the relay has shut down the sending side of `socket`.
    shut: bool,
}

/// The result of [`Connection::step`], from which the relay decides how to continue.
#[derive(Default)]
pub struct Progress {
    /// True if the relay must send READY, because its half of the slot has changed.
    pub ready: bool,
    /// True if the slot can be released.
    pub over: bool,
    /// True if bytes were copied or the state of the connection has changed.
    pub moved: bool,
}

/// Returns the IP address as 16 bytes. An IPv4 address becomes `::ffff:a.b.c.d`.
fn mapped(address: SocketAddr) -> [u8; 16] {
    match address {
        SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(v6) => v6.ip().octets(),
    }
}

impl Connection {
    /// Prepares a slot for an established connection. The relay reports `local_port` to the program
    /// as the local port. The port of `socket` may differ (`service::PORT_SHIFT`).
    pub fn begin(
        region: &ProgramRegion,
        buffers: &mut BufferAllocator,
        slot: u32,
        context: u32,
        socket: TcpStream,
        local_port: u16,
    ) -> Self {
        socket.set_nonblocking(true).unwrap();
        socket.set_nodelay(true).unwrap();
        let (local, peer) = (socket.local_addr().unwrap(), socket.peer_addr());
        let view = region.slot(slot).unwrap();
        let half = view.service();
        // A generation is odd while the slot is in use.
        let generation = half.generation.load(Relaxed).wrapping_add(1) | 1;
        let rx = buffers.alloc(RX_LOG2).unwrap();
        half.rx_buffer.store(rx.to_word(), Relaxed);
        for word in [&half.rx_head, &half.tx_acked, &half.cause] {
            word.store(0, Relaxed);
        }
        half.tx_buffer_seen.store(0, Relaxed);
        half.rx_window.store(1 << RX_LOG2, Relaxed);
        half.tx_limit.store(TX_LIMIT, Relaxed);
        half.flags.store(service_flags::ESTABLISHED, Relaxed);
        half.generation.store(generation, Release);
        let peer = peer.unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
        view.set_ids(&ConnectionIds {
            local_addr: mapped(local),
            peer_addr: mapped(peer),
            local_port,
            peer_port: peer.port(),
            mss: 1448,
            connection: u64::from(slot),
            reserved: [0; 2],
        });
        Self {
            slot,
            generation,
            context,
            socket: Some(socket),
            rx,
            rx_head: 0,
            rx_read: 0,
            tx_head: 0,
            tx: None,
            flags: 0,
            tx_acked: 0,
            service: service_flags::ESTABLISHED,
            shut: false,
        }
    }

    /// Handles an ADVANCE: reads the program's half of the slot. Does nothing if the program wrote
    /// this half for an earlier connection in the slot.
    pub fn advance(&mut self, region: &ProgramRegion) {
        let view = region.slot(self.slot).unwrap();
        let half = view.program();
        if half.generation.load(Acquire) != self.generation {
            return;
        }
        self.tx_head = half.tx_head.load(Acquire);
        let word = half.tx_buffer.load(Relaxed);
        self.tx = StreamBuffer::from_word(word, region.layout().tx_area());
        view.service().tx_buffer_seen.store(word, Release);
        self.rx_read = half.rx_read.load(Acquire);
        self.flags = half.flags.load(Acquire);
    }

    /// Sets bits of `service_flags` in the relay's half of the slot. If `cause` is not 0, also
    /// stores `cause` (a constant of `close_cause`) as the cause of the connection's end.
    fn set(&mut self, region: &ProgramRegion, flags: u32, cause: u32) {
        self.service |= flags;
        let view = region.slot(self.slot).unwrap();
        let half = view.service();
        if cause != 0 {
            half.cause.store(cause, Relaxed);
        }
        half.flags.store(self.service, Release);
    }

    /// Copies bytes in both directions, until nothing can be copied without waiting. Then checks
    /// whether the connection ends (`finish`).
    pub fn step(&mut self, region: &ProgramRegion) -> Progress {
        let mut progress = Progress::default();
        self.send(region, &mut progress);
        self.receive(region, &mut progress);
        self.finish(region, &mut progress);
        progress.moved |= progress.ready || progress.over;
        progress
    }

    /// Ends the connection after an error of the kernel socket.
    fn fail(&mut self, region: &ProgramRegion, cause: u32, progress: &mut Progress) {
        self.socket = None;
        self.set(region, service_flags::CLOSED, cause);
        progress.ready = true;
    }

    /// Writes the program's data to `socket`. After the last byte, shuts down the sending side if
    /// the program has asked for the shutdown.
    fn send(&mut self, region: &ProgramRegion, progress: &mut Progress) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        let mut chunk = [0; CHUNK];
        while self.tx_acked != self.tx_head {
            let len = (self.tx_head.wrapping_sub(self.tx_acked) as usize).min(CHUNK);
            let buffer = self.tx.expect("a buffer with the bytes");
            assert!(buffer.read(region, self.tx_acked, &mut chunk[..len]));
            match socket.write(&chunk[..len]) {
                Ok(sent) => {
                    self.tx_acked = self.tx_acked.wrapping_add(sent as u32);
                    let view = region.slot(self.slot).unwrap();
                    view.service().tx_acked.store(self.tx_acked, Release);
                    progress.ready = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return self.fail(region, close_cause::RESET, progress),
            }
        }
        let wants_fin = self.flags & program_flags::SHUT_WRITE != 0;
        if wants_fin && !self.shut && self.tx_acked == self.tx_head {
            self.shut = true;
            let _ = socket.shutdown(Shutdown::Write);
            self.set(region, service_flags::FIN_ACKED, 0);
            progress.ready = true;
        }
    }

    /// Reads from `socket` into the receive buffer, until the buffer is full or `socket` has no
    /// data.
    fn receive(&mut self, region: &ProgramRegion, progress: &mut Progress) {
        let Some(socket) = &mut self.socket else {
            return;
        };
        let mut chunk = [0; CHUNK];
        loop {
            let room = self.rx.len() - self.rx_head.wrapping_sub(self.rx_read);
            if room == 0 || self.service & service_flags::FIN_RECEIVED != 0 {
                return;
            }
            match socket.read(&mut chunk[..CHUNK.min(room as usize)]) {
                Ok(0) => {
                    self.set(region, service_flags::FIN_RECEIVED, 0);
                    progress.ready = true;
                    return;
                }
                Ok(got) => {
                    assert!(self.rx.write(region, self.rx_head, &chunk[..got]));
                    self.rx_head = self.rx_head.wrapping_add(got as u32);
                    let view = region.slot(self.slot).unwrap();
                    view.service().rx_head.store(self.rx_head, Release);
                    progress.ready = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.fail(region, close_cause::RESET, progress),
            }
        }
    }

    /// If both sides have sent a FIN, reports CLOSED to the program. Keeps `socket` open until the
    /// program has closed the connection. Then resets `socket` immediately if the program has
    /// aborted the connection or has not read all received data. Otherwise, closes `socket` when
    /// the relay has written all data of the program.
    fn finish(&mut self, region: &ProgramRegion, progress: &mut Progress) {
        let both = service_flags::FIN_RECEIVED | service_flags::FIN_ACKED;
        if self.socket.is_some()
            && self.service & both == both
            && self.service & service_flags::CLOSED == 0
        {
            self.set(region, service_flags::CLOSED, close_cause::FINISHED);
            progress.ready = true;
        }
        if self.flags & program_flags::CLOSE == 0 {
            return;
        }
        let unread = self.rx_head != self.rx_read;
        let abort = self.flags & program_flags::ABORT != 0 || unread;
        if abort || self.socket.is_none() || self.tx_acked == self.tx_head {
            if let Some(socket) = self.socket.take()
                && abort
            {
                let _ = sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO));
            }
            progress.over = true;
        }
    }

    /// Handles the end of the program. If the program has not closed the connection, makes the next
    /// [`Connection::step`] reset the connection.
    pub fn reset_orphan(&mut self) {
        if self.flags & program_flags::CLOSE == 0 {
            self.flags |= program_flags::CLOSE | program_flags::ABORT;
        }
    }

    /// Frees the slot and its receive buffer.
    pub fn release(self, region: &ProgramRegion, buffers: &mut BufferAllocator) {
        let view = region.slot(self.slot).unwrap();
        view.service().rx_buffer.store(0, Relaxed);
        view.service().generation.fetch_add(1, Release);
        buffers.free(self.rx);
    }
}
