//! Sends ICMP echo requests, to test that the kernel answers ICMP on an interface that the Tidelane
//! service serves.

use std::{
    io,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;

use crate::sys::{self, Fd};

/// Options of `ping`.
#[derive(Args, Debug)]
pub struct Options {
    /// Address to send the requests to.
    #[arg(long)]
    to: Ipv4Addr,
    /// Number of requests.
    #[arg(long, default_value_t = 3)]
    count: u16,
    /// Payload length in bytes. Packets longer than the MTU are fragmented
    #[arg(long, default_value_t = 48)]
    bytes: u16,
    /// Milliseconds between requests.
    #[arg(long, default_value_t = 20)]
    interval_ms: u64,
}

/// Time limit of one answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Length of an ICMP header in bytes.
const HEADER_LEN: usize = 8;

/// Sends `count` requests. Returns an error if any answer is missing.
pub fn run(options: &Options) -> io::Result<()> {
    let fd = sys::icmp_socket(options.to, TIMEOUT)?;
    let id = std::process::id() as u16;
    let mut answered = 0;
    let mut worst = Duration::ZERO;
    for seq in 0..options.count {
        let start = Instant::now();
        sys::send(&fd, &request(id, seq, options.bytes))?;
        if wait_for(&fd, id, seq)? {
            answered += 1;
            worst = worst.max(start.elapsed());
        }
        thread::sleep(Duration::from_millis(options.interval_ms));
    }
    let worst_us = worst.as_micros() as u64;
    println!(
        "{}",
        json!({"sent": options.count, "answered": answered, "worst_us": worst_us})
    );
    if answered == options.count {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{answered} of {} answered",
        options.count
    )))
}

/// Returns an ICMP echo request with `bytes` of payload.
fn request(id: u16, seq: u16, bytes: u16) -> Vec<u8> {
    let mut packet = vec![0; HEADER_LEN + usize::from(bytes)];
    packet[0] = 8;
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[6..8].copy_from_slice(&seq.to_be_bytes());
    let sum = checksum(&packet);
    packet[2..4].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Returns the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Waits for the answer to the request `(id, seq)`, and ignores other ICMP packets. Returns false
/// if no answer arrives within [`TIMEOUT`]. If other packets arrive, the wait can take up to twice
/// this time.
fn wait_for(fd: &Fd, id: u16, seq: u16) -> io::Result<bool> {
    let start = Instant::now();
    let mut buffer = [0; 1500];
    while start.elapsed() < TIMEOUT {
        let len = match sys::recv(fd, &mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let header = usize::from(buffer[0] & 0xf) * 4;
        let Some(icmp) = buffer[..len].get(header..header + 8) else {
            continue;
        };
        let names = [id.to_be_bytes(), seq.to_be_bytes()].concat();
        if icmp[0] == 0 && icmp[4..8] == names {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_sums_to_zero() {
        for seq in [0, 1, 0xffff] {
            assert_eq!(checksum(&request(0x1234, seq, 48)), 0);
        }
    }
}
