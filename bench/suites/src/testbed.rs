//! A testbed: a wire whose server's side runs the programs of a suite, on the kernel or on
//! Tidelane. A wire is a veth pair between two network namespaces. A suite is a test suite of
//! another project. The service is the process `tidelaned`.

use std::{
    cell::Cell,
    collections::BTreeSet,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tidelane_programs::{counters::kernel_count, packages::search_path};
use tidelane_tests::{
    Service, Side, Stop, Wire, WireOptions, command,
    running::send_signal,
    tools::{patience, wait_until},
};

use crate::{catalog::Suite, output_format::Cases, prepare::Place};

/// The TCP stack on which the suite runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stack {
    /// The kernel alone.
    Kernel,
    /// Tidelane. The text has the options of `tidelane run`.
    Tidelane(String),
}

/// The numbers of active and passive opens, as the kernel and the service count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opens {
    /// Opens by the kernel.
    pub kernel: u64,
    /// Opens by the service.
    pub service: u64,
}

impl std::ops::Sub for Opens {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            kernel: self.kernel - before.kernel,
            service: self.service - before.service,
        }
    }
}

impl std::ops::AddAssign for Opens {
    fn add_assign(&mut self, more: Self) {
        self.kernel += more.kernel;
        self.service += more.service;
    }
}

impl Opens {
    /// Returns the service's share of all opens, or `None` if there were no opens.
    pub fn share(self) -> Option<f64> {
        let all = self.kernel + self.service;
        (all > 0).then(|| self.service as f64 / all as f64)
    }
}

/// Result of one run of a command.
#[derive(Debug)]
pub struct RunResult {
    /// The cases in the command's output, with their verdicts.
    pub cases: Cases,
    /// Duration in seconds.
    pub seconds: f64,
    /// True if the command was killed at its time limit.
    pub timed_out: bool,
}

/// The wire on whose server's side a suite runs, and the Tidelane service there. The field
/// `service` precedes the field `wire`, so that the service is dropped first.
#[derive(Debug)]
pub struct Testbed<'a> {
    suite: &'a Suite,
    place: &'a Place,
    stack: Stack,
    service: Option<Service>,
    /// Processes in the server's namespace before the suite started, which [`Self::end_leftovers`]
    /// does not kill.
    pids_before: BTreeSet<u32>,
    wire: Wire,
    /// Number of completed runs, which is a part of the names of the log files.
    runs: Cell<u32>,
}

impl<'a> Testbed<'a> {
    /// Builds the wire, and starts the service if the stack is Tidelane.
    pub fn new(suite: &'a Suite, place: &'a Place, stack: Stack) -> Result<Self, Stop> {
        let wire = Wire::with(&WireOptions::default())?;
        let service = match &stack {
            Stack::Kernel => None,
            Stack::Tidelane(_) => Some(wire.service()?),
        };
        fs::create_dir_all(wire.scratch().join("tmp"))?;
        fs::create_dir_all(wire.scratch().join("home"))?;
        fs::create_dir_all(place.folder.join("logs"))?;
        let pids_before = pids(&wire)?;
        Ok(Self {
            suite,
            place,
            stack,
            service,
            pids_before,
            wire,
            runs: Cell::new(0),
        })
    }

    /// Returns the stack's name.
    pub fn name(&self) -> &'static str {
        match &self.stack {
            Stack::Kernel => "kernel",
            Stack::Tidelane(_) => "tidelane",
        }
    }

    /// Runs a command of the suite until it ends, or until its time limit. Kills the processes that
    /// the command leaves behind. `part` names the part of the suite that the command runs. The
    /// name is empty if the suite has no parts.
    pub fn run(&self, command: &str, part: &str) -> Result<RunResult, Stop> {
        let command = self.place.fill(command).replace("{part}", part);
        let limit = Duration::from_secs(self.suite.seconds) * patience();
        let (source, scratch) = (self.place.source.display(), self.wire.scratch().display());
        let text = format!("cd {source} && {{ {command}\n}} 2>&1");
        // Run the command as the leader of a session, so that its children can be killed with it.
        let program = self.wire.program(Side::Server, "setsid");
        let program = program
            .args("nice -n 5 sh -c")
            .arg(text)
            .on(self.service.as_ref());
        let program = match &self.stack {
            Stack::Kernel => program,
            Stack::Tidelane(options) => program.run_options(options),
        };
        let program = program
            .env("PATH", &search_path())
            .env("HOME", &format!("{scratch}/home"))
            .env("TERM", "dumb")
            .env("TMPDIR", &format!("{scratch}/tmp"));
        let start = Instant::now();
        let mut running = program.spawn()?;
        let timed_out = !running.ends_within(limit)?;
        let seconds = start.elapsed().as_secs_f64();
        if timed_out {
            self.log_tasks(part)?;
        }
        running.kill_group();
        self.end_leftovers()?;
        let (output, errors) = running.output();
        fs::write(self.log(part, "log"), output.clone() + &errors)?;
        if let Some(service) = self.service.as_ref().filter(|service| !service.alive()) {
            let log = format!("/var/log/tidelane/{}.log", service.name());
            let words = fs::read_to_string(log).unwrap_or_default();
            return Err(Stop::Fail(format!("the service died in {part}: {words}")));
        }
        self.runs.set(self.runs.get() + 1);
        Ok(RunResult {
            cases: self.suite.output_format.read(part, &output),
            seconds,
            timed_out,
        })
    }

    /// Returns the numbers of opens since the testbed was built.
    pub fn opens(&self) -> Result<Opens, Stop> {
        let mut opens = Opens::default();
        for name in ["ActiveOpens", "PassiveOpens"] {
            opens.kernel += kernel_count(&self.wire, Side::Server, name)?;
        }
        if let Some(service) = &self.service {
            let counters = service.counters()?;
            for name in ["active_opens", "passive_opens"] {
                opens.service += counters[name].as_u64().unwrap_or(0);
            }
        }
        Ok(opens)
    }

    /// Writes the state of each thread in the server's namespace, and of each socket of the
    /// service, to a log file. The log file helps to find the cause of a hang.
    fn log_tasks(&self, part: &str) -> Result<(), Stop> {
        let space = self.wire.namespace(Side::Server);
        let tasks = tidelane_tests::tasks::of_namespace(&space);
        let sockets = match &self.service {
            Some(service) => format!("{:#?}", service.sockets()?),
            None => String::new(),
        };
        Ok(fs::write(self.log(part, "tasks"), tasks + &sockets)?)
    }

    /// Returns the path of a log file of the current run of a part. `kind` is the extension.
    fn log(&self, part: &str, kind: &str) -> PathBuf {
        let part = if part.is_empty() { "all" } else { part };
        let (part, name, runs) = (part.replace('/', "-"), self.name(), self.runs.get());
        let logs = self.place.folder.join("logs");
        logs.join(format!("{part}.{name}.{runs}.{kind}"))
    }

    /// Kills the processes that a run has left in the server's namespace, and waits for their end.
    fn end_leftovers(&self) -> Result<(), Stop> {
        wait_until(Duration::from_secs(10), "the end of a suite", || {
            let left: Vec<u32> = pids(&self.wire)?
                .difference(&self.pids_before)
                .copied()
                .collect();
            for pid in &left {
                // Ignore the error, because the process may have ended meanwhile.
                let _ = send_signal(*pid, rustix::process::Signal::KILL);
            }
            Ok(left.is_empty())
        })
    }
}

/// Returns the ids of the processes in the server's namespace.
fn pids(wire: &Wire) -> Result<BTreeSet<u32>, Stop> {
    let text = command(&["ip", "netns", "pids", &wire.namespace(Side::Server)])?;
    Ok(text
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect())
}
