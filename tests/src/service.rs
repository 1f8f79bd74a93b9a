//! A running service: started by `tidelane up`, asked over its admin socket.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    Stop, program, tools,
    wire::{INTERFACE, Side, Wire},
};

/// How long an answer of the service may take.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A service of a wire. Dropping it takes it down.
#[derive(Debug)]
pub struct Service {
    name: String,
    pid: u32,
}

impl Service {
    /// `tidelane up` in a namespace of the wire; returns when the service is ready.
    pub(crate) fn up(
        wire: &Wire,
        side: Side,
        name: &str,
        options: &[&str],
        cpus: Option<&str>,
    ) -> Result<Self, Stop> {
        let tidelane = tools::binary("tidelane")?;
        let program = wire
            .program(side, &tidelane.to_string_lossy())
            .args("up")
            .arg(INTERFACE)
            .args("--name")
            .arg(name);
        let program = options
            .iter()
            .fold(program, |program, option| program.arg(option));
        let program = match cpus {
            Some(cpus) => program.cpus(cpus),
            None => program,
        };
        program.run(Duration::from_secs(120))?;
        let pid_file = run_dir(name).join("pid");
        let pid = fs::read_to_string(&pid_file)?.trim().parse()?;
        Ok(Self {
            name: name.to_owned(),
            pid,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks the admin socket one thing.
    pub fn ask(&self, op: &str) -> Result<Value, Stop> {
        let mut stream = UnixStream::connect(run_dir(&self.name).join("admin.sock"))?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        writeln!(stream, "{}", json!({ "op": op }))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|e| Stop::Fail(format!("{op} answered {line:?}: {e}")))
    }

    /// The sockets that it knows, as `tidelane ss` shows them.
    pub fn sockets(&self) -> Result<Vec<Value>, Stop> {
        let answer = self.ask("ss")?;
        Ok(answer["sockets"].as_array().cloned().unwrap_or_default())
    }

    /// The sockets of one process.
    pub fn sockets_of(&self, pid: u32) -> Result<Vec<Value>, Stop> {
        let mut sockets = self.sockets()?;
        sockets.retain(|socket| socket["pid"] == pid);
        Ok(sockets)
    }

    /// The counters.
    pub fn counters(&self) -> Result<Value, Stop> {
        Ok(self.ask("stat")?["counters"].take())
    }

    /// Whether an accelerated listener has `port`.
    pub fn has_listener(&self, port: u16) -> Result<bool, Stop> {
        let end = format!(":{port}");
        Ok(self.sockets()?.iter().any(|socket| {
            let local = socket["local"].as_str().unwrap_or_default();
            socket["state"] == "LISTEN" && socket["accelerated"] == true && local.ends_with(&end)
        }))
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> Result<u64, Stop> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number
            .ok_or_else(|| Stop::Fail("no VmRSS".to_owned()))?
            .parse()?)
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> Result<usize, Stop> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid))?.count())
    }

    /// CPU time so far, user and system.
    pub fn cpu_time(&self) -> Result<Duration, Stop> {
        cpu_time_of(self.pid)
    }

    /// Kills the service process at once.
    pub fn kill(&self) -> Result<(), Stop> {
        program::send_signal(self.pid, Signal::KILL)
    }

    /// `tidelane down`, for tests of that command; dropping the service does it too.
    pub fn down(&self) -> Result<(), Stop> {
        let tidelane = tools::binary("tidelane")?;
        let output = Command::new(tidelane)
            .args(["down", "--name", &self.name])
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(Stop::Fail(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }

    /// Whether its process is there (a zombie is not).
    pub fn alive(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let state = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().next());
        !matches!(state, None | Some("Z" | "X"))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.alive() {
            // A service that does not go down is killed with its namespace.
            let _ = self.down();
        }
    }
}

/// CPU time of a process so far, user and system, all its threads.
pub fn cpu_time_of(pid: u32) -> Result<Duration, Stop> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |index: usize| -> u64 {
        fields
            .get(index)
            .and_then(|field| field.parse().ok())
            .unwrap_or(0)
    };
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(
        (ticks(11) + ticks(12)) * 1000 / per_second,
    ))
}

/// A service's run directory.
pub fn run_dir(name: &str) -> PathBuf {
    Path::new("/run/tidelane").join(name)
}
