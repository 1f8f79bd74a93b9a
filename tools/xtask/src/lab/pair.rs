//! `lab pair`: runs tests between two emulated machines, each with its own kernel.
//!
//! ```text
//!   server's machine                          client's machine
//!   NIC -- emulator ---- socket pair ---- emulator -- NIC
//! ```
//!
//! The link is a pair of connected datagram sockets. Each emulator inherits one socket, so the link
//! ends with the emulators. Each test of `tests/interop/machines.rs` runs on the two machines at
//! the same time: as the server on one machine, and as the client on the other.

use std::{
    collections::BTreeMap,
    fmt,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixDatagram,
    },
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use rustix::io::{FdFlags, fcntl_setfd};

use super::{
    BOOT_MAX, TEST_MAX,
    cells::{self, Cell, Verdict},
    directory,
    emulator::Emulator,
    end_after, interop_command,
    kernels::Kernel,
    machine::{Machine, Plan, Processors},
    nics::Nic,
    program,
};

/// Default pairs of kernels. The server's kernel comes first.
const PAIRS: [&str; 5] = [
    "6.1,6.12",
    "6.12,6.1",
    "6.12,newest",
    "newest,6.12",
    "newest,newest",
];
/// The tests, each with the heading of its column.
const TESTS: [(&str, &str); 6] = [
    ("machines::both_accelerated", "both"),
    ("machines::kernel_client", "kernel client"),
    ("machines::kernel_server", "kernel server"),
    ("machines::over_ipv6", "both, IPv6"),
    ("machines::loss_before_a_kernel_client", "client, loss"),
    ("machines::loss_before_a_kernel_server", "server, loss"),
];
/// Kernel modules with which the tests drop incoming frames: a redirect to an `ifb` interface with
/// netem.
const MODULES: [&str; 3] = ["ifb", "act_mirred", "cls_matchall"];
/// Longest wait for the output of one machine before the output of the other machine is read.
const TURN: Duration = Duration::from_millis(50);

/// Options of `lab pair`.
#[derive(Args, Debug)]
pub struct Options {
    /// Pairs of the server's and the client's kernel, such as 6.1,newest; or all [default: all]
    pairs: Vec<String>,
    /// Kind of NIC of the two machines
    #[arg(long, default_value = "virtio-net")]
    nic: String,
    /// Run only tests whose names contain this text
    #[arg(long)]
    test: Vec<String>,
}

/// The role of a machine in the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Server,
    Client,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "server",
            Self::Client => "client",
        })
    }
}

/// Runs the tests on each pair of kernels, and prints the table.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let is_all = options.pairs.is_empty() || options.pairs.iter().any(|pair| pair == "all");
    let named = options.pairs.iter().map(String::as_str);
    let pairs: Vec<&str> = match is_all {
        true => PAIRS.to_vec(),
        false => named.collect(),
    };
    let nic = Nic::named(&options.nic)?;
    let wanted = |name: &str| {
        options.test.is_empty() || options.test.iter().any(|part| name.contains(part.as_str()))
    };
    let tests = TESTS.iter().map(|(name, _)| *name);
    let tests: Vec<&'static str> = tests.filter(|name| wanted(name)).collect();
    if tests.is_empty() {
        return Err("no such test".to_owned());
    }
    let program = program("tidelane-tests", "interop")?;
    let lab = directory()?;
    let emulator = Emulator::with(nic.device.as_slice(), &lab, end_after(None));
    let device = nic
        .device
        .ok_or_else(|| format!("{} joins no machines", nic.name))?;
    if let Some(reason) = emulator.missing(device) {
        return Err(reason);
    }
    let start = Instant::now();
    let mut rows = Vec::new();
    for pair in pairs {
        let kernels = pair.split_once(',');
        let (server, client) = kernels.ok_or_else(|| format!("{pair} is no pair of kernels"))?;
        let boot = Pair {
            emulator: &emulator,
            name: pair.replace(',', "-"),
            kernels: [
                Kernel::get(server, &lab, end_after(None))?,
                Kernel::get(client, &lab, end_after(None))?,
            ],
            nic,
            tests: &tests,
            program: &program,
            lab: &lab,
        };
        rows.push((pair, boot.run()?));
    }
    print_table(&tests, &rows);
    let cells = rows.iter().flat_map(|(_, cells)| cells.values());
    Ok(cells::print_counts(cells, start.elapsed()))
}

/// Two machines to boot, and the tests to run on them.
struct Pair<'a> {
    emulator: &'a Emulator,
    /// Name of the pair in results and paths.
    name: String,
    /// Kernels of the server's and the client's machine.
    kernels: [Kernel; 2],
    nic: Nic,
    tests: &'a [&'static str],
    /// Path of the test binary.
    program: &'a Path,
    /// Directory of downloaded kernels and built images.
    lab: &'a Path,
}

/// Results of one pair of machines, by test.
type Cells = BTreeMap<&'static str, Cell>;

impl Pair<'_> {
    /// Boots the machines, runs the tests, and returns the results. A test counts as failed if one
    /// of the machines has reported no result of the test.
    fn run(&self) -> Result<Cells, String> {
        let (near, far) = UnixDatagram::pair().map_err(|error| error.to_string())?;
        let mut machines = [
            (Role::Server, self.boot(Role::Server, near.into())?),
            (Role::Client, self.boot(Role::Client, far.into())?),
        ];
        let mut partial = PartialResults::default();
        let mut readers = [cells::Reader::default(), cells::Reader::default()];
        let mut ended = [false; 2];
        let mut cells = Cells::new();
        let mut reason = "a machine ended before this test".to_owned();
        'machines: while ended.contains(&false) {
            for (index, (role, machine)) in machines.iter_mut().enumerate() {
                let line = match machine.line_within(TURN) {
                    _ if ended[index] => continue,
                    Ok(Some(line)) => line,
                    Ok(None) => continue,
                    Err(error) => {
                        reason = format!("the {role}'s machine: {error}");
                        break 'machines;
                    }
                };
                if let Some(version) = line.strip_prefix("booted ") {
                    println!("lab: Linux {version} has booted on the {role}'s machine");
                }
                ended[index] |= line == "end";
                let Some((test, cell)) = readers[index].line(&line) else {
                    continue;
                };
                let known = self.tests.iter().find(|known| **known == test);
                let known = known.ok_or_else(|| format!("unexpected test {test}"))?;
                if let Some(cell) = partial.take(known, *role, cell) {
                    cell.print(&self.name, self.nic.name, known);
                    cells.insert(known, cell);
                }
            }
        }
        for test in self.tests {
            cells.entry(test).or_insert_with(|| {
                let cell = Cell::new(Verdict::Failed(reason.clone()), 0.0);
                cell.print(&self.name, self.nic.name, test);
                cell
            });
        }
        Ok(cells)
    }

    /// Boots the machine with this role. The machine's NIC is attached to the socket `end`. The
    /// emulator inherits the socket, and this process closes its own descriptor.
    fn boot(&self, role: Role, end: OwnedFd) -> Result<Machine, String> {
        let address = match role {
            Role::Server => "52:54:00:00:00:01",
            Role::Client => "52:54:00:00:00:02",
        };
        let device = self.nic.end("link", address);
        let device = device.ok_or_else(|| format!("{} joins no machines", self.nic.name))?;
        fcntl_setfd(&end, FdFlags::empty()).map_err(|error| error.to_string())?;
        let link = format!("dgram,id=link,local.type=fd,local.str={}", end.as_raw_fd());
        let tests = interop_command(self.program, self.tests);
        let count = self.tests.len() as u64;
        let plan = Plan {
            emulator: self.emulator,
            kernel: &self.kernels[role as usize],
            processors: Processors::Fast,
            devices: ["-netdev".to_owned(), link]
                .into_iter()
                .chain(device)
                .collect(),
            taps: Vec::new(),
            modules: [&MODULES[..], &[self.nic.module]].concat(),
            commands: format!(
                "TIDELANE_PEER={role} TIDELANE_PEER_NIC={address} {tests} >&3 2>&1\n"
            ),
            directory: self
                .lab
                .join("pairs")
                .join(&self.name)
                .join(role.to_string()),
            limit: Duration::from_secs(BOOT_MAX + count * TEST_MAX * 2),
        };
        Machine::boot(&plan)
    }
}

/// The results of tests that only one of the two machines has reported so far.
#[derive(Debug, Default)]
struct PartialResults {
    /// The machine's role and the result, by test.
    waiting: BTreeMap<&'static str, (Role, Cell)>,
}

impl PartialResults {
    /// Adds the result of `test` on one machine. Returns the combined result of `test` once both
    /// machines have reported a result.
    fn take(&mut self, test: &'static str, role: Role, cell: Cell) -> Option<Cell> {
        match self.waiting.remove(test) {
            Some((other, first)) if other != role => {
                let mut both = [(other, first), (role, cell)];
                both.sort_by_key(|(role, _)| *role);
                Some(combine(&both))
            }
            _ => {
                self.waiting.insert(test, (role, cell));
                None
            }
        }
    }
}

/// Combines the results of a test on the two machines: the worse verdict, and the longer duration.
/// The text of a failure names the machine.
fn combine(both: &[(Role, Cell); 2]) -> Cell {
    let seconds = both[0].1.seconds.max(both[1].1.seconds);
    let mut failures = String::new();
    let mut skipped = None;
    for (role, cell) in both {
        match &cell.verdict {
            Verdict::Passed(_) => {}
            Verdict::Skipped(reason) => skipped = Some(reason.clone()),
            Verdict::Failed(text) => failures += &format!("on the {role}'s machine:\n{text}\n"),
        }
    }
    let verdict = match (failures.is_empty(), skipped) {
        (false, _) => Verdict::Failed(failures.trim_end().to_owned()),
        (true, Some(reason)) => Verdict::Skipped(reason),
        (true, None) => Verdict::Passed(String::new()),
    };
    Cell::new(verdict, seconds)
}

/// Prints the table, with one line for each pair of kernels.
fn print_table(tests: &[&'static str], rows: &[(&str, Cells)]) {
    print!("\n{:<18}", "server, client");
    for (_, heading) in TESTS.iter().filter(|(name, _)| tests.contains(name)) {
        print!("{heading:<16}");
    }
    println!();
    for (pair, cells) in rows {
        print!("{pair:<18}");
        for test in tests {
            let text = match cells.get(test).map(|cell| (&cell.verdict, cell.seconds)) {
                Some((Verdict::Passed(_), seconds)) => format!("ok {seconds:.0} s"),
                Some((Verdict::Skipped(_), _)) => "skipped".to_owned(),
                Some((Verdict::Failed(_), _)) => "FAILED".to_owned(),
                None => "-".to_owned(),
            };
            print!("{text:<16}");
        }
        println!();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_as_good_as_its_worse_half() {
        let cell = |verdict| Cell::new(verdict, 1.0);
        let passed = || cell(Verdict::Passed(String::new()));
        let failed = || cell(Verdict::Failed("no answer".to_owned()));
        let mut partial = PartialResults::default();
        assert!(partial.take("a", Role::Client, failed()).is_none());
        assert!(partial.take("b", Role::Server, passed()).is_none());
        let combined = partial.take("a", Role::Server, passed()).expect("both");
        let text = "on the client's machine:\nno answer".to_owned();
        assert_eq!(combined.verdict, Verdict::Failed(text));
        let combined = partial.take("b", Role::Client, passed()).expect("both");
        assert_eq!(combined.verdict, Verdict::Passed(String::new()));
    }
}
