//! `tidelane-kv`: a key-value server on the ring API, with the protocol of memcached.
//!
//! The server can run TCP in its own process and share the NIC with other programs. The packets
//! then pass through a mux port, which consists of packet rings between the server and the Tidelane
//! service.

use std::{io, net::SocketAddr, process::ExitCode, time::Duration};

use clap::Parser;
use rustix::{
    net::sockopt,
    rand::{GetRandomFlags, getrandom},
    time::{ClockId, clock_gettime},
};
use tidelane_direct_nic::NicOptions;
use tidelane_direct_port::PortOptions;
use tidelane_kernel::{KernelContext, KernelOptions};
use tidelane_kv::{ConnectionCounts, Kv, MEMORY_MAX, MEMORY_MIN, Server};
use tidelane_rings::{Context, ListenOptions};
use tidelane_service_rings::{ServiceContext, ServiceOptions};

/// Limit of one wait for events, in seconds.
const WAIT_SECONDS: u64 = 1;

/// Key-value server with the protocol of memcached, on the ring API.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// Address and port of the server
    #[arg(long, default_value = "127.0.0.1:11211")]
    listen: SocketAddr,
    /// Memory for items, in MiB
    #[arg(long, default_value_t = 64)]
    memory: u64,
    /// Limit of the open connections
    #[arg(long, default_value_t = 1024)]
    connections: u64,
    /// Back end: `io-uring` (the kernel's TCP through io_uring), `direct` (TCP in this process, on
    /// a queue of --interface, or on a mux port of the Tidelane service at TIDELANE_SOCKET), or
    /// `service` (the Tidelane service at TIDELANE_SOCKET)
    #[arg(long, default_value = "io-uring")]
    backend: Backend,
    /// Interface of the direct back end, which has the address of --listen. Needs root or the
    /// capabilities of AF_XDP. Without an interface, the direct back end has a mux port of the
    /// service
    #[arg(long)]
    interface: Option<String>,
    /// Queue of the interface, to which the NIC sends the packets of the server. Without a number,
    /// the interface must have one queue
    #[arg(long, requires = "interface")]
    queue: Option<u32>,
    /// Microseconds for which the io-uring back end polls the NAPI instances in a wait
    #[arg(long, default_value_t = 0)]
    busy_poll_us: u32,
    /// Number of buffers for received data and for answers, at most 32,768
    #[arg(long, default_value_t = 16384)]
    buffers: u32,
}

/// The stack that carries the server's connections.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Backend {
    /// The kernel's TCP through io_uring.
    IoUring,
    /// TCP in this process, on a queue of an interface or on a mux port of the service.
    Direct,
    /// The Tidelane service.
    Service,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidelane-kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let send_queue_max = Server::send_queue_max(options.buffers, options.connections);
    let Some(send_queue_max) = send_queue_max else {
        return Err(invalid(
            "--connections is 0 or too large for --buffers".into(),
        ));
    };
    match options.backend {
        Backend::Direct => serve_direct(options, send_queue_max),
        Backend::Service => {
            let mut context = ServiceContext::open(&ServiceOptions {
                buffers: options.buffers,
                send_queue_max,
                ..ServiceOptions::default()
            })?;
            serve(&mut context, options)
        }
        Backend::IoUring => {
            let mut context = KernelContext::open(&KernelOptions {
                buffers: options.buffers,
                send_queue_max,
                busy_poll_us: options.busy_poll_us,
                ..KernelOptions::default()
            })?;
            serve(&mut context, options)
        }
    }
}

/// Serves clients with TCP in this process. Keep-alive finds dead peers, as on the kernel's
/// sockets.
fn serve_direct(options: &Options, send_queue_max: usize) -> io::Result<()> {
    let Some(interface) = &options.interface else {
        let mut port = PortOptions {
            buffers: options.buffers,
            send_queue_max,
            ..PortOptions::new("tidelane-kv", options.listen)
        };
        port.tcp.keepalive = true;
        return serve(&mut tidelane_direct_port::open(&port)?, options);
    };
    let address = options.listen.ip();
    let mut nic = NicOptions {
        queue: options.queue,
        // An unspecified listen address means all addresses of the interface.
        addresses: Vec::from_iter((!address.is_unspecified()).then_some(address)),
        buffers: options.buffers,
        send_queue_max,
        ..NicOptions::new(interface)
    };
    nic.tcp.keepalive = true;
    serve(&mut tidelane_direct_nic::open(&nic)?, options)
}

/// Serves clients until the context (the sockets of the server) fails.
fn serve(context: &mut dyn Context, options: &Options) -> io::Result<()> {
    let memory = options.memory.saturating_mul(1 << 20);
    if !(MEMORY_MIN..=MEMORY_MAX).contains(&memory) {
        let text = format!(
            "--memory is not in {}..={}",
            MEMORY_MIN >> 20,
            MEMORY_MAX >> 20
        );
        return Err(invalid(text));
    }
    let mut seed = [0; 16];
    getrandom(&mut seed, GetRandomFlags::empty())?;
    let mut kv = Kv::new(unix_time().as_secs(), memory, seed);
    kv.connections = ConnectionCounts {
        limit: options.connections,
        ..ConnectionCounts::default()
    };
    let listener = context.listen(options.listen, &ListenOptions::default())?;
    let mut address = options.listen;
    if let Some(socket) = context.socket(listener) {
        // Keep-alive finds dead peers. Accepted connections inherit the option.
        sockopt::set_socket_keepalive(socket, true)?;
        let bound = rustix::net::getsockname(socket)?;
        address = bound.try_into()?;
    }
    println!("ready on {address}");
    let mut server = Server::new(kv, context);
    loop {
        server.cycle(context, Duration::from_secs(WAIT_SECONDS), unix_time)?;
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Returns the time since the Unix epoch.
fn unix_time() -> Duration {
    let time = clock_gettime(ClockId::Realtime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
