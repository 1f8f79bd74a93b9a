//! A registered program that can write any bytes to its region.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::{fs::SeekFrom, io::Errno};
use tidelane_ring::{Doorbell, MEMORIES, MapError, ProgramRegion, ServicePageMap};

use crate::{
    Target,
    protocol::{Answer, Failure, Service},
    rings::{Event, Rings},
};

/// The objects of one registration.
#[derive(Debug)]
pub struct Program {
    /// The registration socket.
    pub service: Service,
    /// The memory that it shares with the service.
    pub region: Arc<ProgramRegion>,
    /// The page that the service shares with all programs.
    pub page: ServicePageMap,
    /// Doorbells of the cores.
    bells: Vec<Doorbell>,
    /// Descriptors of all memory that the service sent.
    memories: Vec<OwnedFd>,
}

/// Result of a search for a pattern.
#[derive(Debug, Default)]
pub struct Found {
    /// Bytes of searched memory.
    pub scanned: u64,
    /// Number of occurrences of the pattern.
    pub places: u64,
}

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

impl Program {
    /// Registers with the service.
    pub fn register(target: &Target, name: &str) -> Result<Program, Failure> {
        let service = target.connect()?;
        let answer = service.register(name)?;
        Program::from_answer(service, answer)
    }

    /// Returns the program that the answer to REGISTER describes.
    pub fn from_answer(service: Service, answer: Answer) -> Result<Program, Failure> {
        let mut descriptors = answer.descriptors;
        if descriptors.len() <= MEMORIES {
            return Err(Failure::HungUp);
        }
        let bells = descriptors.split_off(MEMORIES + 1);
        let [control, received, sent, page] = &descriptors[..] else {
            return Err(Failure::HungUp);
        };
        let memories = [control.as_fd(), received.as_fd(), sent.as_fd()];
        let region = ProgramRegion::map(memories, answer.message.region_len)?;
        Ok(Program {
            region: Arc::new(region),
            page: ServicePageMap::map(page.as_fd())?,
            bells: bells.into_iter().map(Doorbell::from_trusted).collect(),
            memories: descriptors,
            service,
        })
    }

    /// Makes context `number`, with a doorbell of its own.
    pub fn context(&self, number: u32) -> Result<Rings, Failure> {
        let bell = Doorbell::new()?;
        self.service.context(number, bell.fd())?;
        let cores = self.page.cores();
        let rings = Rings::new(&self.region, number, cores).ok_or(Failure::HungUp)?;
        Ok(rings.with_bell(bell))
    }

    /// Calls `act` every millisecond for some seconds, with the service's events since the last
    /// call.
    pub fn carry(
        &self,
        rings: &mut Rings,
        seconds: f64,
        mut act: impl FnMut(&mut Rings, Vec<Event>),
    ) {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < until {
            let events = rings.events();
            act(rings, events);
            self.ring_cores();
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Rings the doorbells of all cores, also of cores that do not sleep.
    pub fn ring_cores(&self) {
        for bell in &self.bells {
            bell.ring();
        }
    }

    /// Returns descriptors of all memory that the service sent.
    pub fn memories(&self) -> &[OwnedFd] {
        &self.memories
    }

    /// Searches for `pattern` in all memory that the service gave this program.
    pub fn scan(&self, pattern: &[u8]) -> Result<Found, Failure> {
        assert!(!pattern.is_empty());
        let mut found = Found::default();
        self.look(pattern.len() - 1, |bytes| {
            let places = bytes.windows(pattern.len());
            found.places += places.filter(|window| *window == pattern).count() as u64;
            found.scanned += bytes.len() as u64;
        })?;
        Ok(found)
    }

    /// Passes all memory that the service gave this program to `see`, in pieces. A piece begins
    /// with the last `overlap` bytes of the piece before. Reads the files instead of the mappings,
    /// so that pages that nobody has written stay absent; `see` does not get these.
    pub fn look(&self, overlap: usize, mut see: impl FnMut(&[u8])) -> Result<(), Failure> {
        let files = self.memories.iter();
        files
            .into_iter()
            .try_for_each(|file| look_at(file, overlap, &mut see))
    }
}

fn look_at(file: &OwnedFd, overlap: usize, see: &mut dyn FnMut(&[u8])) -> Result<(), Failure> {
    assert!(overlap < CHUNK);
    let mut buffer = Vec::new();
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        at = start;
        while at < end {
            buffer.resize(CHUNK.min((end - at) as usize), 0);
            let got = rustix::io::pread(file, &mut buffer, at)?;
            if got == 0 {
                break;
            }
            see(&buffer[..got]);
            let is_last = at + got as u64 == end;
            at += (got - if is_last { 0 } else { overlap.min(got - 1) }) as u64;
        }
        at = end;
    }
}

impl From<MapError> for Failure {
    fn from(error: MapError) -> Failure {
        Failure::Io(std::io::Error::other(error.to_string()))
    }
}
