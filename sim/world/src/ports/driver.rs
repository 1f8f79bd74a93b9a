//! The driver of the mux: opens and closes mux ports, and moves claims. A mux port is a pair of
//! packet rings through which a program with a TCP/IP stack of its own shares the NIC. A claim
//! gives a mux port the packets of a 3-tuple (protocol, local address, local port). The driver
//! makes each call twice: to the mux, and to the oracle, which implements the rules of claims a
//! second time. For each claim, the mux and the oracle must agree.

use tidelane_mux::{PortCounters, PortId, Tuple};
use tidelane_packet_ring::ServiceEnd;
use tidelane_time::Instant;

use super::{
    forge, oracle::Oracle, owners::PortKey, rings::Rings, rules::ProgramOwners, tap_check::TapCheck,
};
use crate::{
    ledger::{Violation, violation},
    service::Service,
};

/// Number that names the capture of a tap. A tap copies the frames of a mux port for a capture. All
/// taps can use the same number, because a mux port has at most one tap.
const CAPTURE: u64 = 1;

/// The two numbers of a mux port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortName {
    /// Number of the mux port in the run. No other port of the run has this number.
    pub key: PortKey,
    /// Number of the mux port in the mux. After the close of the port, another port may get the
    /// number.
    pub id: PortId,
}

/// The driver, with the oracle.
#[derive(Debug)]
pub struct Driver {
    /// The oracle.
    pub oracle: Oracle,
    /// Number of mux ports that were opened.
    pub opened: u32,
    /// The users of the programs.
    owners: ProgramOwners,
}

fn tuple_of((protocol, local): forge::Tuple) -> Tuple {
    Tuple { protocol, local }
}

impl Driver {
    /// Creates the driver of a host without mux ports.
    pub fn new(oracle: Oracle) -> Self {
        Self {
            oracle,
            opened: 0,
            owners: ProgramOwners::new(),
        }
    }

    /// Opens a mux port. `end` is the mux's end of the port's packet rings.
    pub fn open(
        &mut self,
        now: Instant,
        service: &mut Service,
        end: ServiceEnd,
        is_hostile: bool,
    ) -> Result<PortName, Violation> {
        let ports = service.mux_ports();
        let mut ids = (0..).map(PortId);
        let id = ids.find(|id| ports.port_counters(*id).is_none());
        let owner = self.owners.of(is_hostile);
        let Some(id) = id.filter(|id| service.open_port(*id, end, owner)) else {
            return Err(violation(now, "there is room for a mux port", "no room"));
        };
        let key = PortKey(self.opened);
        self.opened += 1;
        self.oracle.open(key, is_hostile);
        Ok(PortName { key, id })
    }

    /// Opens a tap on a mux port. Returns the check of its frames, or `None` if the port is not
    /// open.
    pub fn open_tap(&self, service: &mut Service, id: PortId) -> Option<TapCheck> {
        let check = TapCheck::default();
        service
            .mux_ports_mut()
            .end_mut(id)?
            .open_tap(CAPTURE, check.tap());
        Some(check)
    }

    /// Claims a 3-tuple for a mux port. Returns true if the 3-tuple was free, or if the port had
    /// the claim before. Returns an error if the mux and the oracle disagree.
    pub fn claim(
        &mut self,
        now: Instant,
        service: &mut Service,
        port: PortName,
        tuple: forge::Tuple,
    ) -> Result<bool, Violation> {
        let is_free = self.oracle.owners.claim(port.key, tuple.0, tuple.1);
        let claimed = service.mux_ports_mut().claim(tuple_of(tuple), port.id);
        if claimed.is_ok() == is_free {
            return Ok(is_free);
        }
        let text = format!("{port:?} claims {tuple:?}: {claimed:?}");
        Err(violation(
            now,
            "a claim fails only for a claimed 3-tuple",
            text,
        ))
    }

    /// Ends a claim of a mux port.
    pub fn release(
        &mut self,
        now: Instant,
        service: &mut Service,
        port: PortName,
        tuple: forge::Tuple,
    ) -> Result<(), Violation> {
        self.oracle.forget_arrivals(port.key);
        self.oracle.owners.release(port.key, tuple.0, tuple.1);
        match service.mux_ports_mut().release(tuple_of(tuple), port.id) {
            true => Ok(()),
            false => {
                let text = format!("{port:?} has no claim of {tuple:?}");
                Err(violation(now, "a claim lasts until its end", text))
            }
        }
    }

    /// Moves all claims of a mux port to another port in one step.
    pub fn hand_over(
        &mut self,
        now: Instant,
        service: &mut Service,
        [from, to]: [PortName; 2],
    ) -> Result<(), Violation> {
        for port in [from, to] {
            self.oracle.forget_arrivals(port.key);
        }
        self.oracle.owners.move_all(from.key, to.key);
        self.moved(
            now,
            service.mux_ports_mut().hand_over(from.id, to.id),
            [from, to],
        )
    }

    /// Moves one claim of a mux port to another port.
    pub fn move_claim(
        &mut self,
        now: Instant,
        service: &mut Service,
        [from, to]: [PortName; 2],
        tuple: forge::Tuple,
    ) -> Result<(), Violation> {
        for port in [from, to] {
            self.oracle.forget_arrivals(port.key);
        }
        let (protocol, local) = tuple;
        self.oracle
            .owners
            .move_one(from.key, to.key, protocol, local);
        let moved = service
            .mux_ports_mut()
            .move_claim(tuple_of(tuple), from.id, to.id);
        self.moved(now, moved, [from, to])
    }

    fn moved(&self, now: Instant, moved: bool, ports: [PortName; 2]) -> Result<(), Violation> {
        match moved {
            true => Ok(()),
            false => {
                let text = format!("{ports:?}");
                Err(violation(now, "claims move between open mux ports", text))
            }
        }
    }

    /// Closes a mux port, and checks that neither its memory nor a claim of it remains in use.
    /// `rings` are the rings of the port, whose program has ended. Returns the counters of the
    /// port.
    pub fn close(
        &mut self,
        now: Instant,
        service: &mut Service,
        port: PortName,
        rings: &Rings,
    ) -> Result<PortCounters, Violation> {
        let counters = service.mux_ports().port_counters(port.id).cloned();
        let closed = service.close_port(port.id);
        self.oracle.close(port.key);
        let Some(counters) = counters.filter(|_| closed.is_some()) else {
            let text = format!("{port:?} is not open");
            return Err(violation(
                now,
                "a mux port is open until it is closed",
                text,
            ));
        };
        drop(closed);
        if !rings.are_free()
            || service
                .mux_ports()
                .claims()
                .tuples(port.id)
                .next()
                .is_some()
        {
            let text = format!("memory or a claim of {port:?} is left");
            return Err(violation(now, "nothing leaks", text));
        }
        Ok(counters)
    }
}
