//! Which 3-tuples the demux sends to the service, and why.
//!
//! A claim holds as long as something wants it: a listener, a program's reservation, a port of the
//! ephemeral pool. A wildcard wants one claim per address of the interface.

use std::collections::HashSet;

use tidelane_steering::{Claim, Demux, PortReservation, StackId, SteeringError};
use tidelane_wire::{Endpoint, IpAddress, protocol};

/// Who wants a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The listener of the kernel socket with this cookie.
    Listener(u64),
    /// A port that session `0` reserved.
    Session(u64),
    /// The ephemeral pool.
    Pool,
}

/// The demux with its claims.
pub struct Claims {
    demux: Demux,
    addresses: Vec<IpAddress>,
    wanted: HashSet<(Owner, Endpoint)>,
    /// Of `wanted`: given up by their owner, kept for the connections that still use them.
    leaving: Vec<(Owner, Endpoint)>,
    made: HashSet<Claim>,
    reservations: Vec<PortReservation>,
}

impl Claims {
    /// No claims yet.
    pub fn new(demux: Demux) -> Self {
        Self {
            demux,
            addresses: Vec::new(),
            wanted: HashSet::new(),
            leaving: Vec::new(),
            made: HashSet::new(),
            reservations: Vec::new(),
        }
    }

    /// The demux.
    pub fn demux(&self) -> &Demux {
        &self.demux
    }

    /// The interface has these addresses now.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddress>) -> Result<(), SteeringError> {
        self.addresses = addresses;
        self.sync()
    }

    /// Claims `endpoint` (of all addresses of its version if unspecified) for `owner`.
    pub fn want(&mut self, owner: Owner, endpoint: Endpoint) -> Result<(), SteeringError> {
        self.wanted.insert((owner, endpoint));
        self.leaving.retain(|leaving| *leaving != (owner, endpoint));
        let result = self
            .claims_of(endpoint)
            .into_iter()
            .try_for_each(|claim| self.make(claim));
        if result.is_err() {
            self.unwant(owner, endpoint)?;
        }
        result
    }

    /// `owner` wants `endpoint` no longer; its connections may outlive it. See `leaving`.
    pub fn leave(&mut self, owner: Owner, endpoint: Endpoint) {
        if self.wanted.contains(&(owner, endpoint)) {
            self.leaving.push((owner, endpoint));
        }
    }

    /// As `leave`, for all that `owner` wants.
    pub fn leave_all(&mut self, owner: Owner) {
        let of_owner = self.wanted.iter().filter(|(o, _)| *o == owner);
        self.leaving.extend(of_owner);
    }

    /// What nobody but a connection may want.
    pub fn leaving(&self) -> &[(Owner, Endpoint)] {
        &self.leaving
    }

    /// `owner` wants `endpoint` no longer.
    pub fn unwant(&mut self, owner: Owner, endpoint: Endpoint) -> Result<(), SteeringError> {
        self.wanted.remove(&(owner, endpoint));
        self.leaving.retain(|leaving| *leaving != (owner, endpoint));
        for claim in self.claims_of(endpoint) {
            let still = self
                .wanted
                .iter()
                .any(|(_, other)| self.covers(*other, claim));
            if !still && self.made.remove(&claim) {
                self.demux.unclaim(&claim)?;
            }
        }
        Ok(())
    }

    /// Reserves up to `count` ports at `addr` for the ephemeral pool.
    pub fn reserve_ports(&mut self, addr: IpAddress, count: u32) -> Vec<u16> {
        let mut ports = Vec::new();
        for _ in 0..count {
            let Ok(reservation) = PortReservation::new(addr.0, 0) else {
                break;
            };
            let endpoint = Endpoint {
                addr,
                port: reservation.port(),
            };
            if self.want(Owner::Pool, endpoint).is_err() {
                break;
            }
            ports.push(reservation.port());
            self.reservations.push(reservation);
        }
        ports
    }

    fn covers(&self, endpoint: Endpoint, claim: Claim) -> bool {
        endpoint.port == claim.port && endpoint.addr.covers(IpAddress(claim.addr))
    }

    fn claims_of(&self, endpoint: Endpoint) -> Vec<Claim> {
        let claim = |addr: &IpAddress| Claim {
            addr: addr.0,
            proto: protocol::TCP,
            port: endpoint.port,
        };
        if endpoint.addr.is_unspecified() {
            let covered = |addr: &&IpAddress| endpoint.addr.covers(**addr);
            self.addresses.iter().filter(covered).map(claim).collect()
        } else {
            vec![claim(&endpoint.addr)]
        }
    }

    fn make(&mut self, claim: Claim) -> Result<(), SteeringError> {
        if self.made.contains(&claim) {
            return Ok(());
        }
        self.demux.claim(&claim, StackId(0))?;
        self.made.insert(claim);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SteeringError> {
        let endpoints: Vec<Endpoint> = self.wanted.iter().map(|(_, endpoint)| *endpoint).collect();
        let wanted: HashSet<Claim> = endpoints
            .into_iter()
            .flat_map(|endpoint| self.claims_of(endpoint))
            .collect();
        let stale: Vec<Claim> = self.made.difference(&wanted).copied().collect();
        for claim in stale {
            self.demux.unclaim(&claim)?;
            self.made.remove(&claim);
        }
        wanted.into_iter().try_for_each(|claim| self.make(claim))
    }
}
