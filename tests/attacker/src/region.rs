//! A program that is registered with the service (`tidelaned`), and its region: the memory that it
//! shares with the service. The region has the program's contexts: a context is the set of rings
//! (queues) of one thread of the program. A core is a polling thread of the service. A doorbell is
//! an eventfd that wakes a sleeping core or program.

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

/// A registered program: the socket, memory and doorbells of one registration.
#[derive(Debug)]
pub struct Program {
    /// The registration socket.
    pub service: Service,
    /// The memory that this program shares with the service.
    pub region: Arc<ProgramRegion>,
    /// The page that the service shares with all programs.
    pub page: ServicePageMap,
    /// Doorbells of the service's cores.
    bells: Vec<Doorbell>,
    /// Descriptors of all memory files that the service sent.
    memories: Vec<OwnedFd>,
}

/// Result of a search for a pattern.
#[derive(Debug, Default)]
pub struct Found {
    /// Number of searched bytes. The search reads each file in overlapping pieces, and counts a
    /// byte that is in two pieces twice.
    pub scanned: u64,
    /// Number of occurrences of the pattern.
    pub places: u64,
}

/// Maximum length in bytes of a piece. One system call reads one piece from a file.
const CHUNK: usize = 1 << 20;

impl Program {
    /// Registers with the service under the name `name`.
    pub fn register(target: &Target, name: &str) -> Result<Program, Failure> {
        let service = target.connect()?;
        let answer = service.register(name)?;
        Program::from_answer(service, answer)
    }

    /// Returns the program whose memory and doorbells came with `answer`, the answer to REGISTER.
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

    /// Adds context `number` with a new doorbell. Returns the context's rings.
    pub fn context(&self, number: u32) -> Result<Rings, Failure> {
        let bell = Doorbell::new()?;
        self.service.context(number, bell.fd())?;
        let cores = self.page.cores();
        let rings = Rings::new(&self.region, number, cores).ok_or(Failure::HungUp)?;
        Ok(rings.with_bell(bell))
    }

    /// Calls `act` about every millisecond for `seconds`, with the events that have arrived in
    /// `rings` since the previous call. Rings the doorbells of all cores after each call.
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

    /// Rings the doorbells of all cores, whether a core sleeps or not.
    pub fn ring_cores(&self) {
        for bell in &self.bells {
            bell.ring();
        }
    }

    /// Returns the descriptors of all memory files that the service sent.
    pub fn memories(&self) -> &[OwnedFd] {
        &self.memories
    }

    /// Counts the occurrences of `pattern` in all memory that the service gave this program.
    pub fn scan(&self, pattern: &[u8]) -> Result<Found, Failure> {
        assert!(!pattern.is_empty());
        let mut found = Found::default();
        self.read_memory(pattern.len() - 1, |bytes| {
            let places = bytes.windows(pattern.len());
            found.places += places.filter(|window| *window == pattern).count() as u64;
            found.scanned += bytes.len() as u64;
        })?;
        Ok(found)
    }

    /// Passes all memory that the service gave this program to `see`, in pieces. The first piece of
    /// a file, and a piece after a hole, have no overlap. Every other piece begins with the last
    /// `overlap` bytes of the previous piece.
    ///
    /// The function reads the files, not the mappings, and leaves out holes. A read through a
    /// mapping would allocate the pages of the holes.
    pub fn read_memory(&self, overlap: usize, mut see: impl FnMut(&[u8])) -> Result<(), Failure> {
        let files = self.memories.iter();
        files
            .into_iter()
            .try_for_each(|file| read_file(file, overlap, &mut see))
    }
}

/// Passes the contents of one file to `see`, as [`Program::read_memory`] does.
fn read_file(file: &OwnedFd, overlap: usize, see: &mut dyn FnMut(&[u8])) -> Result<(), Failure> {
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
