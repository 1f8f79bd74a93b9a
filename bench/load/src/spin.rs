//! Keeps CPU cores busy, to measure the kernel without idle exits. An idle exit is the wake-up of a
//! core from the idle state.
//!
//! In a virtual machine, an idle exit takes up to 15 microseconds and dominates the kernel's
//! latency at one connection, whereas a polling stack never goes idle. This tool runs one spinning
//! thread per core in the class SCHED_IDLE. The thread keeps the core from going idle, and leaves
//! nearly all CPU time to runnable threads of other classes.

use std::{hint, io, thread};

use clap::Args;

use crate::sys;

/// Options of `spin`.
#[derive(Args, Debug)]
pub struct Options {
    /// Cores to keep awake, such as 0,1 (default: all).
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
}

/// Spins until the process is killed, or until the parent process ends.
pub fn run(options: &Options) -> io::Result<()> {
    sys::die_with_parent()?;
    let cpus = match options.cpus.as_slice() {
        [] => (0..sys::cpus()).collect(),
        cpus => cpus.to_vec(),
    };
    let spinners: Vec<_> = cpus
        .into_iter()
        .map(|cpu| {
            thread::spawn(move || -> io::Result<()> {
                sys::pin(cpu)?;
                sys::schedule_idle()?;
                loop {
                    hint::spin_loop();
                }
            })
        })
        .collect();
    for spinner in spinners {
        spinner
            .join()
            .map_err(|_| io::Error::other("a spinner panicked"))??;
    }
    Ok(())
}
