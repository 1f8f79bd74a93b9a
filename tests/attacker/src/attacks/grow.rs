//! The attack `grow`: makes the service (`tidelaned`) allocate more and more objects for one user.
//! Words in capitals, such as INHERIT, are messages of a program to the service.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde_json::json;

use tidelane_abi::message;
use tidelane_ring::registration::new_message;

use crate::{Target, protocol::Failure, region::Program, report, rings::Rings, sockets::Bound};

/// Maximum number of contexts that one program requests. A context is the set of rings (queues in
/// shared memory) of one thread.
const CONTEXTS_MAX: u32 = 256;
/// A port without a listener. Each connect to this port fails immediately.
const CLOSED_PORT: u16 = 9;

/// The request that the attack repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Request {
    /// INHERIT, for children that are never forked
    Inherit,
    /// CONTEXT, as often as one program may request it; then a new program registers
    Contexts,
    /// LISTEN, each time on a new port
    Listeners,
    /// REPORT_NOT_ACCELERATED, to which the service sends no answer
    Notes,
    /// PROBE, while the answers are left unread in the socket
    Unread,
    /// CONNECT in every context, while the answers are left unread in the rings
    Answers,
}

/// Options of `grow`.
#[derive(Args, Debug)]
pub struct Options {
    /// Request to repeat
    request: Request,
    /// Address of this host on the accelerated interface, to connect to
    #[arg(long)]
    address: Option<std::net::Ipv4Addr>,
    /// Duration in seconds
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

/// Numbers of granted and of refused requests. A request that has no answer, or whose answer is not
/// read, counts as granted as soon as the request is sent. CONNECT does not count.
#[derive(Default)]
struct Tally {
    obtained: u64,
    refused: u64,
}

impl Tally {
    /// Counts a request with its result. Returns the granted object, or `None` after a refusal.
    fn count<T>(&mut self, result: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match result {
            Ok(got) => {
                self.obtained += 1;
                Ok(Some(got))
            }
            // The service closes the socket of a user who may not connect.
            Err(Failure::Refused(_) | Failure::HungUp) => {
                self.refused += 1;
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }
}

/// Repeats the request until the time is over, and keeps the obtained objects until then.
/// `listeners` ends earlier if its ports are used up. `unread` ends earlier if the service closes
/// the connection.
pub fn run(target: &Target, options: &Options) -> Result<(), Failure> {
    let until = Instant::now() + Duration::from_secs_f64(options.seconds);
    let mut tally = Tally::default();
    raise_descriptor_limit();
    match options.request {
        Request::Inherit => inherit(target, until, &mut tally)?,
        Request::Contexts => contexts(target, until, &mut tally)?,
        Request::Listeners => listeners(target, until, &mut tally)?,
        Request::Notes => notes(target, until, &mut tally)?,
        Request::Unread => unread(target, until, &mut tally)?,
        Request::Answers => answers(target, options, until, &mut tally)?,
    }
    let Tally { obtained, refused } = tally;
    report(&json!({ "attack": "grow", "obtained": obtained, "refused": refused }));
    Ok(())
}

/// Raises RLIMIT_NOFILE to the hard limit, so that the attack reaches the service's limits before
/// its own.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    let _ = setrlimit(Resource::Nofile, all);
}

fn inherit(target: &Target, until: Instant, tally: &mut Tally) -> Result<(), Failure> {
    let program = Program::register(target, "inherit")?;
    let mut heirs = Vec::new();
    while Instant::now() < until {
        heirs.extend(tally.count(program.service.inherit())?);
    }
    Ok(())
}

fn contexts(target: &Target, until: Instant, tally: &mut Tally) -> Result<(), Failure> {
    let mut kept = Vec::new();
    while Instant::now() < until {
        let Some(program) = tally.count(Program::register(target, "contexts"))? else {
            continue;
        };
        for number in 0..CONTEXTS_MAX {
            if tally.count(program.context(number))?.is_none() {
                break;
            }
        }
        kept.push(program);
    }
    Ok(())
}

fn listeners(target: &Target, until: Instant, tally: &mut Tally) -> Result<(), Failure> {
    let program = Program::register(target, "listeners")?;
    let mut port = 10_000;
    while Instant::now() < until && port < 60_000 {
        port += 1;
        let bound = Bound {
            bind: ([0, 0, 0, 0], port).into(),
            device: None,
            reuse_address: false,
            reuse_port: false,
        };
        let Ok(socket) = bound.listening(1) else {
            continue;
        };
        tally.count(program.service.listen(socket.as_fd(), 1))?;
    }
    Ok(())
}

fn notes(target: &Target, until: Instant, tally: &mut Tally) -> Result<(), Failure> {
    let program = Program::register(target, "notes")?;
    let mut inode = 0;
    while Instant::now() < until {
        inode += 1;
        tally.count(program.service.report_not_accelerated(inode, 1))?;
    }
    Ok(())
}

fn unread(target: &Target, until: Instant, tally: &mut Tally) -> Result<(), Failure> {
    let service = target.connect()?;
    let probe = new_message(message::PROBE);
    while Instant::now() < until && tally.count(service.send(&probe, &[]))?.is_some() {}
    Ok(())
}

fn answers(
    target: &Target,
    options: &Options,
    until: Instant,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let program = Program::register(target, "answers")?;
    let address = options.address.map_or([0; 4], |address| address.octets());
    let mut peer = [0; 16];
    peer[10..12].fill(0xff);
    peer[12..].copy_from_slice(&address);
    let mut all: Vec<Rings> = Vec::new();
    for number in 0..CONTEXTS_MAX {
        match tally.count(program.context(number))? {
            Some(rings) => all.push(rings),
            None => break,
        }
    }
    while Instant::now() < until {
        for rings in &mut all {
            for _ in 0..256 {
                rings.connect(peer, CLOSED_PORT, 0);
            }
        }
        program.ring_cores();
    }
    Ok(())
}
