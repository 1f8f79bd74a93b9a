//! Programs that tests run in the network namespaces of a wire, the test network ([`crate::wire`]),
//! on the kernel's stack or on a service (`tidelaned`).

use std::{
    fs::{self, File},
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::{
    Stop,
    service::Service,
    tools,
    wire::{Side, Wire},
};

/// Number of programs that this process has started, which makes the names of their output files
/// unique.
static PROGRAMS: AtomicU32 = AtomicU32::new(0);

/// A program that is not started yet: its command line, namespace, CPUs and stack.
#[derive(Debug)]
pub struct Program {
    namespace: String,
    /// Directory of the output files, and the program's working directory.
    scratch: PathBuf,
    /// The program's path or name, then its arguments.
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    cpus: Option<String>,
    /// Name of the service to use. `None` stands for the kernel's stack.
    service: Option<String>,
    /// Options of `tidelane run`.
    run_options: Vec<String>,
    /// True if the program runs in the scheduling class SCHED_IDLE.
    sched_idle: bool,
}

/// The result of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Command line, for messages.
    pub line: String,
}

/// A program that was started. `drop` kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Command line, for messages.
    line: String,
    /// File of the standard output.
    stdout_file: PathBuf,
    /// File of the standard error.
    stderr_file: PathBuf,
}

impl Program {
    /// Returns the program `name`, a path or a tool's name, for the namespace of `side`.
    pub(crate) fn new(wire: &Wire, side: Side, name: &str) -> Self {
        let name = tools::find_tool(name).map_or(name.to_owned(), |p| p.display().to_string());
        Self {
            namespace: wire.namespace(side),
            scratch: wire.scratch().to_path_buf(),
            arguments: vec![name],
            environment: Vec::new(),
            cpus: None,
            service: None,
            run_options: Vec::new(),
            sched_idle: false,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl ToString) -> Self {
        self.arguments.push(argument.to_string());
        self
    }

    /// Adds the arguments in `text`, which spaces separate.
    pub fn args(mut self, text: &str) -> Self {
        self.arguments
            .extend(text.split_whitespace().map(str::to_owned));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Binds the program to a list of CPUs, such as `1` or `0,1`.
    pub fn cpus(mut self, cpus: &str) -> Self {
        self.cpus = Some(cpus.to_owned());
        self
    }

    /// Runs the program in the scheduling class SCHED_IDLE, so that it uses only idle CPU time.
    pub fn sched_idle(mut self) -> Self {
        self.sched_idle = true;
        self
    }

    /// Sets TIDELANE_SOCKET, so that the program registers at `service` by itself, without
    /// `tidelane run`.
    pub fn registering_at(self, service: &Service) -> Self {
        let socket = service.control_socket();
        self.env("TIDELANE_SOCKET", &socket.to_string_lossy())
    }

    /// Runs the program under `tidelane run` on `service`.
    pub fn accelerated(mut self, service: &Service) -> Self {
        self.service = Some(service.name().to_owned());
        self
    }

    /// Runs the program under `tidelane run` on `service` if given, or else on the kernel's stack.
    pub fn on(self, service: Option<&Service>) -> Self {
        match service {
            Some(service) => self.accelerated(service),
            None => self,
        }
    }

    /// Adds the option `--strict` of `tidelane run`, which makes each call fail that would
    /// otherwise fall back to the kernel.
    pub fn strict(self) -> Self {
        self.run_options("--strict")
    }

    /// Adds options of `tidelane run`, separated by spaces.
    pub fn run_options(mut self, options: &str) -> Self {
        self.run_options
            .extend(options.split_whitespace().map(str::to_owned));
        self
    }

    /// Returns the whole command line, with the commands that choose namespace, CPUs and stack.
    fn command_line(&self) -> Result<Vec<String>, Stop> {
        let mut line: Vec<String> = ["ip", "netns", "exec"].map(str::to_owned).to_vec();
        line.push(self.namespace.clone());
        if let Some(cpus) = &self.cpus {
            line.extend(["taskset", "-c", cpus].map(str::to_owned));
        }
        if self.sched_idle {
            line.extend(["chrt", "--idle", "0"].map(str::to_owned));
        }
        if let Some(service) = &self.service {
            line.push(tools::binary("tidelane")?.display().to_string());
            line.extend(["run", "--name", service].map(str::to_owned));
            line.extend(self.run_options.iter().cloned());
            line.push("--".to_owned());
        }
        line.extend(self.arguments.iter().cloned());
        Ok(line)
    }

    /// Starts the program, and waits until its output contains the word "ready". Fails if the
    /// program ends first, or is not ready after `limit` times [`patience`](tools::patience).
    pub fn spawn_ready(self, limit: Duration) -> Result<Running, Stop> {
        let what = format!("{} to be ready", self.arguments[0]);
        let mut running = self.spawn()?;
        tools::wait_until(limit, &what, || {
            running.check_alive()?;
            Ok(running.output().0.contains("ready"))
        })?;
        Ok(running)
    }

    /// Starts the program. [`Running::pid`] is the process id of the program itself, because each
    /// command before it in the command line executes the next one in the same process.
    pub fn spawn(self) -> Result<Running, Stop> {
        let line = self.command_line()?;
        let number = PROGRAMS.fetch_add(1, Ordering::Relaxed);
        let stdout_file = self.scratch.join(format!("program-{number}.out"));
        let stderr_file = self.scratch.join(format!("program-{number}.err"));
        let child = Command::new(&line[0])
            .args(&line[1..])
            .envs(self.environment)
            .stdin(Stdio::null())
            .stdout(File::create(&stdout_file)?)
            .stderr(File::create(&stderr_file)?)
            .current_dir(&self.scratch)
            .spawn()?;
        Ok(Running {
            child,
            line: line.join(" "),
            stdout_file,
            stderr_file,
        })
    }

    /// Starts the program and waits for its end. Accepts any exit status.
    pub fn finish(self, limit: Duration) -> Result<Finished, Stop> {
        self.spawn()?.wait(limit)
    }

    /// Starts the program and waits for its end. Fails unless the exit status is 0.
    pub fn run(self, limit: Duration) -> Result<Finished, Stop> {
        self.finish(limit)?.success()
    }
}

impl Finished {
    /// Returns `self` if the exit status is 0, or else a failure with the output.
    pub fn success(self) -> Result<Self, Stop> {
        if self.status.success() {
            return Ok(self);
        }
        Err(Stop::Fail(self.to_string()))
    }

    /// Parses the last line of standard output as JSON.
    pub fn json(&self) -> Result<Value, Stop> {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).map_err(|error| Stop::Fail(format!("{error}: {self}")))
    }

    /// Returns the number of the signal that ended the program, if a signal did.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            status,
            stdout,
            stderr,
            line,
        } = self;
        write!(
            f,
            "{line}\n  {status}\n  stdout: {}\n  stderr: {}",
            tail(stdout),
            tail(stderr)
        )
    }
}

/// Returns the last 2000 bytes of a text, for a message.
fn tail(text: &str) -> &str {
    let mut from = text.len().saturating_sub(2000);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].trim_end()
}

impl Running {
    /// Returns the process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the program has not ended.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Fails if the program has ended. The failure contains the output.
    pub fn check_alive(&mut self) -> Result<(), Stop> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(Stop::Fail(format!("it ended: {}", self.finished(status)))),
        }
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) -> Result<(), Stop> {
        send_signal(self.pid(), signal)
    }

    /// Waits for the program's end, at most for `limit`. Returns true if the program has ended.
    pub fn ends_within(&mut self, limit: Duration) -> Result<bool, Stop> {
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > limit {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(true)
    }

    /// Kills the program, and all of its process group if the program leads one.
    pub fn kill_group(&self) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // The first call fails if the program leads no process group.
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Waits for the program's end. Kills the program and fails if it has not ended within `limit`
    /// times [`tools::patience`].
    pub fn wait(mut self, limit: Duration) -> Result<Finished, Stop> {
        let limit = limit * tools::patience();
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(self.finished(status));
            }
            if start.elapsed() > limit {
                let _ = self.child.kill();
                let status = self.child.wait()?;
                let finished = self.finished(status);
                return Err(Stop::Fail(format!(
                    "did not end within {limit:?}: {finished}"
                )));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the standard output and the standard error that the program has written so far.
    pub fn output(&self) -> (String, String) {
        let read = |path| {
            fs::read(path)
                .map(|b| String::from_utf8_lossy(&b).into_owned())
                .unwrap_or_default()
        };
        (read(&self.stdout_file), read(&self.stderr_file))
    }

    /// Sends `signal` and waits for the program's end, as [`wait`](Self::wait) does.
    pub fn signal_and_wait(self, signal: Signal, limit: Duration) -> Result<Finished, Stop> {
        self.signal(signal)?;
        self.wait(limit)
    }

    /// Returns the result of the ended program.
    fn finished(&self, status: ExitStatus) -> Finished {
        let (stdout, stderr) = self.output();
        Finished {
            status,
            stdout,
            stderr,
            line: self.line.clone(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The cleanup process (`crate::guardian`) later kills the program's children in the
        // namespace.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to the process `pid`.
pub fn send_signal(pid: u32, signal: Signal) -> Result<(), Stop> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Stop::Fail("no such process id".to_owned()))?;
    kill_process(pid, signal).map_err(|error| Stop::Fail(io::Error::from(error).to_string()))
}
