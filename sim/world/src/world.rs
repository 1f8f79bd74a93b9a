//! The event loop: whatever comes next in virtual time happens next.

mod checks;
mod mishaps;

use std::{collections::VecDeque, io::Write};

use tidelane_netem::{Network, Rng};
use tidelane_time::{Duration, Instant};
use tidelane_wire::Endpoint;

use crate::{
    cwnd_rules::CwndRules,
    digest::Digest,
    foreign::ForeignHost,
    foreign_bytes::ForeignBytes,
    ledger::{Ledger, Stage, Violation, violation},
    machine::Machine,
    mishap::Mishap,
    plan::{ConnectionPlan, Role},
    program::{Life, Process},
    report::Report,
    scenario::{Conduct, Scenario},
    side::Book,
    topology::{address, mac},
    wire_rules::WireRules,
    worker::Start,
};

/// Checkers that watch over time look this often.
const TICK: Duration = Duration::from_secs(1);
/// A run that has more events than this does not end.
const EVENTS_MAX: u64 = 30_000_000;
/// After so many bursts of random writes a run has seen enough.
const MISDEEDS_MAX: u64 = 50_000;
/// Steps without anything to do that a host may take in a second: timers have a tick of 1 ms.
const VAIN_STEPS_MAX: u32 = 3_000;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Arrive(usize),
    Step(usize),
    Answer(usize),
    Foreign,
    Run(usize, usize),
    Misbehave(usize),
    Return(usize),
    Mishap,
    Repair,
    Tick,
}

/// Hosts, programs and wires.
pub struct World {
    scenario: Scenario,
    now: Instant,
    book: Book,
    machines: Vec<Machine>,
    foreign: Option<ForeignHost>,
    network: Network,
    /// By host: arrived, and waiting for room.
    held: Vec<Option<Vec<u8>>>,
    wire_rules: WireRules,
    cwnd_rules: CwndRules,
    foreign_bytes: ForeignBytes,
    root: Rng,
    processes: Vec<Option<Process>>,
    /// By program: when it comes back.
    returns: Vec<Option<Instant>>,
    mishaps: VecDeque<Mishap>,
    repair: Option<Instant>,
    next_tick: Instant,
    drain_until: Option<Instant>,
    /// Since when all connections are over.
    over_since: Option<Instant>,
    vain_steps: Vec<u32>,
    /// By host: its last step found nothing to do.
    idle: Vec<bool>,
    /// By program: how far the sweep of one that misbehaves has come.
    swept: Vec<u64>,
    digest: Digest,
    rng: Rng,
    lives: u64,
    report: Report,
}

impl World {
    /// The world of `scenario` at its start.
    pub fn new(scenario: Scenario) -> std::io::Result<Self> {
        let root = Rng::new(scenario.seed).fork(0x0770_771d);
        let mut ledger = Ledger::new(scenario.connections.iter().cloned());
        // What finds no memory is dropped, and nothing else happens to its connection.
        ledger.timeouts = scenario.has_awful_wire() || scenario.is_short_of_memory();
        ledger.refusals = scenario.has_low_limits();
        ledger.perfect_wire = scenario.has_perfect_wire();
        ledger.jumps = scenario.has_jumps();
        ledger.strangers = scenario
            .programs
            .iter()
            .any(|program| program.conduct != Conduct::Good);
        for (index, program) in scenario.programs.iter().enumerate() {
            if program.conduct != Conduct::Good {
                ledger.taint(index);
            }
        }
        let machines = scenario
            .hosts
            .iter()
            .enumerate()
            .map(|(index, spec)| {
                let rng = root.fork(100 + index as u64);
                Machine::new(index, spec, &scenario.topology, rng)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut world = Self {
            now: Instant::ZERO,
            book: Book::new(ledger, scenario.seed),
            vain_steps: vec![0; machines.len()],
            idle: vec![false; machines.len()],
            network: scenario.topology.build(root.fork(200).next_u64()),
            held: vec![None; machines.len()],
            foreign: None,
            machines,
            wire_rules: WireRules::default(),
            cwnd_rules: CwndRules::default(),
            foreign_bytes: ForeignBytes::new(&scenario, root.fork(600)),
            processes: scenario.programs.iter().map(|_| None).collect(),
            returns: vec![None; scenario.programs.len()],
            swept: vec![0; scenario.programs.len()],
            mishaps: scenario.mishaps.iter().copied().collect(),
            repair: None,
            next_tick: Instant::ZERO + TICK,
            drain_until: None,
            over_since: None,
            digest: Digest::default(),
            rng: root.fork(300),
            root,
            lives: 0,
            report: Report::default(),
            scenario,
        };
        world.start_foreign();
        for program in 0..world.processes.len() {
            if world.scenario.programs[program].host < world.machines.len() {
                world.start_program(program)?;
            }
        }
        Ok(world)
    }

    /// Writes the frames of host `index` to `out` as pcapng.
    pub fn capture(&mut self, index: usize, out: Box<dyn Write>) -> std::io::Result<()> {
        let machine = self.machines.remove(index).capture(out)?;
        self.machines.insert(index, machine);
        Ok(())
    }

    /// Runs to the end. What was seen, or the first rule that did not hold.
    pub fn run(mut self) -> Result<Report, Violation> {
        while let Some((at, event)) = self.next_event() {
            if self.report.events >= EVENTS_MAX {
                return Err(self.violated("a run ends", "too many events"));
            }
            if self.happens(at, event)? {
                return self.finish();
            }
        }
        Err(self.violated("a run ends", "nothing is left to happen"))
    }

    /// Runs until `until`, or to the end if that comes before.
    pub(crate) fn run_until(&mut self, until: Instant) -> Result<(), Violation> {
        while let Some((at, event)) = self.next_event() {
            if at > until || self.happens(at, event)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// What all ends did so far.
    pub(crate) const fn ledger(&self) -> &Ledger {
        &self.book.ledger
    }

    /// The counters of all hosts so far.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let machines = self.machines.iter();
        machines
            .flat_map(|machine| machine.host.counters())
            .collect()
    }

    /// Smoothed round-trip time of a host's first connection; none if it has none.
    pub(crate) fn srtt(&self, host: usize) -> Option<Duration> {
        let sockets = self.machines.get(host)?.host.sockets();
        sockets
            .iter()
            .find_map(|socket| Some(socket.info.as_ref()?.srtt))
    }

    /// Lets the next event happen. True if the run is over.
    fn happens(&mut self, at: Instant, event: Event) -> Result<bool, Violation> {
        self.now = self.now.max(at);
        self.report.events += 1;
        self.digest.event(self.now, &event);
        self.happen(event).map_err(|mut violation| {
            violation.text += &format!("\n{}", self.describe());
            violation
        })
    }

    fn next_event(&self) -> Option<(Instant, Event)> {
        let mut next: Option<(Instant, Event)> = None;
        let mut offer = |at: Option<Instant>, event: Event| {
            if let Some(at) = at
                && next.is_none_or(|(best, _)| at < best)
            {
                next = Some((at, event));
            }
        };
        if let Some((at, way)) = self.network.next_arrival() {
            offer(Some(at), Event::Arrive(way));
        }
        for (index, machine) in self.machines.iter().enumerate() {
            offer(machine.due(), Event::Step(index));
            offer(machine.next_answer(), Event::Answer(index));
        }
        offer(
            self.foreign.as_ref().and_then(|host| host.next),
            Event::Foreign,
        );
        for (index, process) in self.processes.iter().enumerate() {
            let Some(process) = process else {
                offer(self.returns[index], Event::Return(index));
                continue;
            };
            let pause = self.machines[self.scenario.programs[index].host].paused_until;
            for (number, (at, _)) in process.workers.iter().enumerate() {
                offer(at.map(|at| at.max(pause)), Event::Run(index, number));
            }
            if let Some(misconduct) = &process.misconduct
                && self.drain_until.is_none()
                && self.report.misdeeds < MISDEEDS_MAX
            {
                offer(Some(misconduct.next), Event::Misbehave(index));
            }
        }
        offer(self.mishaps.front().map(Mishap::at), Event::Mishap);
        offer(self.repair, Event::Repair);
        offer(Some(self.next_tick), Event::Tick);
        next
    }

    /// Lets `event` happen. True if the run is over.
    fn happen(&mut self, event: Event) -> Result<bool, Violation> {
        match event {
            Event::Arrive(way) => self.arrive(way),
            Event::Step(index) => self.step(index)?,
            Event::Answer(index) => {
                self.machines[index].answer(self.now);
            }
            Event::Foreign => self.run_foreign()?,
            Event::Run(program, worker) => self.run_worker(program, worker)?,
            Event::Misbehave(program) => self.misbehave(program)?,
            Event::Return(program) => {
                self.returns[program] = None;
                self.start_program(program)
                    .map_err(|error| self.broken(&error))?;
            }
            Event::Mishap => self.mishap()?,
            Event::Repair => self.repair(),
            Event::Tick => return self.tick(),
        }
        Ok(false)
    }

    fn arrive(&mut self, way: usize) {
        if let Some((host, frame)) = self.network.arrive(self.now, way) {
            self.deliver(host, frame);
        }
    }

    /// Hands a frame to `host`, or keeps it until there is room.
    fn deliver(&mut self, host: usize, frame: Vec<u8>) {
        // Corrupted on its last hop: a NIC takes only what bears its address.
        if frame.first_chunk() != Some(&mac(host).0) {
            return;
        }
        let Some(machine) = self.machines.get_mut(host) else {
            if let Some(foreign) = &mut self.foreign {
                foreign.deliver(self.now, &frame);
                self.digest.bytes(&frame);
                self.report.frames += 1;
            }
            return;
        };
        let taken = machine.deliver(self.now, &frame);
        self.network.block(host, !taken);
        if taken {
            self.wire_rules.delivered(host, &frame);
            self.digest.bytes(&frame);
            self.report.frames += 1;
        } else {
            self.held[host] = Some(frame);
        }
    }

    fn step(&mut self, index: usize) -> Result<(), Violation> {
        let now = self.now;
        let worked = self.machines[index].step(now);
        // After work, one look for more is no waste.
        let was_idle = std::mem::replace(&mut self.idle[index], !worked);
        self.vain_steps[index] += u32::from(was_idle && !worked);
        // A program that misbehaves may ring all day.
        if self.vain_steps[index] > VAIN_STEPS_MAX && !self.book.ledger.strangers {
            let text = format!("host {index} wakes up in vain, again and again");
            return Err(self.violated("an idle service sleeps", &text));
        }
        self.after_host(index)?;
        if self.machines[index].next_step.is_none() {
            self.report.sleeps += 1;
        }
        if let Some(frame) = self.held[index].take() {
            self.deliver(index, frame);
        }
        Ok(())
    }

    /// Takes what a host sent, and wakes whom it rang.
    fn after_host(&mut self, index: usize) -> Result<(), Violation> {
        let (now, network, rules) = (self.now, &mut self.network, &mut self.wire_rules);
        let mut checked = Ok(());
        self.machines[index].sent(now, |frame| {
            if checked.is_ok() {
                checked = rules.sent(now, index, frame);
            }
            network.send(now, index, frame);
        });
        checked?;
        self.check_senders(index)?;
        let specs = &self.scenario.programs;
        for (spec, process) in specs.iter().zip(&mut self.processes) {
            let Some(process) = process.as_mut().filter(|_| spec.host == index) else {
                continue;
            };
            for (at, worker) in &mut process.workers {
                if worker.take_bell() {
                    let wake = now + Duration(self.rng.below(spec.wake_time_max.0 + 1));
                    *at = Some(at.map_or(wake, |at| at.min(wake)));
                }
            }
        }
        Ok(())
    }

    /// Holds what `index` has just sent against the laws of congestion control.
    fn check_senders(&mut self, index: usize) -> Result<(), Violation> {
        let advances = std::mem::take(&mut self.wire_rules.advances);
        if !self.cwnd_rules.looks() {
            return Ok(());
        }
        let machine = &self.machines[index];
        self.cwnd_rules.check(self.now, index, &advances, machine)
    }

    fn run_worker(&mut self, program: usize, worker: usize) -> Result<(), Violation> {
        let Some(process) = &mut self.processes[program] else {
            return Ok(());
        };
        let bad = process.misconduct.is_some();
        let (at, worker) = &mut process.workers[worker];
        match worker.run(self.now, &mut self.book) {
            Ok(next) => *at = next,
            // What it sees in memory that it scribbles over proves nothing.
            Err(_) if bad => *at = None,
            Err(violation) => return Err(violation),
        }
        self.answer_bell(self.scenario.programs[program].host);
        Ok(())
    }

    /// Wakes host `index` if a program rang.
    fn answer_bell(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        if machine
            .rung
            .swap(false, std::sync::atomic::Ordering::Relaxed)
        {
            machine.wake(self.now);
        }
    }

    /// The connections that a program still has to open.
    fn starts_of(&self, program: usize) -> Vec<Start> {
        let waiting = self.scenario.connections.iter().filter(|plan| {
            let record = self.book.ledger.end(plan.id, Role::Client);
            plan.client == program && record.stage == Stage::NotYet
        });
        let start = |plan: &ConnectionPlan| {
            let listener = &self.scenario.listeners[plan.listener];
            let host = self.scenario.programs[listener.programs[0]].host;
            Start {
                at: plan.start.max(self.now),
                id: plan.id,
                to: Endpoint::new(address(plan.family, host), listener.port),
            }
        };
        waiting.map(start).collect()
    }

    fn start_foreign(&mut self) {
        let (index, scenario) = (self.machines.len(), &self.scenario);
        let Some(spec) = &scenario.foreign else {
            return;
        };
        let programs = 0..scenario.programs.len();
        let own = programs.filter(|program| scenario.programs[*program].host == index);
        let mut starts: Vec<Start> = own.flat_map(|program| self.starts_of(program)).collect();
        starts.sort_by_key(|start| start.at);
        let rng = self.root.fork(500);
        let mut host = ForeignHost::new(index, spec, &scenario.topology, starts.into(), rng);
        for listener in &scenario.listeners {
            if scenario.programs[listener.programs[0]].host == index {
                host.listen(listener.port, scenario.connections.len() + 1);
            }
        }
        self.foreign = Some(host);
    }

    fn run_foreign(&mut self) -> Result<(), Violation> {
        let index = self.machines.len();
        let Some(foreign) = &mut self.foreign else {
            return Ok(());
        };
        foreign.run(self.now, &mut self.book)?;
        for frame in foreign.take_frames() {
            self.network.send(self.now, index, &frame);
        }
        Ok(())
    }

    fn start_program(&mut self, program: usize) -> std::io::Result<()> {
        self.lives += 1;
        let spec = &self.scenario.programs[program];
        let machine = &mut self.machines[spec.host];
        let life = Life {
            name: format!("program-{program}"),
            rng: self.rng.fork(self.lives << 16 | program as u64),
            swept: self.swept[program],
        };
        let mut process = Process::start(self.now, spec, machine, &life)?;
        if let Some(listener) = self.scenario.listener_of(program) {
            let listener_spec = &self.scenario.listeners[listener];
            let listens = process.listen(machine, spec.host, listener, listener_spec);
            assert!(listens, "the port is free");
        }
        let workers = process.workers.len();
        for (turn, start) in self.starts_of(program).into_iter().enumerate() {
            process.workers[turn % workers].1.open_later(start);
        }
        self.processes[program] = Some(process);
        self.machines[spec.host].wake(self.now);
        Ok(())
    }

    fn misbehave(&mut self, program: usize) -> Result<(), Violation> {
        let host = self.scenario.programs[program].host;
        let Some(process) = &mut self.processes[program] else {
            return Ok(());
        };
        let Some(misconduct) = &mut process.misconduct else {
            return Ok(());
        };
        misconduct.act(self.now);
        self.report.misdeeds += 1;
        let old = misconduct.writes > 4096;
        if old {
            self.kill_program(program, Some(self.now + Duration(1)))?;
        } else {
            for number in 0..process.workers.len() {
                self.run_worker(program, number)?;
            }
        }
        self.machines[host].wake(self.now);
        Ok(())
    }

    fn violated(&self, rule: &'static str, text: &str) -> Violation {
        violation(self.now, rule, text)
    }

    fn broken(&self, error: &std::io::Error) -> Violation {
        self.violated("the machine has memory", &error.to_string())
    }
}
