//! The state of the control plane that all sessions use.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::OwnedFd,
    sync::Arc,
};

use rustix::event::Timespec;
use tidelane_host::{AddressesWithin, Host, RuleSet, Stray};
use tidelane_steering::SteeringError;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress};

use crate::{
    access::Access,
    accounts::{Accounts, LimitsConfig},
    claims::{Candidate, Claims, Name, Owner, Question},
    confine::Confinement,
    congestion::Congestion,
    core::{self, Port},
    cores::Cores,
    descriptors::DescriptorThreads,
    fast_open::FastOpen,
    keeper::Keeper,
    kernel_connections::KernelConnections,
    pace::{self, IsBesideCore},
    runtime,
    session::Session,
    short_lived::ShortLived,
    somaxconn::SomaxConn,
};

/// Limit of claims in one turn, so that other work of the control thread need not wait long.
const CANDIDATES_MAX: usize = 256;

/// Time within which a SYN that the demux sent to the service has reached its core.
const SYNS_ARRIVE_WITHIN: Duration = Duration::from_millis(250);

/// The control thread's state that sessions use.
pub struct Shared<P: Port> {
    /// The fast path.
    pub cores: Cores<P>,
    /// Claims in the demux.
    pub claims: Claims,
    /// Look-up of the kernel's connections.
    pub kernel: KernelConnections,
    /// The service page, for programs.
    pub page_fd: OwnedFd,
    /// The rules for connections, without their counts.
    pub rules: RuleSet,
    /// Programs that may use the service.
    pub access: Access,
    /// Thread that frees programs' memory.
    pub keeper: Keeper,
    /// Accounts and limits of users.
    pub accounts: Accounts,
    /// The limit of accept queues.
    pub somaxconn: SomaxConn,
    /// The kernel's settings of Fast Open.
    pub fast_open: FastOpen,
    /// The kernel's settings of congestion control.
    pub congestion: Congestion,
    /// Threads that check descriptors of programs.
    pub descriptors: DescriptorThreads,
    /// Sessions of children that are about to be forked.
    pub children: Vec<Session>,
    /// Rights that the process has given up; `None` in tests.
    pub confinement: Option<Confinement>,
    /// Features that the kernel or the driver lacks, each with its effect.
    pub shortcomings: Vec<String>,
    /// Addresses of the host that are not the interface's.
    pub within: AddressesWithin,
    /// The default for connections over loopback, for programs that did not choose.
    pub loopback: bool,
    addresses: Vec<IpAddress>,
    next_session: u64,
    next_listener: u32,
    /// Listeners by the cookies of their kernel sockets.
    listeners: HashMap<u64, Listening>,
}

/// A listener of the service.
struct Listening {
    /// Number of the listener among programs.
    number: u32,
    /// Number of programs that have it.
    holders: usize,
    /// True if it shares its port with other listeners (SO_REUSEPORT).
    in_group: bool,
    /// Short-lived children of its programs.
    children: ShortLived,
    /// Time from which on the kernel gets its SYNs.
    left: Option<Instant>,
}

impl<P: Port> Shared<P> {
    /// Makes a state without sessions, on an interface without addresses, that admits every
    /// program.
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
            access: Access::everybody(),
            keeper: Keeper::default(),
            accounts: Accounts::new(LimitsConfig::default(), runtime::descriptors_max()),
            somaxconn: SomaxConn::open(),
            fast_open: FastOpen::open(),
            congestion: Congestion::open(),
            descriptors,
            children: Vec::new(),
            confinement: None,
            shortcomings: Vec::new(),
            within: AddressesWithin::default(),
            loopback: false,
            addresses: Vec::new(),
            next_session: 0,
            next_listener: 0,
            listeners: HashMap::new(),
        }
    }

    /// Sets the interface's addresses, which claims of wildcards follow.
    pub fn set_addresses(&mut self, addresses: &[IpAddress]) -> Result<(), SteeringError> {
        self.addresses = addresses.to_vec();
        self.claims.set_addresses(addresses.to_vec())
    }

    /// Returns true if connections to `addr` arrive over the served interface, as those to a
    /// wildcard address do.
    pub fn is_served(&self, addr: IpAddress) -> bool {
        addr.is_unspecified() || self.addresses.contains(&addr)
    }

    /// Returns true if a listener at `addr` gets connections: over the interface, or within the
    /// host if it wants those.
    pub fn is_reached(&self, addr: IpAddress, within_host: bool) -> bool {
        self.is_served(addr) || within_host && self.within.has(addr)
    }

    /// Returns the source address for a route without one: an address within its prefix, or else
    /// the first of its version. (RFC 6724 has more rules for an interface with several prefixes.)
    pub fn source_for(&self, prefix: IpAddress, prefix_len: u8) -> Option<IpAddress> {
        let of_version = |addr: &&IpAddress| addr.is_v4() == prefix.is_v4();
        let mut known = self.addresses.iter().filter(of_version);
        let within = known
            .clone()
            .find(|addr| addr.shares_prefix(prefix, prefix_len));
        within.or_else(|| known.next()).copied()
    }

    /// Returns the interface's first address of the version of `any`.
    pub fn first_address(&self, any: IpAddress) -> Option<IpAddress> {
        let mut covered = self.addresses.iter().filter(|addr| any.covers(**addr));
        covered.next().copied()
    }

    /// Returns the addresses of the served interface.
    pub fn addresses(&self) -> &[IpAddress] {
        &self.addresses
    }

    /// Ends all claims of `owner` once no connection uses them: until then their segments must
    /// reach the service, because the kernel would reset the connections.
    pub fn unclaim_all(&mut self, owner: Owner, now: Instant) {
        if let Err(error) = self.claims.leave_all(owner, now) {
            eprintln!("tidelaned: cannot change claims: {error}");
        }
    }

    /// Ends claims that no connection uses any more: a bounded number per turn, with one question
    /// to each core. An error is only logged.
    pub fn finish_claims(&mut self, now: Instant) {
        let due = self.claims.due(now, CANDIDATES_MAX);
        if due.is_empty() {
            return;
        }
        let is_asked = |candidate: &Candidate| candidate.question == Question::HasKernelConnections;
        let is_pooled = |candidate: &Candidate| candidate.name.0 == Owner::Pool;
        let (asked, due): (Vec<_>, Vec<_>) = due.into_iter().partition(is_asked);
        let (pooled, others): (Vec<_>, Vec<_>) = due.into_iter().partition(is_pooled);
        self.widen_claims(&asked, now);
        self.finish_others(&others, now);
        self.shrink_pool(&pooled, now);
    }

    /// Extends listeners' claims to all packets on ports without kernel connections.
    fn widen_claims(&mut self, candidates: &[Candidate], now: Instant) {
        if candidates.is_empty() {
            return;
        }
        let connected = self.kernel.connected_ports();
        for Candidate { name, .. } in candidates {
            let end = name.1;
            match &connected {
                Some(ports) if !ports.contains(&end.port) => {
                    if let Err(error) = self.claims.widen(*name) {
                        eprintln!("tidelaned: cannot change the claim on {end}: {error}");
                    }
                }
                _ => self.claims.needed(*name, now),
            }
        }
    }

    /// Hands frames to the kernel, whose connections they may belong to.
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

    fn finish_others(&mut self, candidates: &[Candidate], now: Instant) {
        if candidates.is_empty() {
            return;
        }
        let unused = self.cores.call_each(|core| {
            let end = |candidate: &Candidate| {
                let program = candidate.program.as_ref();
                let program = program.and_then(|ids| ids.get(core).copied());
                (program, candidate.name.1)
            };
            let ends: Vec<_> = candidates.iter().map(end).collect();
            move |host, _| host.give_up(&ends)
        });
        for (at, candidate) in candidates.iter().enumerate() {
            self.apply_answer(
                candidate.name,
                unused_everywhere(unused.as_deref(), at),
                now,
            );
        }
    }

    /// Returns ports of the ephemeral pool without connections to the kernel.
    fn shrink_pool(&mut self, candidates: &[Candidate], now: Instant) {
        let (going, staying) =
            candidates.split_at(candidates.len().min(self.claims.pool_surplus()));
        for candidate in staying {
            self.claims.needed(candidate.name, now);
        }
        if going.is_empty() {
            return;
        }
        let ends: Vec<Endpoint> = going.iter().map(|candidate| candidate.name.1).collect();
        let unused = self.cores.call_each(|_| {
            let ends = ends.clone();
            move |host, _| host.retire_ports(&ends)
        });
        let mut used: BTreeMap<IpAddress, Vec<u16>> = BTreeMap::new();
        for (at, end) in ends.iter().enumerate() {
            let unused = unused_everywhere(unused.as_deref(), at);
            if !unused {
                used.entry(end.addr).or_default().push(end.port);
            }
            self.apply_answer((Owner::Pool, *end), unused, now);
        }
        for (addr, ports) in used {
            self.cores.send_each(|_| {
                let ports = ports.clone();
                move |host, now| host.add_ports(now, addr, &ports)
            });
        }
    }

    fn apply_answer(&mut self, name: Name, unused: bool, now: Instant) {
        if !unused {
            self.claims.needed(name, now);
        } else if let Err(error) = self.claims.unwant(name) {
            let endpoint = name.1;
            eprintln!("tidelaned: cannot give up the claim on {endpoint}: {error}");
        }
    }

    /// Returns the number of a new session.
    pub fn session_number(&mut self) -> u64 {
        self.next_session += 1;
        self.next_session
    }

    /// Returns the number of the listener of the kernel socket with this cookie. Programs that
    /// share the socket share the number.
    pub fn listener_number(&mut self, cookie: u64) -> u32 {
        let next = self.next_listener.wrapping_add(1);
        let fresh = Listening {
            number: next,
            holders: 0,
            in_group: false,
            children: ShortLived::default(),
            left: None,
        };
        let number = self.listeners.entry(cookie).or_insert(fresh).number;
        if number == next {
            self.next_listener = next;
        }
        number
    }

    /// Counts one more program with the kernel socket's listener.
    pub fn hold_listener(&mut self, cookie: u64, in_group: bool) {
        if let Some(listening) = self.listeners.get_mut(&cookie) {
            listening.holders += 1;
            listening.in_group = in_group;
        }
    }

    /// Records the end of a child that took over a connection of this listener. If its program
    /// forks for each connection, the kernel gets the listener's SYNs from now on. Existing
    /// connections stay. A group (SO_REUSEPORT) has one claim, and is not changed.
    pub fn child_ended(&mut self, cookie: u64, now: Instant, lived: Duration) {
        let Some(listening) = self.listeners.get_mut(&cookie) else {
            return;
        };
        let leaves = listening.children.child_ended(now, lived);
        if !leaves || listening.in_group || listening.left.is_some() {
            return;
        }
        listening.left = Some(now);
        if let Err(error) = self.claims.leave_syns(Owner::Listener(cookie)) {
            eprintln!("tidelaned: cannot change claims: {error}");
        }
        self.cores
            .call_each(|_| move |host: &mut Host<P>, _| host.leave_syns(cookie));
    }

    /// Returns true if the kernel gets the SYNs of this listener.
    pub fn is_left(&self, cookie: u64) -> bool {
        let listening = self.listeners.get(&cookie);
        listening.is_some_and(|listening| listening.left.is_some())
    }

    /// Returns true if the kernel has had the SYNs of this listener for a while, and no connection
    /// waits for its programs, so that they lose nothing when they give it up.
    pub fn may_be_given_up(&self, cookie: u64, now: Instant) -> bool {
        let listening = self.listeners.get(&cookie);
        let left = listening.and_then(|listening| listening.left);
        if left.is_none_or(|left| now - left < SYNS_ARRIVE_WITHIN) {
            return false;
        }
        let idle = self
            .cores
            .call_each(|_| move |host: &mut Host<P>, now| host.is_listener_idle(now, cookie));
        idle.is_some_and(|cores| cores.into_iter().all(|idle| idle))
    }

    /// Counts one program less with the kernel socket's listener.
    pub fn release_listener(&mut self, cookie: u64) {
        if let Some(listening) = self.listeners.get_mut(&cookie) {
            listening.holders = listening.holders.saturating_sub(1);
        }
        self.forget_listener(cookie);
    }

    /// Removes the kernel socket's listener if no program has it.
    pub fn forget_listener(&mut self, cookie: u64) {
        let listening = self.listeners.get(&cookie);
        if listening.is_some_and(|listening| listening.holders == 0) {
            self.listeners.remove(&cookie);
            self.unclaim_all(Owner::Listener(cookie), core::now());
        }
    }

    /// Returns the check of the threads that work for programs: is a core awake on their CPU?
    pub fn is_beside_core(&self) -> IsBesideCore {
        let cores = self.cores.clone();
        Arc::new(move || cores.are_beside())
    }

    /// Returns unused pages of receive memory to the system.
    pub fn give_pages_back(&self) {
        if !self.keeper.has_thread() {
            return;
        }
        let lent = self
            .cores
            .call_each(|_| |host: &mut Host<P>, _| host.lend_idle_pages());
        for (core, pages) in lent.unwrap_or_default().into_iter().enumerate() {
            if pages.is_empty() {
                continue;
            }
            let cores = self.cores.clone();
            self.keeper.work(move || {
                for block in &pages {
                    block.give_back();
                    pace::rest();
                }
                cores.call(core, |host, _| host.restore_lent_pages(pages));
            });
        }
    }

    /// Returns the limit of the control thread's sleep.
    pub fn next_check(&self, now: Instant) -> Option<Timespec> {
        let left = self.claims.next_check()? - now;
        Some(Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as _,
        })
    }
}

/// Returns true if no connection of any core uses the entry at `at`.
fn unused_everywhere(answers: Option<&[Vec<bool>]>, at: usize) -> bool {
    answers.is_some_and(|cores| cores.iter().all(|unused| unused.get(at) == Some(&true)))
}
