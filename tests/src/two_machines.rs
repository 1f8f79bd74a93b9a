//! Tests on two machines joined by a network. Each machine runs one half of every test.
//!
//! ```text
//!   machine of the server              machine of the client
//!   TIDELANE_PEER=server               TIDELANE_PEER=client
//!   eth1 10.77.0.1/24 ------ NIC ----- eth1 10.77.0.2/24
//! ```
//!
//! Both machines run the same tests in the same order. The environment variable TIDELANE_PEER tells
//! a machine its role, and TIDELANE_PEER_NIC is the MAC address of its NIC on the shared network.
//! The two halves of a test exchange lines of text over a connection of the kernel's stack.

use std::{
    env,
    fs::File,
    io::{self, BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Side, Stop, Wire, fail, tools, wire::SERVER};

/// TCP port of the connection between the two halves of a test.
const PORT: u16 = 4700;
/// Time limit for the other machine to boot and to reach a test.
const JOIN_MAX: Duration = Duration::from_secs(60);
/// Time limit for a line from the other half.
const STEP_MAX: Duration = Duration::from_secs(60);
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(200);

/// The role of this machine in a test on two machines. The environment variables give the role.
#[derive(Clone, Debug)]
pub struct PairRole {
    /// The side of the wire (the test network) that is on this machine.
    pub side: Side,
    /// MAC address of this machine's NIC on the wire.
    nic: String,
}

/// The connection between the two halves of a test.
#[derive(Debug)]
pub struct ControlConnection {
    stream: BufReader<TcpStream>,
}

impl PairRole {
    /// Returns the role of this machine. Skips the test if TIDELANE_PEER is not set.
    pub fn from_env() -> Result<Self, Stop> {
        let side = match env::var("TIDELANE_PEER").as_deref() {
            Ok("server") => Side::Server,
            Ok("client") => Side::Client,
            Ok(other) => fail!("TIDELANE_PEER={other} is neither server nor client"),
            Err(_) => {
                let reason = "needs two machines; cargo xtask lab pair";
                return Err(Stop::Skip(reason.to_owned()));
            }
        };
        let nic = env::var("TIDELANE_PEER_NIC")?;
        Ok(Self { side, nic })
    }

    /// Makes this machine's end of the wire: a namespace with the NIC in it.
    pub fn wire(&self) -> Result<Wire, Stop> {
        Wire::near_end(self.side, &self.nic)
    }

    /// Connects to the other half of test number `test`, and waits until that half has reached the
    /// test.
    pub fn join(&self, wire: &Wire, test: u32) -> Result<ControlConnection, Stop> {
        match self.side {
            Side::Server => ControlConnection::accept(wire, test),
            _ => ControlConnection::connect(wire, test),
        }
    }
}

impl ControlConnection {
    /// Accepts connections from the client until the client is at test number `test`.
    fn accept(wire: &Wire, test: u32) -> Result<Self, Stop> {
        let to = (Ipv4Addr::UNSPECIFIED, PORT);
        let listener = within(&wire.namespace(Side::Server), || TcpListener::bind(to))?;
        listener.set_nonblocking(true)?;
        let end = Instant::now() + JOIN_MAX * tools::patience();
        while Instant::now() < end {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(PAUSE);
                continue;
            };
            let mut control = Self::new(stream)?;
            // If the client has disconnected, wait for its next attempt.
            let Ok(Ok(other)) = control.recv_line().map(|line| line.parse::<u32>()) else {
                continue;
            };
            if other > test {
                fail!("the client is past this test");
            }
            control.send_line(&test.to_string())?;
            if other == test {
                return Ok(control);
            }
        }
        fail!("the client did not come");
    }

    /// Connects to the server repeatedly until the server is at test number `test`.
    fn connect(wire: &Wire, test: u32) -> Result<Self, Stop> {
        let to = SocketAddr::from((SERVER, PORT));
        let space = wire.namespace(Side::Client);
        let end = Instant::now() + JOIN_MAX * tools::patience();
        while Instant::now() < end {
            let limit = Duration::from_secs(2) * tools::patience();
            let Ok(stream) = within(&space, || TcpStream::connect_timeout(&to, limit)) else {
                thread::sleep(PAUSE);
                continue;
            };
            let mut control = Self::new(stream)?;
            let said = control
                .send_line(&test.to_string())
                .and_then(|()| control.recv_line());
            match said.map(|line| line.parse::<u32>()) {
                Ok(Ok(other)) if other == test => return Ok(control),
                Ok(Ok(other)) if other > test => fail!("the server is past this test"),
                // The server is still at an earlier test, or the connection has failed.
                _ => thread::sleep(PAUSE),
            }
        }
        fail!("the server did not answer");
    }

    /// Wraps a TCP connection to the other half, and sets the time limit of its reads.
    fn new(stream: TcpStream) -> Result<Self, Stop> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STEP_MAX * tools::patience()))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a line to the other half.
    pub fn send_line(&mut self, line: &str) -> Result<(), Stop> {
        Ok(writeln!(self.stream.get_mut(), "{line}")?)
    }

    /// Waits for the next line from the other half. Fails if the other half has ended, or if no
    /// line arrives within the time limit.
    pub fn recv_line(&mut self) -> Result<String, Stop> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.to_owned()),
            None => fail!("the other half of the test has ended"),
        }
    }

    /// Sends a line and returns the answer of the other half.
    pub fn request(&mut self, question: &str) -> Result<String, Stop> {
        self.send_line(question)?;
        self.recv_line()
    }
}

/// Runs `work` on a new thread in the network namespace `space`. The sockets that `work` opens
/// belong to this namespace.
fn within<T: Send>(space: &str, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let space = File::open(format!("/run/netns/{space}"))?;
    let enter = || move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network));
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            enter()?;
            work()
        });
        let result = worker.join();
        result.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}
