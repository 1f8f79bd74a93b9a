//! An HTTP server on the embedded stack. The stack exchanges packets with a TUN device, or with the
//! Tidelane service through a mux port (packet rings through which several stacks share the NIC).
//!
//! With `--device`, programs on the kernel's stack reach the server by the route to the device. The
//! command `ip tuntap add mode tun name DEVICE` makes the device. With `--service`, the server has
//! an address of the service's interface. The kernel and other programs use this address, too. With
//! `--kernel`, the same server runs on the kernel's sockets.

mod alphabet;
mod http;
mod kernel;
mod service;
mod tun;
mod tun_unsafe;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time,
};

use clap::Parser;
use tidelane_embedded::{
    Connection, Duration, Endpoint, Event, Instant, IpAddress, Listener, PacketIo, Stack,
    StackConfig,
};

/// HTTP server on an embedded TCP stack, behind a TUN device or on a mux port of the service.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// Name of the TUN device
    #[arg(long, required_unless_present_any = ["kernel", "service"])]
    device: Option<String>,
    /// Use a mux port instead of a device; TIDELANE_SOCKET names the socket of the service
    #[arg(long, conflicts_with_all = ["device", "kernel"])]
    service: bool,
    /// Use the kernel's sockets, and no device
    #[arg(long)]
    kernel: bool,
    /// Address of the server. With `--device`: an address of the device's network. With
    /// `--service`: an address of the service's interface. With `--kernel`: a local address of the
    /// kernel
    #[arg(long)]
    address: IpAddr,
    /// TCP port of the server
    #[arg(long, default_value_t = 80)]
    port: u16,
    /// MTU of the device in bytes
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Each N-th packet of the device in each direction is lost; 0 means no loss
    #[arg(long, default_value_t = 0)]
    lose: u32,
    /// With `--service`: microseconds for which the server polls the packet rings before it sleeps,
    /// unless the service runs on the same CPU
    #[arg(long, default_value_t = 20)]
    spin_us: u64,
    /// Seconds until the server ends
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let served = match (options.kernel, options.service) {
        (true, _) => {
            let address = SocketAddr::new(options.address, options.port);
            kernel::serve(address, time::Duration::from_secs(options.seconds))
        }
        (_, true) => service::serve(&options),
        _ => tun::serve(&options),
    };
    match served {
        Ok(responses) => {
            println!("{responses} responses");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tidelane-http: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An embedded stack and its listener, as the sockets of the HTTP server.
struct Embedded<P: PacketIo> {
    stack: Stack<P>,
    listener: Listener,
}

impl<P: PacketIo> http::Sockets for Embedded<P> {
    type Connection = Connection;

    fn accept(&mut self) -> Option<Connection> {
        self.stack.accept(self.listener)
    }

    fn read(&mut self, connection: Connection, buffer: &mut [u8]) -> usize {
        self.stack.read(connection, buffer)
    }

    fn write(&mut self, connection: Connection, parts: &[&[u8]]) -> usize {
        self.stack.write_vectored(connection, parts)
    }

    fn is_end(&mut self, connection: Connection) -> bool {
        self.stack.is_end(connection)
    }

    fn close(&mut self, connection: Connection) {
        self.stack.close(connection);
    }
}

/// Returns the configuration of the embedded stack.
fn stack_config(options: &Options) -> io::Result<StackConfig> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    Ok(StackConfig::new(address(options), secret))
}

fn address(options: &Options) -> IpAddress {
    match options.address {
        IpAddr::V4(v4) => IpAddress::from_v4(v4.octets()),
        IpAddr::V6(v6) => IpAddress(v6.octets()),
    }
}

/// Serves for the time in `options`. Returns the number of responses. The function `wait` returns
/// when the device or the mux port has a packet for the stack, or when the given time has passed.
fn serve<P: PacketIo>(
    options: &Options,
    mut stack: Stack<P>,
    mut wait: impl FnMut(&mut P, time::Duration) -> io::Result<()>,
) -> io::Result<u64> {
    let listener = stack
        .listen(Endpoint::new(address(options), options.port), 1024)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let mut server = http::Server::new(Embedded { stack, listener });
    println!("ready");
    let start = time::Instant::now();
    let now = || Instant::from_secs(1) + Duration::from_nanos(start.elapsed().as_nanos() as u64);
    let end = Instant::from_secs(1 + options.seconds);
    while now() < end {
        let received = server.sockets.stack.poll_input(now());
        while let Some(event) = server.sockets.stack.next_event() {
            match event {
                Event::Incoming(_) => server.accept(),
                Event::Readable(connection) | Event::Writable(connection) => {
                    server.serve(connection);
                }
                Event::Closed(connection, _) => server.close(connection),
                Event::Connected(_) | Event::Urgent(_) => {}
            }
        }
        let stack = &mut server.sockets.stack;
        stack.flush();
        if !received {
            let until = stack.next_timeout().map_or(end, |timeout| timeout.min(end));
            let limit = time::Duration::from_nanos((until - now()).as_nanos());
            wait(stack.port_mut(), limit)?;
        }
    }
    Ok(server.responses)
}
