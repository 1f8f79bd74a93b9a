//! Tests over two machines: this machine's end of the wire, and a connection to the other half.
//!
//! ```text
//!   machine of the server              machine of the client
//!   TIDELANE_PEER=server               TIDELANE_PEER=client
//!   eth1 10.77.0.1/24 ------ NIC ----- eth1 10.77.0.2/24
//! ```
//!
//! Both machines run the same tests in the same order. TIDELANE_PEER_NIC is the link address of the
//! NIC on the wire. The two halves of a test coordinate over a connection of the kernel's stack:
//! the client asks, the server answers.

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

/// Port of the connection between the halves.
const PORT: u16 = 4700;
/// Time limit for the other machine to reach a test, which includes its boot.
const MEET_MAX: Duration = Duration::from_secs(60);
/// Time limit for one step of the other half.
const STEP_MAX: Duration = Duration::from_secs(60);
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(200);

/// The role of this machine, from the environment.
#[derive(Clone, Debug)]
pub struct Far {
    /// The side of the wire at this machine.
    pub side: Side,
    nic: String,
}

/// The connection between the halves of a test.
#[derive(Debug)]
pub struct Talk {
    stream: BufReader<TcpStream>,
}

impl Far {
    /// Returns the role of this machine. Skips if it has none.
    pub fn here() -> Result<Self, Stop> {
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

    /// Returns this machine's end of the wire.
    pub fn wire(&self) -> Result<Wire, Stop> {
        Wire::near_end(self.side, &self.nic)
    }

    /// Connects to the other half of test number `test`.
    pub fn meet(&self, wire: &Wire, test: u32) -> Result<Talk, Stop> {
        match self.side {
            Side::Server => Talk::accept(wire, test),
            _ => Talk::connect(wire, test),
        }
    }
}

impl Talk {
    fn accept(wire: &Wire, test: u32) -> Result<Self, Stop> {
        let to = (Ipv4Addr::UNSPECIFIED, PORT);
        let listener = within(&wire.namespace(Side::Server), || TcpListener::bind(to))?;
        listener.set_nonblocking(true)?;
        let end = Instant::now() + MEET_MAX * tools::patience();
        while Instant::now() < end {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(PAUSE);
                continue;
            };
            let mut talk = Self::over(stream)?;
            // A client that disconnected tries again, or the time limit ends the test.
            let Ok(Ok(other)) = talk.hear().map(|line| line.parse::<u32>()) else {
                continue;
            };
            if other > test {
                fail!("the client is past this test");
            }
            talk.say(&test.to_string())?;
            if other == test {
                return Ok(talk);
            }
        }
        fail!("the client did not come");
    }

    fn connect(wire: &Wire, test: u32) -> Result<Self, Stop> {
        let to = SocketAddr::from((SERVER, PORT));
        let space = wire.namespace(Side::Client);
        let end = Instant::now() + MEET_MAX * tools::patience();
        while Instant::now() < end {
            let limit = Duration::from_secs(2) * tools::patience();
            let Ok(stream) = within(&space, || TcpStream::connect_timeout(&to, limit)) else {
                thread::sleep(PAUSE);
                continue;
            };
            let mut talk = Self::over(stream)?;
            let said = talk.say(&test.to_string()).and_then(|()| talk.hear());
            match said.map(|line| line.parse::<u32>()) {
                Ok(Ok(other)) if other == test => return Ok(talk),
                Ok(Ok(other)) if other > test => fail!("the server is past this test"),
                // The other half is still at an earlier test.
                _ => thread::sleep(PAUSE),
            }
        }
        fail!("the server did not answer");
    }

    fn over(stream: TcpStream) -> Result<Self, Stop> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STEP_MAX * tools::patience()))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a line.
    pub fn say(&mut self, line: &str) -> Result<(), Stop> {
        Ok(writeln!(self.stream.get_mut(), "{line}")?)
    }

    /// Returns the next line of the other half. Fails if the other half has ended.
    pub fn hear(&mut self) -> Result<String, Stop> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.to_owned()),
            None => fail!("the other half of the test has ended"),
        }
    }

    /// Sends a line and returns the answer of the other half.
    pub fn ask(&mut self, question: &str) -> Result<String, Stop> {
        self.say(question)?;
        self.hear()
    }
}

/// Runs `work` on a thread in a network namespace. Sockets that it opens belong to the namespace.
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
