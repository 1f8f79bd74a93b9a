//! Claims: the 3-tuples (address, protocol, port) whose packets go to the Tidelane service, their
//! owners, and the reservations of their ports in the kernel (see `docs/design/claims.md`).
//!
//! The demux, an XDP program, enforces the claims. The owner of a claim is a listener, a session (a
//! registered program) that connects from a port which it has bound, the pool of ports for other
//! outgoing connections, or a mux port (a program with a TCP/IP stack of its own). The scope of a
//! claim says which packets of the 3-tuple the kernel keeps: none, the packets of the kernel's
//! connections, or these packets and the SYNs for the kernel's listeners. The service gets all
//! other packets. A claim that its owner has released lives on while its port has connections.
//! While a claim lives, a bound kernel socket of the service reserves the port. A claim of a
//! wildcard address is one claim in the demux per address of the interface.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tidelane_host::ProgramId;
use tidelane_steering::{Claim, PortReservation, Scope, StackId, Steering, SteeringError};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress, MacAddress};

use claimants::Claimants;
pub use owner::{ClaimKey, Owner, Terms};

mod claimants;
mod owner;

/// Time within which a program must connect from a port that it reserved. After this time, an
/// unused claim ends.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay from the first to the second check whether a claim may end. The delay doubles with each
/// check, up to [`CHECK_DELAY_MAX`].
const CHECK_DELAY_MIN: Duration = Duration::from_millis(5);
const CHECK_DELAY_MAX: Duration = Duration::from_millis(500);
/// Delay before the first query of the kernel for connections on a claim's port, and before the
/// second query. Each later delay is twice the delay before, up to [`QUERY_DELAY_MAX`].
const QUERY_DELAY_MIN: Duration = Duration::from_millis(10);
const QUERY_DELAY_MAX: Duration = Duration::from_secs(5);
/// Interval between two checks of a pool port: the length of TIME-WAIT (2 MSL). A port that the
/// pool need not keep ([`POOL_PORTS_MIN`]) returns to the kernel if the port has no connections.
const POOL_CHECK_DELAY: Duration = Duration::from_secs(60);
/// Least number of ports that the pool keeps.
const POOL_PORTS_MIN: usize = 64;

/// The question that a check of a claim asks. The caller of [`Claims::due`] finds the answer, which
/// decides whether the claim changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does a connection of the service need the claim? If not, the claim ends
    /// ([`Claims::end_claim`]).
    IsNeeded,
    /// Does the kernel have connections on the claim's port? If not, the claim is extended to all
    /// packets ([`Claims::widen`]).
    HasKernelConnections,
}

/// A claim that is due for a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The question to be answered.
    pub question: Question,
    /// The claim.
    pub key: ClaimKey,
    /// The program whose connections need the claim: its id on each core (polling thread). `None`
    /// if the connections of any program need the claim.
    pub program: Option<Vec<ProgramId>>,
}

/// A claim of one owner.
struct ClaimRecord {
    terms: Terms,
    scope: Scope,
    /// Number of the session's reservations whose connection is open or yet to be opened.
    live_reservations: u32,
    /// Time by which the session must open connections from its live reservations.
    connect_until: Instant,
    /// Time of the next check, and the delay from this check to the following check. `None` while
    /// the owner keeps the claim regardless of connections.
    next_check: Option<(Instant, Duration)>,
}

/// All claims of the service, and the demux that enforces them.
pub struct Claims {
    demux: Box<dyn Steering>,
    addresses: Vec<IpAddress>,
    records: BTreeMap<ClaimKey, ClaimRecord>,
    /// Claims with a scheduled check, by time.
    checks: BTreeSet<(Instant, ClaimKey)>,
    /// Claims in the demux, with the number of owners per scope.
    claimants: HashMap<Claim, Claimants>,
    /// Number of claims of the pool: one for each address and port.
    pooled: usize,
}

impl Claims {
    /// Returns an empty set of claims.
    pub fn new(demux: Box<dyn Steering>) -> Self {
        Self {
            demux,
            addresses: Vec::new(),
            records: BTreeMap::new(),
            checks: BTreeSet::new(),
            claimants: HashMap::new(),
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
        self.records.len()
    }

    /// Sets the interface's addresses, and updates the demux's claims.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddress>) -> Result<(), SteeringError> {
        self.addresses = addresses;
        let mut wanted: HashMap<Claim, Claimants> = HashMap::new();
        for (key, record) in &self.records {
            for claim in self.claims_of(*key) {
                wanted.entry(claim).or_default().add(key.0, record.scope);
            }
        }
        let before = std::mem::replace(&mut self.claimants, wanted);
        let mut result = Ok(());
        for claim in before
            .keys()
            .filter(|claim| !self.claimants.contains_key(claim))
        {
            result = result.and(self.demux.unclaim(claim).map(drop));
        }
        for (claim, claimants) in &self.claimants {
            let scope = claimants.scope();
            if scope != before.get(claim).and_then(|claimants| claimants.scope())
                && let Some(scope) = scope
            {
                result = result.and(self.demux.claim(claim, StackId(0), scope));
            }
        }
        result
    }

    /// Returns true if the claim exists, even if its owner has released it and only connections
    /// remain.
    pub fn has(&self, key: ClaimKey) -> bool {
        self.records.contains_key(&key)
    }

    /// Returns true if the demux has a claim of one of the 3-tuples of `key`. Claims that their
    /// owners have released count, because they may have connections.
    pub fn clashes(&self, key: ClaimKey) -> bool {
        let mut claims = self.claims_of(key).into_iter();
        claims.any(|claim| self.claimants.contains_key(&claim))
    }

    /// Returns true if a mux port has claimed a 3-tuple of this TCP endpoint.
    pub fn is_claimed_by_mux_port(&self, endpoint: Endpoint) -> bool {
        let claims = self.claims_of((Owner::Pool, endpoint)).into_iter();
        let mut claimants = claims.filter_map(|claim| self.claimants.get(&claim));
        claimants.any(|claimants| claimants.has_mux_port())
    }

    /// Claims an endpoint for its owner. A wildcard address claims all addresses of its IP version.
    /// A claim that exists already, even a released claim, keeps its own terms, and `terms` is
    /// dropped.
    pub fn claim(
        &mut self,
        key: ClaimKey,
        terms: Terms,
        now: Instant,
    ) -> Result<(), SteeringError> {
        let (owner, _) = key;
        if !self.has(key) {
            self.pooled += usize::from(owner == Owner::Pool);
            let record = ClaimRecord {
                terms,
                scope: owner.scope(),
                live_reservations: 0,
                connect_until: now,
                next_check: None,
            };
            self.records.insert(key, record);
            let added = self.add_claimant(key, owner.scope());
            added.map_err(|error| self.undo(key, error))?;
        } else if self.is_beside_kernel(key) {
            let moved = self.set_scope(key, owner.scope());
            moved.map_err(|error| self.undo(key, error))?;
            self.set_shared(key, false);
        }
        self.schedule_first(key, now);
        Ok(())
    }

    /// Schedules the first check of a claim. For a session, also counts one more live reservation.
    fn schedule_first(&mut self, key: ClaimKey, now: Instant) {
        match key.0 {
            Owner::Pool => self.schedule(key, Some((now + POOL_CHECK_DELAY, POOL_CHECK_DELAY))),
            Owner::Listener(_) => self.schedule_kernel_query(key, now),
            Owner::MuxPort { .. } => {
                let record = self.records.get(&key);
                if record.is_some_and(|record| !record.terms.shared) {
                    self.schedule_kernel_query(key, now);
                }
            }
            Owner::Session(_) => {
                self.set_shared(key, true);
                if let Some(record) = self.records.get_mut(&key) {
                    record.live_reservations = record.live_reservations.saturating_add(1);
                    record.connect_until = now + CONNECT_TIMEOUT;
                }
                self.schedule(key, Some((now + CONNECT_TIMEOUT, CHECK_DELAY_MIN)));
            }
        }
    }

    /// If the claim's scope is [`Scope::BesideConnections`], schedules a query for the kernel's
    /// connections on the port. Otherwise, the claim has no further check.
    fn schedule_kernel_query(&mut self, key: ClaimKey, now: Instant) {
        let scope = self.records.get(&key).map(|record| record.scope);
        let asks = scope == Some(Scope::BesideConnections);
        self.schedule(
            key,
            asks.then_some((now + QUERY_DELAY_MIN, QUERY_DELAY_MIN)),
        );
    }

    /// Lets the kernel's own listener get the SYNs of an owner's claims. The owner keeps the claims
    /// and their ports.
    pub fn pass_syns_to_kernel(&mut self, owner: Owner) -> Result<(), SteeringError> {
        let keys: Vec<ClaimKey> = self.of_owner(owner).collect();
        let left = keys.into_iter().map(|key| {
            self.schedule(key, None);
            self.set_scope(key, Scope::BesideKernel)
        });
        left.fold(Ok(()), Result::and)
    }

    /// Returns true if the claim's scope is [`Scope::BesideKernel`]. A session's claim always has
    /// this scope. A claim of another owner gets this scope when the owner releases the claim or
    /// passes its SYNs to the kernel.
    fn is_beside_kernel(&self, key: ClaimKey) -> bool {
        let record = self.records.get(&key);
        record.is_some_and(|record| record.scope == Scope::BesideKernel)
    }

    /// Extends a claim to all packets, because the kernel has no connections on its port.
    pub fn widen(&mut self, key: ClaimKey) -> Result<(), SteeringError> {
        self.schedule(key, None);
        self.set_scope(key, Scope::Whole)
    }

    /// Narrows the claims of listeners on `local`, because the kernel has a connection there. The
    /// kernel then gets the segments of its connections.
    pub fn found_kernel_connection(
        &mut self,
        local: Endpoint,
        now: Instant,
    ) -> Result<(), SteeringError> {
        let here = |(owner, end): &ClaimKey| {
            let covers = end.addr == local.addr || end.addr.covers(local.addr);
            matches!(owner, Owner::Listener(_)) && end.port == local.port && covers
        };
        let whole = self.records.iter().filter(|(_, h)| h.scope == Scope::Whole);
        let keys: Vec<ClaimKey> = whole.map(|(key, _)| *key).filter(here).collect();
        keys.into_iter().try_for_each(|key| {
            self.set_scope(key, Scope::BesideConnections)?;
            self.schedule_kernel_query(key, now);
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

    fn undo(&mut self, key: ClaimKey, error: SteeringError) -> SteeringError {
        // Report the error of the claim, and ignore an error of the removal.
        let _ = self.end_claim(key);
        error
    }

    /// Ends the owner's use of a claim. The claim stays while its port has connections. Meanwhile,
    /// a packet for which the kernel has a socket goes to the kernel. If the claim's terms allow
    /// sharing, other sockets with SO_REUSEADDR may bind the port.
    pub fn release(&mut self, key: ClaimKey, now: Instant) -> Result<(), SteeringError> {
        let Some(record) = self.records.get_mut(&key) else {
            return Ok(());
        };
        record.terms.program = None;
        record.live_reservations = 0;
        record.connect_until = now;
        self.set_shared(key, true);
        self.schedule(key, Some((now, CHECK_DELAY_MIN)));
        self.set_scope(key, Scope::BesideKernel)
    }

    /// Calls [`release`](Self::release) for all claims of `owner`.
    pub fn release_all(&mut self, owner: Owner, now: Instant) -> Result<(), SteeringError> {
        let keys: Vec<ClaimKey> = self.of_owner(owner).collect();
        let left = keys.into_iter().map(|key| self.release(key, now));
        left.fold(Ok(()), Result::and)
    }

    /// Returns the claims of `owner`, including the released claims.
    pub fn of_owner(&self, owner: Owner) -> impl Iterator<Item = ClaimKey> {
        let from = (owner, Endpoint::default());
        let keys = self.records.range(from..).map(|(key, _)| *key);
        keys.take_while(move |(other, _)| *other == owner)
    }

    /// Records that a connection from a reserved port has ended. Schedules a check, unless the
    /// session has another live reservation and still has time to connect from the port.
    pub fn connection_ended(&mut self, key: ClaimKey, now: Instant) {
        let Some(record) = self.records.get_mut(&key) else {
            return;
        };
        record.live_reservations = record.live_reservations.saturating_sub(1);
        let waits = record.live_reservations > 0 && now < record.connect_until;
        if record.next_check.is_some() && !waits {
            self.schedule(key, Some((now, CHECK_DELAY_MIN)));
        }
    }

    /// Returns the time of the next check.
    pub fn next_check(&self) -> Option<Instant> {
        self.checks.first().map(|(at, _)| *at)
    }

    /// Returns up to `max` claims that are due for a check. To leave a claim as it is, the caller
    /// calls [`schedule_next_check`](Self::schedule_next_check). To change the claim, the caller
    /// calls the method that the documentation of the claim's [`Question`] names.
    pub fn due(&mut self, now: Instant, max: usize) -> Vec<Candidate> {
        let due = self.checks.iter().take_while(|(at, _)| *at <= now);
        let candidate = |(_, key): &(Instant, ClaimKey)| {
            let record = self.records.get(key)?;
            let question = match record.scope {
                Scope::BesideConnections => Question::HasKernelConnections,
                Scope::Whole | Scope::BesideKernel => Question::IsNeeded,
            };
            Some(Candidate {
                question,
                key: *key,
                program: record.terms.program.clone(),
            })
        };
        due.take(max).filter_map(candidate).collect()
    }

    /// Returns the number of pool ports that may return to the kernel.
    pub fn pool_surplus(&self) -> usize {
        self.pooled.saturating_sub(POOL_PORTS_MIN)
    }

    /// Leaves a claim as it is, and schedules its next check.
    pub fn schedule_next_check(&mut self, key: ClaimKey, now: Instant) {
        let Some(record) = self.records.get(&key) else {
            return;
        };
        if let Some((_, after)) = record.next_check {
            let max = match (key.0, record.scope) {
                (Owner::Pool, _) => POOL_CHECK_DELAY,
                (_, Scope::BesideConnections) => QUERY_DELAY_MAX,
                _ => CHECK_DELAY_MAX,
            };
            let next = Duration((after.0 * 2).min(max.0));
            self.schedule(key, Some((now + after, next)));
        }
    }

    /// Ends a claim and its reservation.
    pub fn end_claim(&mut self, key: ClaimKey) -> Result<(), SteeringError> {
        self.schedule(key, None);
        let Some(record) = self.records.remove(&key) else {
            return Ok(());
        };
        self.pooled -= usize::from(key.0 == Owner::Pool);
        self.remove_claimant(key, record.scope)
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
            let key = (Owner::Pool, Endpoint { addr, port });
            if self.claim(key, terms, now).is_err() {
                break;
            }
            ports.push(port);
        }
        ports
    }

    fn schedule(&mut self, key: ClaimKey, next: Option<(Instant, Duration)>) {
        let Some(record) = self.records.get_mut(&key) else {
            return;
        };
        if let Some((at, _)) = std::mem::replace(&mut record.next_check, next) {
            self.checks.remove(&(at, key));
        }
        if let Some((at, _)) = next {
            self.checks.insert((at, key));
        }
    }

    /// If `shared` is true and the claim's terms allow sharing, lets other sockets with
    /// SO_REUSEADDR bind the reserved port. Otherwise, keeps other sockets from the port.
    fn set_shared(&self, key: ClaimKey, shared: bool) {
        let Some(record) = self.records.get(&key) else {
            return;
        };
        if let Some(reservation) = &record.terms.reservation {
            // On an error, the reservation stays as it is.
            let _ = reservation.set_shared(shared && record.terms.shared);
        }
    }

    fn set_scope(&mut self, key: ClaimKey, scope: Scope) -> Result<(), SteeringError> {
        let Some(record) = self.records.get_mut(&key) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut record.scope, scope);
        if before == scope {
            return Ok(());
        }
        // Add the new scope first, so that the demux has the claim at all times.
        let added = self.add_claimant(key, scope);
        added.and(self.remove_claimant(key, before))
    }

    fn add_claimant(&mut self, key: ClaimKey, scope: Scope) -> Result<(), SteeringError> {
        self.change_claimants(key, |claimants| claimants.add(key.0, scope))
    }

    fn remove_claimant(&mut self, key: ClaimKey, scope: Scope) -> Result<(), SteeringError> {
        self.change_claimants(key, |claimants| claimants.remove(key.0, scope))
    }

    /// Changes the numbers of owners of the demux's claims for `key`, and updates the demux. After
    /// an error of one claim, still changes the other claims.
    fn change_claimants(
        &mut self,
        key: ClaimKey,
        change: impl Fn(&mut Claimants),
    ) -> Result<(), SteeringError> {
        let mut result = Ok(());
        for claim in self.claims_of(key) {
            let claimants = self.claimants.entry(claim).or_default();
            let before = claimants.scope();
            change(claimants);
            let after = claimants.scope();
            if after.is_none() {
                self.claimants.remove(&claim);
            }
            result = result.and(match after {
                _ if after == before => Ok(()),
                Some(scope) => self.demux.claim(&claim, StackId(0), scope),
                None => self.demux.unclaim(&claim).map(drop),
            });
        }
        result
    }

    /// Returns the demux's claims for claim `key`: one for each address of the interface that the
    /// claim's address covers. If the claim covers the multicast and broadcast addresses, one more
    /// claim stands for them. A claim of 127.0.0.1 has no claim in the demux.
    fn claims_of(&self, (owner, endpoint): ClaimKey) -> Vec<Claim> {
        let claim = |addr: &IpAddress| Claim {
            addr: addr.0,
            proto: owner.protocol(),
            port: endpoint.port,
        };
        let covered = |addr: &&IpAddress| endpoint.addr.covers(**addr);
        let groups = owner.groups(endpoint.addr);
        let addresses = self.addresses.iter().filter(covered).chain(&groups);
        addresses.map(claim).collect()
    }
}

#[cfg(test)]
mod tests;
