//! A service (`tidelaned`) with two fast-path cores, which are its packet-processing threads. If
//! the environment variable TIDELANE_CORES is 2, the cases of other modules have two cores, too.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. An
//! accelerated program runs under `tidelane run`: the service, not the kernel, carries the
//! program's TCP connections.

use std::time::Duration;

use tidelane_tests::{
    Outcome, Service, Side, Stop, Wire, command_in, ensure,
    service::run_dir,
    tools::require_tools,
    wire::{INTERFACE, SERVER, WireOptions},
};

use crate::{
    commands::{check_refusal, tidelane},
    support::{SHORT, check_load, check_not_in_kernel, echo_client, echo_server},
};

/// Makes a wire whose interfaces have `queues` queues.
fn wire(queues: u64) -> Result<Wire, Stop> {
    Wire::with(&WireOptions {
        queues: Some(queues),
        ..WireOptions::default()
    })
}

/// Returns the counter `name` of the service, or 0 if there is none.
fn counter(service: &Service, name: &str) -> Result<u64, Stop> {
    Ok(service.counters()?[name].as_u64().unwrap_or(0))
}

/// Returns the number of frames that each queue of the server's interface has received, from the
/// driver's counters. Returns an empty list if the driver has no counters per queue.
fn frames_by_queue(wire: &Wire) -> Result<Vec<u64>, Stop> {
    let ethtool = wire
        .program(Side::Server, "ethtool")
        .args("-S")
        .arg(INTERFACE);
    let text = ethtool.run(SHORT)?.stdout;
    let mut all = Vec::new();
    for (name, count) in text.lines().filter_map(|line| line.trim().split_once(": ")) {
        let rest = name.strip_prefix("rx_queue_").or(name.strip_prefix("rx"));
        let Some((queue, what)) = rest.and_then(|rest| rest.split_once('_')) else {
            continue;
        };
        // Some drivers have a separate counter of the frames that reach an XDP program.
        if let (Ok(queue), "packets" | "xdp_packets") = (queue.parse::<usize>(), what) {
            all.resize(all.len().max(queue + 1), 0);
            all[queue] += count.trim().parse::<u64>()?;
        }
    }
    Ok(all)
}

/// A service with two cores serves kernel clients and accelerated clients. If the driver counts
/// frames per queue, each queue must receive more than a tenth of the frames of short connections.
/// If a frame arrives at one core and the frame's connection belongs to the other core, the first
/// core hands the frame over. The cores hand over some frames, but not all. The service lists the
/// listener once.
pub fn both_have_connections() -> Outcome {
    require_tools(&["ethtool"])?;
    let wire = wire(2)?;
    let service = wire.service_on_cores(Side::Server, "0,1", &[])?;
    ensure!(service.ask("status")?["cores"] == 2, "not two cores");
    let server = echo_server(&wire, Some(&service), 7000)?;
    let sockets = service.sockets_of(server.pid())?;
    ensure!(sockets.len() == 1, "one listener is shown as {sockets:?}");
    for load in [
        "--connections 1",
        "--connections 64",
        "--connections 8 --bytes 200000",
    ] {
        let remote = echo_client(&wire, Side::Client, 7000)?.args(load);
        let remote = remote.args("--seconds 1").spawn()?;
        let local = echo_client(&wire, Side::Server, 7000)?.args(load);
        let local = local.args("--seconds 1").accelerated(&service).strict();
        let local = local.spawn()?;
        std::thread::sleep(Duration::from_millis(600));
        check_not_in_kernel(&wire, 7000)?;
        check_load(&remote.wait(SHORT)?.success()?.json()?)?;
        check_load(&local.wait(SHORT)?.success()?.json()?)?;
    }
    let before = frames_by_queue(&wire)?;
    let short = wire.load_tool(Side::Client, "short-client")?;
    let short = short.arg("--connect").arg(format!("{SERVER}:7000"));
    let short = short.args("--connections 16 --total 2000 --seconds 60");
    check_load(&short.run(SHORT * 5)?.json()?)?;
    let after = frames_by_queue(&wire)?;
    let taken: Vec<u64> = before.iter().zip(&after).map(|(a, b)| b - a).collect();
    let least = taken.iter().sum::<u64>() / 10;
    if taken.is_empty() {
        println!("NOTE: frames not counted by queue");
    }
    ensure!(
        taken.is_empty() || taken.len() == 2 && taken.iter().all(|frames| *frames > least),
        "of 2000 connections the queues took {taken:?} frames"
    );
    let frames = counter(&service, "in_frames")?;
    let handed_over = counter(&service, "handed_over")?;
    ensure!(
        handed_over > 0 && handed_over < frames,
        "{handed_over} of {frames} frames were for the other core"
    );
    Ok(())
}

/// `tidelane up` refuses a CPU that the machine does not have, and reports an unknown option of the
/// service.
pub fn no_such_cpu() -> Outcome {
    let wire = wire(1)?;
    let name = wire.namespace(Side::Server);
    for cpu in ["99", "1000"] {
        let up = tidelane(
            &wire,
            &format!("up {INTERFACE} --name {name} --cores {cpu}"),
        )?;
        check_refusal(&up.finish(SHORT)?, &format!("no CPU {cpu} for a core"))?;
    }
    let up = tidelane(
        &wire,
        &format!("up {INTERFACE} --name {name} -- --no-such-option"),
    )?;
    check_refusal(&up.finish(SHORT)?, "unexpected argument '--no-such-option'")
}

/// `tidelane up` refuses to start more cores than the interface has queues. The message has an
/// `ethtool` command. After this command, the service starts.
pub fn too_few_queues() -> Outcome {
    let wire = wire(1)?;
    let space = wire.namespace(Side::Server);
    let up = format!("up {INTERFACE} --name {space} --cores 0,1");
    let advice = format!("ethtool -L {INTERFACE} rx 2 tx 2");
    check_refusal(&tidelane(&wire, &up)?.finish(SHORT)?, &advice)?;
    ensure!(!run_dir(&space).exists(), "the run directory exists");
    command_in(&space, &advice.split(' ').collect::<Vec<_>>())?;
    wire.service_on_cores(Side::Server, "0,1", &[]).map(drop)
}
