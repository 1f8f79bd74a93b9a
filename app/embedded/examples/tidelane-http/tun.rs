//! The HTTP server behind a TUN device.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::AsRawFd,
    time::Duration,
};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};
use tidelane_embedded::{FnPort, Stack};

use crate::{Options, stack_config, tun_unsafe};

/// The simulated packet loss of one direction.
struct Loss {
    /// Each packet whose number is a multiple of `every` is dropped. Zero means no loss.
    every: u32,
    /// Number of packets so far, including dropped packets, modulo 2^32.
    count: u32,
}

impl Loss {
    /// Returns the state of a direction that loses each `every`-th packet. Zero means no loss.
    fn new(every: u32) -> Self {
        Self { every, count: 0 }
    }

    /// Counts the next packet. Returns true if the packet is dropped.
    fn is_next_lost(&mut self) -> bool {
        self.count = self.count.wrapping_add(1);
        self.every > 0 && self.count.is_multiple_of(self.every)
    }
}

/// Sends a packet. Returns false if the device is full, so that the packet can be sent later. If
/// the device reports another error, the packet is lost.
fn send(device: &File, packet: &[u8]) -> bool {
    // A TUN device takes a packet as a whole or not at all.
    rustix::io::write(device, packet) != Err(rustix::io::Errno::AGAIN)
}

/// Serves for the time in `options`. Returns the number of responses.
pub fn serve(options: &Options) -> io::Result<u64> {
    let device = &tun_unsafe::open(options.device.as_deref().unwrap_or_default())?;
    let (mut received, mut sent) = (Loss::new(options.lose), Loss::new(options.lose));
    let receive = |packet: &mut [u8]| {
        let mut device = device;
        loop {
            let len = device.read(packet).ok().filter(|len| *len > 0)?;
            if !received.is_next_lost() {
                return Some(len);
            }
        }
    };
    let send = |packet: &[u8]| sent.is_next_lost() || send(device, packet);
    let port = FnPort::new(options.mtu, receive, send);
    let stack = Stack::new(stack_config(options)?, port);
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1));
    let fd = device.as_raw_fd();
    let source = &mut SourceFd(&fd);
    poll.registry()
        .register(source, Token(0), Interest::READABLE)?;
    crate::serve(options, stack, |_, limit| {
        wait(&mut poll, &mut events, limit)
    })
}

/// Waits until the device gets a packet, for at most `limit`. mio is edge-triggered and may not
/// report packets that wait already, so the server waits only after it has read all packets.
fn wait(poll: &mut Poll, events: &mut Events, limit: Duration) -> io::Result<()> {
    match poll.poll(events, Some(limit)) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}
