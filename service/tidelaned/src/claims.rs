//! Which 3-tuples the demux sends to the service, why, and what holds their ports in the kernel.
//!
//! A claim holds as long as something wants it: a listener, a program's reservation, a port of the
//! ephemeral pool, or connections that outlive any of these. As long as it holds, a socket of the
//! service's own holds the port in the kernel: see `docs/design/claims.md`. A wildcard wants one
//! claim per address of the interface.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidelane_host::{ProgramId, accounts::Charge};
use tidelane_steering::{Claim, PortReservation, Scope, StackId, Steering, SteeringError};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress, MacAddress, protocol};

use wants::Wants;

mod wants;

/// After a reservation, how long a program may take to connect from the port.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A claim that is to be given up is looked at after such a time, and each further time after twice
/// as long, until it is not needed any more.
const LOOK_AFTER_MIN: Duration = Duration::from_millis(5);
const LOOK_AFTER_MAX: Duration = Duration::from_millis(500);
/// How soon the kernel is asked whether it has connections on a listener's port, and how rarely: it
/// is asked again after twice the time.
const ASK_AFTER_MIN: Duration = Duration::from_millis(10);
const ASK_AFTER_MAX: Duration = Duration::from_secs(5);
/// A port of the ephemeral pool is looked at this often, and goes back to the kernel if no
/// connection has it then: what was in TIME-WAIT at the look before is not any more.
const POOL_LOOK_AFTER: Duration = Duration::from_secs(60);
/// Ports of the pool that are not given back.
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
    /// Packets that an owner wants at first. Clients may have come to a listener before its claim,
    /// and their connections are the kernel's.
    fn scope(self) -> Scope {
        match self {
            Self::Pool => Scope::Whole,
            Self::Listener(_) => Scope::BesideConnections,
            Self::Session(_) => Scope::BesideKernel,
        }
    }
}

/// A claim's owner and local end.
pub type Name = (Owner, Endpoint);

/// The terms of a claim.
#[derive(Debug)]
pub struct Title {
    /// The charge for the claim while it lives; `None` if its owner is charged.
    pub charge: Option<Charge>,
    /// Holds the port in the kernel. `None` where another claim of the owner has it: a socket of
    /// `::` has the ports of both IP versions.
    pub reservation: Option<PortReservation>,
    /// Beside connections of the program's socket another socket may be bound (SO_REUSEADDR).
    pub shared: bool,
    /// The program on each core for whose connections the port is reserved.
    pub program: Option<Vec<ProgramId>>,
}

/// A question about a claim that may have to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does a connection of the service need it? If not, [`Claims::unwant`].
    IsNeeded,
    /// Has the kernel connections on its port? If not, [`Claims::widen`].
    HasKernelConnections,
}

/// A claim that is to be looked at, and that may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How it may change.
    pub question: Question,
    /// The claim.
    pub name: Name,
    /// The program on each core whose connections count; `None`: all connections of the port.
    pub program: Option<Vec<ProgramId>>,
}

struct Holding {
    title: Title,
    scope: Scope,
    /// Reservations that no connection has come of yet.
    outstanding: u32,
    /// Until then a connection may come of them.
    connect_until: Instant,
    /// When the claim is looked at, and how long after the look before. `None` while its owner
    /// wants it whether or not there are connections.
    look: Option<(Instant, Duration)>,
}

/// The demux with its claims.
pub struct Claims {
    demux: Box<dyn Steering>,
    addresses: Vec<IpAddress>,
    holdings: BTreeMap<Name, Holding>,
    /// The holdings that are to be looked at, by time.
    looks: BTreeSet<(Instant, Name)>,
    made: HashMap<Claim, Wants>,
    /// Ports of the ephemeral pool.
    pooled: usize,
}

impl Claims {
    /// No claims yet.
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

    /// The demux.
    pub fn demux(&self) -> &dyn Steering {
        &*self.demux
    }

    /// The interface's link address is this one now.
    pub fn set_link_address(&mut self, mac: MacAddress) -> Result<(), SteeringError> {
        self.demux.set_link_address(mac.0)
    }

    /// Number of claims that are held.
    pub fn count(&self) -> usize {
        self.holdings.len()
    }

    /// The interface has these addresses now.
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

    /// Returns true if `owner` wants `endpoint`, or has left it and connections are there.
    pub fn has(&self, name: Name) -> bool {
        self.holdings.contains_key(&name)
    }

    /// Claims an endpoint (of all addresses of its version if unspecified) for its owner. A claim
    /// that the owner has, or has left, keeps its reservation.
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

    /// When a claim that is wanted is looked at first.
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

    /// The kernel is asked about a listener's port from now on, unless it has said that it has no
    /// connections there.
    fn ask_kernel(&mut self, name: Name, now: Instant) {
        let scope = self.holdings.get(&name).map(|holding| holding.scope);
        let asks = scope == Some(Scope::BesideConnections);
        self.schedule(name, asks.then_some((now + ASK_AFTER_MIN, ASK_AFTER_MIN)));
    }

    /// The kernel gets the SYNs of an owner's claims from now on: its own listener has them. The
    /// owner keeps the claims, and their ports.
    pub fn leave_syns(&mut self, owner: Owner) -> Result<(), SteeringError> {
        let names: Vec<Name> = self.of_owner(owner).collect();
        let left = names.into_iter().map(|name| {
            self.schedule(name, None);
            self.set_scope(name, Scope::BesideKernel)
        });
        left.fold(Ok(()), Result::and)
    }

    /// Returns true if the owner of a claim has not left it.
    fn is_wanted(&self, name: Name) -> bool {
        let scope = self.holdings.get(&name).map(|holding| holding.scope);
        scope.is_some_and(|scope| scope != Scope::BesideKernel)
    }

    /// The kernel has no connections on the port of a listener's claim: all packets come to the
    /// service.
    pub fn widen(&mut self, name: Name) -> Result<(), SteeringError> {
        self.schedule(name, None);
        self.set_scope(name, Scope::Whole)
    }

    /// The kernel has a connection at `local`: it keeps those packets, if a listener has the port.
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

    /// Returns true if the kernel takes frames back.
    pub fn takes_frames_back(&self) -> bool {
        self.demux.takes_frames_back()
    }

    /// The kernel gets this frame, see [`Steering::hand_back`].
    pub fn hand_back(&mut self, frame: &[u8]) -> Result<(), SteeringError> {
        self.demux.hand_back(frame)
    }

    fn undo(&mut self, name: Name, error: SteeringError) -> SteeringError {
        // The first failure is the one to tell.
        let _ = self.unwant(name);
        error
    }

    /// The owner wants the endpoint no longer; its connections may outlive it. Until they are over,
    /// the kernel is asked first, and the port is held as beside connections of the kernel's.
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

    /// As [`leave`](Self::leave), for all that `owner` wants.
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

    /// A connection from a reserved port is over: if it was the last, the port goes.
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

    /// When the next claim is to be looked at.
    pub fn next_look(&self) -> Option<Instant> {
        self.looks.first().map(|(at, _)| *at)
    }

    /// Up to `max` claims that are to be looked at now. Each is to be named again by
    /// [`needed`](Self::needed), or by the method of its question.
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

    /// How many of the ephemeral pool's ports may go back to the kernel.
    pub fn pool_surplus(&self) -> usize {
        self.pooled.saturating_sub(POOL_KEPT)
    }

    /// The claim stays as it is, because of connections.
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

    /// The claim ends, and with it the reservation of its port.
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

    /// Lets sockets be bound beside the reservation that could be beside connections; or none.
    fn set_shared(&self, name: Name, shared: bool) {
        let Some(holding) = self.holdings.get(&name) else {
            return;
        };
        if let Some(reservation) = &holding.title.reservation {
            // The option of a socket of our own: what cannot be set leaves the port to nobody else.
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
        // In this order the claim is never without anybody who wants it.
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

    /// Changes who wants the claims of `endpoint`, and tells the demux what follows. All are
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

    /// The claims on an endpoint: none for an address that the interface does not have, such as
    /// that of a listener on loopback.
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
