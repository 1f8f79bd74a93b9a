//! The daemon `tidelaned`: opens AF_XDP sockets, attaches the demux, starts the fast-path cores,
//! and serves programs until it is stopped. The demux is the XDP program that decides whether the
//! service or the kernel gets a packet.
//!
//! Threads: each `tdl-core-N` drives a TCP/IP host over its queues of the interface ([`core`]). The
//! main thread serves registrations, netlink and the admin socket ([`control`]). Each core has its
//! own watchdog thread, and so has the main thread. A watchdog ends the service if the watched
//! thread hangs. If programs on the CPU of a core starve the core, the core's watchdog also moves
//! the core to the real-time scheduling class for a while. `tdl-descriptors` threads check
//! descriptors of programs, and `tdl-memory` frees memory.

use std::{
    fmt::Display,
    os::fd::OwnedFd,
    process::ExitCode,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use clap::Parser;
use rustix::{
    event::EventfdFlags,
    thread::{CpuSet, sched_getaffinity},
};
use tidelane_af_xdp::{XdpConfig, XdpError, XdpMode, XdpPort};
use tidelane_engine::{EngineConfig, IpFields, IpOptions};
use tidelane_host::{Host, Interface, JournalMemory, Siblings, StreamMemory};
use tidelane_ring::ServicePageMap;
use tidelane_steering::{
    AttachMode, AttachRequest, Buffers, Demux, Heartbeats,
    firewall::Firewall,
    kernel_tables::{KernelTables, LinkKind, LinkRecord},
    links::{self, Driver},
};
use tidelane_time::Duration;
use tidelane_wire::MacAddress;

use tidelaned::{
    access::{AccessControl, AccessPolicy},
    claims::Claims,
    config::Config,
    confine::{self, Confinement, landlock::Readable},
    control::{Control, Parts},
    core::{self, CoreConfig},
    core_link::CoreLink,
    cores::{self, CoreBell, Cores},
    descriptors::DescriptorThreads,
    firewall::{Guard, Mode},
    kernel,
    kernel_connections::KernelConnections,
    network,
    offloads::Offloads,
    panics,
    restorer::Restorer,
    runtime::{self, RunDir},
    settings::Settings,
    sys,
    watchdog::{self, Progress},
};

/// Link id that a core's TCP engine uses for the core's first NIC queue. Link id 0 is the local
/// path, which connects programs of this host to each other.
const NIC_LINK: u16 = 1;

fn main() -> ExitCode {
    let config = Config::parse();
    panics::abort_on_panic();
    sys::give_memory_back();
    match serve(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("tidelaned: {text}");
            ExitCode::FAILURE
        }
    }
}

/// Returns a function that prefixes an error with the failed action `what`, on one line.
fn because<E: Display>(what: &str) -> impl FnOnce(E) -> String + '_ {
    move |error| format!("{what}: {error}")
}

fn serve(config: &Config) -> Result<(), String> {
    check_machine(config)?;
    runtime::raise_descriptor_limit();
    let signals = sys::block_signals().map_err(because("cannot block signals"))?;
    sys::allow_interrupts().map_err(because("cannot handle a signal"))?;
    // The restorer starts first, while this process has one thread and few open descriptors.
    let (journal, restorer) = start_restorer(config)?;
    let (tables, link) = find_link(config)?;
    let (settings, notices) = Settings::load(&config.file())?;
    let memory = StreamMemory::new(settings.memory);
    let mode = config.firewall.unwrap_or(settings.firewall);
    let (guard, access) = judge_host(config, &link, mode, settings.policy)?;
    let run_dir = RunDir::open(&config.name).map_err(|error| error.to_string())?;
    let sockets = run_dir.listen(access.policy().socket());
    let sockets = sockets.map_err(because("cannot open the run directory"))?;
    let queues = count_queues(config, &link)?;
    // Dropped after the demux: some drivers refuse these offloads while an XDP program is attached.
    let offloads = Arc::new(Mutex::new(Offloads::switch_off(&tables, &link, restorer)?));
    let (ports, demux, mode_warning) = open_queues(&link, queues, config.xdp.into())?;
    let missing_features = describe_packets(&link, &demux, &ports, mode_warning);
    let (page, page_fd) = ServicePageMap::create(config.cpus().len() as u32)
        .map_err(because("cannot make shared memory"))?;
    let page = Arc::new(page);
    let notify = eventfd().map_err(because("cannot make an eventfd"))?;
    let descriptors = DescriptorThreads::new(link.ifindex);
    let descriptors = descriptors.map_err(because("cannot examine sockets"))?;
    let kernel = KernelConnections::open(link.ifindex);
    let kernel = kernel.map_err(because("cannot query the kernel for connections"))?;
    // Give up the rights that serving does not need. Later threads inherit the confinement.
    let confinement = confine(config, &run_dir, &access)?;
    let shares = Shares {
        page: page.clone(),
        notify: notify.clone(),
        heartbeats: demux.heartbeats().clone(),
        memory,
        journal,
    };
    let (cores, threads) = start_cores(config, &tables, &link, ports, &shares)?;
    let progress = Arc::new(Progress::default());
    watchdog::watch_control(progress.clone(), shares.heartbeats)
        .map_err(because("cannot start the watchdog"))?;
    let parts = Parts {
        cores: cores.clone(),
        claims: Claims::new(Box::new(demux)),
        kernel,
        descriptors,
        sockets,
        confinement,
        missing_features,
        page: (page, page_fd),
        kernel_tables: tables,
        ifindex: link.ifindex,
        offloads: offloads.clone(),
        notify,
        signals,
        progress,
        access,
        limits: settings.limits,
        loopback: settings.loopback,
        rules: settings.rules,
        guard,
        config: config.file(),
    };
    notices.log();
    let served = Control::new(parts)
        .map_err(because("control thread"))
        .and_then(|mut control| control.run().map_err(because("control thread")));
    end_cores(&cores, threads);
    served
}

/// Starts the restorer, a process that restores settings and resets connections if the service is
/// killed. Also creates the journal of open connections, which both processes share.
fn start_restorer(config: &Config) -> Result<(JournalMemory, Restorer), String> {
    let cores = config.cpus().len() as u32;
    let journal = JournalMemory::create(cores, config.engine().flows_max);
    let journal = journal.map_err(because("cannot make shared memory"))?;
    let restorer = Restorer::start(&journal, &config.interface);
    let restorer = restorer.map_err(because("cannot start another process"))?;
    Ok((journal, restorer))
}

/// Stops the fast-path cores and waits until their threads have ended.
fn end_cores(cores: &Cores<XdpPort>, threads: Vec<JoinHandle<()>>) {
    cores.stop();
    for thread in threads {
        // A panic of any thread ends the process, so the thread has returned.
        let _ = thread.join();
    }
}

/// Returns the kernel's network state, and the interface to serve.
fn find_link(config: &Config) -> Result<(KernelTables, LinkRecord), String> {
    let tables = KernelTables::open().map_err(because("cannot read the kernel's network state"))?;
    let link = tables.link_by_name(&config.interface).cloned();
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
    links::check(&tables, &link)?;
    Ok((tables, link))
}

/// Returns the number of the interface's receive queues. Fails if there are fewer queues than
/// cores.
fn count_queues(config: &Config, link: &LinkRecord) -> Result<u32, String> {
    let queues = tidelane_af_xdp::queue_counts(&link.name)
        .map_err(because("cannot read the number of queues"))?
        .rx;
    check_queues(link, queues as usize, config.cpus().len())?;
    Ok(queues)
}

/// Checks this machine before anything is changed.
fn check_machine(config: &Config) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root (AF_XDP and eBPF); use sudo".to_owned());
    }
    kernel::check().map_err(|lacking| lacking.to_string())?;
    XdpPort::check_support().map_err(|error| error.to_string())?;
    check_cpus(&config.cpus())
}

/// Checks that this process may run on the configured CPUs. A core cannot be pinned to a CPU that
/// the process may not use. Without this check, the core would run on any CPU.
fn check_cpus(cpus: &[Option<usize>]) -> Result<(), String> {
    let allowed = sched_getaffinity(None).map_err(because("cannot read the CPUs"))?;
    let is_there = |cpu: &usize| *cpu < CpuSet::MAX_CPU && allowed.is_set(*cpu);
    let missing = cpus.iter().flatten().find(|cpu| !is_there(cpu));
    missing.map_or(Ok(()), |cpu| {
        Err(format!(
            "no CPU {cpu} for a core; this process may use {} CPU(s) (see: taskset -cp $$)",
            allowed.count()
        ))
    })
}

/// Gives up the rights that serving does not need.
fn confine(
    config: &Config,
    run_dir: &RunDir,
    access: &AccessControl,
) -> Result<Confinement, String> {
    let file = config.file();
    let readable = Readable {
        directory: access.cgroups(),
        beneath: file.parent(),
    };
    let confinement = confine::enter(run_dir, &readable, config.core_dumps);
    let confinement = confinement.map_err(|error| error.to_string())?;
    for text in confinement.missing_features() {
        eprintln!("tidelaned: {text}");
    }
    Ok(confinement)
}

/// Checks the host's firewall rules, which the service's connections would bypass. Returns the
/// guard (a watch for new rules) and the access control for programs.
fn judge_host(
    config: &Config,
    link: &LinkRecord,
    mode: Mode,
    policy: AccessPolicy,
) -> Result<(Guard, AccessControl), String> {
    let firewall = Firewall::of(&link.name, link.ifindex).map_err(|error| error.to_string())?;
    let guard = Guard::before_start(firewall, mode, config.name.as_str())?;
    let access = AccessControl::new(policy).and_then(|access| match mode {
        Mode::Refuse => Ok(access),
        Mode::Bypass => access.replacing_root_programs(),
    });
    let access = access.map_err(because("cannot see who uses the service"))?;
    Ok((guard, access))
}

/// Returns an error if there are fewer queues than cores. A core without a queue of its own could
/// not send.
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

/// Makes a nonblocking eventfd. The eventfd is in an `Arc`, because several threads write to it.
fn eventfd() -> rustix::io::Result<Arc<OwnedFd>> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).map(Arc::new)
}

/// Attaches the demux and opens an AF_XDP port on each queue. The third result is a message for the
/// operator if the driver requires generic XDP, although `request` allows native XDP.
fn open_queues(
    link: &LinkRecord,
    queues: u32,
    request: AttachRequest,
) -> Result<(Vec<XdpPort>, Demux, Option<String>), String> {
    let driver = Driver::of(link);
    let (request, mode_warning) = driver.xdp_mode_for(request);
    let mut xdp = match link.kind {
        LinkKind::Veth => XdpConfig::for_veth(),
        _ => XdpConfig::default(),
    }
    .sized_for(link.mtu);
    let release = rustix::system::uname();
    xdp.tx_metadata = driver.heeds_metadata(&release.release().to_string_lossy());
    let buffers = if link.mtu > xdp.single_frame_mtu() {
        Buffers::Several
    } else {
        Buffers::One
    };
    let demux = Demux::load_and_attach_as(link.ifindex, queues, buffers, request);
    let mut demux = demux.map_err(|error| error.to_string())?;
    if demux.mode() == AttachMode::Generic {
        // A driver with zero-copy delivers frames to a native program only. A generic program runs
        // before the kernel completes checksums. On a veth, a generic program also runs before the
        // kernel splits long packets into segments.
        xdp.prefer_zero_copy = false;
        xdp.rx_checksum_may_be_partial = true;
        xdp.long_packets = link.kind == LinkKind::Veth;
    }
    let ports = (0..queues)
        .map(|queue| XdpPort::open_index(link.ifindex, queue, &xdp))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| match error {
            XdpError::NoMultiBuffer { .. } if xdp.long_packets => no_long_packets(link, &demux),
            error => error.to_string(),
        })?;
    for port in &ports {
        demux
            .register_xsk(port.queue(), port.fd())
            .map_err(|error| error.to_string())?;
    }
    Ok((ports, demux, mode_warning))
}

/// Returns the error text for a veth that cannot be served in generic mode. The other end of a veth
/// sends super-segments, which are too long for AF_XDP before Linux 6.6. The kernel splits the data
/// into segments at the other end only if a native XDP program is attached.
fn no_long_packets(link: &LinkRecord, demux: &Demux) -> String {
    let name = &link.name;
    match demux.native_error() {
        None => format!(
            "{name} is a veth, which in generic mode hands over packets longer than AF_XDP takes \
             before Linux 6.6; use: tidelane up {name} --xdp native"
        ),
        Some(reason) => format!(
            "{name} is a veth, which before Linux 6.6 can be served in native mode only, and the \
             kernel refuses native mode: {reason} (the other end may have more queues, or a larger \
             MTU than a page has room for)"
        ),
    }
}

/// Logs the XDP mode, the number of queues and the missing features. Returns the missing features.
fn describe_packets(
    link: &LinkRecord,
    demux: &Demux,
    ports: &[XdpPort],
    mode_warning: Option<String>,
) -> Vec<String> {
    let name = &link.name;
    let xdp = match demux.mode() {
        AttachMode::Native => "native",
        AttachMode::Generic => "generic",
    };
    let zero_copy = |port: &&XdpPort| port.mode() == XdpMode::ZeroCopy;
    let zero_copies = ports.iter().filter(zero_copy).count();
    eprintln!(
        "tidelaned: {name}: {xdp} XDP, {} queue(s), {zero_copies} with zero-copy",
        ports.len()
    );
    let mut missing_features = kernel::missing_features(name, demux, ports);
    missing_features.extend(
        mode_warning
            .into_iter()
            .chain(links::veth_tag_warning(link)),
    );
    for text in &missing_features {
        eprintln!("tidelaned: {text}");
    }
    missing_features
}

/// Objects that all cores share. Each core gets a reference to each object.
struct Shares {
    /// The page in shared memory that shows to programs whether a core sleeps.
    page: Arc<ServicePageMap>,
    /// The eventfd by which a core wakes the control thread.
    notify: Arc<OwnedFd>,
    /// The time of a recent step of each core, by queue. The cores write these times and the demux
    /// reads them, to detect a core that has stopped.
    heartbeats: Arc<Heartbeats>,
    /// The number of bytes that all cores have allocated for received data, with its limits.
    memory: StreamMemory,
    /// The journal: the open connections, in memory that the service shares with the restorer. The
    /// restorer resets these connections if the service is killed.
    journal: JournalMemory,
}

/// Starts the configured cores. Queue `q` belongs to core `q` modulo the number of cores.
fn start_cores(
    config: &Config,
    tables: &KernelTables,
    link: &LinkRecord,
    ports: Vec<XdpPort>,
    shares: &Shares,
) -> Result<(Cores<XdpPort>, Vec<JoinHandle<()>>), String> {
    let cpus = config.cpus();
    let bells = cpus
        .iter()
        .map(|_| eventfd())
        .collect::<Result<Vec<_>, _>>();
    let bells = bells.map_err(because("cannot make an eventfd"))?;
    let siblings = Siblings::of(cpus.len(), |core| {
        Box::new(CoreBell {
            page: shares.page.clone(),
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
        let numbers = ports.iter().map(XdpPort::queue).collect();
        let mut host = make_host(config, tables, link, secret, ports)?.beside(siblings);
        host.set_stream_memory(shares.memory.clone());
        host.set_journal(shares.journal.of_core(number as u32));
        let notify = shares.notify.clone();
        let core_config = CoreConfig {
            number: number as u32,
            cpu: cpus[number],
            spin: Duration::from_micros(config.spin_us),
            wake_fds: wake_fds.map_err(because("cannot copy a descriptor"))?,
            bell: bells[number].clone(),
            page: shares.page.clone(),
            notify_control: Box::new(move || cores::ring(&*notify)),
            heartbeats: shares.heartbeats.clone(),
            queues: numbers,
        };
        let started = core::start(host, core_config);
        let (handle, thread) = started.map_err(because("cannot start the cores"))?;
        handles.push(Arc::new(handle) as Arc<dyn CoreLink<XdpPort>>);
        threads.push(thread);
    }
    Ok((Cores::new(handles), threads))
}

fn make_host(
    config: &Config,
    tables: &KernelTables,
    link: &LinkRecord,
    secret: [u8; 16],
    ports: Vec<XdpPort>,
) -> Result<Host<XdpPort>, String> {
    let mac = link.mac.ok_or("the interface has no link-layer address")?;
    let interface = Interface {
        link: tidelane_engine::LinkId(NIC_LINK),
        mac: MacAddress(mac.0),
        mtu: link.mtu,
        addresses: network::served_addresses(tables, link.ifindex),
    };
    let engine = EngineConfig {
        ip: default_ip_options(&link.name),
        ..config.engine()
    };
    Host::new(engine, secret, interface, ports).map_err(because("cannot map memory"))
}

/// Returns the DiffServ field and the TTL that a connection has until its program sets others. The
/// TTL is the kernel's default at the start of the service (RFC 1122 §3.2.1.7).
fn default_ip_options(interface: &str) -> IpOptions {
    let hops = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let default = IpFields::default();
        let hop_limit = text.trim().parse().unwrap_or(default.hop_limit);
        IpFields {
            hop_limit,
            ..default
        }
    };
    IpOptions {
        v4: hops("/proc/sys/net/ipv4/ip_default_ttl"),
        v6: hops(&format!("/proc/sys/net/ipv6/conf/{interface}/hop_limit")),
    }
}

/// Returns the key of initial sequence numbers and hashes, random at each start (RFC 6528 §3).
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
        // Every byte of the secret varies between calls.
        for at in 0..16 {
            let values: BTreeSet<u8> = secrets.iter().map(|secret| secret[at]).collect();
            assert!(values.len() > 10, "byte {at}");
        }
    }
}
