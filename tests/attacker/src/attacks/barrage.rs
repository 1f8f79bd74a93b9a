//! The attack `barrage`: six attacks on the service (`tidelaned`) run together until a deadline.
//! Each attack runs on its own thread and uses its own registrations. A registration is a session
//! of a program with the service. Words in capitals, such as LISTEN, are messages of a program to
//! the service.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use rustix::{
    event::{EventfdFlags, eventfd},
    net::{AddressFamily, SocketType, ipproto, socket},
};
use serde_json::{Value, json};
use tidelane_abi::{message, not_accelerated};
use tidelane_ring::registration::new_message;

use crate::{
    Target,
    protocol::{DESCRIPTORS_MAX, Failure, Service, verdict},
    region::Program,
    report,
    sockets::Bound,
};

mod memory;

/// Options of `barrage`.
#[derive(Args, Debug)]
pub struct Options {
    /// Duration in seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Address and port of a server for the attacks that need connections
    #[arg(long)]
    connect: std::net::SocketAddrV4,
}

/// Maximum number of idle registrations that are open at the same time.
const IDLE_MAX: usize = 2000;
/// Time that an attack sleeps after a failed registration. The attack `registrations` also sleeps
/// for this time when it reaches [`IDLE_MAX`].
const PAUSE: Duration = Duration::from_millis(1);

/// Numbers of counted actions of one attack, by result. An action is a request to the service, or a
/// group of changes to the shared memory (`holes`, `scribbling`).
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of actions.
    tries: u64,
    /// Number of actions by the text of their result ([`verdict`]).
    answers: BTreeMap<String, u64>,
}

impl Counts {
    /// Counts one action with its result.
    pub fn count<T>(&mut self, result: &Result<T, Failure>) {
        self.tries += 1;
        let answer = verdict(result);
        let answer = answer.as_str().unwrap_or_default().to_owned();
        *self.answers.entry(answer).or_default() += 1;
    }

    fn to_json(&self) -> Value {
        json!({ "tries": self.tries, "answers": self.answers })
    }
}

/// A function that runs one attack until a deadline. The deadline is the third argument.
type Attack = fn(&Target, &Options, Instant) -> Counts;

/// The names of the attacks in the output, and their functions.
const ATTACKS: [(&str, Attack); 6] = [
    ("claims", claims),
    ("registrations", registrations),
    ("descriptors", descriptors),
    ("messages", messages),
    ("holes", memory::holes),
    ("scribbling", memory::scribbling),
];

/// Prints a line, runs all attacks, and prints a second line with the counters of each attack.
pub fn run(target: &Target, options: &Options) -> Result<(), Failure> {
    report(&json!({ "attack": "barrage", "began": true }));
    let until = Instant::now() + Duration::from_secs_f64(options.seconds);
    let counts: BTreeMap<&str, Value> = thread::scope(|scope| {
        let start = |(name, attack): (&'static str, Attack)| {
            (name, scope.spawn(move || attack(target, options, until)))
        };
        let threads: Vec<_> = ATTACKS.into_iter().map(start).collect();
        let join = |(name, thread): (_, thread::ScopedJoinHandle<'_, Counts>)| {
            (name, thread.join().unwrap_or_default().to_json())
        };
        threads.into_iter().map(join).collect()
    });
    report(&json!({ "attack": "barrage", "counts": counts }));
    Ok(())
}

/// Registers a program, and calls `turn` with the program repeatedly until the deadline `until`. If
/// `turn` returns [`Failure::HungUp`] or [`Failure::Io`], begins again with a new program.
fn with_programs(
    target: &Target,
    until: Instant,
    mut turn: impl FnMut(&Program, &mut Counts) -> Result<(), Failure>,
) -> Counts {
    let mut counts = Counts::default();
    while Instant::now() < until {
        let registered = Program::register(target, "barrage");
        counts.count(&registered);
        let Ok(program) = registered else {
            thread::sleep(PAUSE);
            continue;
        };
        while Instant::now() < until {
            if let Err(Failure::HungUp | Failure::Io(_)) = turn(&program, &mut counts) {
                break;
            }
        }
    }
    counts
}

/// The attack `claims`: repeatedly claims a port (asks the service to handle the port) with a new
/// socket, and then closes the socket. Of four requests, three are RESERVE and one is LISTEN.
fn claims(target: &Target, _: &Options, until: Instant) -> Counts {
    let any_port = |reuse_address| Bound {
        bind: ([0, 0, 0, 0], 0).into(),
        device: None,
        reuse_address,
        reuse_port: false,
    };
    let mut turns = 0u32;
    with_programs(target, until, |program, counts| {
        turns += 1;
        let claimed = if turns.is_multiple_of(4) {
            let socket = any_port(false).listening(1 << 16)?;
            program.service.listen(socket.as_fd(), u32::MAX).map(drop)
        } else {
            let socket = any_port(true).make()?;
            program.service.reserve(socket.as_fd()).map(drop)
        };
        counts.count(&claimed);
        claimed
    })
}

/// The attack `registrations`: registers until a registration fails or [`IDLE_MAX`] registrations
/// are open, then closes all registrations, and begins again.
fn registrations(target: &Target, _: &Options, until: Instant) -> Counts {
    let mut counts = Counts::default();
    let mut held: Vec<Service> = Vec::new();
    while Instant::now() < until {
        let one = target.connect().and_then(|service| {
            service.register("idle")?;
            Ok(service)
        });
        counts.count(&one);
        match one {
            Ok(service) if held.len() < IDLE_MAX => held.push(service),
            _ => {
                thread::sleep(PAUSE);
                held.clear();
            }
        }
    }
    counts
}

/// The attack `descriptors`: sends messages with six descriptors of different kinds, more than any
/// of the messages needs. One message in 64 is invalid and carries as many descriptors as the
/// kernel allows.
fn descriptors(target: &Target, _: &Options, until: Instant) -> Counts {
    let kinds = || -> io::Result<Vec<OwnedFd>> {
        let (reader, writer) = io::pipe()?;
        Ok(vec![
            reader.into(),
            writer.into(),
            eventfd(0, EventfdFlags::CLOEXEC)?,
            socket(AddressFamily::INET, SocketType::DGRAM, None)?,
            socket(AddressFamily::UNIX, SocketType::STREAM, None)?,
            socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP))?,
        ])
    };
    let Ok(kinds) = kinds() else {
        return Counts::default();
    };
    let fds: Vec<BorrowedFd<'_>> = kinds.iter().map(AsFd::as_fd).collect();
    let many: Vec<BorrowedFd<'_>> = fds.iter().copied().cycle().take(DESCRIPTORS_MAX).collect();
    let mut turns = 0;
    with_programs(target, until, |program, counts| {
        turns += 1;
        let service = &program.service;
        let answer = match turns % 64 {
            0 => service.send_bytes(&[0x5a; 300], &many),
            n if n % 3 == 0 => service.ask(&new_message(message::LISTEN), &fds).map(drop),
            n if n % 3 == 1 => service.ask(&new_message(message::CONTEXT), &fds).map(drop),
            _ => service.ask(&new_message(message::TCP_INFO), &fds).map(drop),
        };
        counts.count(&answer);
        answer
    })
}

/// The attack `messages`: sends messages without pauses, and waits only for their answers.
fn messages(target: &Target, _: &Options, until: Instant) -> Counts {
    let mut inode = 0;
    with_programs(target, until, |program, counts| {
        let service = &program.service;
        for _ in 0..32 {
            inode += 1;
            service.report_not_accelerated(inode, not_accelerated::ROUTE)?;
            service.release_connection(inode)?;
            service.unlisten(inode as u32)?;
        }
        let inherited = service.inherit().map(drop);
        counts.count(&inherited);
        let taken = service.take(inode, 0, 0).map(drop);
        counts.count(&taken);
        let tcp_info = service.tcp_info(inode as u32, 1).map(drop);
        counts.count(&tcp_info);
        tcp_info
    })
}
