//! Boots one emulated machine for `cargo xtask lab`, reads the machine's output, and ends the
//! machine.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use super::{emulator::Emulator, image, kernels::Kernel, taps};

/// Name of the emulator's log among a machine's files.
const EMULATOR_LOG: &str = "emulator.log";
/// Memory of a machine in MiB.
const MEMORY_MIB: &str = "3072";
/// Kernel modules that the tests need in addition to the drivers of the NICs.
const MODULES: [&str; 12] = [
    "veth",
    "bridge",
    "sch_netem",
    "8021q",
    "bonding",
    "team",
    "macvlan",
    "ipvlan",
    "tun",
    "dummy",
    "wireguard",
    "vrf",
];
/// Interval at which the time limit of a silent machine is checked.
const LIMIT_CHECK: Duration = Duration::from_secs(1);

/// The description of one machine: hardware, kernel and commands.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The emulator that runs the machine.
    pub emulator: &'a Emulator,
    /// The kernel that the machine boots.
    pub kernel: &'a Kernel,
    /// Emulation of the machine's processors.
    pub processors: Processors,
    /// The emulator's options for the machine's devices.
    pub devices: Vec<String>,
    /// Numbers of the pairs of tap devices that the machine's NICs need.
    pub taps: Vec<usize>,
    /// Kernel modules that the machine loads in addition to `MODULES`.
    pub modules: Vec<&'static str>,
    /// Shell commands to run. [`Machine::line`] returns the lines that the commands write to
    /// descriptor 3.
    pub commands: String,
    /// Folder for the machine's files and logs.
    pub directory: PathBuf,
    /// Time limit from the boot to the end of the machine.
    pub limit: Duration,
}

/// The emulation of a machine's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processors {
    /// Two processors that run as fast as possible. The guest (the emulated machine) has the clock
    /// of the host (the machine that runs the emulator).
    Fast,
    /// One processor. The guest's clock counts instructions, and jumps to the next timer while the
    /// guest is idle. The load of the host then does not delay the guest's timers.
    Counting,
}

impl Processors {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Fast => &["-accel", "tcg,thread=multi", "-smp", "2"],
            // With `shift=1` an instruction takes two nanoseconds of the guest's time.
            Self::Counting => &[
                "-accel",
                "tcg,thread=single",
                "-smp",
                "1",
                "-icount",
                "shift=1,sleep=off",
            ],
        }
    }
}

/// A running machine. Dropping it ends the machine.
#[derive(Debug)]
pub struct Machine {
    emulator: Child,
    /// Lines of the machine's output.
    lines: Receiver<String>,
    /// Time after which [`Machine::line_within`] kills the emulator of a silent machine.
    end: Instant,
    /// Path of the log of the console of the guest's kernel.
    console: PathBuf,
    /// Log of the machine's output.
    results: fs::File,
}

impl Machine {
    /// Starts the emulator, which boots the machine.
    pub fn boot(plan: &Plan<'_>) -> Result<Self, String> {
        fs::create_dir_all(&plan.directory).map_err(|error| error.to_string())?;
        let write = |name: &str, data: &[u8]| {
            let path = plan.directory.join(name);
            fs::write(&path, data).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok::<_, String>(path)
        };
        let guest = write("guest.sh", guest_script(plan).as_bytes())?;
        let ram_disk = write("ram-disk", &image::ram_disk(plan.kernel, &guest)?)?;
        let console = write("console.log", b"")?;
        let results = open_log(&plan.directory.join("results.log"))?;
        let taps = taps::wrapper(&plan.taps);
        // `setpriv` makes the host's kernel kill the emulator when this process ends, even if
        // SIGKILL ends this process.
        let guard = ["setpriv", "--pdeathsig", "KILL"];
        let wrapper: Vec<&str> = guard
            .into_iter()
            .chain(taps.iter().map(String::as_str))
            .collect();
        let mut command = plan.emulator.command(&wrapper);
        command.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        command.args(plan.processors.arguments());
        command.args(["-m", MEMORY_MIB, "-cpu", "max", "-no-reboot"]);
        command.arg("-kernel").arg(&plan.kernel.image);
        command.arg("-initrd").arg(&ram_disk);
        command.args(["-append", "console=ttyS0 panic=-1 quiet"]);
        command.arg("-serial");
        command.arg(format!("file:{}", console.display()));
        command.args(["-serial", "stdio", "-virtfs", SHARED_ROOT]);
        command.args(["-nic", "none"]).args(&plan.devices);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(open_log(&plan.directory.join(EMULATOR_LOG))?);
        let mut emulator = command
            .spawn()
            .map_err(|error| format!("setpriv: {error}"))?;
        let output = emulator.stdout.take().ok_or("no output of the emulator")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            let read = BufReader::new(output).split(b'\n');
            for line in read.map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            emulator,
            lines,
            end: Instant::now() + plan.limit,
            console,
            results,
        })
    }

    /// Waits for the next line of the machine's output. Fails if the machine has ended, or if the
    /// machine's time limit is over.
    pub fn line(&mut self) -> Result<String, String> {
        loop {
            if let Some(line) = self.line_within(LIMIT_CHECK)? {
                return Ok(line);
            }
        }
    }

    /// Waits for the next line as [`line`](Self::line) does, but returns `None` if no line arrives
    /// within `wait`.
    pub fn line_within(&mut self, wait: Duration) -> Result<Option<String>, String> {
        match self.lines.recv_timeout(wait) {
            Ok(line) => {
                // The log only helps to diagnose failures, so ignore a failed write.
                let _ = writeln!(self.results, "{line}");
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(format!("the machine ended: {}", self.last_words()))
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() > self.end => {
                // Kill the emulator. Lines that the emulator wrote before its end still arrive.
                self.emulator.kill().map_err(|error| error.to_string())?;
                let last = self.lines.recv().map(Some);
                last.map_err(|_| "the machine was not done in time".to_owned())
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    /// Returns the last line on the console of the guest's kernel. If the console is empty, returns
    /// the last line of the emulator's log.
    fn last_words(&self) -> String {
        let last = |path: &Path| {
            let text = fs::read(path).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let line = text.lines().rfind(|line| !line.trim().is_empty());
            line.map(|line| line.trim().to_owned())
        };
        let said = last(&self.console).or_else(|| last(&self.console.with_file_name(EMULATOR_LOG)));
        said.unwrap_or_else(|| "nothing was said".to_owned())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Kill the emulator, because the machine has no state to save. Ignore errors, because the
        // emulator may have ended already.
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

/// Value of the emulator's option `-virtfs` that exports the host's root read-only.
const SHARED_ROOT: &str =
    "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap";

fn open_log(path: &Path) -> Result<fs::File, String> {
    fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the script that the machine's PID 1 runs after `init` of the RAM disk has mounted the
/// root.
fn guest_script(plan: &Plan<'_>) -> String {
    let modules = [&MODULES[..], &plan.modules].concat().join(" ");
    let base = plan.kernel.modules();
    include_str!("guest.sh")
        .replace("@MODULES@", &modules)
        .replace("@BASE@", &absolute(&base).to_string_lossy())
        .replace("@RUNS@", plan.commands.trim_end())
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
