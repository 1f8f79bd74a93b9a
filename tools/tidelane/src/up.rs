//! `tidelane up`: starts the service (`tidelaned`) in the background and waits until it is ready.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, SeekFrom},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    net::{AddressFamily, SocketType, socket},
};
use tidelane_places::{LOG, TrustedDir};

use crate::{
    admin::{ServiceName, sibling_path},
    failure::{Context, Failure},
};

/// Time limit for the service to become ready.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Prefix of the lines that the service logs.
const OWN_LINE: &str = "tidelaned: ";
/// Prefix of the error line of the service's option parser.
const USAGE_ERROR: &str = "error: ";
/// Interval between two checks for readiness.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Options of `up`.
#[derive(Args, Debug)]
pub struct Options {
    /// Interface to serve, such as eth1
    interface: String,
    #[command(flatten)]
    service: ServiceName,
    /// CPUs of the service, with one fast-path core on each: 1, or 1,3, or 0-3
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// Congestion control of new connections: cubic (default), newreno, dctcp or bbr
    #[arg(long, value_name = "ALGORITHM", value_parser = ["cubic", "newreno", "dctcp", "bbr"])]
    congestion: Option<String>,
    /// ECN: off, on (request it), or asked (accept it if the peer requests it; default)
    #[arg(long, value_name = "WHEN", value_parser = ["off", "on", "asked"])]
    ecn: Option<String>,
    /// Mode of the XDP program that takes the packets: native (in the driver), generic (slower, but
    /// works with every driver), or auto (native if the driver supports it; default)
    #[arg(long, value_name = "MODE", value_parser = ["auto", "native", "generic"])]
    xdp: Option<String>,
    /// Configuration file [default: /etc/tidelane/NAME.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Reaction to rules of the host (nftables, tc, cgroup programs) that do not apply to
    /// accelerated connections: refuse (do not start; default), or bypass (start all the same,
    /// because Tidelane's own rules replace them)
    #[arg(long, value_name = "MODE", value_parser = ["refuse", "bypass"])]
    firewall: Option<String>,
    /// Further options for tidelaned
    #[arg(last = true)]
    rest: Vec<String>,
}

/// Starts the service, and returns when the service answers.
pub fn up(options: &Options) -> Result<(), Failure> {
    check_machine(&options.interface)?;
    let service = &options.service;
    let _turn = lock_log(Path::new(LOG), service)?;
    if service.is_running() {
        return Err(Failure::new(format!(
            "service {:?} is already running",
            service.name
        )));
    }
    if let Some((name, pid)) = holder_of(&options.interface) {
        return Err(Failure::new(format!(
            "{} is served by service {name:?} (process {pid}); to stop that: tidelane down --name \
             {name}",
            options.interface
        )));
    }
    let daemon = sibling_path("tidelaned")?;
    let mut log = open_log(Path::new(LOG), service).context("cannot open the log")?;
    let log_start = log.seek(SeekFrom::End(0)).context("cannot read the log")?;
    let mut child = spawn(&daemon, options, &log)?;
    wait_ready(service, &mut child).map_err(|stopped| match stopped {
        Stopped::Late => {
            let _ = child.kill();
            let _ = child.wait();
            Failure::new(format!("the service was not ready in {READY_WITHIN:?}"))
        }
        Stopped::Ended(status) => explain_end(&mut log, log_start, &status),
    })?;
    println!(
        "tidelane: service {:?} is up on {}",
        service.name, options.interface
    );
    Ok(())
}

/// Checks that this machine meets the service's needs: root, the interface, and AF_XDP. A failure
/// of this check has a clearer message than a failure of the service.
fn check_machine(interface: &str) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        let text = "up needs root (AF_XDP and eBPF); use: sudo tidelane up";
        return Err(Failure::new(format!("{text} {interface}")));
    }
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None);
    let any = any.map_err(|error| Failure::new(format!("cannot make a socket: {error}")))?;
    if rustix::net::netdevice::name_to_index(&any, interface).is_err() {
        return Err(Failure::new(format!(
            "no interface {interface} here (see: ip link)"
        )));
    }
    match socket(AddressFamily::XDP, SocketType::RAW, None) {
        Err(Errno::AFNOSUPPORT) => {
            let text =
                "this kernel has no AF_XDP; it needs CONFIG_XDP_SOCKETS, Linux 5.11 or later";
            Err(Failure::new(text))
        }
        Err(Errno::PERM | Errno::ACCESS) => Err(Failure::new(
            "AF_XDP is not permitted here; it needs CAP_NET_RAW",
        )),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Opens the service's log in `dir`, and creates `dir` if it does not exist. Fails if `dir` or the
/// log is a symbolic link.
fn open_log(dir: &Path, service: &ServiceName) -> io::Result<File> {
    let (Some(system), Some(own)) = (dir.parent(), dir.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let own = TrustedDir::of_system(system)?.child(&own.to_string_lossy())?;
    let flags = OFlags::CREATE | OFlags::APPEND | OFlags::RDWR;
    let owner_only = Mode::RUSR | Mode::WUSR;
    own.open(&format!("{}.log", service.name), flags, owner_only)
}

/// Locks the service's log until the returned file is closed. Two commands that start a service of
/// the same name at the same time would otherwise read each other's lines in the log. If another
/// command has the lock, waits until the other command ends, for at most twice [`READY_WITHIN`].
fn lock_log(dir: &Path, service: &ServiceName) -> Result<File, Failure> {
    // The lock belongs to this opening of the file. The service inherits another opening, and
    // therefore does not keep the lock.
    let log = open_log(dir, service).context("cannot open the log")?;
    let start = Instant::now();
    while start.elapsed() < 2 * READY_WITHIN {
        match log.try_lock() {
            Ok(()) => return Ok(log),
            Err(TryLockError::WouldBlock) => thread::sleep(ASK_EVERY),
            Err(TryLockError::Error(error)) => {
                return Err(error).context("cannot lock the log");
            }
        }
    }
    Err(Failure::new(format!(
        "another command has started service {:?} and does not end (see: pgrep -a tidelane)",
        service.name
    )))
}

/// Starts the service's process. Its output goes to the log.
fn spawn(daemon: &Path, options: &Options, log: &File) -> Result<Child, Failure> {
    let mut command = Command::new(daemon);
    command.arg("--interface").arg(&options.interface);
    command.arg("--name").arg(options.service.name.as_str());
    if let Some(cores) = &options.cores {
        command.arg("--cores").arg(cores);
    }
    if let Some(congestion) = &options.congestion {
        command.arg("--congestion").arg(congestion);
    }
    if let Some(ecn) = &options.ecn {
        command.arg("--ecn").arg(ecn);
    }
    if let Some(config) = &options.config {
        // The service runs in another working directory.
        let path = std::path::absolute(config);
        command
            .arg("--config")
            .arg(path.context("no working directory")?);
    }
    if let Some(xdp) = &options.xdp {
        command.arg("--xdp").arg(xdp);
    }
    if let Some(firewall) = &options.firewall {
        command.arg("--firewall").arg(firewall);
    }
    let output = || log.try_clone().map(Stdio::from);
    command
        .args(&options.rest)
        // The service runs in a process group of its own, and init adopts the service when this
        // process ends. Therefore the service need not daemonize.
        .arg("--foreground")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output().context("cannot share the log")?)
        .stderr(output().context("cannot share the log")?)
        .process_group(0)
        .spawn()
        .context(format!("cannot start {}", daemon.display()))
}

/// Reason why the service is not ready.
enum Stopped {
    /// The service runs, but has not answered within [`READY_WITHIN`].
    Late,
    /// The process of the service has ended, or its state could not be read. The text is the exit
    /// status or the error.
    Ended(String),
}

/// Waits until the service answers.
fn wait_ready(service: &ServiceName, child: &mut Child) -> Result<(), Stopped> {
    let start = Instant::now();
    while start.elapsed() < READY_WITHIN {
        match child.try_wait() {
            Ok(Some(status)) => return Err(Stopped::Ended(status.to_string())),
            Ok(None) => {}
            Err(error) => return Err(Stopped::Ended(error.to_string())),
        }
        if service.is_running() {
            return Ok(());
        }
        thread::sleep(ASK_EVERY);
    }
    Err(Stopped::Late)
}

/// Returns the name and process id of the service that serves `interface` in this network
/// namespace. Returns `None` if no service does so.
fn holder_of(interface: &str) -> Option<(String, u32)> {
    let namespace_of = |process: &str| {
        let namespace = fs::metadata(format!("/proc/{process}/ns/net")).ok()?;
        Some((namespace.dev(), namespace.ino()))
    };
    let own = namespace_of("self")?;
    let services = fs::read_dir(tidelane_places::RUN).ok()?;
    services.flatten().find_map(|service| {
        let pid = fs::read_to_string(service.path().join("pid")).ok()?;
        let pid: u32 = pid.trim().parse().ok()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let option = [&b"--interface"[..], interface.as_bytes()];
        let serves = words.windows(2).any(|pair| pair == option);
        let here = namespace_of(&pid.to_string()) == Some(own);
        let name = service.file_name().to_string_lossy().into_owned();
        (serves && here).then_some((name, pid))
    })
}

/// Returns the line of the service's output that states the reason for the service's end. Returns
/// `None` if all lines are blank.
///
/// The service's last log line has the reason. If the service logged nothing, the error line of the
/// option parser has the reason, and the lines after the error line only summarize the usage.
/// Without a log line and an error line, the function returns the last line that is not blank.
fn reason(text: &str) -> Option<&str> {
    let with = |start: &'static str| move |line: &&str| line.starts_with(start);
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let own = lines().rev().find_map(|line| line.strip_prefix(OWN_LINE));
    own.or_else(|| lines().find(with(USAGE_ERROR)))
        .or_else(|| lines().next_back())
}

/// Returns the failure for a service that ended, with the reason from the log. `start` is the
/// offset in the log at which the output of this service starts.
fn explain_end(log: &mut File, start: u64, status: &str) -> Failure {
    let mut text = String::new();
    let read = log
        .seek(SeekFrom::Start(start))
        .and_then(|_| log.read_to_string(&mut text));
    match (read, reason(&text)) {
        (Ok(_), Some(line)) => Failure::new(line),
        _ => Failure::new(format!(
            "the service ended at once ({status}) without a message"
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_reason_is_the_services_last_line_or_the_first_error_of_usage() {
        let usage = "error: unexpected argument '--fast' found\n\nUsage: tidelaned [OPTIONS]\n\n\
                     For more information, try '--help'.\n";
        let found = reason(usage).expect("a reason");
        assert!(found.contains("'--fast'"), "{found}");
        let log = "tidelaned: eth1: native XDP\ntidelaned: no queue\n";
        assert_eq!(reason(log), Some("no queue"));
        assert_eq!(reason("Killed\n\n"), Some("Killed"));
        assert_eq!(reason("\n"), None);
    }

    #[test]
    fn a_log_is_not_written_through_a_link() {
        let name = format!("tidelane-log-{}", std::process::id());
        let scratch = std::env::temp_dir().join(name);
        fs::create_dir(&scratch).expect("the directory is new");
        let service = ServiceName {
            name: "one".parse().expect("a name"),
        };
        let dir = scratch.join("tidelane");
        drop(open_log(&dir, &service).expect("the log is created"));
        let log = dir.join("one.log");
        assert!(log.is_file());
        let victim = scratch.join("victim");
        fs::write(&victim, "precious").expect("a file");
        fs::remove_file(&log).expect("the log can be removed");
        symlink(&victim, &log).expect("a link");
        let error = open_log(&dir, &service).expect_err("the log is a link");
        assert!(error.to_string().contains("is a link"), "{error}");
        fs::remove_dir_all(&dir).expect("the directory can be removed");
        symlink(&scratch, &dir).expect("a link");
        open_log(&dir, &service).expect_err("the directory is a link");
        assert_eq!(
            fs::read_to_string(victim).expect("the file exists"),
            "precious"
        );
        fs::remove_dir_all(&scratch).expect("the directory can be removed");
    }
}
