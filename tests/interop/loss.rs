//! 5 % random loss and reordering in each direction, by an eBPF program in a middle namespace.

use std::time::Duration;

use tidelane_tests::{
    Nginx, Outcome, Running, Side, Stop, Wire, WireOptions, ensure,
    nginx::NginxOptions,
    tools::{self, env_number, require_tools},
    wire::{MIDDLE, SERVER, write_random_file},
};

use crate::support::{check_load, check_same, echo_server};

/// Lost and reordered frames per million, in each direction.
const IMPAIRED_PPM: u32 = 50_000;

fn lossy_wire(seconds: u64) -> Result<(Wire, Running), Stop> {
    let wire = Wire::with(&WireOptions {
        middle: true,
        ..Default::default()
    })?;
    let path = tools::binary("tidelane-impair")?;
    let impair = wire.program(Side::Middle, &path.to_string_lossy());
    let impair = impair.arg("--in").arg(MIDDLE.0).arg("--out").arg(MIDDLE.1);
    let impair = impair
        .arg("--loss")
        .arg(IMPAIRED_PPM)
        .arg("--reorder")
        .arg(IMPAIRED_PPM);
    let mut impair = impair.arg("--seconds").arg(seconds).spawn()?;
    tools::wait_until(Duration::from_secs(10), "the lossy wire", || {
        ensure!(
            impair.alive(),
            "tidelane-impair ended: {:?}",
            impair.written()
        );
        Ok(impair.written().0.contains("ready"))
    })?;
    // What is redirected into a veth arrives only if its other end has NAPI.
    for side in [Side::Server, Side::Client] {
        wire.program(side, "ethtool")
            .args("-K eth1 gro on")
            .run(Duration::from_secs(5))?;
    }
    Ok((wire, impair))
}

/// The kernel's own TCP gets through this wire, and the wire does lose frames.
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

/// One large file through nginx arrives byte for byte (1 GiB with TIDELANE_LOSS_MIB=1024).
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

/// Short connections, each complete (10,000 with TIDELANE_LOSS_CONNECTIONS=10000).
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
