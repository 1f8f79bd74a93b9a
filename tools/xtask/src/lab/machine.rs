//! One emulated machine, from its start to its end.

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

/// Name of the emulator's log, among a machine's files.
const EMULATOR_LOG: &str = "emulator.log";
/// Memory in MiB.
const MEMORY_MIB: &str = "3072";
/// Modules beside those of the NICs: what tests do to a network.
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
/// How often a silent machine's time limit is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A machine's task.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The emulator that runs the machine.
    pub emulator: &'a Emulator,
    /// The kernel that it boots.
    pub kernel: &'a Kernel,
    /// Processors of the machine.
    pub processors: Processors,
    /// The emulator's options for its devices.
    pub devices: Vec<String>,
    /// Pairs of tap devices that they need.
    pub taps: Vec<usize>,
    /// Modules that it loads.
    pub modules: Vec<&'static str>,
    /// The shell commands that it runs; descriptor 3 leads to this program.
    pub commands: String,
    /// Where its files are.
    pub directory: PathBuf,
    /// When it must have ended.
    pub limit: Duration,
}

/// How a machine's processors are emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processors {
    /// Two, as fast as this machine emulates them, by its clock.
    Fast,
    /// One, whose clock counts instructions, and goes to the next timer when there is nothing to
    /// do: other work on this machine makes nothing late.
    Counting,
}

impl Processors {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Fast => &["-accel", "tcg,thread=multi", "-smp", "2"],
            // Two nanoseconds for each instruction.
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

/// A machine that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Machine {
    emulator: Child,
    lines: Receiver<String>,
    end: Instant,
    console: PathBuf,
    results: fs::File,
}

impl Machine {
    /// Boots a machine.
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
        // The emulator ends with this process, however that ends.
        let taps = taps::wrapper(&plan.taps);
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

    /// The next line that the machine says. Its end before it said so is an error.
    pub fn line(&mut self) -> Result<String, String> {
        loop {
            if let Some(line) = self.line_within(LOOK)? {
                return Ok(line);
            }
        }
    }

    /// As [`line`](Self::line); nothing if the machine says nothing for so long.
    pub fn line_within(&mut self, wait: Duration) -> Result<Option<String>, String> {
        match self.lines.recv_timeout(wait) {
            Ok(line) => {
                // The file is for whoever looks for a cause; the table does without.
                let _ = writeln!(self.results, "{line}");
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(format!("the machine ended: {}", self.last_words()))
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() > self.end => {
                // What it was about to say comes now.
                self.emulator.kill().map_err(|error| error.to_string())?;
                let last = self.lines.recv().map(Some);
                last.map_err(|_| "the machine was not done in time".to_owned())
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
        }
    }

    /// The last line that the kernel, or else the emulator, said.
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
        // The emulator has no state that outlives it.
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

/// This machine's root, which the emulated one can read and not write.
const SHARED_ROOT: &str =
    "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap";

fn open_log(path: &Path) -> Result<fs::File, String> {
    fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

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
