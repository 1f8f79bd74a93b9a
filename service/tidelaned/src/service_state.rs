//! The state of the Tidelane service's control plane that all sessions use. A session is a
//! program's connection to the registration socket. A core is a polling thread that drives one
//! TCP/IP host. The demux is the XDP program that redirects the packets of claims (3-tuples of
//! address, protocol and port) to the cores.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::OwnedFd,
    sync::Arc,
};

use rustix::event::Timespec;
use tidelane_host::{AddressesWithin, Host, RuleSet, Stray};
use tidelane_steering::SteeringError;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress, MacAddress};

use crate::{
    access::AccessControl,
    accounts::{Accounts, LimitsConfig},
    claims::{Candidate, ClaimKey, Claims, Owner, Question},
    clock,
    confine::Confinement,
    congestion::Congestion,
    core_link::NicPort,
    cores::Cores,
    descriptors::DescriptorThreads,
    fast_open::FastOpen,
    kernel_connections::KernelConnections,
    pace::{self, IsBesideCore},
    port_book::PortBook,
    reclaimer::MemoryReclaimer,
    runtime,
    short_lived::ShortLived,
    sockets::KernelSocket,
    somaxconn::SomaxConn,
};

/// Largest number of claims that the control thread checks before it turns to other work.
const CANDIDATES_MAX: usize = 256;

/// Upper bound of the time from the arrival of a SYN at the demux to its arrival at a core.
const SYNS_ARRIVE_WITHIN: Duration = Duration::from_millis(250);

/// The control thread's state that sessions use.
pub struct ServiceState<P: NicPort> {
    /// The cores: the threads that process packets.
    pub cores: Cores<P>,
    /// Claims in the demux.
    pub claims: Claims,
    /// Queries for TCP connections of the kernel's stack.
    pub kernel: KernelConnections,
    /// Descriptor of the service page, a page of memory that all programs map.
    pub page_fd: OwnedFd,
    /// The operator's rules for connections. The cores count the decisions of each rule.
    pub rules: RuleSet,
    /// Programs that may use the service.
    pub access: AccessControl,
    /// Thread that frees the memory of programs that have ended.
    pub reclaimer: MemoryReclaimer,
    /// Accounts and limits of users.
    pub accounts: Accounts,
    /// The kernel's limit of the connections in an accept queue (`net.core.somaxconn`).
    pub somaxconn: SomaxConn,
    /// The kernel's settings of Fast Open.
    pub fast_open: FastOpen,
    /// The kernel's settings of congestion control.
    pub congestion: Congestion,
    /// Threads that check descriptors of programs.
    pub descriptors: DescriptorThreads,
    /// Rights that the process has given up. `None` in tests.
    pub confinement: Option<Confinement>,
    /// Features that the kernel or the driver lacks, each with the effect of the lack.
    pub missing_features: Vec<String>,
    /// Addresses of the host, except for the served addresses.
    pub addresses_within: AddressesWithin,
    /// True if the service accelerates the loopback connections of programs that were started with
    /// neither `tidelane run --loopback` nor `tidelane run --no-loopback`.
    pub loopback: bool,
    /// Mux ports that programs have opened. A mux port connects the NIC to a program that has a
    /// TCP/IP stack of its own.
    pub ports: PortBook,
    /// Link address of the served interface, once it is known.
    pub link_address: Option<MacAddress>,
    /// Served addresses: the interface's addresses, without IPv6 link-local and loopback addresses.
    addresses: Vec<IpAddress>,
    /// Number of the newest session, or 0 before the first session.
    next_session: u64,
    /// Number of the newest listener, or 0 before the first listener.
    next_listener: u32,
    /// Listeners by the cookies of their kernel sockets.
    listeners: HashMap<u64, Listener>,
}

/// The control plane's record of a listener. The listener belongs to a kernel socket, which several
/// programs may share.
struct Listener {
    /// Number by which all programs refer to the listener.
    number: u32,
    /// Number of programs that hold the listener.
    holders: usize,
    /// Local address and port of the kernel socket, and IPV6_V6ONLY, at the most recent LISTEN that
    /// all cores accepted. `None` before the first of these LISTENs.
    bound: Option<(Endpoint, bool)>,
    /// True if the kernel socket is in an SO_REUSEPORT group, whose listeners share a port.
    in_group: bool,
    /// Short-lived children of the programs that hold the listener.
    children: ShortLived,
    /// Time since which the kernel gets the listener's SYNs. `None` while the service gets the
    /// SYNs.
    draining_since: Option<Instant>,
    /// True after a call of `suspend_listener`, until a program listens again.
    is_suspended: bool,
}

impl<P: NicPort> ServiceState<P> {
    /// Makes a state without sessions and without interface addresses. Every program is admitted.
    pub fn new(
        cores: Cores<P>,
        claims: Claims,
        page_fd: OwnedFd,
        descriptors: DescriptorThreads,
    ) -> Self {
        Self {
            cores,
            claims,
            kernel: KernelConnections::unknown(),
            page_fd,
            rules: RuleSet::default(),
            access: AccessControl::everybody(),
            reclaimer: MemoryReclaimer::default(),
            accounts: Accounts::new(LimitsConfig::default(), runtime::descriptors_max()),
            somaxconn: SomaxConn::open(),
            fast_open: FastOpen::open(),
            congestion: Congestion::open(),
            descriptors,
            confinement: None,
            missing_features: Vec::new(),
            addresses_within: AddressesWithin::default(),
            loopback: false,
            ports: PortBook::default(),
            link_address: None,
            addresses: Vec::new(),
            next_session: 0,
            next_listener: 0,
            listeners: HashMap::new(),
        }
    }

    /// Sets the served addresses of the interface. A claim on a wildcard address covers all served
    /// addresses of the same IP version.
    pub fn set_addresses(&mut self, addresses: &[IpAddress]) -> Result<(), SteeringError> {
        self.addresses = addresses.to_vec();
        self.claims.set_addresses(addresses.to_vec())
    }

    /// Returns true if `addr` is a served address, or a wildcard address.
    pub fn is_served(&self, addr: IpAddress) -> bool {
        addr.is_unspecified() || self.addresses.contains(&addr)
    }

    /// Returns true if a listener at `addr` can get connections. Connections arrive over the served
    /// interface or, if `within_host` is true, from programs on the same host.
    pub fn is_reached(&self, addr: IpAddress, within_host: bool) -> bool {
        self.is_served(addr) || within_host && self.addresses_within.has(addr)
    }

    /// Returns the source address for a route without a preferred source address. The result is an
    /// interface address within the route's prefix, or else the first interface address of the same
    /// IP version. (RFC 6724 has more rules for an interface with several prefixes.)
    pub fn source_for(&self, prefix: IpAddress, prefix_len: u8) -> Option<IpAddress> {
        let of_version = |addr: &&IpAddress| addr.is_v4() == prefix.is_v4();
        let mut known = self.addresses.iter().filter(of_version);
        let within = known
            .clone()
            .find(|addr| addr.shares_prefix(prefix, prefix_len));
        within.or_else(|| known.next()).copied()
    }

    /// Returns the interface's first address that the wildcard address `any` covers.
    pub fn first_address(&self, any: IpAddress) -> Option<IpAddress> {
        let mut covered = self.addresses.iter().filter(|addr| any.covers(**addr));
        covered.next().copied()
    }

    /// Returns the served addresses of the interface.
    pub fn addresses(&self) -> &[IpAddress] {
        &self.addresses
    }

    /// Releases all claims of `owner`. A released claim ends once no connection uses the claim.
    /// Until then, the segments of the connections must reach the service, because the kernel would
    /// answer a segment with a RST.
    pub fn unclaim_all(&mut self, owner: Owner, now: Instant) {
        if let Err(error) = self.claims.release_all(owner, now) {
            eprintln!("tidelaned: cannot change claims: {error}");
        }
    }

    /// Checks up to `CANDIDATES_MAX` claims that are due. A check either ends a claim that no
    /// connection uses any more, or it extends a claim to all packets of the port, because the
    /// kernel has no connection on the port. Errors are only logged.
    pub fn finish_claims(&mut self, now: Instant) {
        let due = self.claims.due(now, CANDIDATES_MAX);
        if due.is_empty() {
            return;
        }
        let is_asked = |candidate: &Candidate| candidate.question == Question::HasKernelConnections;
        let is_pooled = |candidate: &Candidate| candidate.key.0 == Owner::Pool;
        let (asked, due): (Vec<_>, Vec<_>) = due.into_iter().partition(is_asked);
        let (pooled, others): (Vec<_>, Vec<_>) = due.into_iter().partition(is_pooled);
        self.widen_claims(&asked, now);
        self.end_unused_claims(&others, now);
        self.shrink_pool(&pooled, now);
    }

    /// Extends each claim to all packets of its port, if the kernel has no connections on the port.
    fn widen_claims(&mut self, candidates: &[Candidate], now: Instant) {
        if candidates.is_empty() {
            return;
        }
        let connected = self.kernel.connected_ports();
        for Candidate { key, .. } in candidates {
            let end = key.1;
            match &connected {
                Some(ports) if !ports.contains(&end.port) => {
                    if let Err(error) = self.claims.widen(*key) {
                        eprintln!("tidelaned: cannot change the claim on {end}: {error}");
                    }
                }
                _ => self.claims.schedule_next_check(*key, now),
            }
        }
    }

    /// Hands stray frames back to the kernel. The service has no flow for a stray frame, but the
    /// kernel may have the frame's connection.
    pub fn hand_back(&mut self, strays: &[Stray], now: Instant) {
        for Stray { key, frame } in strays {
            // A frame that the kernel does not accept is lost, and its segment is retransmitted.
            let _ = self.claims.hand_back(frame);
            let local = key.local;
            if self.kernel.has(key)
                && let Err(error) = self.claims.found_kernel_connection(local, now)
            {
                eprintln!("tidelaned: cannot change the claim on {local}: {error}");
            }
            pace::rest();
        }
    }

    /// Ends the candidates that no connection uses any more. No candidate is a pool port.
    fn end_unused_claims(&mut self, candidates: &[Candidate], now: Instant) {
        if candidates.is_empty() {
            return;
        }
        let unused = self.cores.call_each(|core| {
            let end = |candidate: &Candidate| {
                let program = candidate.program.as_ref();
                let program = program.and_then(|ids| ids.get(core).copied());
                (program, candidate.key.1)
            };
            let ends: Vec<_> = candidates.iter().map(end).collect();
            move |host, _| host.give_up(&ends)
        });
        for (at, candidate) in candidates.iter().enumerate() {
            self.end_or_keep_claim(
                candidate.key,
                is_unused_on_all_cores(unused.as_deref(), at),
                now,
            );
        }
    }

    /// Gives surplus ports of the pool back to the kernel. The pool holds local ports for outgoing
    /// connections. A port with connections stays in the pool.
    fn shrink_pool(&mut self, candidates: &[Candidate], now: Instant) {
        let (surplus, kept) = candidates.split_at(candidates.len().min(self.claims.pool_surplus()));
        for candidate in kept {
            self.claims.schedule_next_check(candidate.key, now);
        }
        if surplus.is_empty() {
            return;
        }
        let ends: Vec<Endpoint> = surplus.iter().map(|candidate| candidate.key.1).collect();
        let unused = self.cores.call_each(|_| {
            let ends = ends.clone();
            move |host, _| host.retire_ports(&ends)
        });
        let mut used: BTreeMap<IpAddress, Vec<u16>> = BTreeMap::new();
        for (at, end) in ends.iter().enumerate() {
            let unused = is_unused_on_all_cores(unused.as_deref(), at);
            if !unused {
                used.entry(end.addr).or_default().push(end.port);
            }
            self.end_or_keep_claim((Owner::Pool, *end), unused, now);
        }
        for (addr, ports) in used {
            self.cores.send_each(|_| {
                let ports = ports.clone();
                move |host, now| host.add_ports(now, addr, &ports)
            });
        }
    }

    /// Ends the claim if it is unused. Otherwise schedules the claim's next check.
    fn end_or_keep_claim(&mut self, key: ClaimKey, unused: bool, now: Instant) {
        if !unused {
            self.claims.schedule_next_check(key, now);
        } else if let Err(error) = self.claims.end_claim(key) {
            let endpoint = key.1;
            eprintln!("tidelaned: cannot give up the claim on {endpoint}: {error}");
        }
    }

    /// Returns the number of a new session.
    pub fn session_number(&mut self) -> u64 {
        self.next_session += 1;
        self.next_session
    }

    /// If the socket's endpoint differs from its listener's endpoint, suspends the listener. A
    /// program without Tidelane's library may shut the socket down and listen again. If the program
    /// has not bound the socket to a port number, the kernel then chooses another port.
    pub fn suspend_if_moved(&mut self, socket: &KernelSocket) {
        let known = self.listeners.get(&socket.cookie);
        let bound = known.and_then(|listener| listener.bound);
        if bound.is_some_and(|bound| bound != (socket.local, socket.v6_only)) {
            self.suspend_listener(socket.cookie);
        }
    }

    /// Returns the number of the listener of the kernel socket with SO_COOKIE `cookie`. If there is
    /// no listener yet, makes one. Programs that share the socket share the number.
    pub fn listener_number(&mut self, cookie: u64) -> u32 {
        let next = self.next_listener.wrapping_add(1);
        let fresh = Listener {
            number: next,
            holders: 0,
            bound: None,
            in_group: false,
            children: ShortLived::default(),
            draining_since: None,
            is_suspended: false,
        };
        let number = self.listeners.entry(cookie).or_insert(fresh).number;
        if number == next {
            self.next_listener = next;
        }
        number
    }

    /// Records that one more program holds the kernel socket's listener.
    pub fn hold_listener(&mut self, cookie: u64) {
        if let Some(listener) = self.listeners.get_mut(&cookie) {
            listener.holders += 1;
        }
    }

    /// Records the end of a child that took over a connection of this listener, and that lived for
    /// `lived` afterwards. If too many children are short-lived, later SYNs of the listener go to
    /// the kernel. Existing connections stay with the service. The listeners of an SO_REUSEPORT
    /// group share one claim in the demux, so their SYNs stay with the service.
    pub fn child_ended(&mut self, cookie: u64, now: Instant, lived: Duration) {
        let Some(listener) = self.listeners.get_mut(&cookie) else {
            return;
        };
        let drains = listener.children.child_ended(now, lived);
        let stays = listener.in_group || listener.is_suspended;
        if !drains || stays || listener.draining_since.is_some() {
            return;
        }
        listener.draining_since = Some(now);
        if let Err(error) = self.claims.pass_syns_to_kernel(Owner::Listener(cookie)) {
            eprintln!("tidelaned: cannot change claims: {error}");
        }
        self.cores
            .call_each(|_| move |host: &mut Host<P>, _| host.drain_listener(cookie));
    }

    /// Returns true if this listener is draining: the kernel gets its SYNs.
    pub fn is_draining(&self, cookie: u64) -> bool {
        let listener = self.listeners.get(&cookie);
        listener.is_some_and(|listener| listener.draining_since.is_some())
    }

    /// Returns true if programs lose no connection when they give this listener up. The kernel must
    /// have got the listener's SYNs for at least `SYNS_ARRIVE_WITHIN`. In the service, the SYN and
    /// accept queue must be empty, and no SYN cookie of the listener may still be valid.
    pub fn is_drained(&self, cookie: u64, now: Instant) -> bool {
        let listener = self.listeners.get(&cookie);
        let since = listener.and_then(|listener| listener.draining_since);
        if since.is_none_or(|since| now - since < SYNS_ARRIVE_WITHIN) {
            return false;
        }
        let idle = self
            .cores
            .call_each(|_| move |host: &mut Host<P>, now| host.is_listener_idle(now, cookie));
        idle.is_some_and(|cores| cores.into_iter().all(|idle| idle))
    }

    /// Suspends the kernel socket's listener: releases the listener's claims, and lets the cores
    /// refuse new connections. The programs that hold the listener keep it.
    pub fn suspend_listener(&mut self, cookie: u64) {
        let Some(listener) = self.listeners.get_mut(&cookie) else {
            return;
        };
        listener.draining_since = None;
        listener.is_suspended = true;
        self.unclaim_all(Owner::Listener(cookie), clock::now());
        self.cores
            .call_each(|_| move |host: &mut Host<P>, now| host.suspend_listener(now, cookie));
    }

    /// Records that each core has the socket's listener, which is then not suspended.
    pub fn resume_listener(&mut self, socket: &KernelSocket) {
        if let Some(listener) = self.listeners.get_mut(&socket.cookie) {
            listener.is_suspended = false;
            listener.in_group = socket.group().is_some();
            listener.bound = Some((socket.local, socket.v6_only));
        }
    }

    /// Returns true if the kernel socket's listener is suspended.
    pub fn is_suspended(&self, cookie: u64) -> bool {
        let listener = self.listeners.get(&cookie);
        listener.is_some_and(|listener| listener.is_suspended)
    }

    /// Records that one program has given up the kernel socket's listener.
    pub fn release_listener(&mut self, cookie: u64) {
        if let Some(listener) = self.listeners.get_mut(&cookie) {
            listener.holders = listener.holders.saturating_sub(1);
        }
        self.forget_listener(cookie);
    }

    /// Removes the kernel socket's listener if no program holds the listener.
    pub fn forget_listener(&mut self, cookie: u64) {
        let listener = self.listeners.get(&cookie);
        if listener.is_some_and(|listener| listener.holders == 0) {
            self.listeners.remove(&cookie);
            self.unclaim_all(Owner::Listener(cookie), clock::now());
        }
    }

    /// Returns a function that returns true if a core is awake on the CPU of the calling thread.
    /// The other threads of the service pace themselves by this function ([`pace::install_check`]).
    pub fn is_beside_core(&self) -> IsBesideCore {
        let cores = self.cores.clone();
        Arc::new(move || cores.are_beside())
    }

    /// Returns unused pages of receive memory to the kernel.
    pub fn give_pages_back(&self) {
        if !self.reclaimer.has_thread() {
            return;
        }
        let taken = self
            .cores
            .call_each(|_| |host: &mut Host<P>, _| host.take_idle_pages());
        for (core, pages) in taken.unwrap_or_default().into_iter().enumerate() {
            if pages.is_empty() {
                continue;
            }
            let cores = self.cores.clone();
            self.reclaimer.work(move || {
                for block in &pages {
                    block.give_back();
                    pace::rest();
                }
                cores.call(core, |host, _| host.return_idle_pages(pages));
            });
        }
    }

    /// Returns the time until the next check of a claim. The control thread sleeps no longer than
    /// this time. Returns `None` if no check is scheduled.
    pub fn next_check(&self, now: Instant) -> Option<Timespec> {
        let left = self.claims.next_check()? - now;
        Some(Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as _,
        })
    }
}

/// Returns true if every core answered that no connection uses the claim with index `at`.
fn is_unused_on_all_cores(answers: Option<&[Vec<bool>]>, at: usize) -> bool {
    answers.is_some_and(|cores| cores.iter().all(|unused| unused.get(at) == Some(&true)))
}
