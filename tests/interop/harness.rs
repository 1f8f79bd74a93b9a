//! Tests of the test harness (crate `tidelane-tests`), which makes network namespaces and starts
//! programs. These tests do not start the service (`tidelaned`), so that a failure shows a fault of
//! the harness or of the machine.

use std::{
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Side, Wire, WireOptions, command, command_in, ensure, fail, running, tools,
    wire::SERVER,
};

use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Environment variable that is set in a process that makes a wire (a test network of two network
/// namespaces) and is then killed.
const OWNER_VARIABLE: &str = "TIDELANE_TEST_OWNER";

/// Echo clients and an echo server on the kernel's stack communicate over a wire. The wire sets the
/// kernel's congestion control.
pub fn kernel_echo_over_the_wire() -> Outcome {
    let options = WireOptions {
        congestion: Some("cubic".to_owned()),
        ..Default::default()
    };
    let wire = Wire::with(&options)?;
    let _server = echo_server(&wire, None, 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--connections 4 --seconds 0.5");
    check_load(&client.run(SHORT)?.json()?)?;
    let space = wire.namespace(Side::Client);
    let name = "net.ipv4.tcp_congestion_control";
    let chosen = command_in(&space, &["sysctl", "-n", name])?;
    ensure!(chosen.trim() == "cubic", "congestion control is {chosen}");
    Ok(())
}

/// If the process that made a wire is killed, the namespaces and the directory of the wire are
/// removed. The guardian, a separate process of the harness, removes them.
pub fn a_killed_owner_leaves_nothing() -> Outcome {
    if std::env::var_os(OWNER_VARIABLE).is_some() {
        return own_until_killed();
    }
    tools::require_root()?;
    let child = Command::new(std::env::current_exe()?)
        .env(OWNER_VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let owner = format!("td{}n", child.id());
    let count = || -> Result<usize, tidelane_tests::Stop> {
        let list = command(&["ip", "netns", "list"])?;
        Ok(list.lines().filter(|line| line.starts_with(&owner)).count())
    };
    tools::wait_until(SHORT, "the owner's namespaces", || Ok(count()? == 2))?;
    // The process may still be setting up the wire when it is killed.
    running::send_signal(child.id(), Signal::KILL)?;
    child.wait_with_output()?;
    tools::wait_until(SHORT, "the namespaces to go", || Ok(count()? == 0))?;
    // The guardian removes the directory after the namespaces.
    let directories = || -> Result<usize, tidelane_tests::Stop> {
        Ok(std::fs::read_dir(std::env::temp_dir())?
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&owner))
            .count())
    };
    tools::wait_until(SHORT, "the directories to go", || Ok(directories()? == 0))
}

/// Makes a wire with a running program, and waits to be killed.
fn own_until_killed() -> Outcome {
    let wire = Wire::new()?;
    let _server = echo_server(&wire, None, 7000)?;
    thread::sleep(Duration::from_secs(60));
    fail!("nobody killed the owner");
}

/// `xsk-echo`, a stateless echo server on AF_XDP, answers clients on the kernel's stack. Benches
/// use `xsk-echo` to measure the highest rate that the wire allows.
pub fn stateless_echo_on_af_xdp() -> Outcome {
    let wire = Wire::new()?;
    let echo = wire
        .load_tool(Side::Server, "xsk-echo")?
        .arg("--address")
        .arg(SERVER);
    let mut echo = echo.args("--interface eth1 --port 7000").spawn()?;
    tools::wait_until(SHORT, "the echo to be ready", || {
        ensure!(echo.alive(), "xsk-echo ended: {:?}", echo.output());
        Ok(echo.output().0.contains("echoing"))
    })?;
    for connections in [1, 64] {
        let client = echo_client(&wire, Side::Client, 7000)?
            .arg("--connections")
            .arg(connections);
        check_load(&client.args("--seconds 0.5").run(SHORT)?.json()?)?;
    }
    let to = format!("{SERVER}:7000");
    let short = wire
        .load_tool(Side::Client, "short-client")?
        .arg("--connect")
        .arg(to);
    check_load(
        &short
            .args("--connections 8 --total 500")
            .run(SHORT)?
            .json()?,
    )
}
