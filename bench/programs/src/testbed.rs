//! A testbed: a wire with a running server at one end, on the kernel or on Tidelane. A wire is a
//! veth pair between two network namespaces. A lossy wire has two veth pairs, and between them a
//! third namespace, in which a program drops packets. A socket is accelerated if Tidelane carries
//! its connections instead of the kernel.

use std::{
    cell::{Cell, RefCell},
    fs,
    path::PathBuf,
    time::Duration,
};

use rustix::process::Signal;
use tidelane_programs::packages::search_path;
use tidelane_tests::{
    Nginx, Program, Running, Service, Side, Stop, Wire, WireOptions, command,
    impair::{Impairment, impaired_wire},
    nginx::NginxOptions,
    tools::wait_until,
    wire::{CLIENT, SERVER, write_random_file},
};

use crate::catalog::Entry;

/// Port of the HTTP server behind a proxy.
const ORIGIN_PORT: u16 = 8000;
/// Names and sizes in bytes of the random files that servers serve.
const FILES: [(&str, u64); 4] = [
    ("64", 64),
    ("1k", 1024),
    ("100k", 100 << 10),
    ("1m", 1 << 20),
];
/// Lost packets per million in each direction of a lossy wire.
const LOSS_PPM: u32 = 10_000;
/// Time limit in seconds of the program that drops packets. The program ends after this time.
const LOSSY_SECONDS: u64 = 900;

/// The kind of a testbed: the server's stack, and whether the wire loses packets.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// True if the server is on Tidelane.
    pub accelerated: bool,
    /// True if the wire drops 1 % of the packets of each direction.
    pub lossy: bool,
}

impl Kind {
    /// A server on the kernel.
    pub const PLAIN: Self = Self {
        accelerated: false,
        lossy: false,
    };
    /// A server on Tidelane.
    pub const ACCELERATED: Self = Self {
        accelerated: true,
        lossy: false,
    };
    /// A server on the kernel, with packet loss.
    pub const LOSSY: Self = Self {
        accelerated: false,
        lossy: true,
    };
}

/// A testbed for one program of the catalogue: a wire, and the program's server at one end.
///
/// The field `wire` stands after the processes. Drop therefore ends the processes before it
/// removes their network namespaces.
#[derive(Debug)]
pub struct Testbed<'a> {
    /// The catalogue entry of the program.
    pub entry: &'a Entry,
    /// The server's process.
    pub server: RefCell<Running>,
    /// The Tidelane service on the server's side. `None` if the server is on the kernel.
    pub service: Option<Service>,
    /// The HTTP server behind a proxy. `None` if the program forwards no requests to an HTTP
    /// server.
    _origin: Option<Nginx>,
    /// The program that drops packets. `None` without packet loss.
    _loss: Option<Running>,
    /// The wire.
    pub wire: Wire,
    /// Folder of the server's files. Its path replaces the placeholder `{home}` of the catalogue.
    home: PathBuf,
    /// Number of paths that [`Self::output`] has returned so far.
    outputs: Cell<u32>,
    /// True if the service learned of a listener on the server's port when the server started. Set
    /// to false later if the service is killed and does not have the listener at that time.
    pub had_listener: bool,
}

impl<'a> Testbed<'a> {
    /// Builds the wire, starts the server, and waits until the server is ready.
    pub fn new(entry: &'a Entry, kind: Kind) -> Result<Self, Stop> {
        let (wire, loss) = if kind.lossy {
            let impairment = Impairment {
                loss_ppm: LOSS_PPM,
                reorder_ppm: 0,
            };
            let (wire, loss) = impaired_wire(&WireOptions::default(), &impairment, LOSSY_SECONDS)?;
            (wire, Some(loss))
        } else {
            (Wire::new()?, None)
        };
        let home = wire.scratch().join("home");
        write_files(entry, &home)?;
        let origin = entry
            .origin
            .then(|| start_origin(&wire, &home))
            .transpose()?;
        let service = kind.accelerated.then(|| wire.service()).transpose()?;
        prepare(entry, &wire, &home)?;
        let program = server_program(entry, &wire, &home);
        let server = program.on(service.as_ref()).spawn()?;
        let mut testbed = Self {
            entry,
            server: RefCell::new(server),
            service,
            _origin: origin,
            _loss: loss,
            wire,
            home,
            outputs: Cell::new(0),
            had_listener: false,
        };
        testbed.wait_ready()?;
        Ok(testbed)
    }

    /// Waits until the server is ready, and until the service knows the server's listener.
    /// `had_listener` stays false if the service does not learn of the listener in time.
    fn wait_ready(&mut self) -> Result<(), Stop> {
        let entry = self.entry;
        let limit = Duration::from_secs(entry.server.seconds);
        wait_until(limit, "the server to listen", || {
            self.server.borrow_mut().check_alive()?;
            self.wire.listens(Side::Server, entry.port)
        })?;
        if let Some(ready) = &entry.server.ready {
            wait_until(limit, "the server to be ready", || {
                self.server.borrow_mut().check_alive()?;
                let asked = self.shell(Side::Server, &self.fill(ready)).finish(limit)?;
                Ok(asked.status.success())
            })?;
        }
        if let Some(service) = &self.service {
            // If the preloaded library leaves the program to the kernel, the service never learns
            // of the listener. The wait is shorter in this case.
            let patience = Duration::from_secs(if entry.kernel.is_some() { 1 } else { 5 });
            let listener = wait_until(patience, "a listener", || service.has_listener(entry.port));
            self.had_listener = listener.is_ok();
        }
        Ok(())
    }

    /// Replaces the placeholders in a command or a file.
    pub fn fill(&self, text: &str) -> String {
        fill(self.entry, &self.home, text)
    }

    /// Returns a shell that executes `text` in the namespace of one side.
    pub fn shell(&self, side: Side, text: &str) -> Program {
        shell(&self.wire, side, text)
    }

    /// Returns the path of the file `name` in `{www}` or, if `{www}` has no such file, in `{home}`.
    pub fn file(&self, name: &str) -> PathBuf {
        let served = self.home.join("www").join(name);
        if served.is_file() {
            served
        } else {
            self.home.join(name)
        }
    }

    /// Returns the path of a new file for the output of a client.
    pub fn output(&self) -> PathBuf {
        self.outputs.set(self.outputs.get() + 1);
        self.wire
            .scratch()
            .join(format!("client-{}.out", self.outputs.get()))
    }

    /// Starts the service on the server's side again after the service was killed. Does nothing if
    /// the server is on the kernel.
    pub fn service_again(&mut self) -> Result<(), Stop> {
        if let Some(dead) = &self.service {
            self.service = Some(self.wire.service_again(dead)?);
        }
        Ok(())
    }

    /// Returns the reason why `tidelane run` left the server's sockets to the kernel. Returns
    /// `None` if the server's standard error has no such reason.
    pub fn reason(&self) -> Option<String> {
        let (_, errors) = self.server.borrow().output();
        let left = |line: &&str| line.starts_with("tidelane: ") && line.contains("with the kernel");
        let line = errors.lines().find(left)?;
        Some(line.trim_start_matches("tidelane: ").to_owned())
    }

    /// Returns the reason for which a socket on the server's port is not accelerated. The command
    /// `tidelane ss` shows this reason. Returns `None` if no socket on the port has a reason.
    pub fn reason_of_sockets(&self) -> Option<String> {
        let port = format!(":{}", self.entry.port);
        let sockets = self.service.as_ref()?.sockets().ok()?;
        let local = |socket: &serde_json::Value| {
            socket["local"]
                .as_str()
                .is_some_and(|local| local.ends_with(&port))
        };
        let reasons = sockets.iter().filter(|socket| local(socket));
        let printed = |socket: &serde_json::Value| socket["reason"].as_str().map(str::to_owned);
        reasons
            .filter_map(printed)
            .find(|reason| !reason.is_empty())
    }

    /// Returns the CPU seconds of all processes on the server's side: the server and its service.
    pub fn cpu_seconds(&self) -> Result<f64, Stop> {
        let space = self.wire.namespace(Side::Server);
        let pids = command(&["ip", "netns", "pids", &space])?;
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let ticks = pids.split_whitespace().filter_map(ticks_of);
        Ok(ticks.sum::<u64>() as f64 / per_second)
    }

    /// Returns the last lines of the server's output, on one line.
    pub fn server_words(&self) -> String {
        let (output, errors) = self.server.borrow().output();
        let text = format!("{output}\n{errors}");
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        lines[lines.len().saturating_sub(4)..].join(" | ")
    }

    /// Sends SIGTERM to the server, and waits up to two seconds for its end. The server can
    /// therefore shut down completely before the wire is removed.
    pub fn end(self) {
        // Ignore errors, because the wire's cleanup process kills the remaining processes.
        let _ = self.server.borrow().signal(Signal::TERM);
        let _ = self.server.borrow_mut().ends_within(Duration::from_secs(2));
    }
}

/// Returns the user and system time of a process and of its ended children, in clock ticks.
fn ticks_of(pid: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    fields
        .get(11..15)?
        .iter()
        .map(|field| field.parse::<u64>().ok())
        .sum()
}

/// Replaces all placeholders in `text`.
fn fill(entry: &Entry, home: &std::path::Path, text: &str) -> String {
    entry
        .fill(text)
        .replace("{www}", &home.join("www").display().to_string())
        .replace("{home}", &home.display().to_string())
        .replace("{out}", &home.with_file_name("out").display().to_string())
        .replace("{server}", &SERVER.to_string())
        .replace("{client}", &CLIENT.to_string())
        .replace("{origin}", &format!("{CLIENT}:{ORIGIN_PORT}"))
}

fn shell(wire: &Wire, side: Side, text: &str) -> Program {
    let program = wire.program(side, "/bin/sh").arg("-c").arg(text);
    program
        .env("PATH", &search_path())
        .env("HOME", &wire.scratch().display().to_string())
}

/// Writes the random files, a file `text` with lines of hexadecimal digits, and the files of the
/// entry.
fn write_files(entry: &Entry, home: &std::path::Path) -> Result<(), Stop> {
    let www = home.join("www");
    fs::create_dir_all(&www)?;
    fs::create_dir_all(home.with_file_name("out"))?;
    for (index, (name, len)) in FILES.iter().enumerate() {
        write_random_file(&www.join(name), *len, 1 + index as u64)?;
    }
    let bytes = fs::read(www.join("100k"))?;
    let lines = bytes.chunks(32).map(|chunk| {
        let digits = chunk.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>() + "\n"
    });
    let text: String = lines.collect();
    fs::write(www.join("text"), text)?;
    for (name, text) in &entry.files {
        fs::write(home.join(name), fill(entry, home, text))?;
    }
    Ok(())
}

/// Starts the HTTP server behind a proxy, with the random files.
fn start_origin(wire: &Wire, home: &std::path::Path) -> Result<Nginx, Stop> {
    let options = NginxOptions {
        workers: 1,
        port: ORIGIN_PORT,
        ..Default::default()
    };
    let origin = Nginx::start_behind(wire, &options)?;
    for (name, _) in FILES {
        fs::copy(home.join("www").join(name), origin.file(name))?;
    }
    Ok(origin)
}

/// Makes the server's user the owner of `home`, and executes the entry's `prepare` command.
fn prepare(entry: &Entry, wire: &Wire, home: &std::path::Path) -> Result<(), Stop> {
    let limit = Duration::from_secs(entry.server.seconds.max(60));
    if let Some(user) = &entry.server.user {
        command(&["chown", "-R", user, &home.display().to_string()])?;
    }
    if let Some(prepare) = &entry.server.prepare {
        shell(wire, Side::Server, &fill(entry, home, prepare)).run(limit)?;
    }
    Ok(())
}

/// Returns the program that executes the server's command as the server's user.
fn server_program(entry: &Entry, wire: &Wire, home: &std::path::Path) -> Program {
    let line = fill(entry, home, &entry.server.command);
    let mut words = line.split_whitespace();
    let program = match &entry.server.user {
        Some(user) => {
            let program = wire.program(Side::Server, "setpriv");
            let change = format!("--reuid {user} --regid {user} --init-groups --");
            let name = words.next().unwrap_or_default();
            program.args(&change).arg(name)
        }
        None => wire.program(Side::Server, words.next().unwrap_or_default()),
    };
    let program = words.fold(program, |program, word| program.arg(word));
    program
        .env("PATH", &search_path())
        .env("HOME", &home.display().to_string())
}
