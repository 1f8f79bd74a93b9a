//! The HTTP server of the StackMap paper (§5.1) on the ring API.
//!
//! The server reads a request, and answers with a body of the length in the path. The same source
//! runs on every back end of the ring API, and on the kernel's sockets with epoll for comparison.

use std::{io, net::SocketAddr, process::ExitCode, time::Duration};

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use tidelane_kernel::{KernelContext, KernelOptions};
use tidelane_rings::{Context, ListenOptions};

use crate::{epoll::EpollContext, server::Server};

mod epoll;
mod server;

/// HTTP server on the ring API.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// Address and port of the server
    #[arg(long)]
    listen: SocketAddr,
    /// Back end: `io-uring` (the kernel's TCP through io_uring) or `epoll` (sockets with epoll)
    #[arg(long, default_value = "io-uring")]
    back_end: BackEnd,
    /// Microseconds for which the io_uring back end polls the NAPI instances in a wait
    #[arg(long, default_value_t = 0)]
    busy_poll_us: u32,
    /// Seconds until the server ends
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// A back end.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum BackEnd {
    /// The kernel's TCP through io_uring.
    IoUring,
    /// The kernel's sockets with epoll, read and write.
    Epoll,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ring-http: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    match options.back_end {
        BackEnd::IoUring => {
            let mut context = KernelContext::open(&KernelOptions {
                busy_poll_us: options.busy_poll_us,
                ..KernelOptions::default()
            })?;
            let report = serve(&mut context, options)?;
            print_report(&report, context.system_calls());
        }
        BackEnd::Epoll => {
            let mut context = EpollContext::open()?;
            let report = serve(&mut context, options)?;
            print_report(&report, context.system_calls());
        }
    }
    Ok(())
}

fn print_report(report: &server::Report, system_calls: u64) {
    let per_cycle = report.ready as f64 / report.cycles.max(1) as f64;
    let calls = system_calls as f64 / report.requests.max(1) as f64;
    println!(
        "{} requests, {per_cycle:.2} ready descriptors per cycle, {calls:.3} calls per request",
        report.requests
    );
}

/// Serves clients until the time is over.
fn serve(context: &mut dyn Context, options: &Options) -> io::Result<server::Report> {
    context.listen(options.listen, &ListenOptions::default())?;
    println!("ready on {}", options.listen);
    let mut server = Server::default();
    let end = now() + Duration::from_secs(options.seconds);
    while let Some(left) = end.checked_sub(now()).filter(|left| !left.is_zero()) {
        server.cycle(context, left.min(Duration::from_millis(100)))?;
    }
    Ok(server.report())
}

/// Returns the time since the boot of the system.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
