//! The control thread: registrations, claims, the kernel's routes and neighbours, the admin socket.
//!
//! Everything that may take its time happens here; the cores are only told of results, between two
//! of their steps.

use std::{
    collections::HashMap,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    sync::Arc,
};

use rustix::{
    event::{
        Timespec,
        epoll::{self, EventData, EventFlags},
    },
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};
use tidelane_abi::{ROUTE_ACCELERATED, ROUTE_ASK, ROUTE_KERNEL};
use tidelane_host::{HostRequest, PORTS_PER_REQUEST, Route};
use tidelane_ring::ServicePageMap;
use tidelane_steering::mirror::{Change, Mirror, RouteInfo, RouteKind};
use tidelane_wire::{Endpoint, IpAddress, MacAddress};

use crate::{
    admin,
    claims::{Claims, Owner},
    core::CoreHost,
    cores::Cores,
    runtime::RunDir,
    session::{Next, Session},
};

const REGISTRATION: u64 = 0;
const ADMIN: u64 = 1;
const MIRROR: u64 = 2;
const NOTIFY: u64 = 3;
const SIGNAL: u64 = 4;
/// Session `n` has tokens `SESSIONS + 2n` (socket) and `SESSIONS + 2n + 1` (process).
const SESSIONS: u64 = 16;
/// Programs registered at once.
const PROGRAMS_MAX: usize = 1024;

/// What sessions need of the control thread.
pub struct Shared {
    /// The fast path.
    pub cores: Cores,
    /// Claims in the demux.
    pub claims: Claims,
    /// The service page, for programs.
    pub page_fd: OwnedFd,
    /// Sessions of children that are about to be made.
    pub heirs: Vec<Session>,
    addresses: Vec<IpAddress>,
    sessions: usize,
    next_session: u64,
    next_listener: u32,
    /// By the cookies of their kernel sockets.
    listeners: HashMap<u64, u32>,
}

impl Shared {
    /// Whether connections to `addr` come over the served interface. A wildcard does.
    pub fn is_served(&self, addr: IpAddress) -> bool {
        addr.is_unspecified() || self.addresses.contains(&addr)
    }

    /// The source for a route without one: an address within its prefix, or else the first of its
    /// version. (RFC 6724 has more to say where an interface has several prefixes.)
    fn source_for(&self, prefix: IpAddress, prefix_len: u8) -> Option<IpAddress> {
        let of_version = |addr: &&IpAddress| addr.is_v4() == prefix.is_v4();
        let mut known = self.addresses.iter().filter(of_version);
        let within = known
            .clone()
            .find(|addr| addr.shares_prefix(prefix, prefix_len));
        within.or_else(|| known.next()).copied()
    }

    /// The interface's first address that `any` covers: one of its version.
    pub fn first_address(&self, any: IpAddress) -> Option<IpAddress> {
        let mut covered = self.addresses.iter().filter(|addr| any.covers(**addr));
        covered.next().copied()
    }

    /// Gives a claim up, as soon as no connection uses it: until then their segments must come here
    /// and not to the kernel, which would reset them.
    pub fn unclaim(&mut self, owner: Owner, endpoint: Endpoint) {
        self.claims.leave(owner, endpoint);
        self.finish_claims();
    }

    /// Gives up all claims of `owner`, in the same way.
    pub fn unclaim_all(&mut self, owner: Owner) {
        self.claims.leave_all(owner);
        self.finish_claims();
    }

    /// Gives up what no connection uses any more; a failure is only worth a line.
    fn finish_claims(&mut self) {
        for (owner, endpoint) in self.claims.leaving().to_vec() {
            let used = self
                .cores
                .call_each(|_| move |host, _| host.has_connections(endpoint));
            if used.is_some_and(|used| used.contains(&true)) {
                continue;
            }
            if let Err(error) = self.claims.unwant(owner, endpoint) {
                eprintln!("tidelaned: cannot give up the claim on {endpoint}: {error}");
            }
        }
    }

    /// A number for one more session; none if there are too many.
    pub fn admit(&mut self) -> Option<u64> {
        if self.sessions >= PROGRAMS_MAX {
            return None;
        }
        self.sessions += 1;
        self.next_session += 1;
        Some(self.next_session)
    }

    /// The number of the listener of the kernel socket with this cookie: programs that share the
    /// socket share it.
    pub fn listener_number(&mut self, cookie: u64) -> u32 {
        let next = self.next_listener.wrapping_add(1);
        let number = *self.listeners.entry(cookie).or_insert(next);
        if number == next {
            self.next_listener = next;
        }
        number
    }

    /// No program has the kernel socket's listener any more.
    pub fn listener_is_gone(&mut self, cookie: u64) {
        self.listeners.remove(&cookie);
        self.unclaim_all(Owner::Listener(cookie));
    }

    /// An admitted session is over, or did not come about.
    pub fn dismiss(&mut self) {
        self.sessions -= 1;
    }

    /// How long the control thread may sleep.
    fn next_look(&self) -> Option<Timespec> {
        const INTERVAL: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        (!self.claims.leaving().is_empty()).then_some(INTERVAL)
    }
}

/// The control thread's state.
pub struct Control {
    shared: Shared,
    page: Arc<ServicePageMap>,
    mirror: Mirror,
    ifindex: u32,
    registration: OwnedFd,
    admin: UnixListener,
    notify: Arc<OwnedFd>,
    signals: OwnedFd,
    waits: OwnedFd,
    sessions: HashMap<u64, Session>,
    stopping: bool,
}

/// What the control thread is made of.
pub struct Parts {
    /// The fast path.
    pub cores: Cores,
    /// Claims in the demux.
    pub claims: Claims,
    /// The service page, and its descriptor for programs.
    pub page: (Arc<ServicePageMap>, OwnedFd),
    /// The kernel's network state.
    pub mirror: Mirror,
    /// The served interface.
    pub ifindex: u32,
    /// Readable when the host has requests.
    pub notify: Arc<OwnedFd>,
    /// Readable when the service shall end.
    pub signals: OwnedFd,
}

impl Control {
    /// Opens the sockets in `run_dir` and tells the core what the kernel knows.
    pub fn new(parts: Parts, run_dir: &RunDir) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let registration = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let path = run_dir.path().join("control.sock");
        bind(&registration, &SocketAddrUnix::new(&path)?)?;
        run_dir.open_to_all("control.sock")?;
        listen(&registration, 128)?;
        let admin = UnixListener::bind(run_dir.path().join("admin.sock"))?;
        run_dir.close_to_others("admin.sock")?;
        admin.set_nonblocking(true)?;
        let (page, page_fd) = parts.page;
        let shared = Shared {
            cores: parts.cores,
            claims: parts.claims,
            page_fd,
            heirs: Vec::new(),
            addresses: Vec::new(),
            sessions: 0,
            next_session: 0,
            next_listener: 0,
            listeners: HashMap::new(),
        };
        let waits = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut control = Self {
            shared,
            page,
            mirror: parts.mirror,
            ifindex: parts.ifindex,
            registration,
            admin,
            notify: parts.notify,
            signals: parts.signals,
            waits,
            sessions: HashMap::new(),
            stopping: false,
        };
        control.watch_all()?;
        control.sync_network();
        Ok(control)
    }

    fn watch_all(&self) -> io::Result<()> {
        let add = |fd: BorrowedFd<'_>, token| {
            epoll::add(&self.waits, fd, EventData::new_u64(token), EventFlags::IN)
        };
        add(self.registration.as_fd(), REGISTRATION)?;
        add(self.admin.as_fd(), ADMIN)?;
        add(self.mirror.fd(), MIRROR)?;
        add(self.notify.as_fd(), NOTIFY)?;
        add(self.signals.as_fd(), SIGNAL)?;
        Ok(())
    }

    /// Serves until the service shall end.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        while !self.stopping {
            events.clear();
            match epoll::wait(
                &self.waits,
                rustix::buffer::spare_capacity(&mut events),
                self.shared.next_look().as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                self.dispatch(event.data.u64());
            }
            self.shared.finish_claims();
        }
        for (_, mut session) in std::mem::take(&mut self.sessions) {
            session.end(&mut self.shared);
        }
        self.shared.cores.stop();
        Ok(())
    }

    fn dispatch(&mut self, token: u64) {
        match token {
            REGISTRATION => self.accept_session(),
            ADMIN => self.serve_admin(),
            MIRROR => self.mirror_changed(),
            NOTIFY => self.serve_host(),
            SIGNAL => self.stopping = true,
            _ => self.serve_session(token - SESSIONS),
        }
    }

    fn accept_session(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(socket) = rustix::net::accept_with(&self.registration, flags) {
            let Some(number) = self.shared.admit() else {
                continue;
            };
            match Session::new(number, socket) {
                Ok(session) => self.watch_session(session),
                Err(_) => self.shared.dismiss(),
            }
        }
    }

    fn watch_session(&mut self, mut session: Session) {
        let token = |n: u64| EventData::new_u64(SESSIONS + 2 * session.number + n);
        if epoll::add(&self.waits, &session.socket, token(0), EventFlags::IN).is_err() {
            self.shared.dismiss();
            session.end(&mut self.shared);
            return;
        }
        if let Some(pidfd) = &session.pidfd {
            let _ = epoll::add(&self.waits, pidfd, token(1), EventFlags::IN);
        }
        self.sessions.insert(session.number, session);
    }

    fn serve_session(&mut self, token: u64) {
        let (number, died) = (token / 2, token % 2 == 1);
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let next = if died {
            Next::End
        } else {
            session.receive(&mut self.shared)
        };
        for heir in std::mem::take(&mut self.shared.heirs) {
            self.watch_session(heir);
        }
        if next == Next::End
            && let Some(mut session) = self.sessions.remove(&number)
        {
            self.shared.dismiss();
            session.end(&mut self.shared);
        }
    }

    /// Takes the host's requests.
    fn serve_host(&mut self) {
        let _ = rustix::io::read(&*self.notify, &mut [0u8; 8]);
        let take_all = |_| {
            |host: &mut CoreHost, _| {
                std::iter::from_fn(|| host.take_request()).collect::<Vec<HostRequest>>()
            }
        };
        let requests = self.shared.cores.call_each(take_all);
        for request in requests.unwrap_or_default().into_iter().flatten() {
            match request {
                HostRequest::Resolve { addr } => {
                    if let Err(error) = self.mirror.resolve(self.ifindex, &addr.0) {
                        eprintln!("tidelaned: cannot ask the kernel about {addr}: {error}");
                    }
                    self.tell_neighbour(addr);
                }
                HostRequest::MorePorts { addr } => {
                    let ports = self.shared.claims.reserve_ports(addr, PORTS_PER_REQUEST);
                    // With a peer's port each of them belongs to one core.
                    self.shared.cores.send_each(|_| {
                        let ports = ports.clone();
                        move |host, now| host.add_ports(now, addr, &ports)
                    });
                }
                HostRequest::PortIdle { endpoint } => {
                    for session in self.sessions.values() {
                        self.shared
                            .unclaim(Owner::Session(session.number), endpoint);
                    }
                }
            }
        }
    }

    fn tell_neighbour(&mut self, addr: IpAddress) {
        let known = self.mirror.neighbor(self.ifindex, &addr.0);
        let mac = known
            .and_then(|neighbor| neighbor.usable_mac())
            .map(|mac| MacAddress(mac.0));
        self.shared
            .cores
            .send_each(|_| move |host, now| host.set_neighbour(now, addr, mac));
    }

    fn mirror_changed(&mut self) {
        let changes = match self.mirror.poll() {
            Ok(changes) => changes,
            Err(error) => {
                eprintln!("tidelaned: netlink: {error}");
                return;
            }
        };
        let mut network = false;
        for change in changes {
            match change {
                Change::Neighbor { ifindex, addr } if ifindex == self.ifindex => {
                    self.tell_neighbour(IpAddress(addr));
                }
                Change::Neighbor { .. } => {}
                _ => network = true,
            }
        }
        if network {
            self.sync_network();
        }
    }

    /// Tells the cores, the demux and the programs which addresses and routes there are.
    fn sync_network(&mut self) {
        let addresses = addresses_of(&self.mirror, self.ifindex);
        self.shared.addresses = addresses.clone();
        if let Err(error) = self.shared.claims.set_addresses(addresses.clone()) {
            eprintln!("tidelaned: cannot claim: {error}");
        }
        let ours = self.own_routes();
        self.tell_programs(&addresses);
        self.shared.cores.send_each(|_| {
            let (addresses, ours) = (addresses.clone(), ours.clone());
            move |host, now| host.set_routes(now, addresses, ours)
        });
    }

    /// The routes over the served interface.
    fn own_routes(&self) -> Vec<Route> {
        self.mirror
            .routes()
            .filter(|(prefix, _, info)| self.is_own_route(*prefix, info))
            .filter_map(|(prefix, prefix_len, info)| {
                let prefix = IpAddress(prefix);
                Some(Route {
                    prefix,
                    prefix_len,
                    gateway: info.gateway.map(IpAddress),
                    source: info
                        .prefsrc
                        .map(IpAddress)
                        .or_else(|| self.shared.source_for(prefix, prefix_len))?,
                })
            })
            .collect()
    }

    /// Whether the route leads over the served interface, to where its name does not matter.
    fn is_own_route(&self, prefix: [u8; 16], info: &RouteInfo) -> bool {
        let link_local = IpAddress(prefix).is_link_local_v6();
        info.kind == RouteKind::Unicast && info.ifindex == self.ifindex && !link_local
    }

    /// Fills the route table of the service page.
    fn tell_programs(&self, addresses: &[IpAddress]) {
        let mut page: Vec<tidelane_ring::Route> = Vec::new();
        for (addr, prefix_len, info) in self.mirror.routes() {
            let known = page
                .iter()
                .any(|r| r.addr == addr && r.prefix_len == prefix_len);
            if known || addresses.iter().any(|own| own.0 == addr) {
                continue;
            }
            let accelerated = if self.is_own_route(addr, &info) {
                ROUTE_ACCELERATED
            } else {
                ROUTE_KERNEL
            };
            page.push(tidelane_ring::Route {
                addr,
                prefix_len,
                accelerated,
            });
        }
        page.extend(addresses.iter().map(|addr| tidelane_ring::Route {
            addr: addr.0,
            prefix_len: 128,
            accelerated: ROUTE_ASK,
        }));
        if let Err(error) = self.page.set_routes(&page) {
            eprintln!("tidelaned: route table of the programs: {error:?}");
        }
    }

    fn serve_admin(&mut self) {
        while let Ok((stream, _)) = self.admin.accept() {
            let sessions: Vec<&Session> = self.sessions.values().collect();
            match admin::serve(stream, &self.shared, &sessions) {
                Ok(admin::Asked::Down) => self.stopping = true,
                Ok(admin::Asked::Other) => {}
                Err(error) => eprintln!("tidelaned: admin: {error}"),
            }
        }
    }
}

/// The interface's addresses. Those of the link alone (`fe80::/10`) are left to the kernel: the
/// name of a connection to one includes the interface.
pub fn addresses_of(mirror: &Mirror, ifindex: u32) -> Vec<IpAddress> {
    let all = mirror
        .addresses(ifindex)
        .map(|record| IpAddress(record.addr));
    all.filter(|addr| !addr.is_link_local_v6()).collect()
}
