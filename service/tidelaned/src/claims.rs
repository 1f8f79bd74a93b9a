//! Claims: the 3-tuples (address, protocol, port) whose packets go to the service, their owners,
//! and the reservations of their ports in the kernel.
//!
//! The demux, an XDP program, enforces the claims. A claim lives while it has an owner: a listener,
//! a session (a registered program) that has reserved a port to connect from it, the pool of ports
//! for outgoing connections without a bound port, or a mux port (a program with a TCP/IP stack of
//! its own). After the owner has left, the claim lives while its port has connections. While the
//! claim lives, a bound kernel socket of the service reserves the port: see
//! `docs/design/claims.md`. A claim of a wildcard address is one claim in the demux per address of
//! the interface.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidelane_host::ProgramId;
use tidelane_steering::{Claim, PortReservation, Scope, StackId, Steering, SteeringError};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress, MacAddress};

pub use owner::{Name, Owner, Terms};
use wants::Wants;

mod owner;
mod wants;

/// Time within which a program must connect from a port that it reserved.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the first check of a claim that may end. The delay doubles with each check.
const CHECK_DELAY_MIN: Duration = Duration::from_millis(5);
const CHECK_DELAY_MAX: Duration = Duration::from_millis(500);
/// Delay before the service first queries the kernel for connections on a listener's port. The
/// delay doubles with each query.
const ASK_DELAY_MIN: Duration = Duration::from_millis(10);
const ASK_DELAY_MAX: Duration = Duration::from_secs(5);
/// Interval between checks of a pool port. A port without connections may return to the kernel. The
/// interval exceeds TIME-WAIT.
const POOL_CHECK_DELAY: Duration = Duration::from_secs(60);
/// Least number of ports that the pool keeps.
const POOL_PORTS_MIN: usize = 64;

/// The question of a check. The answer decides whether the claim changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does a connection of the service need the claim? If not, the claim ends
    /// ([`Claims::unwant`]).
    IsNeeded,
    /// Does the kernel have connections on the claim's port? If not, the claim covers the whole
    /// port ([`Claims::widen`]).
    HasKernelConnections,
}

/// A claim that is due for a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The question to be answered.
    pub question: Question,
    /// The claim.
    pub name: Name,
    /// The ids, one per core, of the program whose connections need the claim. `None` if any
    /// connection of the port needs the claim.
    pub program: Option<Vec<ProgramId>>,
}

/// A claim of one owner.
struct Holding {
    terms: Terms,
    scope: Scope,
    /// Number of the session's reservations from which no connection has been opened yet.
    outstanding: u32,
    /// Time by which the session must open connections from its outstanding reservations.
    connect_until: Instant,
    /// Time of the next check, and the delay before the check after it. `None` while the owner
    /// wants the claim regardless of connections.
    next_check: Option<(Instant, Duration)>,
}

/// All claims of the service, and the demux that enforces them.
pub struct Claims {
    demux: Box<dyn Steering>,
    addresses: Vec<IpAddress>,
    holdings: BTreeMap<Name, Holding>,
    /// Claims with a scheduled check, by time.
    checks: BTreeSet<(Instant, Name)>,
    /// Claims in the demux, with the number of owners per scope.
    made: HashMap<Claim, Wants>,
    /// Number of ports in the pool.
    pooled: usize,
}

impl Claims {
    /// Returns an empty set of claims.
    pub fn new(demux: Box<dyn Steering>) -> Self {
        Self {
            demux,
            addresses: Vec::new(),
            holdings: BTreeMap::new(),
            checks: BTreeSet::new(),
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

    /// Sets the interface's addresses, and updates the demux's claims.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddress>) -> Result<(), SteeringError> {
        self.addresses = addresses;
        let mut wanted: HashMap<Claim, Wants> = HashMap::new();
        for (name, holding) in &self.holdings {
            for claim in self.claims_of(*name) {
                wanted.entry(claim).or_default().add(name.0, holding.scope);
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

    /// Returns true if the claim exists, even if its owner has left and only connections remain.
    pub fn has(&self, name: Name) -> bool {
        self.holdings.contains_key(&name)
    }

    /// Returns true if the demux has a claim of the same 3-tuples as `name`. Claims whose owners
    /// have left count, because their connections live.
    pub fn clashes(&self, name: Name) -> bool {
        let mut claims = self.claims_of(name).into_iter();
        claims.any(|claim| self.made.contains_key(&claim))
    }

    /// Returns true if a port of the mux has claimed a 3-tuple of this TCP endpoint.
    pub fn are_of_port(&self, endpoint: Endpoint) -> bool {
        let made = |claim| self.made.get(&claim);
        let mut claims = self.claims_of((Owner::Pool, endpoint)).into_iter();
        claims.any(|claim| made(claim).is_some_and(|wants| wants.are_of_port()))
    }

    /// Claims an endpoint for its owner. A wildcard address claims all addresses of its IP version.
    /// An existing claim keeps its reservation, even if the owner has left the claim.
    pub fn want(&mut self, name: Name, terms: Terms, now: Instant) -> Result<(), SteeringError> {
        let (owner, _) = name;
        if !self.has(name) {
            self.pooled += usize::from(owner == Owner::Pool);
            let holding = Holding {
                terms,
                scope: owner.scope(),
                outstanding: 0,
                connect_until: now,
                next_check: None,
            };
            self.holdings.insert(name, holding);
            let made = self.add_wants(name, owner.scope());
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
            Owner::Pool => self.schedule(name, Some((now + POOL_CHECK_DELAY, POOL_CHECK_DELAY))),
            Owner::Listener(_) => self.ask_kernel(name, now),
            Owner::Port { .. } => {
                let holding = self.holdings.get(&name);
                if holding.is_some_and(|holding| !holding.terms.shared) {
                    self.ask_kernel(name, now);
                }
            }
            Owner::Session(_) => {
                self.set_shared(name, true);
                if let Some(holding) = self.holdings.get_mut(&name) {
                    holding.outstanding = holding.outstanding.saturating_add(1);
                    holding.connect_until = now + CONNECT_TIMEOUT;
                }
                self.schedule(name, Some((now + CONNECT_TIMEOUT, CHECK_DELAY_MIN)));
            }
        }
    }

    /// Schedules a query for the kernel's connections on a listener's port, unless the claim covers
    /// the whole port already.
    fn ask_kernel(&mut self, name: Name, now: Instant) {
        let scope = self.holdings.get(&name).map(|holding| holding.scope);
        let asks = scope == Some(Scope::BesideConnections);
        self.schedule(name, asks.then_some((now + ASK_DELAY_MIN, ASK_DELAY_MIN)));
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

    /// Returns true if the claim exists and its scope is not [`Scope::BesideKernel`]. A claim gets
    /// that scope when its owner leaves.
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

    /// Narrows the claims of listeners on `local`, because the kernel has a connection there. The
    /// kernel keeps the segments of its connections.
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

    /// Returns true if the demux can hand frames back to the kernel.
    pub fn takes_frames_back(&self) -> bool {
        self.demux.takes_frames_back()
    }

    /// Hands a frame back to the kernel, see [`Steering::hand_back`].
    pub fn hand_back(&mut self, frame: &[u8]) -> Result<(), SteeringError> {
        self.demux.hand_back(frame)
    }

    fn undo(&mut self, name: Name, error: SteeringError) -> SteeringError {
        // Report the error that made the claim fail, not an error of its removal.
        let _ = self.unwant(name);
        error
    }

    /// Ends the owner's use of a claim. The claim stays while its port has connections. During this
    /// time, a packet for which the kernel has a socket goes to the kernel. Other sockets with
    /// SO_REUSEADDR may bind the port if the claim's terms allow sharing.
    pub fn leave(&mut self, name: Name, now: Instant) -> Result<(), SteeringError> {
        let Some(holding) = self.holdings.get_mut(&name) else {
            return Ok(());
        };
        holding.terms.program = None;
        holding.outstanding = 0;
        holding.connect_until = now;
        self.set_shared(name, true);
        self.schedule(name, Some((now, CHECK_DELAY_MIN)));
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

    /// Schedules a check, because the last connection from a reserved port may have ended.
    pub fn connection_ended(&mut self, name: Name, now: Instant) {
        let Some(holding) = self.holdings.get_mut(&name) else {
            return;
        };
        holding.outstanding = holding.outstanding.saturating_sub(1);
        let waits = holding.outstanding > 0 && now < holding.connect_until;
        if holding.next_check.is_some() && !waits {
            self.schedule(name, Some((now, CHECK_DELAY_MIN)));
        }
    }

    /// Returns the time of the next check.
    pub fn next_check(&self) -> Option<Instant> {
        self.checks.first().map(|(at, _)| *at)
    }

    /// Returns up to `max` claims that are due for a check. The caller answers each question by
    /// [`needed`](Self::needed) to keep the claim, or by the method in the doc of the question.
    pub fn due(&mut self, now: Instant, max: usize) -> Vec<Candidate> {
        let due = self.checks.iter().take_while(|(at, _)| *at <= now);
        let candidate = |(_, name): &(Instant, Name)| {
            let holding = self.holdings.get(name)?;
            let question = match holding.scope {
                Scope::BesideConnections => Question::HasKernelConnections,
                Scope::Whole | Scope::BesideKernel => Question::IsNeeded,
            };
            Some(Candidate {
                question,
                name: *name,
                program: holding.terms.program.clone(),
            })
        };
        due.take(max).filter_map(candidate).collect()
    }

    /// Returns the number of pool ports that may return to the kernel.
    pub fn pool_surplus(&self) -> usize {
        self.pooled.saturating_sub(POOL_PORTS_MIN)
    }

    /// Keeps a claim that connections need, and schedules its next check.
    pub fn needed(&mut self, name: Name, now: Instant) {
        let Some(holding) = self.holdings.get(&name) else {
            return;
        };
        if let Some((_, after)) = holding.next_check {
            let max = match (name.0, holding.scope) {
                (Owner::Pool, _) => POOL_CHECK_DELAY,
                (_, Scope::BesideConnections) => ASK_DELAY_MAX,
                _ => CHECK_DELAY_MAX,
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
        self.remove_wants(name, holding.scope)
    }

    /// Reserves up to `count` ports at `addr` for the pool. Returns the ports.
    pub fn reserve_ports(&mut self, addr: IpAddress, count: u32, now: Instant) -> Vec<u16> {
        let mut ports = Vec::new();
        for _ in 0..count {
            let Ok(reservation) = PortReservation::new(addr.0, 0) else {
                break;
            };
            let port = reservation.port();
            let terms = Terms {
                charge: None,
                reservation: Some(reservation),
                shared: false,
                program: None,
            };
            let name = (Owner::Pool, Endpoint { addr, port });
            if self.want(name, terms, now).is_err() {
                break;
            }
            ports.push(port);
        }
        ports
    }

    fn schedule(&mut self, name: Name, next: Option<(Instant, Duration)>) {
        let Some(holding) = self.holdings.get_mut(&name) else {
            return;
        };
        if let Some((at, _)) = std::mem::replace(&mut holding.next_check, next) {
            self.checks.remove(&(at, name));
        }
        if let Some((at, _)) = next {
            self.checks.insert((at, name));
        }
    }

    /// Lets other sockets with SO_REUSEADDR bind the reserved port, or forbids it. The claim's
    /// terms must allow sharing.
    fn set_shared(&self, name: Name, shared: bool) {
        let Some(holding) = self.holdings.get(&name) else {
            return;
        };
        if let Some(reservation) = &holding.terms.reservation {
            // On an error, the port stays reserved for the service alone.
            let _ = reservation.set_shared(shared && holding.terms.shared);
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
        // Add the new scope first, so that the demux never drops the claim in between.
        let added = self.add_wants(name, scope);
        added.and(self.remove_wants(name, before))
    }

    fn add_wants(&mut self, name: Name, scope: Scope) -> Result<(), SteeringError> {
        self.change_wants(name, |wants| wants.add(name.0, scope))
    }

    fn remove_wants(&mut self, name: Name, scope: Scope) -> Result<(), SteeringError> {
        self.change_wants(name, |wants| wants.remove(name.0, scope))
    }

    /// Changes the owners of the demux's claims of `name` and updates the demux. The function
    /// changes all of these claims, even if the demux fails for one.
    fn change_wants(
        &mut self,
        name: Name,
        change: impl Fn(&mut Wants),
    ) -> Result<(), SteeringError> {
        let mut result = Ok(());
        for claim in self.claims_of(name) {
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

    /// Returns the demux's claims for claim `name`: one for each address of the interface that the
    /// claim's address covers. The list is empty if there is none, as for 127.0.0.1.
    fn claims_of(&self, (owner, endpoint): Name) -> Vec<Claim> {
        let claim = |addr: &IpAddress| Claim {
            addr: addr.0,
            proto: owner.protocol(),
            port: endpoint.port,
        };
        let covered = |addr: &&IpAddress| endpoint.addr.covers(**addr);
        self.addresses.iter().filter(covered).map(claim).collect()
    }
}

#[cfg(test)]
mod tests;
