//! Mux ports on one of Tidelane's hosts, in addition to the programs on its service. The mux
//! (`service/mux`) shares the host's NIC between the service and programs with their own stacks. A
//! *mux port* is the pair of packet rings between one of these programs and the mux. A program
//! claims the 3-tuples (protocol, local address, local port) whose packets its mux port gets.
//!
//! ```text
//!  PortProgram: embedded stack or smoltcp ──┐ rings           ┌── links
//!  HostileProgram ──────────────────────────┼─────── mux of ──┤
//!  (programs on the service) ── engine ─────┘     the host    └── Oracle
//! ```
//!
//! The well-behaved programs follow the plans of the scenario's connections. The [`Driver`] of the
//! mux opens and closes the mux ports. The [`Oracle`], a second implementation of the mux's rules,
//! checks each frame that a mux port sends or receives.

mod drafts;
mod driver;
mod embedded;
mod forge;
mod frame;
pub(crate) mod harm;
mod hostile;
mod hostiles;
mod launch;
mod oracle;
mod owners;
mod program;
mod program_checks;
mod rate_check;
mod rings;
mod rule_check;
pub(crate) mod rules;
pub(crate) mod spec;
mod tap_check;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tidelane_host::MuxPorts;
use tidelane_mux::{PortCounters, SendRefusal};
use tidelane_netem::Rng;
use tidelane_ring::Doorbell;
use tidelane_time::{Duration, Instant};

pub use self::{
    harm::Harm,
    spec::{ChangeKind, HostileSpec, PortChange, PortSpec, PortStack, PortsSpec},
};
use crate::{
    connection_end::RunState,
    ledger::{Violation, violation},
    plan::Role,
    scenario::Scenario,
    service::Service,
};
use drafts::Surroundings;
use driver::{Driver, PortName};
use hostiles::Hostiles;
pub(crate) use launch::Launch;
use oracle::{Oracle, Sender};
use program::PortProgram;
use rate_check::RateCheck;
use rings::Rings;
use tap_check::TapCheck;

/// Ends of connections. The number of the connection is `None` if it is unknown.
type Sides = Vec<(Option<u32>, Role)>;

/// An event of the mux ports. The number is the index of a well-behaved program (`Run`, `Launch`),
/// of an old version (`Retired`), or of a hostile program (`Hostile`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PortEvent {
    /// A well-behaved program runs.
    Run(usize),
    /// An old version of a program (its claims have moved to a new version) runs or ends.
    Retired(usize),
    /// A hostile program misbehaves.
    Hostile(usize),
    /// A program starts.
    Launch(usize),
    /// A program dies, or a new version of the program takes over its claims.
    Change,
    /// The driver closes corrupt mux ports, in whose rings the mux has found impossible values.
    Answer,
}

/// All mux ports of a run.
pub(crate) struct Ports {
    /// Index of the host with the mux ports.
    pub host: usize,
    /// Number of starts so far of each well-behaved program.
    pub starts: Vec<u16>,
    driver: Driver,
    /// Running well-behaved programs, by index.
    programs: Vec<Option<PortProgram>>,
    /// Old versions of programs, each with the time of its planned end.
    retired: Vec<(Instant, PortProgram)>,
    hostiles: Hostiles,
    /// Time of the next start of a program that does not run, by index.
    relaunches: Vec<Option<Instant>>,
    changes: VecDeque<PortChange>,
    /// Time at which the driver closes corrupt mux ports.
    answer: Option<Instant>,
    /// Longest delay from the discovery of a corrupt mux port to its close by the driver.
    answer_time_max: Duration,
    rng: Rng,
    /// True if the host's MTU changes. The mux may then refuse long packets of well-behaved stacks.
    has_mtu_changes: bool,
    /// Sums of the counters of closed mux ports.
    counters: BTreeMap<&'static str, u64>,
}

impl Ports {
    /// Creates the mux ports of `scenario`. Returns `None` without mux ports. No program runs yet.
    pub fn new(scenario: &Scenario, rng: Rng) -> Option<Self> {
        let spec = scenario.ports.as_ref()?;
        let host = spec.host;
        let around = Surroundings::new(scenario, host);
        let addresses = around.addresses.clone();
        Some(Self {
            host,
            starts: vec![0; spec.programs.len()],
            driver: Driver::new(Oracle::new(around.mac, addresses, spec.rules)),
            programs: spec.programs.iter().map(|_| None).collect(),
            retired: Vec::new(),
            hostiles: Hostiles::new(spec, around, &rng.fork(1)),
            relaunches: vec![Some(Instant::ZERO); spec.programs.len()],
            changes: spec.changes.iter().copied().collect(),
            answer: None,
            answer_time_max: spec.answer_time_max,
            rng: rng.fork(2),
            has_mtu_changes: scenario.smallest_mtu_of(host).is_some(),
            counters: BTreeMap::new(),
        })
    }

    /// Returns the next event.
    pub fn next(&self) -> Option<(Instant, PortEvent)> {
        let programs = self.programs.iter().enumerate();
        let programs = programs.filter_map(|(index, program)| match program {
            Some(program) => Some((program.next?, PortEvent::Run(index))),
            None => Some((self.relaunches[index]?, PortEvent::Launch(index))),
        });
        let retired = self.retired.iter().enumerate().map(|(index, (end, old))| {
            let at = old.next.map_or(*end, |next| next.min(*end));
            (at, PortEvent::Retired(index))
        });
        let hostile = self.hostiles.next();
        let hostile = hostile.map(|(at, index)| (at, PortEvent::Hostile(index)));
        let change = self
            .changes
            .front()
            .map(|change| (change.at, PortEvent::Change));
        let answer = self.answer.map(|at| (at, PortEvent::Answer));
        programs
            .chain(retired)
            .chain([hostile, change, answer].into_iter().flatten())
            .min_by_key(|(at, _)| *at)
    }

    /// Handles all events except `Launch` and `Change`. Returns true if the service may have work.
    pub fn handle(
        &mut self,
        now: Instant,
        event: PortEvent,
        service: &mut Service,
        run_state: &mut RunState,
    ) -> Result<bool, Violation> {
        match event {
            PortEvent::Run(index) => {
                if let Some(program) = &mut self.programs[index] {
                    return run_program(now, program, &mut self.driver.oracle, run_state);
                }
            }
            PortEvent::Retired(index) => {
                let (end, program) = &mut self.retired[index];
                if *end <= now {
                    let (_, program) = self.retired.remove(index);
                    self.close(now, service, program)?;
                    return Ok(false);
                }
                return run_program(now, program, &mut self.driver.oracle, run_state);
            }
            PortEvent::Hostile(index) => {
                let closed = self.hostiles.run(now, index, service, &mut self.driver)?;
                closed.iter().for_each(|counters| self.add(counters));
            }
            PortEvent::Answer => self.close_corrupt(now, service)?,
            PortEvent::Launch(_) | PortEvent::Change => {}
        }
        Ok(true)
    }

    /// Opens a mux port, and starts a well-behaved program on it. If the program already runs, the
    /// new version takes over the claims of the old version. `retire` then holds the time at which
    /// the old version ends, and true if one call moves all claims, or false for a call per claim.
    pub fn launch(
        &mut self,
        now: Instant,
        service: &mut Service,
        launch: &Launch<'_>,
        retire: Option<(Instant, bool)>,
    ) -> Result<(), Violation> {
        self.relaunches[launch.index] = None;
        self.starts[launch.index] += 1;
        let memory =
            |error: std::io::Error| violation(now, "the machine has memory", error.to_string());
        let doorbell = Arc::new(Doorbell::new().map_err(memory)?);
        let (number, len) = (launch.index as u32, launch.spec().ring_len);
        let (rings, end) = Rings::new(number, len, Some(doorbell.clone())).map_err(memory)?;
        let name = self.driver.open(now, service, end, false)?;
        let old = self.programs[launch.index].take();
        if let (Some(mut old), Some((until, at_once))) = (old, retire) {
            let ports = [name_of(&old), name];
            self.move_claims(now, service, ports, at_once)?;
            old.checks.is_retired = true;
            self.retired.push((until, old));
            *self.counters.entry("port_hand_overs").or_default() += 1;
        }
        for local in launch.claims() {
            if !self.driver.claim(now, service, name, (frame::TCP, local))? {
                let text = format!("{local} is claimed");
                return Err(violation(now, "a program's 3-tuples are free", text));
            }
        }
        let PortName { key, id } = name;
        let rate = launch.spec().rate;
        service.mux_ports_mut().set_rate(id, rate);
        let mut program = PortProgram::new(launch, key, id, rings, doorbell);
        program.checks.rate = RateCheck::new(now, rate);
        let tapped = launch.spec().is_tapped.then_some(id);
        program.checks.tap = tapped.and_then(|id| self.driver.open_tap(service, id));
        program.next = Some(now);
        self.programs[launch.index] = Some(program);
        Ok(())
    }

    fn move_claims(
        &mut self,
        now: Instant,
        service: &mut Service,
        ports: [PortName; 2],
        at_once: bool,
    ) -> Result<(), Violation> {
        if at_once {
            return self.driver.hand_over(now, service, ports);
        }
        let all = self.driver.oracle.owners.all();
        let own = all.filter(|(owner, ..)| *owner == ports[0].key);
        let own: Vec<_> = own.map(|(_, protocol, local)| (protocol, local)).collect();
        own.into_iter()
            .try_for_each(|tuple| self.driver.move_claim(now, service, ports, tuple))
    }

    /// Takes the next planned change of a program (death or new version), with the program's open
    /// connection ends. Returns `None` if no change is planned, or if the program does not run.
    pub fn take_change(&mut self) -> Option<(PortChange, Sides)> {
        let change = self.changes.pop_front()?;
        let program = self.programs[change.index].as_ref()?;
        Some((change, program.open_ends()))
    }

    /// Ends a program. The program starts again at time `back`, or never if `back` is `None`.
    pub fn kill(
        &mut self,
        now: Instant,
        service: &mut Service,
        index: usize,
        back: Option<Instant>,
    ) -> Result<(), Violation> {
        self.relaunches[index] = back;
        match self.programs[index].take() {
            Some(program) => self.close(now, service, program),
            None => Ok(()),
        }
    }

    fn close(
        &mut self,
        now: Instant,
        service: &mut Service,
        program: PortProgram,
    ) -> Result<(), Violation> {
        let name = name_of(&program);
        let (rings, checks) = program.end();
        let is_drained = rings.are_drained() && !service.mux_ports().waits_for_nic(name.id);
        let counters = self.driver.close(now, service, name, &rings)?;
        checks.check_end(now, &counters, is_drained)?;
        self.add(&counters);
        Ok(())
    }

    fn add(&mut self, counters: &PortCounters) {
        let refused = counters.refused.values().sum();
        let too_long = counters.refused.get(&SendRefusal::TooLong);
        for (name, value) in [
            ("port_packets_sent", counters.sent),
            ("port_packets_received", counters.received),
            ("port_gso_frames", counters.gso_frames),
            ("port_overruns", counters.overruns),
            ("port_packets_lost", counters.lost),
            ("port_packets_refused", refused),
            ("port_packets_too_long", too_long.copied().unwrap_or(0)),
        ] {
            *self.counters.entry(name).or_default() += value;
        }
    }

    fn close_corrupt(&mut self, now: Instant, service: &mut Service) -> Result<(), Violation> {
        self.answer = None;
        for id in service.mux_ports_mut().take_corrupt() {
            let retired = self.retired.iter().map(|(_, old)| old);
            let mut good = self.programs.iter().flatten().chain(retired);
            if let Some(program) = good.find(|program| program.id == id) {
                let text = format!("{:?} is closed as corrupt", name_of(program));
                return Err(violation(
                    now,
                    "only an impossible value closes a port",
                    text,
                ));
            }
            if let Some(counters) = self.hostiles.close_id(now, id, service, &mut self.driver)? {
                *self.counters.entry("port_corrupt").or_default() += 1;
                self.add(&counters);
            }
        }
        Ok(())
    }

    /// Checks a frame that the host has sent. Returns true if the wire rules apply to the frame.
    pub fn leaves(&mut self, now: Instant, frame: &[u8]) -> Result<bool, Violation> {
        Ok(match self.driver.oracle.leaves(now, frame)? {
            Sender::Engine => true,
            Sender::Hostile => false,
            Sender::Good(key) => {
                let mut programs = self.programs.iter_mut().flatten();
                let Some(program) = programs.find(|program| program.key == key) else {
                    return Ok(false);
                };
                program.checks.check_leaving(now, frame)?;
                // A segment that the mux refuses leaves a gap on the link.
                !self.has_mtu_changes && !program.is_smoltcp()
            }
        })
    }

    /// Checks that the mux has lost no packet of a well-behaved program, and has refused no packet
    /// without a reason. Without room in the NIC, a packet has to wait.
    pub fn check_unsent(&self, now: Instant, mux: &MuxPorts) -> Result<(), Violation> {
        for program in self.programs.iter().flatten() {
            let Some(counters) = mux.port_counters(program.id) else {
                continue;
            };
            program.checks.check_unsent(now, counters)?;
        }
        Ok(())
    }

    /// Records a frame that has arrived at the host's NIC.
    pub fn arrives(&mut self, now: Instant, frame: &[u8]) {
        self.driver.oracle.arrives(now, frame);
    }

    /// Checks the frames that mux ports have received in a step of the service, and wakes the
    /// programs whose doorbell the service has rung.
    pub fn after_step(&mut self, now: Instant, mux: &MuxPorts) -> Result<(), Violation> {
        let oracle = &mut self.driver.oracle;
        let retired = self.retired.iter_mut().map(|(_, old)| old);
        for program in self.programs.iter_mut().flatten().chain(retired) {
            let taps = program.checks.tap.as_ref();
            if receive(now, (&mut program.rings, program.key), oracle, taps)? {
                program.take_ring(now);
            }
            if let Some(counters) = mux.port_counters(program.id) {
                let may_overrun = program.rings.may_overrun();
                program.checks.check_step(now, counters, may_overrun)?;
            }
        }
        self.hostiles.receive(now, oracle)?;
        if mux.has_corrupt() && self.answer.is_none() {
            self.answer = Some(now + Duration(self.rng.below(self.answer_time_max.0)));
        }
        Ok(())
    }

    /// Checks the rules that depend on time.
    pub fn tick(&mut self, now: Instant) -> Result<(), Violation> {
        for program in self.programs.iter().flatten() {
            let oracle = &mut self.driver.oracle;
            oracle.check_arrivals(now, program.key, program.checks.overruns)?;
        }
        Ok(())
    }

    /// Returns true if no running well-behaved program has a connection to open or to serve.
    pub fn are_idle(&self) -> bool {
        self.programs.iter().flatten().all(PortProgram::is_idle)
    }

    /// Returns true if no stack of a well-behaved program has any state of a connection.
    pub fn are_over(&self) -> bool {
        self.programs.iter().flatten().all(PortProgram::is_over)
    }

    /// Returns a line for each well-behaved program whose stack still has a connection.
    pub fn describe(&self) -> Vec<String> {
        let programs = self.programs.iter().flatten();
        let unfinished = programs.filter(|program| !program.is_over());
        let line = |program: &PortProgram| {
            let (key, next) = (program.key, program.next);
            format!("{key:?}: next run {next:?}, {}", program.describe())
        };
        unfinished.map(line).collect()
    }

    /// Ends the hostile programs and the old versions, and cancels all planned changes and starts.
    pub fn begin_drain(&mut self, now: Instant, service: &mut Service) -> Result<(), Violation> {
        self.changes.clear();
        self.relaunches.fill(None);
        for (_, program) in std::mem::take(&mut self.retired) {
            self.close(now, service, program)?;
        }
        let closed = self.hostiles.end(now, service, &mut self.driver)?;
        closed.iter().for_each(|counters| self.add(counters));
        Ok(())
    }

    /// Closes all mux ports, and checks that the mux then has no state. Returns the counters.
    pub fn finish(
        &mut self,
        now: Instant,
        service: &mut Service,
    ) -> Result<Vec<(String, u64)>, Violation> {
        for index in 0..self.programs.len() {
            self.kill(now, service, index, None)?;
        }
        let mux = service.mux_ports();
        if !mux.is_empty() || !mux.claims().is_empty() || mux.has_work() {
            let text = format!("{} ports, {} claims", mux.len(), mux.claims().len());
            return Err(violation(now, "nothing leaks", text));
        }
        let oracle = &self.driver.oracle;
        let own = [
            ("ports_opened", u64::from(self.driver.opened)),
            ("port_frames_checked_out", oracle.checked_out),
            ("port_frames_checked_in", oracle.checked_in),
            ("port_resets", oracle.resets),
        ];
        let counters = self.counters.iter().map(|(name, value)| (*name, *value));
        let counters = counters.chain(own);
        Ok(counters
            .map(|(name, value)| (name.to_owned(), value))
            .collect())
    }
}

fn name_of(program: &PortProgram) -> PortName {
    PortName {
        key: program.key,
        id: program.id,
    }
}

/// Runs a program, and records its published frames. Returns true if there are any.
fn run_program(
    now: Instant,
    program: &mut PortProgram,
    oracle: &mut Oracle,
    run_state: &mut RunState,
) -> Result<bool, Violation> {
    let has_published = program.run(now, run_state)?;
    let key = program.key;
    let checks = &mut program.checks;
    program.rings.published(|frame, segment_size| {
        let packets = oracle.publishes(key, frame, segment_size);
        checks.publish(frame, segment_size, packets);
    });
    Ok(has_published)
}

/// Checks the frames that the mux has published to a mux port. Returns true if there are any.
fn receive(
    now: Instant,
    (rings, key): (&mut Rings, owners::PortKey),
    oracle: &mut Oracle,
    tap_check: Option<&TapCheck>,
) -> Result<bool, Violation> {
    let received = rings.delivered(|frame| {
        if let Some(check) = tap_check {
            check.observe(frame);
        }
        oracle.reaches(now, key, frame)
    });
    received.unwrap_or_else(|_| {
        let text = format!("the ring to {key:?} has an impossible value");
        Err(violation(now, "the service keeps the protocol", text))
    })
}
