//! Services (processes of `tidelaned`) that tests start by `tidelane up` and query over their admin
//! sockets. A service runs on an interface of a wire, the test network ([`crate::wire`]).

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
    Stop,
    running::{Running, send_signal},
    tools,
    wire::{INTERFACE, Side, Wire},
};

/// Time limit for an answer on the admin socket.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A running service of a wire. `drop` stops it.
#[derive(Debug)]
pub struct Service {
    name: String,
    /// Process id of `tidelaned`.
    pid: u32,
    /// Path of the configuration file.
    config: PathBuf,
    /// The process `unshare`, the parent of the first process of the service's PID namespace. When
    /// `unshare` ends, the namespace ends. `None` if the service runs in the PID namespace of the
    /// tests.
    _first: Option<Running>,
}

impl Service {
    /// Runs `tidelane up` for an interface in a namespace of the wire. `options` are further
    /// options of `tidelane up`. If `--config` is not among the options, the service admits all
    /// users. If `cpus` (a list such as `0,1`) is given, the command and the service run only on
    /// these CPUs.
    pub(crate) fn up(
        wire: &Wire,
        (side, interface): (Side, &str),
        name: &str,
        options: &[&str],
        cpus: Option<&str>,
    ) -> Result<Self, Stop> {
        let tidelane = tools::binary("tidelane")?;
        let program = wire
            .program(side, &tidelane.to_string_lossy())
            .args("up")
            .arg(interface)
            .args("--name")
            .arg(name);
        let program = options
            .iter()
            .fold(program, |program, option| program.arg(option));
        let mut told = options.iter().skip_while(|option| **option != "--config");
        let config = match told.nth(1) {
            Some(path) => PathBuf::from(path),
            None => open_config(wire)?,
        };
        let program = if options.contains(&"--config") {
            program
        } else {
            program.arg("--config").arg(config.display())
        };
        let program = match cpus {
            Some(cpus) => program.cpus(cpus),
            None => program,
        };
        program.run(Duration::from_secs(120))?;
        Self::started(name, config)
    }

    /// Starts a service with an empty configuration and with the file `groups` in place of
    /// `/etc/group`.
    pub(crate) fn up_with_groups(
        wire: &Wire,
        side: Side,
        name: &str,
        groups: &Path,
    ) -> Result<Self, Stop> {
        let tidelane = tools::binary("tidelane")?;
        let config = wire.scratch().join("empty.toml");
        fs::write(&config, "")?;
        let script = format!(
            "mount --bind {} /etc/group && exec {} up {INTERFACE} --name {name} --config {}",
            groups.display(),
            tidelane.display(),
            config.display()
        );
        let program = wire.program(side, "unshare").args("--mount sh -c");
        program.arg(script).run(Duration::from_secs(120))?;
        Self::started(name, config)
    }

    /// Returns the service that `tidelane up` has started. Reads the process id from the service's
    /// run directory.
    fn started(name: &str, config: PathBuf) -> Result<Self, Stop> {
        let pid = fs::read_to_string(run_dir(name).join("pid"))?;
        Ok(Self {
            name: name.to_owned(),
            pid: pid.trim().parse()?,
            config,
            _first: None,
        })
    }

    /// Starts a service in a new PID namespace with its own `/proc`. The namespace lives as long as
    /// its first process, a shell that runs `tidelane up` and then sleeps.
    pub(crate) fn up_in_pid_namespace(wire: &Wire, side: Side, name: &str) -> Result<Self, Stop> {
        let tidelane = tools::binary("tidelane")?;
        let config = open_config(wire)?;
        let script = format!(
            "{} up {INTERFACE} --name {name} --config {} && sleep 3600",
            tidelane.display(),
            config.display()
        );
        let first = wire
            .program(side, "unshare")
            .args("--pid --fork --kill-child --mount-proc sh -c")
            .arg(script);
        let mut first = first.spawn()?;
        let socket = run_dir(name).join("admin.sock");
        tools::wait_until(Duration::from_secs(30), "the service", || {
            first.check_alive()?;
            Ok(UnixStream::connect(&socket).is_ok())
        })?;
        // SO_PEERCRED gives the service's process id in the PID namespace of the tests. The file
        // `pid` has the process id in the new namespace.
        let peer = rustix::net::sockopt::socket_peercred(UnixStream::connect(&socket)?)?;
        let service = Self {
            name: name.to_owned(),
            pid: peer.pid.as_raw_nonzero().get().unsigned_abs(),
            config,
            _first: Some(first),
        };
        service.ask("status")?;
        Ok(service)
    }

    /// Returns the name of the service.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of the socket at which programs register.
    pub fn control_socket(&self) -> PathBuf {
        run_dir(&self.name).join("control.sock")
    }

    /// Replaces the configuration file and runs `tidelane reload`. If the command fails, the inner
    /// error is the command's standard error.
    pub fn reload(&self, config: &str) -> Result<Result<(), String>, Stop> {
        fs::write(&self.config, config)?;
        let tidelane = tools::binary("tidelane")?;
        let output = Command::new(tidelane)
            .args(["reload", "--name", &self.name])
            .output()?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(if output.status.success() {
            Ok(())
        } else {
            Err(errors)
        })
    }

    /// Replaces the configuration file and sends SIGHUP to the service. The service then reads the
    /// file and logs the result.
    pub fn hang_up(&self, config: &str) -> Result<(), Stop> {
        fs::write(&self.config, config)?;
        send_signal(self.pid, Signal::HUP)
    }

    /// Returns the process id of the service, in the PID namespace of the tests.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends the request `op`, such as `status`, to the admin socket. Returns the answer.
    pub fn ask(&self, op: &str) -> Result<Value, Stop> {
        let mut stream = UnixStream::connect(run_dir(&self.name).join("admin.sock"))?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        writeln!(stream, "{}", json!({ "op": op }))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|e| Stop::Fail(format!("{op} answered {line:?}: {e}")))
    }

    /// Returns the sockets that `tidelane ss` shows, as the service's JSON.
    pub fn sockets(&self) -> Result<Vec<Value>, Stop> {
        let answer = self.ask("ss")?;
        Ok(answer["sockets"].as_array().cloned().unwrap_or_default())
    }

    /// Returns the sockets of the process `pid`.
    pub fn sockets_of(&self, pid: u32) -> Result<Vec<Value>, Stop> {
        let mut sockets = self.sockets()?;
        sockets.retain(|socket| socket["pid"] == pid);
        Ok(sockets)
    }

    /// Returns the counters that `tidelane stat` shows, as the service's JSON.
    pub fn counters(&self) -> Result<Value, Stop> {
        Ok(self.ask("stat")?["counters"].take())
    }

    /// Returns true if the service itself, and not the kernel, has a listener on `port`.
    pub fn has_listener(&self, port: u16) -> Result<bool, Stop> {
        let end = format!(":{port}");
        Ok(self.sockets()?.iter().any(|socket| {
            let local = socket["local"].as_str().unwrap_or_default();
            socket["state"] == "LISTEN" && socket["accelerated"] == true && local.ends_with(&end)
        }))
    }

    /// Returns the resident memory of the service in KiB (VmRSS).
    pub fn resident_kib(&self) -> Result<u64, Stop> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number
            .ok_or_else(|| Stop::Fail("no VmRSS".to_owned()))?
            .parse()?)
    }

    /// Returns the number of the service's open descriptors.
    pub fn descriptors(&self) -> Result<usize, Stop> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid))?.count())
    }

    /// Returns the number of the service's open descriptors, except for the sockets of claims.
    ///
    /// A claim sends the packets of a local port to the service instead of the kernel. Each claim
    /// has a kernel socket that reserves the port. A test for leaks must not count these sockets,
    /// because the service also keeps claims of unused ephemeral ports, in a pool.
    pub fn descriptors_without_claims(&self) -> Result<usize, Stop> {
        let claims = self.counters()?["claims"].as_u64().unwrap_or(0);
        Ok(self.descriptors()?.saturating_sub(claims as usize))
    }

    /// Returns the CPU time that the service has used, user and system.
    pub fn cpu_time(&self) -> Result<Duration, Stop> {
        cpu_time_of(self.pid)
    }

    /// Kills the service process with SIGKILL.
    pub fn kill(&self) -> Result<(), Stop> {
        send_signal(self.pid, Signal::KILL)
    }

    /// Runs `tidelane down`. If the command fails, the failure contains the command's standard
    /// error.
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

    /// Returns true if the service process exists and is not a zombie.
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
            // If `tidelane down` fails, the cleanup process (`crate::guardian`) kills the service.
            let _ = self.down();
        }
    }
}

/// Writes a configuration that admits all users and all network namespaces. Returns the path of the
/// file.
fn open_config(wire: &Wire) -> Result<PathBuf, Stop> {
    let path = wire.scratch().join("open.toml");
    let everybody = "[access]\nnamespaces = ['*']\nusers = ['*']\n";
    fs::write(&path, everybody)?;
    Ok(path)
}

/// Returns the CPU time that all threads of the process `pid` have used, user and system.
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

/// Returns the run directory of the service `name`.
pub fn run_dir(name: &str) -> PathBuf {
    Path::new("/run/tidelane").join(name)
}
