//! While the service (`tidelaned`) is stopped, the demux leaves new connections to the kernel. The
//! demux is the XDP program that otherwise passes the packets of accelerated ports to the service.
//!
//! An accelerated program runs under `tidelane run`: the service carries its TCP connections
//! instead of the kernel.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tidelane_tests::{Outcome, Side, Stop, Wire, ensure, running::send_signal, tools};

use crate::support::{SHORT, check_load, echo_client, echo_server};

/// Time after which the kernel must answer in place of a stopped service.
const KERNEL_WITHIN: Duration = Duration::from_secs(1);

/// The service is stopped by SIGSTOP under load. After a second the kernel's listener accepts new
/// connections. When the service continues, its connections continue without an error.
pub fn a_stopped_service_leaves_new_connections_to_the_kernel() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let mut server = echo_server(&wire, Some(&service), 7000)?;
    let load = echo_client(&wire, Side::Client, 7000)?;
    let load = load.args("--connections 4 --seconds 6").spawn()?;
    tools::wait_until(SHORT, "connections", || {
        let sockets = service.sockets_of(server.pid())?;
        Ok(sockets
            .iter()
            .filter(|s| s["state"] == "ESTABLISHED")
            .count()
            == 4)
    })?;
    ensure!(
        wire.kernel_connections(Side::Server, 7000)? == 0,
        "the kernel has connections while the service lives"
    );

    send_signal(service.pid(), Signal::STOP)?;
    thread::sleep(KERNEL_WITHIN);
    // The kernel must answer the first SYN. The client would retransmit it after a second.
    let start = Instant::now();
    let probe = wire.program(Side::Client, "timeout").args("5 bash -c");
    let probe = probe.arg("exec 3<>/dev/tcp/10.77.0.1/7000").finish(SHORT)?;
    let took = start.elapsed();
    // Meanwhile the client retransmits segments of the accelerated connections. The kernel must not
    // answer these segments, because its answer would be a reset.
    thread::sleep(KERNEL_WITHIN);
    // Continue the service before any check can fail: a stopped service cannot be shut down.
    send_signal(service.pid(), Signal::CONT)?;
    ensure!(probe.status.success(), "the kernel did not answer: {probe}");
    ensure!(
        took < Duration::from_millis(900),
        "the answer took {took:?}"
    );

    check_load(&load.wait(SHORT)?.success()?.json()?)?;
    let counters = service.counters()?;
    ensure!(
        counters["demux_no_heartbeat"].as_u64() > Some(0),
        "no frame was left to the kernel: {counters}"
    );
    // The watchdog, a thread of the service that detects a hanging core (a packet-processing
    // thread), was stopped, too. It must not mistake the pause for a hang.
    let again = echo_client(&wire, Side::Client, 7000)?.args("--connections 4 --seconds 2");
    let again = again.spawn()?;
    tools::wait_until(SHORT, "accelerated connections again", || {
        let sockets = service.sockets_of(server.pid())?;
        Ok(sockets
            .iter()
            .filter(|s| s["state"] == "ESTABLISHED")
            .count()
            >= 4)
    })?;
    check_load(&again.wait(SHORT)?.success()?.json()?)?;
    ensure!(server.alive() && service.alive(), "a process ended");
    Ok(())
}

/// A working service writes heartbeats for the demux. After 0.8 s without a heartbeat, the demux
/// leaves new connections to the kernel. An idle service sleeps and writes no heartbeats, here for
/// 1.5 s. The demux nevertheless passes the next frame to the service.
pub fn a_service_that_slept_has_the_next_frame() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(1500));
        let client = echo_client(&wire, Side::Client, 7000)?;
        let client = client.args("--connections 4 --warmup 0 --seconds 0.3");
        check_load(&client.run(SHORT)?.json()?)?;
    }
    let counters = service.counters()?;
    ensure!(counters["demux_no_heartbeat"] == 0, "{counters}");
    Ok(())
}

/// A core, which is a packet-processing thread of the service, shares its CPU with programs that
/// never sleep. The service gives the core real-time priority over the programs for a while, so
/// that the core serves its connections.
///
/// One program runs in the session of the service, and starves the core: the core is in the idle
/// scheduling class, and the kernel compares the classes within a session. Four programs run in
/// other sessions (`setsid`). The kernel shares the CPU among the sessions, so that the core would
/// also need real-time priority without the first program. These four alone do not always starve
/// the core.
pub fn a_core_has_precedence_over_busy_programs() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service_with(Side::Server, &["--cores", "0"])?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    // The loop ends when the parent process of the shell is gone, so that no loop outlives the
    // test.
    let endless = "while [ -d /proc/$PPID ]; do :; done";
    let busy = |program: &str, args: &str| {
        let program = wire.program(Side::Server, program).cpus("0");
        program.args(args).arg(endless).spawn()
    };
    let mut busy_programs = vec![busy("sh", "-c")?];
    for _ in 0..4 {
        busy_programs.push(busy("setsid", "--wait sh -c")?);
    }
    let boosts = || -> Result<u64, Stop> {
        let counters = service.counters()?;
        let boosts = counters["core_boosts"].as_u64();
        boosts.ok_or_else(|| Stop::Fail(format!("no boosts: {counters}")))
    };
    let before = boosts()?;
    let load = echo_client(&wire, Side::Client, 7000)?.args("--connections 4 --seconds 6");
    let load = load.spawn()?;
    tools::wait_until(SHORT, "a core in the real-time class", || {
        Ok(core_policy(service.pid())? == SCHED_RR)
    })?;
    check_load(&load.wait(SHORT)?.success()?.json()?)?;
    ensure!(boosts()? > before, "the service counts no boost");
    tools::wait_until(SHORT, "a core that is not in the real-time class", || {
        Ok(core_policy(service.pid())? != SCHED_RR)
    })?;
    ensure!(service.alive(), "the service ended");
    drop(busy_programs);
    Ok(())
}

/// The number of the scheduling class SCHED_RR in `/proc/PID/task/TID/stat`.
const SCHED_RR: u32 = 2;

/// Returns the scheduling class of the first core of the service whose process id is `service`.
fn core_policy(service: u32) -> Result<u32, Stop> {
    for task in fs::read_dir(format!("/proc/{service}/task"))? {
        let stat = fs::read_to_string(task?.path().join("stat"))?;
        let Some((name, fields)) = stat.rsplit_once(')') else {
            continue;
        };
        if name.ends_with("(tdl-core-0") {
            let policy = fields.split_whitespace().nth(38);
            let policy = policy.and_then(|policy| policy.parse().ok());
            return policy.ok_or_else(|| Stop::Fail(stat.clone()));
        }
    }
    Err(Stop::Fail("the service has no core".into()))
}
