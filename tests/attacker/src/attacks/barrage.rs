//! Every attack at once, each on a thread with registrations of its own, for as long as it takes.

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
    /// How long
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// A server to open connections to, whose buffers are then misused
    #[arg(long)]
    connect: std::net::SocketAddrV4,
}

/// Registrations that do nothing, held at once.
const IDLE_MAX: usize = 2000;
/// How long an attack waits after the service refused.
const PAUSE: Duration = Duration::from_millis(1);

/// The toll of one attack.
#[derive(Debug, Default)]
pub struct Toll {
    /// Times that something was tried.
    tries: u64,
    /// By answer.
    answers: BTreeMap<String, u64>,
}

impl Toll {
    /// Counts one try.
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

/// One attack: repeats itself until the deadline.
type Attack = fn(&Target, &Options, Instant) -> Toll;

const ATTACKS: [(&str, Attack); 6] = [
    ("claims", claims),
    ("registrations", registrations),
    ("descriptors", descriptors),
    ("messages", messages),
    ("holes", memory::holes),
    ("scribbling", memory::scribbling),
];

/// Runs all attacks; the line says what each of them did.
pub fn run(target: &Target, options: &Options) -> Result<(), Failure> {
    report(&json!({ "attack": "barrage", "began": true }));
    let until = Instant::now() + Duration::from_secs_f64(options.seconds);
    let tolls: BTreeMap<&str, Value> = thread::scope(|scope| {
        let start = |(name, attack): (&'static str, Attack)| {
            (name, scope.spawn(move || attack(target, options, until)))
        };
        let threads: Vec<_> = ATTACKS.into_iter().map(start).collect();
        let join = |(name, thread): (_, thread::ScopedJoinHandle<'_, Toll>)| {
            (name, thread.join().unwrap_or_default().to_json())
        };
        threads.into_iter().map(join).collect()
    });
    report(&json!({ "attack": "barrage", "tolls": tolls }));
    Ok(())
}

/// Calls `turn` with a registration until the deadline; with a new one after each failure that
/// ends one.
fn with_programs(
    target: &Target,
    until: Instant,
    mut turn: impl FnMut(&Program, &mut Toll) -> Result<(), Failure>,
) -> Toll {
    let mut toll = Toll::default();
    while Instant::now() < until {
        let registered = Program::register(target, "barrage");
        toll.count(&registered);
        let Ok(program) = registered else {
            thread::sleep(PAUSE);
            continue;
        };
        while Instant::now() < until {
            if let Err(Failure::HungUp | Failure::Io(_)) = turn(&program, &mut toll) {
                break;
            }
        }
    }
    toll
}

/// Binds, claims and closes, one port after the other.
fn claims(target: &Target, _: &Options, until: Instant) -> Toll {
    let any_port = |reuse_address| Bound {
        bind: ([0, 0, 0, 0], 0).into(),
        device: None,
        reuse_address,
        reuse_port: false,
    };
    let mut turns = 0u32;
    with_programs(target, until, |program, toll| {
        turns += 1;
        let claimed = if turns.is_multiple_of(4) {
            let socket = any_port(false).listening(1 << 16)?;
            program.service.listen(socket.as_fd(), u32::MAX).map(drop)
        } else {
            let socket = any_port(true).make()?;
            program.service.reserve(socket.as_fd()).map(drop)
        };
        toll.count(&claimed);
        claimed
    })
}

/// Registers and stays; then lets all go and begins again.
fn registrations(target: &Target, _: &Options, until: Instant) -> Toll {
    let mut toll = Toll::default();
    let mut held: Vec<Service> = Vec::new();
    while Instant::now() < until {
        let one = target.connect().and_then(|service| {
            service.register("idle")?;
            Ok(service)
        });
        toll.count(&one);
        match one {
            Ok(service) if held.len() < IDLE_MAX => held.push(service),
            _ => {
                thread::sleep(PAUSE);
                held.clear();
            }
        }
    }
    toll
}

/// Sends descriptors of all kinds, as many as the kernel takes, with messages that call for none.
fn descriptors(target: &Target, _: &Options, until: Instant) -> Toll {
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
        return Toll::default();
    };
    let fds: Vec<BorrowedFd<'_>> = kinds.iter().map(AsFd::as_fd).collect();
    let many: Vec<BorrowedFd<'_>> = fds.iter().copied().cycle().take(DESCRIPTORS_MAX).collect();
    let mut turns = 0;
    with_programs(target, until, |program, toll| {
        turns += 1;
        let service = &program.service;
        let answer = match turns % 64 {
            0 => service.tell_bytes(&[0x5a; 300], &many),
            n if n % 3 == 0 => service.ask(&new_message(message::LISTEN), &fds).map(drop),
            n if n % 3 == 1 => service.ask(&new_message(message::CONTEXT), &fds).map(drop),
            _ => service.ask(&new_message(message::NUMBERS), &fds).map(drop),
        };
        toll.count(&answer);
        answer
    })
}

/// Sends messages as fast as the service takes them.
fn messages(target: &Target, _: &Options, until: Instant) -> Toll {
    let mut inode = 0;
    with_programs(target, until, |program, toll| {
        let service = &program.service;
        for _ in 0..32 {
            inode += 1;
            service.note(inode, not_accelerated::ROUTE)?;
            service.disown(inode)?;
            service.unlisten(inode as u32)?;
        }
        let inherited = service.inherit().map(drop);
        toll.count(&inherited);
        let taken = service.take(inode, 0, 0).map(drop);
        toll.count(&taken);
        let numbers = service.numbers(inode as u32, 1).map(drop);
        toll.count(&numbers);
        numbers
    })
}
