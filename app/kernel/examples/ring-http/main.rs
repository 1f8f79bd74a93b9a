//! The HTTP server of the StackMap paper (§5.1) on the ring API (`tidelane-rings`). In this API,
//! one call sends and receives on all sockets of a thread.
//!
//! The path of a request is a number, and the server answers with a body of this length in bytes.
//! `GET /counters` returns the counts of the server.
//!
//! The same source runs on every back end of the ring API. The option `--back-end` selects the back
//! end: `io-uring` (the kernel's TCP through io_uring), `direct` (TCP in this process), or
//! `service` (the Tidelane service). For comparison, `epoll` selects the kernel's sockets with
//! epoll.

use std::{io, net::SocketAddr, process::ExitCode, thread, time::Duration};

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use tidelane_direct_nic::NicOptions;
use tidelane_direct_port::PortOptions;
use tidelane_kernel::{KernelContext, KernelOptions, ZeroCopy};
use tidelane_rings::{Context, ListenOptions, Wait};
use tidelane_service_rings::{ServiceContext, ServiceOptions};

use crate::{epoll::EpollContext, server::Server};

mod direct;
mod epoll;
mod server;
#[path = "../../../embedded/examples/tidelane-http/tun_unsafe.rs"]
mod tun_unsafe;

/// Longest time for which one cycle of the server waits for requests. Also the time between two
/// attempts to open a context on the service.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// HTTP server on the ring API.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// Address and port of the server
    #[arg(long)]
    listen: SocketAddr,
    /// Back end: `io-uring` (the kernel's TCP through io_uring), `epoll` (sockets with epoll),
    /// `direct` (TCP in this process), or `service` (the Tidelane service at TIDELANE_SOCKET)
    #[arg(long, default_value = "io-uring")]
    back_end: BackEnd,
    /// Longest time in microseconds for which a wait of the io_uring back end polls the NAPI
    /// instances. Zero: no polling
    #[arg(long, default_value_t = 0)]
    busy_poll_us: u32,
    /// Smallest length in bytes of a send for which the io_uring back end uses zero copy (the
    /// kernel reads the buffers instead of copying them). Zero: all sends copy
    #[arg(long, default_value_t = 0)]
    zero_copy_min: u32,
    /// TUN device of the direct back end. The kernel must route the address of the server to the
    /// device. If neither a device nor an interface is given, the direct back end shares the NIC
    /// through a mux port (packet rings) of the Tidelane service at TIDELANE_SOCKET
    #[arg(long, conflicts_with = "interface")]
    device: Option<String>,
    /// Network interface of the direct back end. The server uses one queue of the interface through
    /// AF_XDP. Needs root or the capabilities that AF_XDP requires
    #[arg(long)]
    interface: Option<String>,
    /// Number of the interface's queue to which the NIC steers the packets of the server. Without
    /// this option, the interface must have exactly one queue
    #[arg(long, requires = "interface")]
    queue: Option<u32>,
    /// Never wait in a cycle: look for packets all the time
    #[arg(long)]
    poll: bool,
    /// Seconds until the server ends
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// The stack that carries the connections, and the way in which the program uses the stack.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum BackEnd {
    /// The kernel's TCP through io_uring.
    IoUring,
    /// The kernel's sockets with epoll, `read` and `send`.
    Epoll,
    /// TCP in this process.
    Direct,
    /// TCP in the Tidelane service.
    Service,
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
                zero_copy: match options.zero_copy_min {
                    0 => ZeroCopy::Never,
                    min => ZeroCopy::WhereItPays { min },
                },
                ..KernelOptions::default()
            })?;
            serve(&mut context, options)?;
        }
        BackEnd::Epoll => {
            let mut context = EpollContext::open()?;
            serve(&mut context, options)?;
        }
        BackEnd::Direct => serve_direct(options)?,
        BackEnd::Service => serve_on_service(options)?,
    }
    Ok(())
}

/// Serves with TCP in this process, over an interface, a TUN device or a mux port of the service.
fn serve_direct(options: &Options) -> io::Result<()> {
    if let Some(interface) = &options.interface {
        let mut context = tidelane_direct_nic::open(&NicOptions {
            queue: options.queue,
            addresses: Vec::from([options.listen.ip()]),
            ..NicOptions::new(interface)
        })?;
        serve(&mut context, options)?;
        println!("{:?}", context.direct().counters());
        return Ok(());
    }
    match &options.device {
        Some(name) => serve(&mut direct::on_device(name, options.listen)?, options),
        None => {
            let port = PortOptions::new("ring-http", options.listen);
            serve(&mut tidelane_direct_port::open(&port)?, options)
        }
    }
}

/// Serves with TCP in the Tidelane service. If the service ends, waits until a service runs again,
/// and then serves with the new service for another `--seconds` seconds.
fn serve_on_service(options: &Options) -> io::Result<()> {
    let mut context = ServiceContext::open(&ServiceOptions::default())?;
    loop {
        match serve(&mut context, options) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            served => return served,
        }
        // The drop of the context ends the registration with the old service, so that the program
        // can register with the next service.
        drop(context);
        context = loop {
            thread::sleep(WAIT_MAX);
            match ServiceContext::open(&ServiceOptions::default()) {
                Ok(next) => break next,
                Err(error) => eprintln!("ring-http: {error}"),
            }
        };
    }
}

/// Serves clients for `options.seconds` seconds.
fn serve(context: &mut dyn Context, options: &Options) -> io::Result<()> {
    context.listen(options.listen, &ListenOptions::default())?;
    println!("ready on {}", options.listen);
    let mut server = Server::new();
    let end = now() + Duration::from_secs(options.seconds);
    while now() < end {
        let wait = match options.poll {
            true => Wait::No,
            false => Wait::For(WAIT_MAX),
        };
        server.cycle(context, wait)?;
    }
    println!("{}", server.report(context));
    Ok(())
}

/// Returns the monotonic time since the boot of the system.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
