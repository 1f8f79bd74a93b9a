//! The Tidelane service: chooses the back ends, then runs a host on them for each fast-path core.
//!
//! Threads: each `tdl-core-N` drives its host over its queues of the interface ([`core`]); the main
//! thread serves registrations, netlink and the admin socket ([`control`]); watchdogs see to it
//! that a shared CPU does not starve a core.

mod admin;
mod claims;
mod config;
mod control;
mod core;
mod cores;
mod fast_open;
mod runtime;
mod session;
mod sockets;
mod sys;

use std::{fmt::Display, os::fd::OwnedFd, process::ExitCode, sync::Arc, thread::JoinHandle};

use clap::Parser;
use rustix::event::EventfdFlags;
use tidelane_af_xdp::{XdpConfig, XdpPort};
use tidelane_engine::{EngineConfig, IpFields, IpOptions};
use tidelane_host::{Host, Interface, Siblings};
use tidelane_ring::ServicePageMap;
use tidelane_steering::{
    Demux,
    mirror::{LinkKind, LinkRecord, Mirror},
};
use tidelane_time::Duration;
use tidelane_wire::MacAddress;

use crate::{
    claims::Claims,
    config::Config,
    control::{Control, Parts},
    core::{CoreConfig, CoreHost},
    cores::{CoreBell, Cores},
    runtime::RunDir,
};

/// The number of the NIC's link in the engine: the memory wire has zero.
const NIC_LINK: u16 = 1;

fn main() -> ExitCode {
    let config = Config::parse();
    match serve(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("tidelaned: {text}");
            ExitCode::FAILURE
        }
    }
}

/// Says what failed, in one line.
fn because<E: Display>(what: &str) -> impl FnOnce(E) -> String + '_ {
    move |error| format!("{what}: {error}")
}

fn serve(config: &Config) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root (AF_XDP and eBPF); use sudo".to_owned());
    }
    runtime::raise_descriptor_limit();
    let signals = sys::block_signals().map_err(because("cannot block signals"))?;
    sys::allow_interrupts().map_err(because("cannot handle a signal"))?;
    let mirror = Mirror::open().map_err(because("cannot read the kernel's network state"))?;
    let link = mirror.link_by_name(&config.interface).cloned();
    let link = link.ok_or(format!(
        "no interface {} here (see: ip link)",
        config.interface
    ))?;
    if !link.up {
        let name = &config.interface;
        return Err(format!(
            "interface {name} is down; use: ip link set {name} up"
        ));
    }
    let run_dir = RunDir::open(&config.name).map_err(|error| error.to_string())?;
    let (ports, demux) = open_queues(&link)?;
    let cpus = config.cpus();
    check_queues(&link, ports.len(), cpus.len())?;
    let (page, page_fd) =
        ServicePageMap::create(cpus.len() as u32).map_err(because("cannot make shared memory"))?;
    let page = Arc::new(page);
    let notify = eventfd().map_err(because("cannot make an eventfd"))?;
    let (cores, threads) = start_cores(config, &mirror, &link, ports, &page, &notify)?;
    let parts = Parts {
        cores: cores.clone(),
        claims: Claims::new(demux),
        page: (page, page_fd),
        mirror,
        ifindex: link.ifindex,
        notify,
        signals,
    };
    let served = Control::new(parts, &run_dir)
        .map_err(because("cannot open the run directory"))
        .and_then(|mut control| control.run().map_err(because("control thread")));
    cores.stop();
    let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
    let panicked = joined.iter().any(Result::is_err);
    served.and(if panicked {
        Err("the fast path panicked".to_owned())
    } else {
        Ok(())
    })
}

/// A core without a queue could not send.
fn check_queues(link: &LinkRecord, queues: usize, cores: usize) -> Result<(), String> {
    if cores <= queues {
        return Ok(());
    }
    let name = &link.name;
    let more = match link.kind {
        LinkKind::Veth => format!("rx {cores} tx {cores}"),
        _ => format!("combined {cores}"),
    };
    Err(format!(
        "{name} has {queues} queue(s) for {cores} cores, which need one each; use: ethtool -L \
         {name} {more}"
    ))
}

/// Nonblocking, and behind a shared pointer, since several threads ring it.
fn eventfd() -> rustix::io::Result<Arc<OwnedFd>> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map(Arc::new)
}

/// Opens an AF_XDP port on each queue and attaches the demux that feeds them.
fn open_queues(link: &LinkRecord) -> Result<(Vec<XdpPort>, Demux), String> {
    let xdp = match link.kind {
        LinkKind::Veth => XdpConfig::for_veth(),
        _ => XdpConfig::default(),
    };
    let queues = tidelane_af_xdp::queue_counts(&link.name)
        .map_err(because("cannot read the number of queues"))?
        .rx;
    let mut demux =
        Demux::load_and_attach(link.ifindex, queues).map_err(|error| error.to_string())?;
    let ports = (0..queues)
        .map(|queue| XdpPort::open_index(link.ifindex, queue, &xdp))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    for port in &ports {
        demux
            .register_xsk(port.queue(), port.fd())
            .map_err(|error| error.to_string())?;
    }
    Ok((ports, demux))
}

/// Starts a core on each CPU that was named. Queue `q` is core `q mod cores`'.
fn start_cores(
    config: &Config,
    mirror: &Mirror,
    link: &LinkRecord,
    ports: Vec<XdpPort>,
    page: &Arc<ServicePageMap>,
    notify: &Arc<OwnedFd>,
) -> Result<(Cores, Vec<JoinHandle<()>>), String> {
    let cpus = config.cpus();
    let bells = cpus
        .iter()
        .map(|_| eventfd())
        .collect::<Result<Vec<_>, _>>();
    let bells = bells.map_err(because("cannot make an eventfd"))?;
    let siblings = Siblings::of(cpus.len(), |core| {
        Box::new(CoreBell {
            page: page.clone(),
            core: core as u32,
            bell: bells[core].clone(),
        })
    });
    let mut queues: Vec<Vec<XdpPort>> = cpus.iter().map(|_| Vec::new()).collect();
    for (queue, port) in ports.into_iter().enumerate() {
        queues[queue % cpus.len()].push(port);
    }
    let secret = new_secret()?;
    let mut handles = Vec::new();
    let mut threads = Vec::new();
    for (siblings, ports) in siblings.into_iter().zip(queues) {
        let number = handles.len();
        let wake_fds = ports.iter().map(|port| port.fd().try_clone_to_owned());
        let wake_fds = wake_fds.collect::<Result<Vec<OwnedFd>, _>>();
        let host = make_host(config, mirror, link, secret, ports)?.beside(siblings);
        let notify = notify.clone();
        let core_config = CoreConfig {
            number: number as u32,
            cpu: cpus[number],
            spin: Duration::from_micros(config.spin_us),
            wake_fds: wake_fds.map_err(because("cannot copy a descriptor"))?,
            bell: bells[number].clone(),
            page: page.clone(),
            notify_control: Box::new(move || cores::ring(&*notify)),
        };
        let started = core::start(host, core_config);
        let (handle, thread) = started.map_err(because("cannot start the fast path"))?;
        handles.push(handle);
        threads.push(thread);
    }
    Ok((Cores::new(handles), threads))
}

fn make_host(
    config: &Config,
    mirror: &Mirror,
    link: &LinkRecord,
    secret: [u8; 16],
    ports: Vec<XdpPort>,
) -> Result<CoreHost, String> {
    let mac = link.mac.ok_or("the interface has no link-layer address")?;
    let interface = Interface {
        link: tidelane_engine::LinkId(NIC_LINK),
        mac: MacAddress(mac.0),
        mtu: link.mtu,
        addresses: control::addresses_of(mirror, link.ifindex),
    };
    let engine = EngineConfig {
        ip: usual_headers(&link.name),
        ..config.engine()
    };
    Host::new(engine, secret, interface, ports).map_err(because("cannot map memory"))
}

/// DiffServ field and TTL of connections whose program sets none: the kernel's own defaults
/// (RFC 1122 §3.2.1.7), as they are when the service starts.
fn usual_headers(interface: &str) -> IpOptions {
    let hops = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let usual = IpFields::default();
        let hop_limit = text.trim().parse().unwrap_or(usual.hop_limit);
        IpFields { hop_limit, ..usual }
    };
    IpOptions {
        v4: hops("/proc/sys/net/ipv4/ip_default_ttl"),
        v6: hops(&format!("/proc/sys/net/ipv6/conf/{interface}/hop_limit")),
    }
}

/// What keys sequence numbers and hashes: random, and another one at each start (RFC 6528 §3).
fn new_secret() -> Result<[u8; 16], String> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())
        .map_err(because("cannot get random bytes"))?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rfc6528_section_3_each_start_has_a_secret_of_its_own() {
        let secrets: BTreeSet<_> = (0..100).map(|_| new_secret().expect("bytes")).collect();
        assert_eq!(secrets.len(), 100);
        // Every byte of it.
        for at in 0..16 {
            let values: BTreeSet<u8> = secrets.iter().map(|secret| secret[at]).collect();
            assert!(values.len() > 10, "byte {at}");
        }
    }
}
