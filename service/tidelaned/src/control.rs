//! The control thread of the Tidelane service: it handles registrations, claims, the kernel's
//! routes and neighbours, and the admin socket. A session is a program's connection to the
//! registration socket. A claim is a 3-tuple (address, protocol, port) whose packets go to the
//! service instead of the kernel.
//!
//! A core is a polling thread that drives one TCP/IP host. Work that may take time happens on the
//! control thread instead of a core. The control thread passes the results to the cores, which
//! apply them between two steps of their hosts.

use std::{
    collections::HashMap,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use rustix::event::{
    Timespec,
    epoll::{self, EventData, EventFlags},
};
use tidelane_host::{Route, RuleSet};
use tidelane_ring::ServicePageMap;
use tidelane_steering::kernel_tables::KernelTables;
use tidelane_time::{Duration, Instant};
use tidelane_wire::IpAddress;

use crate::{
    access::AccessControl,
    accounts::LimitsConfig,
    admin,
    agenda::Agenda,
    captures::Captures,
    claims::Claims,
    clock::now,
    confine::Confinement,
    core_link::NicPort,
    cores::Cores,
    descriptors::DescriptorThreads,
    firewall::Guard,
    kernel_connections::KernelConnections,
    network::Network,
    offloads::Offloads,
    pace,
    reclaimer::MemoryReclaimer,
    runtime::{self, Sockets},
    service_state::ServiceState,
    session::Session,
    watchdog::Progress,
};

mod operator;
mod ports;
mod requests;
mod sessions;

/// Epoll tokens of the descriptors that exist once. NOTIFY is for requests of the cores, FIREWALL
/// for the timer of firewall checks, and CHECKED for completed checks of programs' descriptors.
const REGISTRATION: u64 = 0;
const ADMIN: u64 = 1;
const KERNEL_TABLES: u64 = 2;
const NOTIFY: u64 = 3;
const SIGNAL: u64 = 4;
const FIREWALL: u64 = 5;
const CHECKED: u64 = 6;
/// Epoll tokens of session `n`: `SESSIONS + 2n` for its socket and `SESSIONS + 2n + 1` for its
/// process.
const SESSIONS: u64 = 16;
/// Largest number of connections to the registration socket that are accepted in a row. Existing
/// sessions then get their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Interval at which the kernel's settings (sysctls and offloads) are read.
const SETTINGS_INTERVAL: Duration = Duration::from_secs(5);

/// The control thread's state. [`Parts`] explains most of the fields that have no comment here.
pub struct Control<P: NicPort> {
    shared: ServiceState<P>,
    page: Arc<ServicePageMap>,
    network: Network,
    offloads: Arc<Mutex<Offloads>>,
    /// Time of the next read of the kernel's settings (sysctls and offloads).
    settings_due: Instant,
    registration: OwnedFd,
    admin: UnixListener,
    notify: Arc<OwnedFd>,
    signals: OwnedFd,
    progress: Arc<Progress>,
    guard: Guard,
    config: PathBuf,
    /// Group and mode of the registration socket.
    socket: runtime::SocketPermissions,
    /// The epoll instance in which the control thread sleeps.
    epoll: OwnedFd,
    /// The sessions by number.
    sessions: HashMap<u64, Session>,
    /// Deadlines of sessions that are paused or not registered yet.
    agenda: Agenda,
    captures: Captures,
    /// True if the service has to end after this turn.
    stopping: bool,
}

/// The parts from which the control thread is made.
pub struct Parts<P: NicPort> {
    /// The cores: the threads that process packets.
    pub cores: Cores<P>,
    /// The claims, and the demux: the XDP program that redirects the packets of claims to the
    /// cores.
    pub claims: Claims,
    /// Queries for the kernel's connections on listeners' ports.
    pub kernel: KernelConnections,
    /// Threads that check descriptors of programs.
    pub descriptors: DescriptorThreads,
    /// Sockets of the run directory.
    pub sockets: Sockets,
    /// The rights that the process gave up, and the rights that it could not give up.
    pub confinement: Confinement,
    /// Features that the kernel or the driver lacks, each with its effect.
    pub missing_features: Vec<String>,
    /// The page of memory that the service shares with all programs, and the page's descriptor for
    /// the programs.
    pub page: (Arc<ServicePageMap>, OwnedFd),
    /// The kernel's network state.
    pub kernel_tables: KernelTables,
    /// The served interface.
    pub ifindex: u32,
    /// Offloads of the NIC that the service keeps switched off.
    pub offloads: Arc<Mutex<Offloads>>,
    /// The eventfd that is readable when a core's host has requests.
    pub notify: Arc<OwnedFd>,
    /// The descriptor that is readable when a signal asks the service to end or to read the
    /// configuration again.
    pub signals: OwnedFd,
    /// The start of the control thread's work on the current event, which the control thread's
    /// watchdog reads.
    pub progress: Arc<Progress>,
    /// Programs that may use the service.
    pub access: AccessControl,
    /// Limits of each user.
    pub limits: LimitsConfig,
    /// True if the service accelerates the loopback connections of programs that were started with
    /// neither `tidelane run --loopback` nor `tidelane run --no-loopback`.
    pub loopback: bool,
    /// The operator's rules for connections.
    pub rules: RuleSet,
    /// Watches for the kernel's firewall rules and BPF programs that packets of the service bypass.
    pub guard: Guard,
    /// The configuration file.
    pub config: PathBuf,
}

impl<P: NicPort> Control<P> {
    /// Makes the control thread's state, and passes the rules and the kernel's network state to the
    /// cores.
    pub fn new(parts: Parts<P>) -> io::Result<Self> {
        let (page, page_fd) = parts.page;
        let mut shared = ServiceState::new(parts.cores, parts.claims, page_fd, parts.descriptors);
        shared.reclaimer = MemoryReclaimer::start(shared.is_beside_core())?;
        shared.descriptors.set_pace(shared.is_beside_core());
        shared.confinement = Some(parts.confinement);
        shared.missing_features = parts.missing_features;
        shared.kernel = parts.kernel;
        let socket = parts.access.policy().socket();
        shared.access = parts.access;
        shared.accounts.set_limits(parts.limits);
        shared.loopback = parts.loopback;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut control = Self {
            shared,
            page,
            network: Network::new(parts.kernel_tables, parts.ifindex),
            offloads: parts.offloads,
            settings_due: now() + SETTINGS_INTERVAL,
            registration: parts.sockets.registration,
            admin: parts.sockets.admin,
            notify: parts.notify,
            signals: parts.signals,
            progress: parts.progress,
            guard: parts.guard,
            config: parts.config,
            socket,
            epoll,
            sessions: HashMap::new(),
            agenda: Agenda::default(),
            captures: Captures::default(),
            stopping: false,
        };
        control.watch_all()?;
        control.set_rules(parts.rules);
        if control.shared.claims.takes_frames_back() {
            let cores = &control.shared.cores;
            cores.send_each(|_| |host, _| host.enable_hand_back());
        }
        control.sync_network();
        control.send_all_neighbours();
        Ok(control)
    }

    fn watch_all(&self) -> io::Result<()> {
        let add = |fd: BorrowedFd<'_>, token| {
            epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)
        };
        add(self.registration.as_fd(), REGISTRATION)?;
        add(self.admin.as_fd(), ADMIN)?;
        add(self.network.kernel_tables().fd(), KERNEL_TABLES)?;
        add(self.notify.as_fd(), NOTIFY)?;
        add(self.signals.as_fd(), SIGNAL)?;
        add(self.guard.recheck_timer().as_fd(), FIREWALL)?;
        add(self.shared.descriptors.bell(), CHECKED)?;
        Ok(())
    }

    /// Serves until the service has to end.
    pub fn run(&mut self) -> io::Result<()> {
        pace::install_check(self.shared.is_beside_core());
        let mut events = Vec::with_capacity(64);
        while !self.stopping {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                self.sleep_time_max().as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            pace::begin();
            for event in &events {
                self.progress.begin();
                self.dispatch(event.data.u64());
                pace::rest();
            }
            self.progress.begin();
            self.follow_agenda();
            pace::rest();
            self.shared.finish_claims(now());
            pace::rest();
            self.captures.close_abandoned(&self.shared.cores, now());
            self.check_settings();
            self.progress.end();
        }
        for (_, session) in std::mem::take(&mut self.sessions) {
            session.end(&mut self.shared);
        }
        self.shared.cores.stop();
        Ok(())
    }

    fn dispatch(&mut self, token: u64) {
        match token {
            REGISTRATION => self.accept_session(),
            ADMIN => self.serve_admin(),
            KERNEL_TABLES => self.kernel_tables_changed(),
            NOTIFY => self.serve_host(),
            SIGNAL => self.take_signals(),
            FIREWALL => self.check_firewall(),
            CHECKED => self.serve_checked(),
            _ => self.serve_session(token - SESSIONS),
        }
    }

    /// Resumes each paused session whose pause is over. Ends each session that has not registered
    /// by its deadline, unless `may_stay` allows it to stay.
    fn follow_agenda(&mut self) {
        let now = now();
        while let Some(number) = self.agenda.next_resumed(now) {
            if let Some(session) = self.sessions.get(&number)
                && self.listen_to(session).is_err()
            {
                self.end_session(number);
            }
        }
        while let Some(number) = self.agenda.next_late(now) {
            let session = self.sessions.get(&number);
            if session.is_some_and(|session| !session.may_stay()) {
                self.end_session(number);
            }
        }
    }

    /// Returns the longest time that the thread may sleep.
    fn sleep_time_max(&self) -> Option<Timespec> {
        let session = self.agenda.next_due();
        let due = session.map_or(self.settings_due, |due| due.min(self.settings_due));
        // Round the time up, because an early wake-up would find nothing to do.
        let left = due - now() + Duration::from_micros(100);
        let due = Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as _,
        };
        let claims = self.shared.next_check(now());
        claims
            .into_iter()
            .chain([due])
            .min_by_key(|at| (at.tv_sec, at.tv_nsec))
    }

    fn send_neighbour(&mut self, addr: IpAddress) {
        let mac = self.network.neighbour(addr);
        self.shared
            .cores
            .send_each(|_| move |host, now| host.set_neighbour(now, addr, mac));
    }

    /// Passes all neighbours that the kernel knows to the cores.
    fn send_all_neighbours(&mut self) {
        let known = self.network.neighbours();
        self.shared.cores.send_each(|_| {
            let known = known.clone();
            move |host, now| {
                for (addr, mac) in known {
                    host.set_neighbour(now, addr, Some(mac));
                }
            }
        });
    }

    fn kernel_tables_changed(&mut self) {
        let changes = match self.network.poll() {
            Ok(changes) => changes,
            Err(error) => {
                eprintln!("tidelaned: netlink: {error}");
                return;
            }
        };
        if let Err(reason) = self.network.still_serves() {
            self.end(&reason);
            return;
        }
        self.check_offloads();
        for addr in changes.neighbours {
            self.send_neighbour(addr);
        }
        if changes.others {
            self.sync_network();
        }
        if changes.all {
            self.send_all_neighbours();
        }
    }

    /// Ends the service, with a line in the log.
    fn end(&mut self, reason: &str) {
        eprintln!("tidelaned: {reason}: the service ends");
        self.stopping = true;
    }

    /// Switches off harmful offloads that an operator has switched on. Ends the service if a
    /// harmful offload stays on.
    fn check_offloads(&mut self) {
        let offloads = self.offloads.clone();
        let mut offloads = offloads.lock().unwrap_or_else(PoisonError::into_inner);
        match offloads.check() {
            Ok(texts) => {
                for text in texts {
                    eprintln!(
                        "tidelaned: an offload was switched on while the service runs: {text}; \
                         it is on again when the service ends"
                    );
                }
            }
            Err(reason) => self.end(&reason),
        }
    }

    /// Reads the kernel's settings at most once per [`SETTINGS_INTERVAL`]. The kernel does not
    /// announce most changes of these settings.
    fn check_settings(&mut self) {
        let now = now();
        if now < self.settings_due {
            return;
        }
        self.settings_due = now + SETTINGS_INTERVAL;
        self.check_offloads();
        if self.network.settings_changed() {
            self.sync_ingress();
        }
    }

    /// Passes addresses and routes to the cores, the demux and the programs. Also passes the link
    /// address, the MTU and the settings for checks of source addresses.
    fn sync_network(&mut self) {
        let addresses = self.network.addresses();
        if let Err(error) = self.shared.set_addresses(&addresses) {
            eprintln!("tidelaned: cannot change the claims to the new addresses: {error}");
        }
        let shared = &self.shared;
        let ours = self
            .network
            .own_routes(|prefix, prefix_len| shared.source_for(prefix, prefix_len));
        let within = self.network.addresses_within();
        let page = self.network.page_routes(&addresses, &within);
        if let Err(error) = self.page.set_routes(&page) {
            eprintln!("tidelaned: route table of the programs: {error:?}");
        }
        self.ask_for_routers(&ours);
        self.sync_link_address();
        self.sync_mtu();
        self.sync_ingress();
        self.shared.cores.send_each(|_| {
            let (addresses, ours) = (addresses.clone(), ours.clone());
            let within = within.clone();
            move |host, now| {
                host.set_addresses_within(within);
                host.set_routes(now, addresses, ours);
            }
        });
        self.shared.addresses_within = within;
    }

    /// Resolves the link addresses of routers in advance, so that the first answer to a peer behind
    /// a router does not wait.
    fn ask_for_routers(&mut self, routes: &[Route]) {
        let mut routers: Vec<IpAddress> = routes.iter().filter_map(|r| r.gateway).collect();
        routers.sort();
        routers.dedup();
        for router in routers {
            if self.network.neighbour(router).is_none() {
                self.resolve(router);
            }
        }
    }

    fn resolve(&mut self, addr: IpAddress) {
        if let Err(error) = self.network.resolve(addr) {
            eprintln!("tidelaned: cannot ask the kernel for the link address of {addr}: {error}");
        }
    }

    /// Passes the interface's link address to the cores and the demux, if it has changed.
    fn sync_link_address(&mut self) {
        let address = self.network.link_address();
        if address == self.shared.link_address {
            return;
        }
        self.shared.link_address = address;
        let Some(mac) = address else {
            return;
        };
        if let Err(error) = self.shared.claims.set_link_address(mac) {
            eprintln!("tidelaned: cannot tell the demux the link address: {error}");
        }
        self.shared
            .cores
            .send_each(|_| move |host, _| host.set_link_address(mac));
    }

    /// Passes the interface's MTU to the cores.
    fn sync_mtu(&mut self) {
        if let Some(mtu) = self.network.mtu() {
            self.shared
                .cores
                .send_each(|_| move |host, now| host.set_mtu(now, mtu));
        }
    }

    /// Passes the settings for checks of source addresses (such as `rp_filter`) to the cores.
    fn sync_ingress(&mut self) {
        self.network.settings_changed();
        let ingress = self.network.ingress();
        self.shared.cores.send_each(|_| {
            let ingress = ingress.clone();
            move |host, _| host.set_ingress(ingress)
        });
    }

    fn serve_admin(&mut self) {
        while let Ok((stream, _)) = self.admin.accept() {
            let sessions: Vec<&Session> = self.sessions.values().collect();
            let firewall = self.guard.to_json();
            match admin::serve(&stream, &self.shared, &sessions, firewall) {
                Ok(admin::AdminRequest::Down) => self.stopping = true,
                Ok(admin::AdminRequest::Reload) => self.answer_reload(&stream),
                Ok(admin::AdminRequest::Capture(request)) => self.answer_capture(&stream, &request),
                Ok(admin::AdminRequest::Other) => {}
                Err(error) => eprintln!("tidelaned: admin: {error}"),
            }
        }
    }
}
