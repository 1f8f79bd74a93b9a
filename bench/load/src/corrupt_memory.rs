//! A hostile program that writes random values into the memory that it shares with the Tidelane
//! service.
//!
//! The program runs under `tidelane run`. It makes connections like a normal program, and meanwhile
//! overwrites the shared memory. The program itself may then fail in any way, but the service and
//! other programs must keep working. The program finds the shared memory in `/proc/self/maps` and
//! writes through `/proc/self/mem`, so that it needs no interface of the preloaded library.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    thread,
    time::{Duration, Instant},
};

use clap::Args;

use crate::{
    client::{self, Closer, Load, Plan},
    exchange::Exchange,
};

/// Options of `corrupt-memory`.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    load: Load,
    /// Seed of the random values and positions
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Name in `/proc/self/maps` of the region, the memory that the program shares with the service.
const REGION: &str = "/memfd:tidelane-program";
/// Number of bytes to overwrite at the start of the region. These bytes hold the region's header
/// and the first two ring sets. A ring set has the request and event rings between one thread of
/// the program and one polling thread of the service.
const HEAD_LEN: u64 = 4096 + (2 << 20);
/// Number of bytes to overwrite at the start of the slots, and again at the start of the send
/// buffers. A slot is the shared record of a connection.
const AREA_LEN: u64 = 256 << 10;
/// Time between the program's registration with the service and the first overwritten word.
const QUIET: Duration = Duration::from_millis(200);

/// Runs the load, and overwrites memory until the time is over or an error occurs. If the load has
/// not ended half a second later, aborts the process.
pub fn run(options: &Options) -> io::Result<()> {
    let seconds = options.load.warmup + options.load.seconds;
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    let seed = options.seed;
    thread::spawn(move || {
        if let Err(error) = corrupt_memory(seed, deadline) {
            eprintln!("tidelane-load: corrupt-memory: {error}");
        }
        // Do not wait for the main thread, which may be blocked in a call.
        thread::sleep(Duration::from_millis(500));
        std::process::abort();
    });
    let plan = Plan {
        exchange: Exchange::echo(3000),
        pipeline: 2,
        per_connection: 50,
        closer: Closer::Client,
        latency_includes_handshake: true,
    };
    client::run(&options.load, &plan)
}

/// A range of this process's address space to overwrite.
#[derive(Clone, Copy, Debug)]
struct Area {
    start: u64,
    len: u64,
}

/// Overwrites memory until `deadline`.
fn corrupt_memory(seed: u64, deadline: Instant) -> io::Result<()> {
    let memory = File::options()
        .read(true)
        .write(true)
        .open("/proc/self/mem")?;
    let areas = loop {
        match find_areas(&memory) {
            // The program has not yet registered with the service.
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            found => break found?,
        }
    };
    thread::sleep(QUIET);
    let total: u64 = areas.iter().map(|area| area.len).sum();
    println!("overwriting {total} bytes");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut word = 0u64;
    while Instant::now() < deadline {
        // Write only single 32-bit words at first, because a single wrong value among valid values
        // passes more of the service's checks. Later, also overwrite whole areas now and then.
        let sweep = word > 20_000 && random.next().is_multiple_of(5000);
        if sweep {
            for area in &areas {
                sweep_area(&memory, *area, &mut random)?;
            }
        } else {
            let area = areas[random.next() as usize % areas.len()];
            let at = area.start + random.next() % area.len / 4 * 4;
            memory.write_all_at(&random.value().to_le_bytes()[..4], at)?;
        }
        word += 1;
        if word.is_multiple_of(64) {
            thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(())
}

/// Overwrites a whole area with random values.
fn sweep_area(memory: &File, area: Area, random: &mut Random) -> io::Result<()> {
    let mut page = [0; 4096];
    let mut done = 0;
    while done < area.len {
        for word in page.chunks_mut(8) {
            word.copy_from_slice(&random.value().to_le_bytes());
        }
        let len = (area.len - done).min(4096) as usize;
        memory.write_all_at(&page[..len], area.start + done)?;
        done += len as u64;
    }
    Ok(())
}

/// Returns the parts of the region to overwrite, at the starts of the region, of the slots and of
/// the send buffers. The region's header has the offsets of the slots and of the send buffers.
fn find_areas(memory: &File) -> io::Result<Vec<Area>> {
    let (start, len) = find_region()?;
    let mut header = [0; 64];
    memory.read_exact_at(&mut header, start)?;
    let field = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    // The header has slots_offset at byte 24 and tx_offset at byte 48. The receive buffers are left
    // out, because the program has them mapped read-only.
    let areas = [(0, HEAD_LEN), (field(24), AREA_LEN), (field(48), AREA_LEN)];
    let clipped = areas
        .iter()
        .filter(|(offset, _)| *offset < len)
        .map(|(offset, area)| Area {
            start: start + offset,
            len: (*area).min(len - offset),
        });
    Ok(clipped.collect())
}

/// Returns the start address and length of the region. The region consists of several files, which
/// are mapped at consecutive addresses.
fn find_region() -> io::Result<(u64, u64)> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let lines = maps.lines().filter(|line| line.contains(REGION));
    let ranges = lines.filter_map(|line| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        Some((address(start)?, address(end)?))
    });
    let whole = ranges.reduce(|(start, _), (_, end)| (start, end));
    let whole = whole.map(|(start, end)| (start, end - start));
    whole.ok_or_else(|| io::Error::other("no program region here; use tidelane run"))
}

/// A pseudo-random generator: xorshift64* (Marsaglia, Vigna).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    /// Returns a random word in half of the calls. In the other calls, returns 0, `u64::MAX`, a
    /// number below 64, or a power of two.
    fn value(&mut self) -> u64 {
        match self.next() % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => self.next() % 64,
            3 => 1 << (self.next() % 64),
            _ => self.next() << 32 | self.next() & 0xffff_ffff,
        }
    }
}
