//! A hostile program that tries to block the Tidelane service in a write to a doorbell.
//!
//! A doorbell is the eventfd to which the service writes in order to wake a program. The hostile
//! program is an echo client that runs under `tidelane run`. The program repeatedly fills the
//! counters of all its eventfds, and makes the eventfds blocking, so that any write to an eventfd
//! blocks.

use std::{
    fs, io, thread,
    time::{Duration, Instant},
};

use clap::Args;

use crate::{
    client::{self, Closer, Load, Plan},
    exchange::Exchange,
    sys,
};

/// Options of `block-doorbells`.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    load: Load,
}

/// Time for which the connections run before the program fills the counters.
const QUIET: Duration = Duration::from_millis(100);

/// Runs the client, and repeatedly fills the counters until the time is over or an error occurs. If
/// the client has not ended half a second later, aborts the process.
pub fn run(options: &Options) -> io::Result<()> {
    let seconds = options.load.warmup + options.load.seconds;
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    thread::spawn(move || {
        thread::sleep(QUIET);
        while Instant::now() < deadline {
            if let Err(error) = block_all() {
                eprintln!("tidelane-load: block-doorbells: {error}");
                break;
            }
        }
        // Do not wait for the main thread, which may be blocked in a call.
        thread::sleep(Duration::from_millis(500));
        std::process::abort();
    });
    let plan = Plan {
        exchange: Exchange::echo(64),
        pipeline: 1,
        per_connection: 0,
        closer: Closer::Client,
        latency_includes_handshake: false,
    };
    client::run(&options.load, &plan)
}

/// Fills the counters of all eventfds of this process, and makes the eventfds blocking.
fn block_all() -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let path = entry?.path();
        let eventfd = fs::read_link(&path).is_ok_and(|it| it.as_os_str() == "anon_inode:[eventfd]");
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        if let Some(number) = number.filter(|_| eventfd) {
            sys::fill_eventfd(number);
        }
    }
    Ok(())
}
