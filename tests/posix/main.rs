//! The same C program on the kernel's stack and on Tidelane: what it sees must be the same.
//!
//! `cargo test -p tidelane-tests --test posix`, as root, after `make build`. POSIX_CASES="a b" runs
//! only those of the cases of `posix.c`.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use tidelane_tests::{
    Outcome, Running, Service, Side, Stop, Wire,
    runner::{self, Case},
    tools,
    wire::{CLIENT, SERVER},
};

/// One case on one stack takes no longer.
const CASE_MAX: Duration = Duration::from_secs(20);
/// Cases that use the kernel's stack on purpose: in the others a fall-back is an error. (Whether
/// anything listens at the interface's own address, the kernel knows best.)
const KERNEL_TOO: [&str; 2] = ["both_stacks", "refused"];
const SOURCES: [&str; 7] = [
    "posix.c",
    "support.c",
    "data.c",
    "ready.c",
    "connection.c",
    "process.c",
    "forks.c",
];

const CASES: &[Case] = &[
    Case {
        name: "posix::without_a_service",
        run: without_a_service,
        seconds: 300,
    },
    Case {
        name: "posix::kernel_peer",
        run: kernel_peer,
        seconds: 600,
    },
    Case {
        name: "posix::accelerated_peer",
        run: accelerated_peer,
        seconds: 600,
    },
];

fn main() -> ExitCode {
    runner::main(CASES)
}

/// The compiled programs.
struct Programs {
    posix: PathBuf,
    peer: PathBuf,
}

impl Programs {
    fn compile(into: &Path) -> Result<Self, Stop> {
        let dir = tools::source_root().join("tests/posix");
        let programs = Self {
            posix: into.join("posix"),
            // Not the name of a peer's socket: the stage waits for that to appear.
            peer: into.join("peer-program"),
        };
        tools::compile(&programs.posix, &SOURCES.map(|source| dir.join(source)))?;
        tools::compile(&programs.peer, &[dir.join("peer.c")])?;
        Ok(programs)
    }

    /// The names of the cases that are wanted.
    fn cases(&self) -> Result<Vec<String>, Stop> {
        if let Ok(wanted) = std::env::var("POSIX_CASES") {
            return Ok(wanted.split_whitespace().map(str::to_owned).collect());
        }
        let list = Command::new(&self.posix).arg("--list").output()?;
        Ok(String::from_utf8_lossy(&list.stdout)
            .lines()
            .map(str::to_owned)
            .collect())
    }
}

/// Where a case runs, and against whom.
struct Stage<'a> {
    wire: &'a Wire,
    programs: &'a Programs,
    own_address: Ipv4Addr,
    peer_address: Ipv4Addr,
}

impl Stage<'_> {
    fn peer(&self, side: Side, service: Option<&Service>, name: &str) -> Result<Peer, Stop> {
        let path = self.wire.scratch().join(name);
        let running = self
            .wire
            .program(side, &self.programs.peer.to_string_lossy())
            .arg(path.display())
            .arg(self.peer_address)
            .on(service)
            .spawn()?;
        tools::wait_until(Duration::from_secs(5), "the peer", || Ok(path.exists()))?;
        Ok(Peer {
            path,
            _running: running,
        })
    }

    /// What a case sees.
    fn run(
        &self,
        case: &str,
        peer: &Peer,
        service: Option<&Service>,
        environment: &[(&str, &str)],
    ) -> Result<String, Stop> {
        let program = self
            .wire
            .program(Side::Server, &self.programs.posix.to_string_lossy())
            .arg(case)
            .env("POSIX_PEER", &peer.path.to_string_lossy())
            .env("POSIX_OWN_ADDRESS", &self.own_address.to_string())
            .env("POSIX_PEER_ADDRESS", &self.peer_address.to_string())
            .on(service);
        let program = if KERNEL_TOO.contains(&case) {
            program
        } else {
            program.strict()
        };
        let program = environment
            .iter()
            .fold(program, |program, (name, value)| program.env(name, value));
        let finished = match program.finish(CASE_MAX) {
            Ok(finished) => finished,
            Err(Stop::Fail(text)) => return Ok(format!("hangs: {text}")),
            Err(skip) => return Err(skip),
        };
        Ok(format!(
            "{}{}{}",
            finished.stdout, finished.stderr, finished.status
        ))
    }
}

struct Peer {
    path: PathBuf,
    _running: Running,
}

/// Runs all cases in both ways and reports each difference.
fn compare(
    cases: &[String],
    expected: impl Fn(&str) -> Result<String, Stop>,
    seen: impl Fn(&str) -> Result<String, Stop>,
) -> Outcome {
    let mut different = String::new();
    for case in cases {
        let (expected, seen) = (expected(case)?, seen(case)?);
        if expected != seen {
            different += &format!("--- {case}\n{}", difference(&expected, &seen));
        }
    }
    if different.is_empty() {
        Ok(())
    } else {
        Err(Stop::Fail(different))
    }
}

/// From the first line that differs, a few lines of both.
fn difference(expected: &str, seen: &str) -> String {
    const SHOWN: usize = 24;
    let same = expected
        .lines()
        .zip(seen.lines())
        .take_while(|(a, b)| a == b)
        .count();
    let part = |text: &str, mark: char| -> String {
        let lines = text.lines().skip(same).take(SHOWN);
        lines.map(|line| format!("{mark} {line}\n")).collect()
    };
    format!(
        "  (after {same} equal lines)\n{}{}",
        part(expected, '-'),
        part(seen, '+')
    )
}

/// With the library preloaded and nothing to talk to, nothing changes.
fn without_a_service() -> Outcome {
    let wire = Wire::new()?;
    let programs = Programs::compile(wire.scratch())?;
    let stage = Stage {
        wire: &wire,
        programs: &programs,
        own_address: Ipv4Addr::LOCALHOST,
        peer_address: Ipv4Addr::LOCALHOST,
    };
    let peer = stage.peer(Side::Server, None, "peer")?;
    let library = tools::binary("libtidelane.so")?.display().to_string();
    let preloaded = [
        ("LD_PRELOAD", library.as_str()),
        ("TIDELANE_SOCKET", "/nonexistent"),
    ];
    compare(
        &programs.cases()?,
        |case| stage.run(case, &peer, None, &[]),
        |case| stage.run(case, &peer, None, &preloaded),
    )
}

/// Over the wire to a program on the kernel's stack.
fn kernel_peer() -> Outcome {
    let wire = Wire::new()?;
    let programs = Programs::compile(wire.scratch())?;
    let stage = Stage {
        wire: &wire,
        programs: &programs,
        own_address: SERVER,
        peer_address: CLIENT,
    };
    let peer = stage.peer(Side::Client, None, "peer")?;
    let service = wire.service()?;
    compare(
        &programs.cases()?,
        |case| stage.run(case, &peer, None, &[]),
        |case| stage.run(case, &peer, Some(&service), &[]),
    )
}

/// Both programs on one service: the memory wire.
fn accelerated_peer() -> Outcome {
    let wire = Wire::new()?;
    let programs = Programs::compile(wire.scratch())?;
    let stage = Stage {
        wire: &wire,
        programs: &programs,
        own_address: SERVER,
        peer_address: SERVER,
    };
    let service = wire.service()?;
    let plain = stage.peer(Side::Server, None, "plain-peer")?;
    let accelerated = stage.peer(Side::Server, Some(&service), "accelerated-peer")?;
    compare(
        &programs.cases()?,
        |case| stage.run(case, &plain, None, &[]),
        |case| stage.run(case, &accelerated, Some(&service), &[]),
    )
}
