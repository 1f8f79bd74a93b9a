//! The HTTP server of the StackMap paper (§5.1) on a queue of a NIC (AF_XDP).
//!
//! The server is the source of the example `ring-http` of the kernel's back end. The demux sends
//! the packets of the server's address and port to this program. The kernel keeps all others. The
//! program needs root or the capabilities of AF_XDP, and an interface with one queue (`ethtool -L
//! IFACE combined 1`). If the program ends in any way, the kernel gets the packets, and answers
//! those of the old connections by RST.

#[allow(dead_code)]
#[path = "../../../kernel/examples/ring-http/server.rs"]
mod server;

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use tidelane_af_xdp::{XdpConfig, XdpPort, queue_counts};
use tidelane_direct::{DirectContext, DirectOptions, PollTime};
use tidelane_engine::IpAddress;
use tidelane_rings::{Context, ListenOptions, Wait};
use tidelane_steering::{Buffers, Claim, Demux, PortReservation, Scope, StackId, Steering};
use tidelane_wire::{MacAddress, protocol};

use crate::server::Server;

/// Longest wait for a request.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Buffers of the program.
const BUFFERS: u32 = 8192;

/// HTTP server of the ring API on a queue of a NIC.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// Interface with one queue
    #[arg(long)]
    interface: String,
    /// Address of the interface, and port of the server
    #[arg(long)]
    listen: SocketAddr,
    /// The interface is one end of a veth pair
    #[arg(long)]
    veth: bool,
    /// Do not sleep: look for packets all the time
    #[arg(long)]
    poll: bool,
    /// Seconds until the server ends
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ring-http-nic: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reads a file of the interface in sysfs.
fn read(options: &Options, name: &str) -> io::Result<String> {
    let text = fs::read_to_string(format!("/sys/class/net/{}/{name}", options.interface))?;
    Ok(text.trim().to_owned())
}

fn number(options: &Options, name: &str) -> io::Result<u32> {
    read(options, name)?.parse().map_err(io::Error::other)
}

/// Returns the link address of the interface.
fn link_address(options: &Options) -> io::Result<MacAddress> {
    let text = read(options, "address")?;
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().map_err(io::Error::other)?;
    let bytes = bytes.try_into().map(MacAddress);
    bytes.map_err(|_| io::Error::other("the interface has no Ethernet address"))
}

/// Returns the options of the context.
fn direct_options(options: &Options) -> io::Result<DirectOptions> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    let address = match options.listen.ip() {
        IpAddr::V4(v4) => IpAddress::from_v4(v4.octets()),
        IpAddr::V6(v6) => IpAddress(v6.octets()),
    };
    let mut direct = DirectOptions::new(address, secret);
    direct.stack.mac = link_address(options)?;
    direct.mtu = number(options, "mtu")?;
    Ok(direct)
}

fn run(options: &Options) -> io::Result<()> {
    let direct = direct_options(options)?;
    let address = direct.stack.addresses[0].0;
    // The reservation keeps the port from programs on the kernel's sockets.
    let _reservation = PortReservation::new(address, options.listen.port())?;
    let ifindex = number(options, "ifindex")?;
    let queues = queue_counts(&options.interface)?.rx;
    if queues != 1 {
        let message = format!("{} has {queues} queues", options.interface);
        return Err(io::Error::other(message));
    }
    let config = XdpConfig {
        shared_frames: BUFFERS,
        ..match options.veth {
            true => XdpConfig::for_veth(),
            false => XdpConfig::default(),
        }
    };
    let config = config.sized_for(direct.mtu);
    let mut demux =
        Demux::load_and_attach(ifindex, queues, Buffers::One).map_err(io::Error::other)?;
    let port = XdpPort::open(&options.interface, 0, &config).map_err(io::Error::other)?;
    demux.register_xsk(0, port.fd()).map_err(io::Error::other)?;
    let claim = Claim {
        addr: address,
        proto: protocol::TCP,
        port: options.listen.port(),
    };
    let claimed = demux.claim(&claim, StackId(0), Scope::Whole);
    claimed.map_err(io::Error::other)?;
    let mut context = DirectContext::open(&direct, port, PollTime::new())?;
    serve(&mut context, options)?;
    let counters = context.counters();
    println!("{counters:?}");
    Ok(())
}

/// Serves clients until the time is over.
fn serve(context: &mut dyn Context, options: &Options) -> io::Result<()> {
    context.listen(options.listen, &ListenOptions::default())?;
    println!("ready on {}", options.listen);
    let mut server = Server::new();
    let end = Instant::now() + Duration::from_secs(options.seconds);
    while Instant::now() < end {
        let wait = match options.poll {
            true => Wait::No,
            false => Wait::For(WAIT_MAX),
        };
        server.cycle(context, wait)?;
    }
    println!("{}", server.report(context));
    Ok(())
}
