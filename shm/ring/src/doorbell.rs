//! A doorbell: what wakes a side that sleeps on descriptors.
//!
//! An eventfd is one open file with one set of status flags, however many hold it: a hostile program
//! could clear O_NONBLOCK and fill or drain it, and the service would block in its write or read.
//! So the two directions differ (either costs 0.6 us for ring and drain here):
//!
//! * **service to program** ([`Doorbell::pair`]): a pipe. The program sleeps on one end and sends
//!   the other, which the service opens once more for itself ([`Doorbell::from_untrusted`]): its
//!   flags are then its own, and its writes never block.
//! * **program to service** ([`Doorbell::new`]): an eventfd, which raises no SIGPIPE in a program
//!   whose service died. The service makes one per program, waits for it edge-triggered
//!   (EPOLLET), and never reads it: what a program does to it concerns nobody else.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{FileType, Mode, OFlags},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
};

use crate::Descriptor;

/// One end of a doorbell, or both. Readable: it was rung and not yet drained. Never blocks.
#[derive(Debug)]
pub struct Doorbell(Descriptor);

impl Doorbell {
    /// A doorbell within this process, or for programs to ring the service (an eventfd).
    pub fn new() -> io::Result<Doorbell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell(fd.into()))
    }

    /// A doorbell for the service to ring a program (a pipe): the end to sleep on, and the end to
    /// send to the service.
    pub fn pair() -> io::Result<(Doorbell, OwnedFd)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok((Doorbell(read.into()), write))
    }

    /// The ringing end that a trusted side sent.
    pub fn from_trusted(fd: OwnedFd) -> Doorbell {
        Doorbell(fd.into())
    }

    /// The ringing end that a hostile side may have sent: it must be a pipe, and is opened again
    /// through `/proc` so that the sender cannot change this side's flags.
    pub fn from_untrusted(fd: OwnedFd) -> io::Result<Doorbell> {
        let fd = Descriptor::from(fd);
        let mode = rustix::fs::fstat(&fd)?.st_mode;
        if FileType::from_raw_mode(mode) != FileType::Fifo {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the doorbell is no pipe",
            ));
        }
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Doorbell(
            rustix::fs::open(path, flags, Mode::empty())?.into(),
        ))
    }

    /// Wakes who sleeps on it. False if the other end is gone.
    ///
    /// A pipe without reader raises SIGPIPE: the service must ignore it, as Rust's runtime does.
    pub fn ring(&self) -> bool {
        loop {
            match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
                // EAGAIN: it is full, so it is readable.
                Ok(_) | Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => continue,
                Err(_) => return false,
            }
        }
    }

    /// Makes it unreadable. Whether it had been rung.
    pub fn drain(&self) -> bool {
        let mut rings = [0; 512];
        let mut rung = false;
        // Bounded: a hostile ringer could keep a pipe full for ever.
        for _ in 0..DRAINS_MAX {
            match rustix::io::read(&self.0, &mut rings) {
                Ok(0) => return rung,
                Ok(len) if len < rings.len() => return true,
                Ok(_) => rung = true,
                Err(Errno::INTR) => continue,
                Err(_) => return rung,
            }
        }
        rung
    }

    /// To poll for readability (it hangs up when every ringing end is closed).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reads of one `drain`: a whole pipe of 64 KiB.
const DRAINS_MAX: u32 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_merged_until_drained() {
        let bell = Doorbell::new().unwrap();
        assert!(!bell.drain());
        assert!(bell.ring() && bell.ring());
        assert!(bell.drain());
        assert!(!bell.drain());
    }

    #[test]
    fn a_sender_cannot_make_the_ringer_block() {
        let (sleeper, end) = Doorbell::pair().unwrap();
        let hostile = rustix::io::dup(&end).unwrap();
        let ringer = Doorbell::from_untrusted(end).unwrap();
        // The sender's own open file blocks now; the ringer's does not, though the pipe is full.
        while rustix::io::write(&hostile, &[0; 4096]).is_ok() {}
        rustix::fs::fcntl_setfl(&hostile, OFlags::empty()).unwrap();
        assert!(ringer.ring());
        assert!(sleeper.drain());
        assert!(!sleeper.drain());
        assert!(ringer.ring() && sleeper.drain());
    }

    #[test]
    fn only_a_pipe_is_taken_from_a_stranger() {
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(Doorbell::from_untrusted(file).is_err());
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(Doorbell::from_untrusted(event).is_err());
    }

    #[test]
    fn a_gone_sleeper_is_noticed() {
        let (sleeper, end) = Doorbell::pair().unwrap();
        let ringer = Doorbell::from_trusted(end);
        drop(sleeper);
        assert!(!ringer.ring());
    }
}
