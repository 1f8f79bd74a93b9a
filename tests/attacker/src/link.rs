//! Raw Ethernet frames on an interface: any frame can be sent, and all frames are received.

use std::{
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{protocol::Failure, sys};

/// Maximum length of a received frame in bytes. Longer frames are truncated.
const FRAME_LEN_MAX: usize = 2048;

/// A packet socket (AF_PACKET) on one interface.
pub struct Link {
    socket: OwnedFd,
    /// MAC address of the interface.
    pub mac: [u8; 6],
}

impl Link {
    /// Opens a packet socket on the interface called `interface`. The process needs CAP_NET_RAW.
    pub fn open(interface: &str) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::from(error);
        let mac = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"));
        let mac = parse_mac(mac.map_err(failed)?.trim());
        let mac = mac
            .ok_or_else(|| io::Error::other("no MAC address"))
            .map_err(failed)?;
        let socket = sys::packet_socket(interface).map_err(failed)?;
        Ok(Self { socket, mac })
    }

    /// Sends a frame unchanged.
    pub fn send(&self, frame: &[u8]) -> Result<(), Failure> {
        rustix::io::write(&self.socket, frame).map_err(io::Error::from)?;
        Ok(())
    }

    /// Returns the next frame that the interface receives or sends. Returns `None` if there is no
    /// frame until `until`.
    pub fn receive(&self, until: Instant) -> Result<Option<Vec<u8>>, Failure> {
        let left = until.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_millis(1));
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut fds, Some(&timeout)).map_err(io::Error::from)? == 0 {
            return Ok(None);
        }
        let mut frame = vec![0; FRAME_LEN_MAX];
        let len = rustix::io::read(&self.socket, &mut frame).map_err(io::Error::from)?;
        frame.truncate(len);
        Ok(Some(frame))
    }
}

/// Parses a MAC address in the form of `ip link`: `02:00:00:00:00:01`.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let parts: Option<Vec<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok())
        .collect();
    parts?.try_into().ok()
}
