//! `make lab`: runs the interop tests on other kernels and NICs, in emulated machines.
//!
//! ```text
//!   kernel package --> RAM disk --> emulator (no KVM, no network) --> results by serial line
//!                                     root: this machine's files, read only; changes in memory
//!                                     NICs: two of each kind, joined by a hub or bridge
//! ```
//!
//! An emulated machine boots one kernel, has all selected NICs, and runs the selected interop tests
//! on each NIC. The printed table has a line for each kernel and NIC, and a column for each test or
//! group of tests. `docs/kernels.md` has the results. The module [`pair`] boots two machines on one
//! link. The module [`scripts`] runs the packet scripts of `tests/conformance` on other kernels.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use tidelane_tests::{
    Stop,
    tools::{find_tool, require_root, target_dir},
};

mod apt;
mod cells;
mod cpio;
mod emulator;
mod image;
mod kernels;
mod machine;
mod nics;
mod pair;
mod scripts;
mod taps;

use cells::{Cell, STARTS, Verdict};
use emulator::{EMULATOR, Emulator};
use kernels::{KERNELS, Kernel, REFUSED};
use machine::{Machine, Plan, Processors};
use nics::{NICS, Nic};

/// Tools without which the laboratory does not start, each with its Debian package.
const TOOLS: [(&str, &str); 6] = [
    (EMULATOR, "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("setpriv", "util-linux"),
    ("apt-get", "apt"),
];
/// Factor for the time limits within tests, because an emulated machine is slower than a real one.
const PATIENCE: u32 = 6;
/// Seconds that a machine may take to boot, as a part of its time limit.
const BOOT_MAX: u64 = 120;
/// Seconds that each test on each NIC adds to the time limit of its machine. The test program, not
/// the laboratory, limits the time of a single test.
const TEST_MAX: u64 = 180;
/// Default time limit of a whole run or of a download, in seconds.
const ALL_MAX: u64 = 24 * 3600;

/// Options of `lab`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    other: Option<Other>,
    /// Kernels, separated by commas: 5.10, 6.1, 6.12, newest, or all
    #[arg(long, default_value = "6.1", value_delimiter = ',')]
    kernel: Vec<String>,
    /// NICs, separated by commas: veth, virtio-net, virtio-net-dma, virtio-net-mq, vmxnet3, e1000e,
    /// igb, or all
    #[arg(long, default_value = "veth,virtio-net", value_delimiter = ',')]
    nic: Vec<String>,
    /// Run only a small selection of tests, which takes some minutes
    #[arg(long)]
    small: bool,
    /// Skip the tests that have not ended after this many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Run only tests whose names contain one of these texts
    filters: Vec<String>,
}

/// Uses of the laboratory other than the table of interop tests.
#[derive(Subcommand, Debug)]
enum Other {
    /// Boot two machines on one link, with a kernel each
    Pair(pair::Options),
    /// Run the packet scripts of tests/conformance on the TCP of several kernels
    Scripts(scripts::Options),
}

/// Returns the reason why the laboratory cannot run here, if it cannot.
pub fn missing_requirement() -> Option<String> {
    if let Err(Stop::Skip(reason)) = require_root() {
        return Some(reason);
    }
    let missing = TOOLS.iter().find(|(tool, _)| find_tool(tool).is_none());
    missing.map(|(tool, package)| format!("no {tool} here; apt-get install {package}"))
}

/// Runs the laboratory and prints its table.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    if let Some(reason) = missing_requirement() {
        return Err(reason);
    }
    match &options.other {
        Some(Other::Pair(options)) => pair::run(options),
        Some(Other::Scripts(options)) => scripts::run(options),
        None => run_table(options),
    }
}

/// Returns the names of the selected kernels. `all` selects every kernel.
fn kernel_names(asked: &[String]) -> Vec<&str> {
    if asked.iter().any(|name| name == "all") {
        KERNELS.iter().map(|(name, _)| *name).collect()
    } else {
        asked.iter().map(String::as_str).collect()
    }
}

/// Returns the directory of downloaded kernels and built images.
fn directory() -> Result<PathBuf, String> {
    std::path::absolute(target_dir().join("lab")).map_err(|error| error.to_string())
}

/// Returns the time at which a run or download that starts now must end. `seconds` is the time
/// limit, by default [`ALL_MAX`].
fn end_after(seconds: Option<u64>) -> Instant {
    Instant::now() + Duration::from_secs(seconds.unwrap_or(ALL_MAX))
}

/// Runs the interop tests on each selected kernel and NIC, and prints the table.
fn run_table(options: &Options) -> Result<ExitCode, String> {
    let kernels = kernel_names(&options.kernel);
    let nics = if options.nic.iter().any(|name| name == "all") {
        NICS.to_vec()
    } else {
        let named = options.nic.iter().map(|name| Nic::named(name));
        named.collect::<Result<_, _>>()?
    };
    let tests = cells::chosen(options.small, &options.filters)?;
    let program = program("tidelane-tests", "interop")?;
    let lab = directory()?;
    let devices: Vec<&str> = nics.iter().filter_map(|nic| nic.device).collect();
    let start = Instant::now();
    let end = end_after(options.seconds);
    let emulator = Emulator::with(&devices, &lab, end);
    let mut results = BTreeMap::new();
    for (index, kernel) in kernels.iter().enumerate() {
        // A kernel in `REFUSED` lacks a feature that the service needs, so only the test `STARTS`
        // runs on this kernel.
        let refused = REFUSED.contains(kernel);
        let tests = tests.iter().filter(|test| !refused || **test == STARTS);
        let machine = KernelRun {
            emulator: &emulator,
            name: kernel,
            nics: &nics,
            tests: tests.copied().collect(),
            program: &program,
            lab: &lab,
            end,
        };
        for ((nic, test), cell) in machine.run() {
            results.insert((index, nic, test), cell);
        }
    }
    cells::print_table(&kernels, &nics, &tests, &results);
    Ok(cells::print_counts(results.values(), start.elapsed()))
}

/// Builds the test `name` of `package`, and returns the path of the test binary.
fn program(package: &str, name: &str) -> Result<PathBuf, String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--package", package, "--test", name]);
    cargo.args(["--no-run", "--message-format", "json"]);
    let output = cargo.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err("the tests do not build".to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = text.lines().map(serde_json::from_str::<serde_json::Value>);
    let mut programs = messages.filter_map(Result::ok).filter_map(|message| {
        let is_ours = message["target"]["name"] == name;
        let path = message["executable"].as_str().filter(|_| is_ours)?;
        Some(PathBuf::from(path))
    });
    programs
        .next()
        .ok_or_else(|| "cargo names no test program".to_owned())
}

/// The place of a result on one kernel: index of the NIC, and name of the test.
type Place = (usize, &'static str);

/// The tests on one kernel: a machine to boot, its NICs, and the tests to run on each NIC.
struct KernelRun<'a> {
    emulator: &'a Emulator,
    /// Name of the kernel.
    name: &'a str,
    nics: &'a [Nic],
    tests: Vec<&'static str>,
    /// Path of the test binary.
    program: &'a Path,
    /// Directory of downloaded kernels and built images.
    lab: &'a Path,
    /// Time at which the run must end.
    end: Instant,
}

impl KernelRun<'_> {
    /// Boots the machine, runs the tests, and returns the results. A test that did not run, for
    /// example because the emulator cannot start or the time is over, has the result
    /// [`Verdict::Skipped`].
    fn run(&self) -> BTreeMap<Place, Cell> {
        let mut cells = BTreeMap::new();
        let mut present = Vec::new();
        for (number, nic) in self.nics.iter().enumerate() {
            match nic.missing(self.emulator) {
                None => present.push((number, *nic)),
                Some(reason) => self.fill(&mut cells, number, &Verdict::Skipped(reason)),
            }
        }
        let reason = match Kernel::get(self.name, self.lab, self.end) {
            Ok(kernel) => self.serve(&kernel, &present, &mut cells).err(),
            Err(reason) => Some(format!("no kernel: {reason}")),
        };
        let reason = reason.unwrap_or_else(|| "the machine did not run it".to_owned());
        for (number, _) in &present {
            self.fill(&mut cells, *number, &Verdict::Skipped(reason.clone()));
        }
        cells
    }

    /// Adds `verdict` as the result of each test that has no result on one NIC yet. `nic` is the
    /// index of the NIC.
    fn fill(&self, cells: &mut BTreeMap<Place, Cell>, nic: usize, verdict: &Verdict) {
        for test in &self.tests {
            cells.entry((nic, *test)).or_insert_with(|| {
                let cell = Cell::new(verdict.clone(), 0.0);
                cell.print(self.name, self.nics[nic].name, test);
                cell
            });
        }
    }

    /// Returns the remaining time of the run.
    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Boots the machine and adds the results of the tests to `cells`. Fails with a reason if the
    /// machine does not boot, if the machine or the time ends before all tests have run, or if the
    /// machine reports an unknown test.
    fn serve(
        &self,
        kernel: &Kernel,
        nics: &[(usize, Nic)],
        cells: &mut BTreeMap<Place, Cell>,
    ) -> Result<(), String> {
        let count = (nics.len() * self.tests.len()) as u64;
        let mut commands = String::new();
        let mut devices = Vec::new();
        let mut taps = Vec::new();
        for (number, (_, nic)) in nics.iter().enumerate() {
            let ends = nic.addresses(number).map(|ends| ends.join(","));
            let ends = ends.map_or(String::new(), |ends| format!("TIDELANE_WIRE_NICS={ends} "));
            let (name, tests) = (nic.name, interop_command(self.program, &self.tests));
            commands += &format!("echo 'nic {name}' >&3\n{ends}{tests} >&3 2>&1\n");
            devices.extend(nic.arguments(number));
            if nic.is_on_taps() {
                taps.push(number);
            }
        }
        let plan = Plan {
            emulator: self.emulator,
            kernel,
            processors: Processors::Fast,
            devices,
            taps,
            modules: nics.iter().map(|(_, nic)| nic.module).collect(),
            commands,
            directory: self.lab.join("machines").join(self.name),
            limit: self
                .left()
                .min(Duration::from_secs(BOOT_MAX + count * TEST_MAX)),
        };
        let mut machine = Machine::boot(&plan)?;
        let booted = Instant::now();
        let mut place = None;
        let mut reader = cells::Reader::default();
        loop {
            let line = machine.line()?;
            if let Some(version) = line.strip_prefix("booted ") {
                let seconds = booted.elapsed().as_secs_f32();
                println!("lab: Linux {version} has booted in {seconds:.1} s");
            } else if let Some(name) = line.strip_prefix("nic ") {
                place = nics.iter().find(|(_, nic)| nic.name == name);
            } else if line == "end" {
                return Ok(());
            } else if let (Some((number, nic)), Some((test, cell))) = (place, reader.line(&line)) {
                let known = self.tests.iter().find(|known| **known == test);
                let known = known.ok_or_else(|| format!("unexpected test {test}"))?;
                if self.left().is_zero() {
                    // The time limit of the run may have caused this result, so drop it.
                    return Err("no time was left".to_owned());
                }
                cell.print(self.name, nic.name, &test);
                cells.insert((*number, *known), cell);
            }
        }
    }
}

/// Returns the shell command that runs interop tests in an emulated machine. The tests run one
/// after another, because tests on an emulated NIC cannot share the NIC.
fn interop_command(program: &Path, tests: &[&str]) -> String {
    let target = std::path::absolute(target_dir()).unwrap_or_else(|_| target_dir());
    let release = target.join("release");
    format!(
        "CARGO_TARGET_DIR='{}' TIDELANE_BIN_DIR='{}' TIDELANE_PATIENCE={PATIENCE} \
         TIDELANE_TEST_JOBS=1 {} '{}' --exact {}",
        target.display(),
        release.display(),
        cells::SIZES,
        program.display(),
        tests.join(" ")
    )
}
