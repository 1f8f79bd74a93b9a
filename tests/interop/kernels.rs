//! The start of the service (`tidelaned`) on the present kernel and NIC. Either the log names the
//! XDP mode, or `tidelane up` names the kernel version that the service needs.

use std::fs;

use tidelane_tests::{
    Outcome, Side, Wire, command, ensure, fail, tools::require_tools, wire::INTERFACE,
};

use crate::{
    commands::{check_refusal, tidelane},
    support::SHORT,
};

/// The oldest kernel with all features that the service needs (`docs/kernels.md`).
const OLDEST: (u32, u32) = (5, 11);
/// The oldest kernel with AF_XDP's transmit metadata, by which the service requests that the NIC
/// computes a checksum.
const TX_METADATA: (u32, u32) = (6, 11);
/// The oldest kernel whose virtio-net driver applies transmit metadata.
const TX_METADATA_OF_VIRTIO: (u32, u32) = (7, 3);

/// Returns the major and minor version of the running kernel.
fn release() -> Result<(u32, u32), tidelane_tests::Stop> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = text.split(['.', '-']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => fail!("no version in {text}"),
    }
}

/// On a kernel older than [`OLDEST`], `tidelane up` fails and names the required version. On other
/// kernels the log names the XDP mode that `ip link` shows. If the service cannot use native XDP or
/// transmit metadata, the log and `tidelane stat` report the missing feature. Transmit metadata
/// needs copy mode (no zero-copy) and an interface with tx-checksumming.
pub fn starts_or_says_why() -> Outcome {
    require_tools(&["ethtool"])?;
    let wire = Wire::new()?;
    let release = release()?;
    if release < OLDEST {
        let finished = tidelane(&wire, "up eth1 --name never")?.finish(SHORT)?;
        println!("NOTE: refused");
        return check_refusal(&finished, "boot Linux 5.11 or later");
    }
    let service = wire.service()?;
    let space = wire.namespace(Side::Server);
    let link = command(&["ip", "-n", &space, "-d", "link", "show", INTERFACE])?;
    let generic = link.contains("xdpgeneric");
    ensure!(generic || link.contains(" xdp"), "no XDP program: {link}");
    let mode = if generic { "generic" } else { "native" };
    let log = fs::read_to_string(format!("/var/log/tidelane/{}.log", service.name()))?;
    let line = format!("{INTERFACE}: {mode} XDP, ");
    let line = log.lines().find_map(|text| text.split_once(&line));
    let Some((_, rest)) = line else {
        fail!("the kernel runs the program in {mode} mode, and the log says: {log}");
    };
    let zero_copy = !rest.contains(" 0 with zero-copy");
    println!("NOTE: {mode}{}", if zero_copy { ", zero-copy" } else { "" });

    let stat = tidelane(&wire, &format!("stat --name {}", service.name()))?;
    let said = stat.run(SHORT)?.stderr;
    let has = |words: &str| said.contains(words) && log.contains(words);
    ensure!(
        has("generic XDP takes") == generic,
        "in {mode} mode, stat says: {said}, the log: {log}"
    );
    let features = wire.program(Side::Server, "ethtool").args("-k eth1");
    let features = features.run(SHORT)?.stdout;
    let offload = features.contains("tx-checksumming: on");
    let driver = wire.program(Side::Server, "ethtool").args("-i eth1");
    let driver = driver.run(SHORT)?.stdout;
    let oldest = match driver.contains("driver: virtio_net") {
        true => TX_METADATA_OF_VIRTIO,
        false => TX_METADATA,
    };
    ensure!(
        has("transmit metadata") == (!offload || zero_copy || release < oldest),
        "on Linux {release:?} stat says: {said}, the log: {log}"
    );
    Ok(())
}
