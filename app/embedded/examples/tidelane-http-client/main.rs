//! An HTTP client on the embedded stack. The stack exchanges packets with the Tidelane service
//! through a mux port: packet rings through which a program with a TCP/IP stack of its own shares
//! the NIC.
//!
//! The client keeps a number of connections busy, each with one request at a time, and checks the
//! length and the bytes of each response. If the server is on another mux port of the same service,
//! the service copies the packets from one mux port to the other.

use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    time,
};

use clap::Parser;
use foldhash::{HashMap, HashMapExt};
use tidelane_embedded::{
    Connection, Duration, Endpoint, Event, Instant, IpAddress, MacAddress, OpenError, Stack,
    StackConfig,
};
use tidelane_port::{Port, PortConfig};

use crate::response::Response;

#[path = "../tidelane-http/alphabet.rs"]
mod alphabet;
mod response;

/// Smallest number of local TCP ports with `--close`. The client uses the TCP ports in turn, so
/// that the previous connection of a TCP port has usually ended when the client uses this port
/// again.
const CLOSING_PORTS: usize = 512;
/// Length in bytes of each packet ring of the mux port.
const RING_LEN: u32 = 1 << 20;
/// Number of events after which the client sends, so that the server works while the client
/// handles the next events.
const EVENTS_PER_FLUSH: u32 = 8;
/// Largest number of bytes that one call reads.
const READ_LEN: usize = 64 << 10;

/// HTTP client on an embedded TCP stack, on a mux port of the service that TIDELANE_SOCKET names.
#[derive(Parser, Debug)]
#[command(version)]
struct Options {
    /// Address of the client: an address of the service's interface
    #[arg(long)]
    address: IpAddr,
    /// Address and port of the server
    #[arg(long)]
    connect: SocketAddr,
    /// Link address of the next hop to the server, such as 02:00:00:00:00:01. A server on a mux
    /// port of the same service needs none
    #[arg(long, value_parser = link_address)]
    gateway: Option<MacAddress>,
    /// Number of connections at a time
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Length of the body of each response in bytes
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// Microseconds for which the client polls the packet rings before it sleeps, unless the
    /// service runs on the same CPU
    #[arg(long, default_value_t = 200)]
    spin_us: u64,
    /// Use a new connection for each request
    #[arg(long)]
    close: bool,
    /// Seconds until the client ends
    #[arg(long, default_value_t = 2)]
    seconds: u64,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(requests) => {
            println!("{requests} requests");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tidelane-http-client: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the client. Returns the number of responses.
fn run(options: &Options) -> io::Result<u64> {
    let mut port = Port::open(&PortConfig {
        ring_len: RING_LEN,
        spin: time::Duration::from_micros(options.spin_us),
        ..PortConfig::new("tidelane-http-client")
    })?;
    let count = match options.close {
        true => options.connections.max(CLOSING_PORTS),
        false => options.connections,
    };
    let locals = claim(&mut port, options.address, count)?;
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    let config = StackConfig {
        mac: MacAddress(port.mac()),
        shared_addresses: true,
        // Without `--gateway`, the server is on a mux port of the same service, and the service
        // ignores the destination link address.
        gateway: options.gateway.unwrap_or(MacAddress(port.mac())),
        ..StackConfig::new(address_of(options.address), secret)
    };
    let close = if options.close {
        "Connection: close\r\n"
    } else {
        ""
    };
    let request = format!(
        "GET /{} HTTP/1.1\r\nHost: tidelane\r\n{close}\r\n",
        options.bytes
    );
    let mut client = Client {
        stack: Stack::new(config, port),
        server: Endpoint::new(address_of(options.connect.ip()), options.connect.port()),
        request: request.into_bytes(),
        free: locals.into(),
        exchanges: HashMap::new(),
        body_len: options.bytes,
        close: options.close,
        missing: options.connections,
        done: 0,
    };
    client.run(options)
}

/// Parses a link address, six bytes in hexadecimal with colons between them.
fn link_address(text: &str) -> Result<MacAddress, String> {
    let bytes = text
        .trim()
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16));
    let bytes = bytes.collect::<Result<Vec<u8>, _>>().ok();
    let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    bytes
        .map(MacAddress)
        .ok_or_else(|| format!("{text} is no link address"))
}

fn address_of(address: IpAddr) -> IpAddress {
    match address {
        IpAddr::V4(v4) => IpAddress::from_v4(v4.octets()),
        IpAddr::V6(v6) => IpAddress(v6.octets()),
    }
}

/// Claims `count` local TCP ports, which the kernel chooses from its ephemeral range. The mux port
/// `port` then receives the packets for these TCP ports.
fn claim(port: &mut Port, address: IpAddr, count: usize) -> io::Result<Vec<Endpoint>> {
    let mut locals = Vec::new();
    for _ in 0..count {
        let socket = port.bind_tcp(SocketAddr::new(address, 0))?;
        let (_, local) = Port::local_addr(std::os::fd::AsFd::as_fd(&socket))?;
        locals.push(Endpoint::new(address_of(local.ip()), local.port()));
    }
    Ok(locals)
}

/// The client: its stack, and one exchange (request and response) per connection.
struct Client {
    stack: Stack<Port>,
    server: Endpoint,
    /// The request that each exchange sends.
    request: Vec<u8>,
    /// Local endpoints without an exchange. The first endpoint was used least recently.
    free: VecDeque<Endpoint>,
    /// The response and the local endpoint of each connection.
    exchanges: HashMap<Connection, (Response, Endpoint)>,
    /// Length of each response's body in bytes.
    body_len: usize,
    /// True if each request has a connection of its own.
    close: bool,
    /// Number of connections that the client has still to open.
    missing: usize,
    /// Number of complete responses.
    done: u64,
}

impl Client {
    fn run(&mut self, options: &Options) -> io::Result<u64> {
        let start = time::Instant::now();
        let now =
            || Instant::from_secs(1) + Duration::from_nanos(start.elapsed().as_nanos() as u64);
        let end = Instant::from_secs(1 + options.seconds);
        self.stack.poll(now());
        let mut buffer = vec![0; READ_LEN];
        while now() < end {
            self.open_missing()?;
            let received = self.stack.poll_input(now());
            let mut handled = 0;
            while let Some(event) = self.stack.next_event() {
                match event {
                    Event::Connected(connection) => self.send(connection),
                    Event::Readable(connection) => self.receive(connection, &mut buffer)?,
                    Event::Closed(connection, cause) => {
                        self.end(connection, &format!("{cause:?}"))?
                    }
                    Event::Writable(_) | Event::Urgent(_) | Event::Incoming(_) => {}
                }
                handled += 1;
                if handled % EVENTS_PER_FLUSH == 0 {
                    self.stack.flush();
                }
            }
            self.stack.flush();
            if !received {
                let until = self
                    .stack
                    .next_timeout()
                    .map_or(end, |timeout| timeout.min(end));
                let limit = time::Duration::from_nanos((until - now()).as_nanos());
                self.stack.port_mut().wait(Some(limit))?;
            }
        }
        Ok(self.done)
    }

    /// Opens the missing connections. A local TCP port whose previous connection has not ended yet
    /// stays free, and a later call tries the TCP port again.
    fn open_missing(&mut self) -> io::Result<()> {
        let tried_max = self.free.len();
        for _ in 0..tried_max {
            if self.missing == 0 {
                break;
            }
            let Some(local) = self.free.pop_front() else {
                break;
            };
            match self.stack.connect(local, self.server) {
                Ok(connection) => {
                    let response = Response::new(self.body_len);
                    self.exchanges.insert(connection, (response, local));
                    self.missing -= 1;
                }
                Err(OpenError::InUse) => self.free.push_back(local),
                Err(error) => return Err(io::Error::other(format!("connect: {error:?}"))),
            }
        }
        Ok(())
    }

    fn send(&mut self, connection: Connection) {
        // The send buffer is empty, so it has room for the whole request.
        self.stack.write(connection, &self.request);
    }

    fn receive(&mut self, connection: Connection, buffer: &mut [u8]) -> io::Result<()> {
        let Some((response, _)) = self.exchanges.get_mut(&connection) else {
            return Ok(());
        };
        loop {
            let count = self.stack.read(connection, buffer);
            if count == 0 {
                break;
            }
            response.receive(&buffer[..count])?;
        }
        if !response.is_complete() {
            return match self.stack.is_end(connection) {
                true => self.end(connection, "the server closed early"),
                false => Ok(()),
            };
        }
        self.done += 1;
        *response = Response::new(self.body_len);
        if self.close {
            self.release(connection);
            self.missing += 1;
            return self.open_missing();
        }
        self.send(connection);
        Ok(())
    }

    /// Closes a connection whose exchange is complete.
    fn release(&mut self, connection: Connection) {
        self.stack.close(connection);
        if let Some((_, local)) = self.exchanges.remove(&connection) {
            self.free.push_back(local);
        }
    }

    /// Handles the end of a connection. An end during an exchange is an error.
    fn end(&mut self, connection: Connection, cause: &str) -> io::Result<()> {
        match self.exchanges.contains_key(&connection) {
            true => Err(io::Error::other(format!("a connection ended: {cause}"))),
            false => Ok(()),
        }
    }
}
