//! Programs that tests run in the network namespaces of a wire, the test network ([`crate::wire`]),
//! on the kernel's stack or on a service (`tidelaned`).

use std::{
    fs::File,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::{
    Stop,
    running::{Finished, Running},
    service::Service,
    tools,
    wire::{Side, Wire},
};

/// Number of programs that this process has started. The number makes the names of the programs'
/// output files unique.
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

    /// Adds the arguments in `text`, separated by spaces.
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

    /// If `service` is given, runs the program under `tidelane run` on this service. Otherwise runs
    /// the program on the kernel's stack.
    pub fn on(self, service: Option<&Service>) -> Self {
        match service {
            Some(service) => self.accelerated(service),
            None => self,
        }
    }

    /// Adds the option `--strict` of `tidelane run`. With this option, a call that would otherwise
    /// fall back to the kernel fails.
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

    /// Starts the program, and waits until its standard output contains "ready". Fails if the
    /// program ends first, or is not ready within `limit`, multiplied by the factor
    /// [`patience`](tools::patience).
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
        Ok(Running::new(
            child,
            line.join(" "),
            (stdout_file, stderr_file),
        ))
    }

    /// Starts the program and waits for its end. Fails if the program has not ended within `limit`,
    /// multiplied by the factor [`patience`](tools::patience). Accepts any exit status.
    pub fn finish(self, limit: Duration) -> Result<Finished, Stop> {
        self.spawn()?.wait(limit)
    }

    /// Does the same as [`finish`](Self::finish), but also fails if the exit status is not 0.
    pub fn run(self, limit: Duration) -> Result<Finished, Stop> {
        self.finish(limit)?.success()
    }
}
