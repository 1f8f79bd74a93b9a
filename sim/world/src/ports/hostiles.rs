//! All hostile programs on mux ports. In a turn of a program, its mux port opens or closes, or the
//! program misbehaves once. A program that misbehaves may make a request to the driver, which opens
//! and closes ports and moves the claims of 3-tuples (protocol, local address, local port). A mux
//! port is a pair of packet rings through which a program with a TCP/IP stack of its own shares the
//! NIC.

use tidelane_host::MuxPorts;
use tidelane_mux::{PortCounters, PortId};
use tidelane_netem::Rng;
use tidelane_time::{Duration, Instant};
use tidelane_wire::{Endpoint, IpAddress};

use super::{
    drafts::Surroundings,
    driver::{Driver, PortName},
    forge::Tuple,
    frame::{TCP, UDP},
    hostile::{Demand, HostileProgram},
    oracle::Oracle,
    receive,
    rings::Rings,
    spec::{HostileSpec, PortsSpec},
};
use crate::{
    ledger::{Violation, violation},
    service::Service,
};

/// First local port of the hostile programs' 3-tuples.
const PORTS_PER_PROGRAM_FIRST: u16 = 3000;
/// Number of local ports that are reserved for each hostile program.
const PORTS_PER_PROGRAM: u16 = 4;

/// A hostile program, with or without a mux port.
struct Hostile {
    spec: HostileSpec,
    /// Index of the program among the hostile programs.
    index: u16,
    /// The program on its mux port. `None` while the program has no mux port.
    program: Option<HostileProgram>,
    /// True if the program has given up its mux port, which the driver has not yet closed.
    is_closing: bool,
    /// Time of the next turn.
    next: Option<Instant>,
    /// Number of turns that remain after the next turn.
    left: u32,
    rng: Rng,
}

/// All hostile programs of a run.
pub struct Hostiles {
    all: Vec<Hostile>,
    around: Surroundings,
    /// Longest time until the driver closes a mux port that a program has given up.
    answer_time_max: Duration,
    /// True if the operator has rules, which may refuse a packet.
    has_rules: bool,
}

impl Hostiles {
    /// Creates the programs. Each program opens its mux port in its first turn.
    pub fn new(ports: &PortsSpec, around: Surroundings, rng: &Rng) -> Self {
        let all = ports.hostile.iter().zip(0..).map(|(spec, index)| Hostile {
            spec: spec.clone(),
            index,
            program: None,
            is_closing: false,
            next: Some(spec.start),
            left: spec.count,
            rng: rng.fork(u64::from(index)),
        });
        Self {
            all: all.collect(),
            around,
            answer_time_max: ports.answer_time_max,
            has_rules: !ports.rules.is_empty(),
        }
    }

    /// Returns the time of the next turn, and the index of the program that has this turn.
    pub fn next(&self) -> Option<(Instant, usize)> {
        let all = self.all.iter().enumerate();
        let turns = all.filter_map(|(index, hostile)| Some((hostile.next?, index)));
        turns.min()
    }

    /// Gives a program a turn, in which its mux port opens or closes, or the program misbehaves.
    /// Returns the counters if the port was closed.
    pub fn run(
        &mut self,
        now: Instant,
        index: usize,
        service: &mut Service,
        driver: &mut Driver,
    ) -> Result<Option<PortCounters>, Violation> {
        let hostile = &mut self.all[index];
        let every = hostile.rng.below(hostile.spec.every.0);
        hostile.next = (hostile.left > 0).then_some(now + Duration(1 + every));
        hostile.left = hostile.left.saturating_sub(1);
        if std::mem::take(&mut hostile.is_closing) {
            return hostile.close(now, service, driver);
        }
        if hostile.program.is_none() {
            hostile.open(now, &self.around, service, driver)?;
            if let Some(program) = &mut hostile.program {
                program.is_exact &= !self.has_rules;
            }
            return Ok(None);
        }
        hostile.check_counters(now, service.mux_ports())?;
        let demand = hostile.misbehave(now, &self.around, driver);
        match demand {
            None => {}
            Some(Demand::Close) => {
                hostile.is_closing = true;
                let delay = hostile.rng.below(self.answer_time_max.0);
                hostile.next = Some(now + Duration(1 + delay));
            }
            Some(Demand::Claim(tuple)) => hostile.claim(now, service, driver, tuple)?,
            Some(Demand::Release(tuple)) => hostile.release(now, service, driver, tuple)?,
            Some(Demand::Move) => self.move_from(now, index, service, driver)?,
        }
        Ok(None)
    }

    /// Moves one claim or all claims of a program to another hostile program. Does nothing if no
    /// other hostile program has a mux port.
    fn move_from(
        &mut self,
        now: Instant,
        index: usize,
        service: &mut Service,
        driver: &mut Driver,
    ) -> Result<(), Violation> {
        let open = self.all.iter().enumerate();
        let open = open.filter(|(at, other)| *at != index && other.program.is_some());
        let open: Vec<usize> = open.map(|(at, _)| at).collect();
        let Some(to) = self.all[index].rng.pick(&open).copied() else {
            return Ok(());
        };
        let at_once = self.all[index].rng.chance_ppm(300_000);
        let [Some(from), Some(to)] = [index, to].map(|at| self.all[at].name()) else {
            return Ok(());
        };
        let mut moved = Vec::new();
        if let Some(program) = &mut self.all[index].program {
            program.is_exact = false;
            match (at_once, program.tuples.pop()) {
                (false, last) => moved.extend(last),
                (true, last) => moved.extend(program.tuples.drain(..).chain(last)),
            }
        }
        if at_once {
            driver.hand_over(now, service, [from, to])?;
        } else {
            for tuple in &moved {
                driver.move_claim(now, service, [from, to], *tuple)?;
            }
        }
        let mut programs = self
            .all
            .iter_mut()
            .filter_map(|other| other.program.as_mut());
        if let Some(program) = programs.find(|program| program.key == to.key) {
            program.is_exact = false;
            program.tuples.extend(moved);
        }
        Ok(())
    }

    /// Checks the frames that the mux has published to hostile programs.
    pub fn receive(&mut self, now: Instant, oracle: &mut Oracle) -> Result<(), Violation> {
        for program in self
            .all
            .iter_mut()
            .filter_map(|other| other.program.as_mut())
        {
            // A false read index of the program makes the mux overwrite frames that the observer of
            // the rings has not read.
            if program.has_overwritten && program.rings.are_overwritten() {
                continue;
            }
            receive(now, (&mut program.rings, program.key), oracle, None)?;
        }
        Ok(())
    }

    /// Closes the corrupt mux port `id` if it belongs to a hostile program. Returns the counters of
    /// the port. Returns an error if the program has not overwritten its memory, because only an
    /// overwritten port can be corrupt.
    pub fn close_id(
        &mut self,
        now: Instant,
        id: PortId,
        service: &mut Service,
        driver: &mut Driver,
    ) -> Result<Option<PortCounters>, Violation> {
        let is_of = |hostile: &&mut Hostile| hostile.name().is_some_and(|name| name.id == id);
        let Some(hostile) = self.all.iter_mut().find(is_of) else {
            return Ok(None);
        };
        if let Some(program) = hostile
            .program
            .as_ref()
            .filter(|program| !program.has_overwritten)
        {
            let text = format!("{:?} is closed as corrupt", program.key);
            return Err(violation(
                now,
                "only an impossible value closes a port",
                text,
            ));
        }
        hostile.close(now, service, driver)
    }

    /// Ends all programs. Returns the counters of their mux ports.
    pub fn end(
        &mut self,
        now: Instant,
        service: &mut Service,
        driver: &mut Driver,
    ) -> Result<Vec<PortCounters>, Violation> {
        let mut closed = Vec::new();
        for hostile in &mut self.all {
            hostile.check_counters(now, service.mux_ports())?;
            hostile.next = None;
            closed.extend(hostile.close(now, service, driver)?);
        }
        Ok(closed)
    }
}

impl Hostile {
    fn name(&self) -> Option<PortName> {
        let program = self.program.as_ref()?;
        let (key, id) = (program.key, program.id);
        Some(PortName { key, id })
    }

    fn open(
        &mut self,
        now: Instant,
        around: &Surroundings,
        service: &mut Service,
        driver: &mut Driver,
    ) -> Result<(), Violation> {
        let rings = Rings::new(self.index.into(), self.spec.ring_len, None);
        let (rings, end) =
            rings.map_err(|error| violation(now, "the machine has memory", error.to_string()))?;
        let name = driver.open(now, service, end, true)?;
        let mut program = HostileProgram::new(name.key, name.id, rings, around);
        let first = PORTS_PER_PROGRAM_FIRST + self.index * PORTS_PER_PROGRAM;
        let v4 = Endpoint::new(around.addresses[0], first);
        let any = Endpoint::new(IpAddress::UNSPECIFIED_V4, first + 1);
        let last = around.addresses.last().copied().unwrap_or_default();
        let last = Endpoint::new(last, first + 2);
        for tuple in [(TCP, v4), (UDP, v4), (TCP, any), (TCP, last)] {
            // After a move, another hostile program may have the claim.
            if driver.claim(now, service, name, tuple)? {
                program.tuples.push(tuple);
            }
        }
        self.program = Some(program);
        Ok(())
    }

    fn check_counters(&self, now: Instant, mux: &MuxPorts) -> Result<(), Violation> {
        let Some(program) = &self.program else {
            return Ok(());
        };
        let counters = mux.port_counters(program.id);
        let Some(counters) = counters.filter(|_| !mux.waits_for_nic(program.id)) else {
            return Ok(());
        };
        let checked = program.check_counters(counters);
        checked.map_err(|text| violation(now, "refused packets are counted", text))
    }

    fn misbehave(
        &mut self,
        now: Instant,
        around: &Surroundings,
        driver: &mut Driver,
    ) -> Option<Demand> {
        let (program, rng) = (self.program.as_mut()?, &mut self.rng);
        let harm = *rng.pick(&self.spec.harms)?;
        let demand = program.misbehave(now, harm, around, (&mut driver.oracle, rng));
        let key = program.key;
        program.rings.published(|frame, segment_size| {
            driver.oracle.publishes(key, frame, segment_size);
        });
        demand
    }

    fn claim(
        &mut self,
        now: Instant,
        service: &mut Service,
        driver: &mut Driver,
        tuple: Tuple,
    ) -> Result<(), Violation> {
        let (Some(name), Some(program)) = (self.name(), &mut self.program) else {
            return Ok(());
        };
        // The hostile program claims a 3-tuple of a well-behaved program only while this owner
        // holds the 3-tuple, so that the mux must refuse the claim. The owner therefore finds its
        // 3-tuple free after a restart. A 3-tuple of a hostile program may be claimed at any time.
        let is_hostile =
            (PORTS_PER_PROGRAM_FIRST..2 * PORTS_PER_PROGRAM_FIRST).contains(&tuple.1.port);
        let is_owned = driver.oracle.owners.overlaps(tuple.0, tuple.1);
        if !is_hostile && !is_owned {
            return Ok(());
        }
        if driver.claim(now, service, name, tuple)? && !program.tuples.contains(&tuple) {
            program.is_exact = false;
            program.tuples.push(tuple);
        }
        Ok(())
    }

    fn release(
        &mut self,
        now: Instant,
        service: &mut Service,
        driver: &mut Driver,
        tuple: Tuple,
    ) -> Result<(), Violation> {
        let (Some(name), Some(program)) = (self.name(), &mut self.program) else {
            return Ok(());
        };
        program.is_exact = false;
        program.tuples.retain(|own| *own != tuple);
        driver.release(now, service, name, tuple)
    }

    fn close(
        &mut self,
        now: Instant,
        service: &mut Service,
        driver: &mut Driver,
    ) -> Result<Option<PortCounters>, Violation> {
        self.is_closing = false;
        let (Some(name), Some(program)) = (self.name(), self.program.take()) else {
            return Ok(None);
        };
        let rings = program.end();
        driver.close(now, service, name, &rings).map(Some)
    }
}
