//! Claims: the 3-tuples that the demux sends to the service, their owners, and the reservations of
//! their ports in the kernel.
//!
//! A claim lives while it has an owner: a listener, a program's reservation, a port of the
//! ephemeral pool, or connections that outlive one of these. Meanwhile a socket of the service
//! reserves the port in the kernel: see `docs/design/claims.md`. A wildcard address has one claim
//! per address of the interface.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidelane_host::{ProgramId, accounts::Charge};
use tidelane_steering::{Claim, PortReservation, Scope, StackId, Steering, SteeringError};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress, MacAddress, protocol};

use wants::Wants;

mod wants;

/// Time limit for a program to connect from a reserved port.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Delay before the first check of a claim that may end; it doubles with each further check.
const LOOK_AFTER_MIN: Duration = Duration::from_millis(5);
const LOOK_AFTER_MAX: Duration = Duration::from_millis(500);
/// Shortest delay before the kernel is asked about connections on a listener's port; it doubles
/// with each question.
const ASK_AFTER_MIN: Duration = Duration::from_millis(10);
const ASK_AFTER_MAX: Duration = Duration::from_secs(5);
/// Interval of checks of a pool port, which returns to the kernel if it has no connection. The
/// interval exceeds TIME-WAIT.
const POOL_LOOK_AFTER: Duration = Duration::from_secs(60);
/// Ports of the pool that are always kept.
const POOL_KEPT: usize = 64;

/// The owner of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The listener of the kernel socket with this cookie.
    Listener(u64),
    /// A port that session `0` reserved.
    Session(u64),
    /// The ephemeral pool.
    Pool,
}

impl Owner {
    /// Returns the packets that an owner wants at first. Connections that clients opened to a
    /// listener before its claim belong to the kernel.
    fn scope(self) -> Scope {
        match self {
            Self::Pool => Scope::Whole,
            Self::Listener(_) => Scope::BesideConnections,
            Self::Session(_) => Scope::BesideKernel,
        }
    }
}

/// A claim's owner, address and port.
pub type Name = (Owner, Endpoint);

/// The terms of a claim.
#[derive(Debug)]
pub struct Title {
    /// The charge for the claim; `None` if its owner is charged.
    pub charge: Option<Charge>,
    /// The port's reservation in the kernel. `None` if another claim of the owner has it: a socket
    /// of `::` has the ports of both IP versions.
    pub reservation: Option<PortReservation>,
    /// True if another socket may be bound beside connections of the program's socket
    /// (SO_REUSEADDR).
    pub shared: bool,
    /// The program on each core for whose connections the port is reserved.
    pub program: Option<Vec<ProgramId>>,
}

/// The question that decides a change of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does a connection of the service need it? If not, it ends ([`Claims::unwant`]).
    IsNeeded,
    /// Does the kernel have connections on its port? If not, it covers the whole port
    /// ([`Claims::widen`]).
    HasKernelConnections,
}

/// A claim that is due for a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The question to be answered.
    pub question: Question,
    /// The claim.
    pub name: Name,
    /// The program on each core whose connections count; `None`: all connections of the port.
    pub program: Option<Vec<ProgramId>>,
}

struct Holding {
    title: Title,
    scope: Scope,
    /// Reservations from which no connection has been opened yet.
    outstanding: u32,
    /// Time limit for connections from them.
    connect_until: Instant,
    /// Time of the next check, and the delay before it. `None` while the owner wants the claim
    /// regardless of connections.
    look: Option<(Instant, Duration)>,
}

/// The demux with its claims.
pub struct Claims {
    demux: Box<dyn Steering>,
    addresses: Vec<IpAddress>,
    holdings: BTreeMap<Name, Holding>,
    /// Claims with a scheduled check, by time.
    looks: BTreeSet<(Instant, Name)>,
    made: HashMap<Claim, Wants>,
    /// Number of ports in the ephemeral pool.
    pooled: usize,
}

impl Claims {
    /// Returns an empty set of claims.
    pub fn new(demux: Box<dyn Steering>) -> Self {
        Self {
            demux,
            addresses: Vec::new(),
            holdings: BTreeMap::new(),
            looks: BTreeSet::new(),
            made: HashMap::new(),
            pooled: 0,
        }
    }

    /// Returns the demux.
    pub fn demux(&self) -> &dyn Steering {
        &*self.demux
    }

    /// Sets the interface's link address.
    pub fn set_link_address(&mut self, mac: MacAddress) -> Result<(), SteeringError> {
        self.demux.set_link_address(mac.0)
    }

    /// Returns the number of claims.
    pub fn count(&self) -> usize {
        self.holdings.len()
    }

    /// Sets the interface's addresses.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddress>) -> Result<(), SteeringError> {
        self.addresses = addresses;
        let mut wanted: HashMap<Claim, Wants> = HashMap::new();
        for ((_, endpoint), holding) in &self.holdings {
            for claim in self.claims_of(*endpoint) {
                *wanted.entry(claim).or_default().of(holding.scope) += 1;
            }
        }
        let before = std::mem::replace(&mut self.made, wanted);
        let mut result = Ok(());
        for claim in before.keys().filter(|claim| !self.made.contains_key(claim)) {
            result = result.and(self.demux.unclaim(claim).map(drop));
        }
        for (claim, wants) in &self.made {
            let scope = wants.scope();
            if scope != before.get(claim).and_then(|wants| wants.scope())
                && let Some(scope) = scope
            {
                result = result.and(self.demux.claim(claim, StackId(0), scope));
            }
        }
        result
    }

    /// Returns true if `owner` wants `endpoint`, or has left it while it has connections.
    pub fn has(&self, name: Name) -> bool {
        self.holdings.contains_key(&name)
    }

    /// Claims an endpoint for its owner, or all addresses of its version if unspecified. A claim
    /// that the owner already has, or has left, keeps its reservation.
    pub fn want(&mut self, name: Name, title: Title, now: Instant) -> Result<(), SteeringError> {
        let (owner, endpoint) = name;
        if !self.has(name) {
            self.pooled += usize::from(owner == Owner::Pool);
            let holding = Holding {
                title,
                scope: owner.scope(),
                outstanding: 0,
                connect_until: now,
                look: None,
            };
            self.holdings.insert(name, holding);
            let made = self.add_wants(endpoint, owner.scope());
            made.map_err(|error| self.undo(name, error))?;
        } else if !self.is_wanted(name) {
            let moved = self.set_scope(name, owner.scope());
            moved.map_err(|error| self.undo(name, error))?;
            self.set_shared(name, false);
        }
        self.schedule_first(name, now);
        Ok(())
    }

    /// Schedules the first check of a claim.
    fn schedule_first(&mut self, name: Name, now: Instant) {
        match name.0 {
            Owner::Pool => self.schedule(name, Some((now + POOL_LOOK_AFTER, POOL_LOOK_AFTER))),
            Owner::Listener(_) => self.ask_kernel(name, now),
            Owner::Session(_) => {
                self.set_shared(name, true);
                if let Some(holding) = self.holdings.get_mut(&name) {
                    holding.outstanding = holding.outstanding.saturating_add(1);
                    holding.connect_until = now + CONNECT_WITHIN;
                }
                self.schedule(name, Some((now + CONNECT_WITHIN, LOOK_AFTER_MIN)));
            }
        }
    }

    /// Schedules a question to the kernel about a listener's port, unless the kernel has no
    /// connections there.
    fn ask_kernel(&mut self, name: Name, now: Instant) {
        let scope = self.holdings.get(&name).map(|holding| holding.scope);
        let asks = scope == Some(Scope::BesideConnections);
        self.schedule(name, asks.then_some((now + ASK_AFTER_MIN, ASK_AFTER_MIN)));
    }

    /// Leaves the SYNs of an owner's claims to the kernel's own listener. The owner keeps the
    /// claims and their ports.
    pub fn leave_syns(&mut self, owner: Owner) -> Result<(), SteeringError> {
        let names: Vec<Name> = self.of_owner(owner).collect();
        let left = names.into_iter().map(|name| {
            self.schedule(name, None);
            self.set_scope(name, Scope::BesideKernel)
        });
        left.fold(Ok(()), Result::and)
    }

    /// Returns true if the owner has not left the claim.
    fn is_wanted(&self, name: Name) -> bool {
        let scope = self.holdings.get(&name).map(|holding| holding.scope);
        scope.is_some_and(|scope| scope != Scope::BesideKernel)
    }

    /// Extends a listener's claim to all packets, because the kernel has no connections on its
    /// port.
    pub fn widen(&mut self, name: Name) -> Result<(), SteeringError> {
        self.schedule(name, None);
        self.set_scope(name, Scope::Whole)
    }

    /// Leaves packets of kernel connections at `local` to the kernel, if a listener has the port.
    pub fn found_kernel_connection(
        &mut self,
        local: Endpoint,
        now: Instant,
    ) -> Result<(), SteeringError> {
        let here = |(owner, end): &Name| {
            let covers = end.addr == local.addr || end.addr.covers(local.addr);
            matches!(owner, Owner::Listener(_)) && end.port == local.port && covers
        };
        let whole = self
            .holdings
            .iter()
            .filter(|(_, h)| h.scope == Scope::Whole);
        let names: Vec<Name> = whole.map(|(name, _)| *name).filter(here).collect();
        names.into_iter().try_for_each(|name| {
            self.set_scope(name, Scope::BesideConnections)?;
            self.ask_kernel(name, now);
            Ok(())
        })
    }

    /// Returns true if frames can be handed back to the kernel.
    pub fn takes_frames_back(&self) -> bool {
        self.demux.takes_frames_back()
    }

    /// Hands a frame back to the kernel, see [`Steering::hand_back`].
    pub fn hand_back(&mut self, frame: &[u8]) -> Result<(), SteeringError> {
        self.demux.hand_back(frame)
    }

    fn undo(&mut self, name: Name, error: SteeringError) -> SteeringError {
        // The first error is the one to report.
        let _ = self.unwant(name);
        error
    }

    /// Ends the owner's interest in the endpoint. The claim stays while it has connections;
    /// meanwhile the demux asks the kernel first, and the port is reserved as beside kernel
    /// connections.
    pub fn leave(&mut self, name: Name, now: Instant) -> Result<(), SteeringError> {
        let Some(holding) = self.holdings.get_mut(&name) else {
            return Ok(());
        };
        holding.title.program = None;
        holding.outstanding = 0;
        holding.connect_until = now;
        self.set_shared(name, true);
        self.schedule(name, Some((now, LOOK_AFTER_MIN)));
        self.set_scope(name, Scope::BesideKernel)
    }

    /// Calls [`leave`](Self::leave) for all claims of `owner`.
    pub fn leave_all(&mut self, owner: Owner, now: Instant) -> Result<(), SteeringError> {
        let names: Vec<Name> = self.of_owner(owner).collect();
        let left = names.into_iter().map(|name| self.leave(name, now));
        left.fold(Ok(()), Result::and)
    }

    fn of_owner(&self, owner: Owner) -> impl Iterator<Item = Name> {
        let from = (owner, Endpoint::default());
        let names = self.holdings.range(from..).map(|(name, _)| *name);
        names.take_while(move |(other, _)| *other == owner)
    }

    /// Schedules a check after the end of a connection from a reserved port, which may be the last.
    pub fn connection_ended(&mut self, name: Name, now: Instant) {
        let Some(holding) = self.holdings.get_mut(&name) else {
            return;
        };
        holding.outstanding = holding.outstanding.saturating_sub(1);
        let waits = holding.outstanding > 0 && now < holding.connect_until;
        if holding.look.is_some() && !waits {
            self.schedule(name, Some((now, LOOK_AFTER_MIN)));
        }
    }

    /// Returns the time of the next check.
    pub fn next_look(&self) -> Option<Instant> {
        self.looks.first().map(|(at, _)| *at)
    }

    /// Returns up to `max` claims that are due. The caller answers each by
    /// [`needed`](Self::needed), or by the method that its question names.
    pub fn due(&mut self, now: Instant, max: usize) -> Vec<Candidate> {
        let due = self.looks.iter().take_while(|(at, _)| *at <= now);
        let candidate = |(_, name): &(Instant, Name)| {
            let holding = self.holdings.get(name)?;
            let question = match holding.scope {
                Scope::BesideConnections => Question::HasKernelConnections,
                Scope::Whole | Scope::BesideKernel => Question::IsNeeded,
            };
            Some(Candidate {
                question,
                name: *name,
                program: holding.title.program.clone(),
            })
        };
        due.take(max).filter_map(candidate).collect()
    }

    /// Returns the number of pool ports that may return to the kernel.
    pub fn pool_surplus(&self) -> usize {
        self.pooled.saturating_sub(POOL_KEPT)
    }

    /// Keeps a claim because of its connections.
    pub fn needed(&mut self, name: Name, now: Instant) {
        let Some(holding) = self.holdings.get(&name) else {
            return;
        };
        if let Some((_, after)) = holding.look {
            let max = match (name.0, holding.scope) {
                (Owner::Pool, _) => POOL_LOOK_AFTER,
                (_, Scope::BesideConnections) => ASK_AFTER_MAX,
                _ => LOOK_AFTER_MAX,
            };
            let next = Duration((after.0 * 2).min(max.0));
            self.schedule(name, Some((now + after, next)));
        }
    }

    /// Ends a claim and its reservation.
    pub fn unwant(&mut self, name: Name) -> Result<(), SteeringError> {
        self.schedule(name, None);
        let Some(holding) = self.holdings.remove(&name) else {
            return Ok(());
        };
        self.pooled -= usize::from(name.0 == Owner::Pool);
        self.remove_wants(name.1, holding.scope)
    }

    /// Reserves up to `count` ports at `addr` for the ephemeral pool.
    pub fn reserve_ports(&mut self, addr: IpAddress, count: u32, now: Instant) -> Vec<u16> {
        let mut ports = Vec::new();
        for _ in 0..count {
            let Ok(reservation) = PortReservation::new(addr.0, 0) else {
                break;
            };
            let port = reservation.port();
            let title = Title {
                charge: None,
                reservation: Some(reservation),
                shared: false,
                program: None,
            };
            let name = (Owner::Pool, Endpoint { addr, port });
            if self.want(name, title, now).is_err() {
                break;
            }
            ports.push(port);
        }
        ports
    }

    fn schedule(&mut self, name: Name, look: Option<(Instant, Duration)>) {
        let Some(holding) = self.holdings.get_mut(&name) else {
            return;
        };
        if let Some((at, _)) = std::mem::replace(&mut holding.look, look) {
            self.looks.remove(&(at, name));
        }
        if let Some((at, _)) = look {
            self.looks.insert((at, name));
        }
    }

    /// Sets whether sockets that may be bound beside connections may be bound beside the
    /// reservation.
    fn set_shared(&self, name: Name, shared: bool) {
        let Some(holding) = self.holdings.get(&name) else {
            return;
        };
        if let Some(reservation) = &holding.title.reservation {
            // If the option cannot be set, the port just stays reserved.
            let _ = reservation.set_shared(shared && holding.title.shared);
        }
    }

    fn set_scope(&mut self, name: Name, scope: Scope) -> Result<(), SteeringError> {
        let Some(holding) = self.holdings.get_mut(&name) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut holding.scope, scope);
        if before == scope {
            return Ok(());
        }
        // In this order the claim always has an owner.
        let added = self.add_wants(name.1, scope);
        added.and(self.remove_wants(name.1, before))
    }

    fn add_wants(&mut self, endpoint: Endpoint, scope: Scope) -> Result<(), SteeringError> {
        self.change_wants(endpoint, |wants| *wants.of(scope) += 1)
    }

    fn remove_wants(&mut self, endpoint: Endpoint, scope: Scope) -> Result<(), SteeringError> {
        self.change_wants(endpoint, |wants| {
            let count = wants.of(scope);
            *count = count.saturating_sub(1);
        })
    }

    /// Changes the owners of the claims of `endpoint` and updates the demux. All claims are
    /// changed, even if one fails.
    /// changed, whatever becomes of one.
    fn change_wants(
        &mut self,
        endpoint: Endpoint,
        change: impl Fn(&mut Wants),
    ) -> Result<(), SteeringError> {
        let mut result = Ok(());
        for claim in self.claims_of(endpoint) {
            let wants = self.made.entry(claim).or_default();
            let before = wants.scope();
            change(wants);
            let after = wants.scope();
            if after.is_none() {
                self.made.remove(&claim);
            }
            result = result.and(match after {
                _ if after == before => Ok(()),
                Some(scope) => self.demux.claim(&claim, StackId(0), scope),
                None => self.demux.unclaim(&claim).map(drop),
            });
        }
        result
    }

    /// Returns the claims on an endpoint: none for an address that the interface does not have,
    /// such as that of a listener on loopback.
    fn claims_of(&self, endpoint: Endpoint) -> Vec<Claim> {
        let claim = |addr: &IpAddress| Claim {
            addr: addr.0,
            proto: protocol::TCP,
            port: endpoint.port,
        };
        let covered = |addr: &&IpAddress| endpoint.addr.covers(**addr);
        self.addresses.iter().filter(covered).map(claim).collect()
    }
}

#[cfg(test)]
mod tests;
