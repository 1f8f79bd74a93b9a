//! Transfers over a wire with random loss. In each direction, the program `tidelane-impair` loses
//! 5 % of the packets and reorders 5 %, or netem loses 1 % of the frames.
//!
//! A wire is two network namespaces, the server's and the client's. In this module, packets are
//! lost in a third (the middle) namespace between them. An accelerated program runs under `tidelane
//! run`: the service (`tidelaned`) carries its TCP connections instead of the kernel.

use std::time::Duration;

use tidelane_tests::{
    Nginx, Outcome, Running, Side, Stop, Wire, WireOptions, command, ensure,
    impair::{Impairment, impaired_wire},
    nginx::NginxOptions,
    tools::{env_number, require_tools},
    wire::{MIDDLE, SERVER, write_random_file},
};

use crate::support::{check_load, check_same, echo_server};

/// Rate of loss and rate of reordering, in IPv4 packets per million, in each direction.
const IMPAIRED_PPM: u32 = 50_000;

/// Returns a wire that loses and reorders packets for up to `seconds` seconds, and the running
/// program `tidelane-impair`.
fn lossy_wire(seconds: u64) -> Result<(Wire, Running), Stop> {
    let impairment = Impairment {
        loss_ppm: IMPAIRED_PPM,
        reorder_ppm: IMPAIRED_PPM,
    };
    impaired_wire(&WireOptions::default(), &impairment, seconds)
}

/// Tests the wire itself: the kernel's TCP transfers a file over the wire, and frames are lost.
pub fn kernel_bulk() -> Outcome {
    require_tools(&["curl", "nginx", "ethtool"])?;
    let (wire, impair) = lossy_wire(8)?;
    let nginx = Nginx::start(&wire, None, &NginxOptions::default())?;
    let got = wire.scratch().join("got");
    let curl = wire
        .program(Side::Client, "curl")
        .args("-sS --fail --max-time 7");
    let curl = curl
        .arg(format!("http://{SERVER}/1m"))
        .arg("-o")
        .arg(got.display());
    curl.run(Duration::from_secs(20))?;
    check_same(&nginx.file("1m"), &got)?;
    let finished = impair.wait(Duration::from_secs(30))?.success()?;
    let lost = finished
        .stdout
        .split("lost=")
        .skip(1)
        .filter(|rest| !rest.starts_with("0 "));
    ensure!(lost.count() > 0, "no frame was lost: {finished}");
    Ok(())
}

/// curl gets a large file unchanged from an accelerated nginx. TIDELANE_LOSS_MIB is the size of the
/// file in MiB.
pub fn bulk_through_nginx() -> Outcome {
    require_tools(&["curl", "nginx"])?;
    let mib = env_number("TIDELANE_LOSS_MIB", 64);
    let (wire, _impair) = lossy_wire(600)?;
    let service = wire.service()?;
    let nginx = Nginx::start(&wire, Some(&service), &NginxOptions::default())?;
    write_random_file(&nginx.file("bulk"), mib << 20, 7)?;
    let got = wire.scratch().join("got");
    let curl = wire
        .program(Side::Client, "curl")
        .args("-sS --fail --max-time 580");
    let curl = curl
        .arg(format!("http://{SERVER}/bulk"))
        .arg("-o")
        .arg(got.display());
    curl.run(Duration::from_secs(590))?;
    check_same(&nginx.file("bulk"), &got)
}

/// curl gets a large file unchanged from an accelerated nginx. Meanwhile, netem drops 1 % of the
/// frames in each direction, on the ports of a bridge in the middle namespace.
pub fn one_percent_by_netem() -> Outcome {
    require_tools(&["curl", "nginx", "tc", "ethtool"])?;
    let mib = env_number("TIDELANE_LOSS_MIB", 64);
    let wire = Wire::with(&WireOptions {
        middle: true,
        ..WireOptions::default()
    })?;
    let space = wire.namespace(Side::Middle);
    let ip = ["ip", "-n", &space, "link"];
    let bridge = command(&[&ip[..], &["add", "bridge", "type", "bridge"]].concat());
    if bridge.is_err() {
        return Err(Stop::Skip("this kernel has no bridge".to_owned()));
    }
    for port in [MIDDLE.0, MIDDLE.1] {
        command(&[&ip[..], &["set", port, "master", "bridge"]].concat())?;
        let tc = ["tc", "-n", &space, "qdisc", "add", "dev", port, "root"];
        let netem = command(&[&tc[..], &["netem", "loss", "1%", "limit", "10000"]].concat());
        if netem.is_err() {
            return Err(Stop::Skip("this kernel has no netem".to_owned()));
        }
    }
    command(&[&ip[..], &["set", "bridge", "up"]].concat())?;
    // With segmentation offload, netem would drop whole GSO frames, and few of them.
    for (side, line) in [
        (Side::Server, "-K eth1 tso off gso off"),
        (Side::Middle, "-K left gro off"),
        (Side::Middle, "-K right gro off"),
    ] {
        wire.program(side, "ethtool")
            .args(line)
            .run(Duration::from_secs(5))?;
    }
    let service = wire.service()?;
    let nginx = Nginx::start(&wire, Some(&service), &NginxOptions::default())?;
    write_random_file(&nginx.file("bulk"), mib << 20, 7)?;
    let got = wire.scratch().join("got");
    let curl = wire.program(Side::Client, "curl");
    let curl = curl.args("-sS --fail --max-time 80 -o").arg(got.display());
    let curl = curl.arg(format!("http://{SERVER}/bulk")).spawn()?;
    curl.wait(Duration::from_secs(85))?.success()?;
    check_same(&nginx.file("bulk"), &got)?;
    let resent = service.counters()?["retrans_segs"].as_u64();
    ensure!(resent > Some(0), "no segment was sent again");
    Ok(())
}

/// Short connections, 64 at a time, are all served. TIDELANE_LOSS_CONNECTIONS is the number of
/// connections.
pub fn short_connections() -> Outcome {
    let total = env_number("TIDELANE_LOSS_CONNECTIONS", 1000);
    let (wire, _impair) = lossy_wire(600)?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    let client = wire.load_tool(Side::Client, "short-client")?;
    let client = client.arg("--connect").arg(format!("{SERVER}:7000"));
    let client = client
        .args("--connections 64 --bytes 2000 --seconds 570")
        .arg("--total");
    let finished = client.arg(total).run(Duration::from_secs(590))?;
    check_load(&finished.json()?)
}
