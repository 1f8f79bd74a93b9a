//! An HTTP server on the embedded stack, behind a TUN device: the kernel's programs reach it by the
//! route to the device. `ip tuntap add mode tun name DEVICE` makes the device. With `--kernel`, the
//! same server runs on the kernel's sockets.

mod http;
mod kernel;
mod tun_unsafe;

use std::{
    fs::File,
    io::{self, Read},
    net::{IpAddr, SocketAddr},
    os::fd::AsRawFd,
    process::ExitCode,
    time,
};

use clap::Parser;
use mio::{Events, Interest, Poll, Token, unix::SourceFd};
use tidelane_embedded::{
    Connection, Duration, Endpoint, Event, FnPort, Instant, IpAddress, Listener, PacketIo, Stack,
    StackConfig,
};

/// HTTP server on an embedded TCP stack, behind a TUN device.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// Name of the TUN device
    #[arg(long, required_unless_present = "kernel")]
    device: Option<String>,
    /// Use the kernel's sockets, and no device
    #[arg(long)]
    kernel: bool,
    /// Address of the server, in the network of the device
    #[arg(long)]
    address: IpAddr,
    /// Port of the server
    #[arg(long, default_value_t = 80)]
    port: u16,
    /// MTU of the device in bytes
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Each N-th packet in each direction is lost; 0 means no loss
    #[arg(long, default_value_t = 0)]
    lose: u32,
    /// Seconds until the server ends
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let served = match options.kernel {
        true => {
            let address = SocketAddr::new(options.address, options.port);
            kernel::serve(address, time::Duration::from_secs(options.seconds))
        }
        false => serve(&options),
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

/// The connections of a stack.
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

    fn write(&mut self, connection: Connection, data: &[u8]) -> usize {
        self.stack.write(connection, data)
    }

    fn is_end(&mut self, connection: Connection) -> bool {
        self.stack.is_end(connection)
    }

    fn close(&mut self, connection: Connection) {
        self.stack.close(connection);
    }
}

/// Loss of packets in one direction.
struct Loss {
    every: u32,
    count: u32,
}

impl Loss {
    /// Each `every`-th packet is lost; zero means no loss.
    fn new(every: u32) -> Self {
        Self { every, count: 0 }
    }

    /// Returns true if the next packet is lost.
    fn takes_next(&mut self) -> bool {
        self.count = self.count.wrapping_add(1);
        self.every > 0 && self.count.is_multiple_of(self.every)
    }
}

/// Returns true if the packet needs no further attempt: the device has taken it, or cannot take it.
fn send(device: &File, packet: &[u8]) -> bool {
    // A device takes a whole packet or nothing.
    rustix::io::write(device, packet) != Err(rustix::io::Errno::AGAIN)
}

/// Serves until the time is over. Returns the number of responses.
fn serve(options: &Options) -> io::Result<u64> {
    let device = &tun_unsafe::open(options.device.as_deref().unwrap_or_default())?;
    let (mut received, mut sent) = (Loss::new(options.lose), Loss::new(options.lose));
    let receive = |packet: &mut [u8]| {
        let mut device = device;
        loop {
            let len = device.read(packet).ok().filter(|len| *len > 0)?;
            if !received.takes_next() {
                return Some(len);
            }
        }
    };
    let send = |packet: &[u8]| sent.takes_next() || send(device, packet);
    let port = FnPort::new(options.mtu, receive, send);
    let address = match options.address {
        IpAddr::V4(v4) => IpAddress::from_v4(v4.octets()),
        IpAddr::V6(v6) => IpAddress(v6.octets()),
    };
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    let mut stack = Stack::new(StackConfig::new(address, secret), port);
    let listener = stack
        .listen(Endpoint::new(address, options.port), 1024)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let mut server = http::Server::new(Embedded { stack, listener });
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1));
    let fd = device.as_raw_fd();
    let source = &mut SourceFd(&fd);
    poll.registry()
        .register(source, Token(0), Interest::READABLE)?;
    println!("ready");
    let start = time::Instant::now();
    let now = || Instant::from_secs(1) + Duration::from_nanos(start.elapsed().as_nanos() as u64);
    let end = Instant::from_secs(1 + options.seconds);
    while now() < end {
        let received = server.sockets.stack.poll(now());
        while let Some(event) = server.sockets.stack.next_event() {
            match event {
                Event::Incoming(_) => server.accept(),
                Event::Readable(connection) | Event::Writable(connection) => {
                    server.serve(connection);
                }
                Event::Closed(connection, _) => server.close(connection),
                Event::Connected(_) => {}
            }
        }
        let stack = &mut server.sockets.stack;
        stack.flush();
        if !received {
            let until = stack.next_timeout().map_or(end, |timeout| timeout.min(end));
            wait(&mut poll, &mut events, until - now())?;
        }
    }
    Ok(server.responses)
}

/// Waits until the device has a packet, or `limit` is over. An event of the device comes once, and
/// the server reads until no packet waits.
fn wait(poll: &mut Poll, events: &mut Events, limit: Duration) -> io::Result<()> {
    let limit = time::Duration::from_nanos(limit.as_nanos());
    match poll.poll(events, Some(limit)) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}
