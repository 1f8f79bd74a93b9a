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

use super::{emulator::Emulator, image, kernels::Kernel, nics::Nic};

/// Memory in MiB, and processors.
const MEMORY_MIB: &str = "3072";
const PROCESSORS: &str = "2";
/// Modules beside those of the NICs: what tests do to a network.
const MODULES: &str =
    "veth bridge sch_netem 8021q bonding team macvlan ipvlan tun dummy wireguard vrf";

/// A machine's task.
#[derive(Debug)]
pub struct Plan<'a> {
    /// What emulates it.
    pub emulator: &'a Emulator,
    /// The kernel that it boots.
    pub kernel: &'a Kernel,
    /// Its NICs, and for each the shell command that is run with the environment of that NIC.
    pub runs: Vec<(Nic, String)>,
    /// Where its files are.
    pub directory: PathBuf,
    /// When it must have ended.
    pub limit: Duration,
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
        let mut command = plan.emulator.command(&["setpriv", "--pdeathsig", "KILL"]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-no-reboot"]);
        command.args(["-m", MEMORY_MIB, "-smp", PROCESSORS]);
        command.arg("-kernel").arg(&plan.kernel.image);
        command.arg("-initrd").arg(&ram_disk);
        command.args(["-append", "console=ttyS0 panic=-1 quiet"]);
        command.arg("-serial");
        command.arg(format!("file:{}", console.display()));
        command.args(["-serial", "stdio", "-virtfs", SHARED_ROOT]);
        command.args(["-nic", "none"]);
        for (number, (nic, _)) in plan.runs.iter().enumerate() {
            command.args(nic.arguments(number));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(open_log(&plan.directory.join("emulator.log"))?);
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

    /// The next line that the machine says; none after its end.
    pub fn line(&mut self) -> Result<Option<String>, String> {
        let left = self.end.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => {
                // The file is for whoever looks for a cause; the table does without.
                let _ = writeln!(self.results, "{line}");
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err("the machine was not done in time".to_owned()),
        }
    }

    /// The end of what the kernel said.
    pub fn console(&self) -> String {
        let bytes = fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
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
    let mut runs = String::new();
    let mut modules = MODULES.to_owned();
    for (number, (nic, command)) in plan.runs.iter().enumerate() {
        let nics = nic.addresses(number).map(|ends| ends.join(","));
        let nics = nics.map_or(String::new(), |ends| format!("TIDELANE_WIRE_NICS={ends} "));
        let name = nic.name;
        runs += &format!("echo 'nic {name}' >&3\n{nics}{command} >&3 2>&1\n");
        modules += " ";
        modules += nic.module;
    }
    let base = plan.kernel.modules();
    include_str!("guest.sh")
        .replace("@MODULES@", &modules)
        .replace("@BASE@", &absolute(&base).to_string_lossy())
        .replace("@RUNS@", runs.trim_end())
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
