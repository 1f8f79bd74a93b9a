//! The POSIX tests: each case of the C program `posix.c` runs on the kernel's stack and on
//! Tidelane, whose service (`tidelaned`) carries the connections of programs under `tidelane run`.
//! The two outputs of a case must be equal. A further comparison runs the cases with the preload
//! library `libtidelane.so`, which `tidelane run` loads into programs, but without a service.
//!
//! Run them as root after `make build`: `cargo test -p tidelane-tests --test posix`. The
//! environment variable POSIX_CASES="a b" selects the cases `a` and `b`.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tidelane_tests::{
    Outcome, Running, Service, Side, Stop, Wire,
    runner::{self, Case},
    tasks, tools,
    wire::{CLIENT, SERVER},
};

/// Time limit of a case on one stack. The slowest case needs a few seconds on an idle machine.
const CASE_MAX: Duration = Duration::from_secs(90);
/// Number of hanging cases after which a comparison leaves out its remaining cases. A comparison
/// has a time limit, too ([`Case::seconds`]).
const HANGS_MAX: usize = 3;
/// Cases that need the kernel's stack, and therefore run without `--strict`. With this option of
/// `tidelane run`, a call that would otherwise fall back to the kernel fails. The kernel handles a
/// connect to the interface's own address if no program on Tidelane listens at the port.
const KERNEL_TOO: [&str; 3] = ["both_stacks", "refused", "one_shot_listener"];

/// The comparisons. Each runs all cases of `posix.c`, or the cases that POSIX_CASES selects.
const CASES: &[Case] = &[
    Case {
        name: "posix::without_a_service",
        run: without_a_service,
        seconds: 900,
        alone: false,
    },
    Case {
        name: "posix::kernel_peer",
        run: kernel_peer,
        seconds: 900,
        alone: false,
    },
    Case {
        name: "posix::accelerated_peer",
        run: accelerated_peer,
        seconds: 900,
        alone: false,
    },
    Case {
        name: "posix::over_loopback",
        run: over_loopback,
        seconds: 900,
        alone: false,
    },
];

fn main() -> ExitCode {
    runner::main(CASES)
}

/// The paths of the compiled programs.
struct Programs {
    /// The program that runs a test case (`posix.c`).
    posix: PathBuf,
    /// The peer (`peer.c`): the program at the other end of the connections of a test case.
    peer: PathBuf,
}

impl Programs {
    /// Compiles the programs into the directory `into`.
    fn compile(into: &Path) -> Result<Self, Stop> {
        let dir = tools::source_root().join("tests/posix");
        let programs = Self {
            posix: into.join("posix"),
            // The sockets of the peers in this directory have other names: `peer-0`, `peer-1`, ...
            peer: into.join("peer-program"),
        };
        let mut sources = Vec::new();
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "c") && !path.ends_with("peer.c") {
                sources.push(path);
            }
        }
        tools::compile(&programs.posix, &sources)?;
        tools::compile(&programs.peer, &[dir.join("peer.c")])?;
        Ok(programs)
    }

    /// Returns the names of the cases that POSIX_CASES selects. Without POSIX_CASES, returns all
    /// names.
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

/// The namespaces and addresses of the two programs: the test case and its peer. The test case runs
/// in the server's namespace.
struct Setup<'a> {
    wire: &'a Wire,
    programs: &'a Programs,
    /// Address of the test case.
    own_address: Ipv4Addr,
    /// Namespace of the peer.
    peer_side: Side,
    /// Address of the peer.
    peer_address: Ipv4Addr,
}

impl<'a> Setup<'a> {
    /// Returns a setup with both programs in the server's namespace, at the same address.
    fn of_one_host(wire: &'a Wire, programs: &'a Programs, address: Ipv4Addr) -> Self {
        Self {
            wire,
            programs,
            own_address: address,
            peer_side: Side::Server,
            peer_address: address,
        }
    }
}

/// The stacks of the two programs. By default both use the kernel's stack.
#[derive(Clone, Copy, Default)]
struct Stacks<'a> {
    /// Service of the test case. `None` stands for the kernel's stack.
    own: Option<&'a Service>,
    /// Service of the peer. `None` stands for the kernel's stack.
    peer: Option<&'a Service>,
    /// Options of `tidelane run`, for both programs.
    run_options: &'a str,
    /// Further environment variables of the test case.
    environment: &'a [(&'a str, &'a str)],
}

/// The result of a case on one stack.
struct CaseResult {
    /// Standard output, standard error and exit status.
    text: String,
    /// True if the exit status is 0.
    ended_well: bool,
    /// If the case did not end in time: a description of the threads and of the service.
    hung: Option<String>,
}

impl Setup<'_> {
    /// Starts a peer for one case. A new peer has no connections of an earlier case. Returns the
    /// path of the peer's command socket, and the running peer.
    fn peer(&self, stacks: Stacks<'_>) -> Result<(PathBuf, Running), Stop> {
        static PEERS: AtomicU32 = AtomicU32::new(0);
        let number = PEERS.fetch_add(1, Ordering::Relaxed);
        let path = self.wire.scratch().join(format!("peer-{number}"));
        let mut running = self
            .wire
            .program(self.peer_side, &self.programs.peer.to_string_lossy())
            .arg(path.display())
            .arg(self.peer_address)
            .run_options(stacks.run_options)
            .on(stacks.peer)
            .spawn()?;
        tools::wait_until(CASE_MAX, "the peer", || {
            running.check_alive()?;
            Ok(path.exists())
        })?;
        Ok((path, running))
    }

    /// Runs a case with a new peer.
    fn run(&self, case: &str, stacks: Stacks<'_>) -> Result<CaseResult, Stop> {
        let (path, peer) = self.peer(stacks)?;
        let program = self
            .wire
            .program(Side::Server, &self.programs.posix.to_string_lossy())
            .arg(case)
            .env("POSIX_PEER", &path.to_string_lossy())
            .env("POSIX_OWN_ADDRESS", &self.own_address.to_string())
            .env("POSIX_PEER_ADDRESS", &self.peer_address.to_string())
            .run_options(stacks.run_options)
            .on(stacks.own);
        let program = if KERNEL_TOO.contains(&case) {
            program
        } else {
            program.strict()
        };
        let program = stacks
            .environment
            .iter()
            .fold(program, |program, (name, value)| program.env(name, value));
        let mut running = program.spawn()?;
        let hung = if running.ends_within(CASE_MAX)? {
            None
        } else {
            Some(self.situation(stacks))
        };
        running.kill_group();
        let finished = running.wait(CASE_MAX)?;
        drop(peer);
        Ok(CaseResult {
            text: format!(
                "{}{}{}\n",
                finished.stdout, finished.stderr, finished.status
            ),
            ended_well: finished.status.success(),
            hung,
        })
    }

    /// Describes all threads in both namespaces, and the state of the service, for the report of a
    /// case that hangs.
    fn situation(&self, stacks: Stacks<'_>) -> String {
        let mut text = format!(
            "did not end within {} s; at that time:\n",
            CASE_MAX.as_secs()
        );
        for side in [Side::Server, Side::Client] {
            text += &tasks::of_namespace(&self.wire.namespace(side));
        }
        let Some(service) = stacks.own.or(stacks.peer) else {
            return text;
        };
        for op in ["ss", "stat"] {
            text += &match service.ask(op) {
                Ok(answer) => format!("  {op}: {answer}\n"),
                Err(stop) => format!("  {op}: {stop:?}\n"),
            };
        }
        text
    }
}

/// Runs each case twice, on the stacks `expected` and on the stacks `actual`, and compares the
/// outputs. Prints each difference immediately, because the run may be killed before its end.
fn compare(setup: &Setup<'_>, expected: Stacks<'_>, actual: Stacks<'_>) -> Outcome {
    let (mut failed, mut hung) = (Vec::new(), 0);
    let cases = setup.programs.cases()?;
    for (done, case) in cases.iter().enumerate() {
        let (expected, actual) = (setup.run(case, expected)?, setup.run(case, actual)?);
        hung += usize::from(expected.hung.is_some() || actual.hung.is_some());
        if let Some(report) = verdict(&expected, &actual) {
            eprintln!("--- {case}\n{report}");
            failed.push(case.as_str());
        }
        if hung >= HANGS_MAX {
            eprintln!(
                "{hung} cases without an end: {} not tried",
                cases.len() - done - 1
            );
            break;
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Stop::Fail(format!("failed: {}", failed.join(" "))))
}

/// Returns a report if the case fails or hangs on the expected stacks, or if the two outputs
/// differ. Otherwise returns `None`.
fn verdict(expected: &CaseResult, actual: &CaseResult) -> Option<String> {
    if expected.ended_well && expected.hung.is_none() && expected.text == actual.text {
        return None;
    }
    let mut report = if expected.text == actual.text {
        format!(
            "  the case itself fails, on the kernel's stack too\n{}",
            expected.text
        )
    } else {
        difference(&expected.text, &actual.text)
    };
    for (which, result) in [("expected (-)", expected), ("actual (+)", actual)] {
        if let Some(situation) = &result.hung {
            report += &format!("  {which}: {situation}");
        }
    }
    Some(report)
}

/// Returns the part of two outputs around their first difference: up to `BEFORE` equal lines, and
/// then up to `SHOWN` lines of each output.
fn difference(expected: &str, actual: &str) -> String {
    const BEFORE: usize = 6;
    const SHOWN: usize = 40;
    let same = expected
        .lines()
        .zip(actual.lines())
        .take_while(|(a, b)| a == b)
        .count();
    let before = same.saturating_sub(BEFORE);
    let part = |text: &str, from: usize, count: usize, mark: char| -> String {
        let lines = text.lines().skip(from).take(count);
        lines.map(|line| format!("{mark} {line}\n")).collect()
    };
    format!(
        "  (after {same} equal lines; - expected, + actual)\n{}{}{}",
        part(expected, before, same - before, ' '),
        part(expected, same, SHOWN, '-'),
        part(actual, same, SHOWN, '+')
    )
}

/// Returns a wire (a test network of two namespaces). In both namespaces, TCP Fast Open is enabled
/// in the kernel, for clients and for servers.
fn wire() -> Result<Wire, Stop> {
    let wire = Wire::new()?;
    for side in [Side::Server, Side::Client] {
        wire.sysctl(side, "net.ipv4.tcp_fastopen", "3")?;
    }
    Ok(wire)
}

/// Compares the kernel's stack without and with the preload library, while there is no service. The
/// library must leave all sockets to the kernel.
fn without_a_service() -> Outcome {
    let wire = wire()?;
    let programs = Programs::compile(wire.scratch())?;
    let setup = Setup::of_one_host(&wire, &programs, Ipv4Addr::LOCALHOST);
    let library = tools::binary("libtidelane.so")?.display().to_string();
    let preloaded = Stacks {
        environment: &[
            ("LD_PRELOAD", library.as_str()),
            ("TIDELANE_SOCKET", "/nonexistent"),
        ],
        ..Stacks::default()
    };
    compare(&setup, Stacks::default(), preloaded)
}

/// Compares the kernel with Tidelane over the wire. The peer is on the kernel in the client's
/// namespace.
fn kernel_peer() -> Outcome {
    let wire = wire()?;
    let programs = Programs::compile(wire.scratch())?;
    let setup = Setup {
        wire: &wire,
        programs: &programs,
        own_address: SERVER,
        peer_side: Side::Client,
        peer_address: CLIENT,
    };
    let service = wire.service()?;
    let accelerated = Stacks {
        own: Some(&service),
        ..Stacks::default()
    };
    compare(&setup, Stacks::default(), accelerated)
}

/// Compares the kernel with Tidelane on one host. Both programs use one service and connect to the
/// interface's own address: the service passes the segments from one program to the other without
/// the NIC.
fn accelerated_peer() -> Outcome {
    let wire = wire()?;
    let programs = Programs::compile(wire.scratch())?;
    let setup = Setup::of_one_host(&wire, &programs, SERVER);
    let service = wire.service()?;
    let accelerated = Stacks {
        own: Some(&service),
        peer: Some(&service),
        ..Stacks::default()
    };
    compare(&setup, Stacks::default(), accelerated)
}

/// Compares the kernel with Tidelane over loopback. Both programs use one service, and run under
/// `tidelane run --loopback`, so that the service carries their loopback connections.
fn over_loopback() -> Outcome {
    let wire = wire()?;
    let programs = Programs::compile(wire.scratch())?;
    let setup = Setup::of_one_host(&wire, &programs, Ipv4Addr::LOCALHOST);
    let service = wire.service()?;
    let accelerated = Stacks {
        own: Some(&service),
        peer: Some(&service),
        run_options: "--loopback",
        ..Stacks::default()
    };
    compare(&setup, Stacks::default(), accelerated)
}
