//! Confinement: the service (`tidelaned`) has few privileges, so that an intruder who controls the
//! process has few, too.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::Signal;
use tidelane_tests::{Outcome, Side, Stop, Wire, ensure, service::run_dir, tools};

use crate::{
    commands::{check_refusal, tidelane},
    support::{SHORT, check_load, echo_client, echo_server},
};

/// The capabilities that every service needs: CAP_NET_ADMIN, CAP_NET_BIND_SERVICE and CAP_CHOWN.
const NEEDED: u64 = 1 << 12 | 1 << 10 | 1;
/// The capabilities that a service may have. Some kernels and some resource limits require
/// CAP_SYS_NICE and CAP_BPF, too.
const AT_MOST: u64 = NEEDED | 1 << 23 | 1 << 39;

/// Each thread of the service has only the capabilities that the service needs, cannot gain other
/// capabilities, and runs under a seccomp filter. The service writes no core file.
pub fn each_thread_has_only_the_capabilities_that_it_needs() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let mut names = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", service.pid()))? {
        let task = task?.path();
        let status = fs::read_to_string(task.join("status"))?;
        let name = field(&status, "Name:")?.to_owned();
        let set = |field_name| -> Result<u64, Stop> {
            Ok(u64::from_str_radix(field(&status, field_name)?, 16)?)
        };
        let effective = set("CapEff:")?;
        ensure!(
            effective & NEEDED == NEEDED && effective & !AT_MOST == 0,
            "{name} has {effective:#x}"
        );
        ensure!(set("CapPrm:")? == effective, "{name}: {status}");
        for none in ["CapInh:", "CapBnd:", "CapAmb:"] {
            ensure!(set(none)? == 0, "{name}: {none} of {status}");
        }
        for (what, value) in [("NoNewPrivs:", "1"), ("Seccomp:", "2")] {
            ensure!(field(&status, what)? == value, "{name}: {what} of {status}");
        }
        if name.starts_with("tdl-core") {
            // A core, a packet-processing thread, has a nice value that was set before the service
            // gave up CAP_SYS_NICE.
            let stat = fs::read_to_string(task.join("stat"))?;
            let rest = stat.rsplit(')').next().unwrap_or_default();
            let nice = rest.split_whitespace().nth(16);
            ensure!(nice == Some("-10"), "{name} has niceness {nice:?}");
        }
        names.push(name);
    }
    ensure!(
        names.iter().any(|name| name.starts_with("tdl-core")) && names.len() >= 3,
        "threads: {names:?}"
    );
    let limits = fs::read_to_string(format!("/proc/{}/limits", service.pid()))?;
    let core = field(&limits, "Max core file size")?;
    ensure!(
        core.split_whitespace()
            .all(|word| ["0", "bytes"].contains(&word)),
        "{core}"
    );
    let confinement = &service.ask("status")?["confinement"];
    ensure!(confinement["system_calls"] == "filtered", "{confinement}");
    ensure!(
        confinement["capabilities"][0] == "CAP_NET_ADMIN",
        "{confinement}"
    );
    Ok(())
}

/// Returns the rest of the first line of `text` that begins with `name`.
fn field<'a>(text: &'a str, name: &str) -> Result<&'a str, Stop> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.ok_or_else(|| Stop::Fail(format!("no {name} in {text}")))?;
    Ok(line.trim())
}

/// While the service serves, follows network changes, answers the admin socket and stops, the
/// service makes no system call that its seccomp filter denies. A denied call would end the
/// service.
pub fn serving_makes_no_denied_call() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = echo_server(&wire, Some(&service), 7000)?;
    for (side, on) in [(Side::Client, None), (Side::Server, Some(&service))] {
        let client = echo_client(&wire, side, 7000)?;
        let client = client.args("--connections 64 --bytes 20000 --warmup 0 --seconds 1");
        check_load(&client.on(on).run(SHORT)?.json()?)?;
    }
    // The programs of a second service open connections, for which that service reserves ephemeral
    // ports and resolves a neighbour.
    let away = wire.service_with(Side::Client, &[])?;
    let _kernel = echo_server(&wire, None, 7001)?;
    let client = echo_client(&wire, Side::Client, 7001)?;
    let client = client.args("--connections 200 --warmup 0 --seconds 1");
    check_load(&client.accelerated(&away).run(SHORT)?.json()?)?;
    let space = wire.namespace(Side::Server);
    let ip = ["ip", "-n", &space, "address", "add", "dev", "eth1"];
    tidelane_tests::command(&[&ip[..], &["10.77.0.9/24"]].concat())?;
    for op in ["status", "ss", "stat"] {
        service.ask(op)?;
    }
    server.signal_and_wait(Signal::KILL, SHORT)?;
    tools::wait_until(SHORT, "the dead program's listener to go", || {
        Ok(!service.has_listener(7000)?)
    })?;
    for service in [service, away] {
        service.down()?;
        tools::wait_until(Duration::from_secs(5), "the service to end", || {
            Ok(!service.alive())
        })?;
        let log = fs::read_to_string(log_of(service.name()))?;
        ensure!(!log.contains("denied"), "{log}");
        ensure!(
            !run_dir(service.name()).exists(),
            "the run directory still exists: {log}"
        );
    }
    Ok(())
}

/// `tidelane up` refuses to start a service if a symbolic link stands in place of the service's
/// log, run directory or pid file. `tidelane up` also refuses if users other than root may write to
/// the run directory, or if the run directory belongs to another user.
pub fn links_are_not_followed() -> Outcome {
    let wire = Wire::new()?;
    // The start of another service makes the common parent directories.
    let service = wire.service()?;
    let name = format!("{}-bait", service.name());
    let bait = Bait(name.clone());
    let victim = wire.scratch().join("victim");
    fs::write(&victim, "precious")?;
    let up = || tidelane(&wire, &format!("up dead0 --name {name}"))?.finish(SHORT);
    wire.add_dead_end(Side::Server)?;

    symlink(&victim, log_of(&name))?;
    check_refusal(&up()?, "is a link")?;
    fs::remove_file(log_of(&name))?;

    let elsewhere = wire.scratch().join("elsewhere");
    fs::create_dir(&elsewhere)?;
    symlink(&elsewhere, run_dir(&name))?;
    check_refusal(&up()?, "a link")?;
    fs::remove_file(run_dir(&name))?;

    fs::create_dir(run_dir(&name))?;
    symlink(&victim, run_dir(&name).join("pid"))?;
    check_refusal(&up()?, "is a link")?;
    fs::remove_file(run_dir(&name).join("pid"))?;

    fs::set_permissions(run_dir(&name), fs::Permissions::from_mode(0o777))?;
    check_refusal(&up()?, "others may write")?;
    fs::set_permissions(run_dir(&name), fs::Permissions::from_mode(0o755))?;
    std::os::unix::fs::chown(run_dir(&name), Some(65534), None)?;
    check_refusal(&up()?, "user 65534")?;

    ensure!(
        fs::read_to_string(&victim)? == "precious",
        "the target of the link has new contents"
    );
    ensure!(
        fs::read_dir(&elsewhere)?.next().is_none(),
        "the target directory of the link is not empty"
    );
    drop(bait);
    Ok(())
}

/// The name of a service that does not start. `drop` removes the service's log and run directory.
struct Bait(String);

impl Drop for Bait {
    fn drop(&mut self) {
        // Ignore errors, because the log and the run directory may be missing. The first call for
        // the run directory removes a link, and the second call removes a directory.
        let _ = fs::remove_file(log_of(&self.0));
        let _ = fs::remove_file(run_dir(&self.0));
        let _ = fs::remove_dir_all(run_dir(&self.0));
    }
}

/// Returns the path of the log of the service `name`.
fn log_of(name: &str) -> PathBuf {
    Path::new("/var/log/tidelane").join(format!("{name}.log"))
}
