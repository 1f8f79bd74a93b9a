//! The event loop: whatever comes next in virtual time happens next.

mod checks;

use std::{collections::VecDeque, io::Write};

use tidelane_netem::{Link, LinkConfig, Rng};
use tidelane_time::{Duration, Instant};
use tidelane_wire::Endpoint;

use crate::{
    digest::Digest,
    ledger::{Ledger, Stage, Violation, violation},
    machine::{Machine, address},
    plan::Role,
    program::{Life, Process},
    report::Report,
    scenario::{Conduct, Mishap, Scenario},
    side::Book,
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

/// A host's way to the switch.
struct Cable {
    link: Link,
    /// Arrived, and waiting for room at its receiver.
    held: Option<Vec<u8>>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Arrive(usize),
    Step(usize),
    Answer(usize),
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
    cables: Vec<Cable>,
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
        ledger.timeouts = scenario.has_awful_wire();
        ledger.refusals = scenario.has_low_limits();
        ledger.perfect_wire = scenario.has_perfect_wire();
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
            .map(|(index, spec)| Machine::new(index, spec, root.fork(100 + index as u64)))
            .collect::<Result<Vec<_>, _>>()?;
        let cables = (0..machines.len() as u64)
            .map(|index| Cable {
                link: Link::new(scenario.wire, root.fork(200 + index).next_u64()),
                held: None,
            })
            .collect();
        let mut world = Self {
            now: Instant::ZERO,
            book: Book::new(ledger, scenario.seed),
            vain_steps: vec![0; machines.len()],
            machines,
            cables,
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
            lives: 0,
            report: Report::default(),
            scenario,
        };
        for program in 0..world.processes.len() {
            world.start_program(program)?;
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
            self.now = self.now.max(at);
            self.report.events += 1;
            if self.report.events > EVENTS_MAX {
                return Err(self.violated("a run ends", "too many events"));
            }
            self.digest.event(self.now, &event);
            match self.happen(event) {
                Ok(false) => {}
                Ok(true) => return self.finish(),
                Err(mut violation) => {
                    violation.text += &format!("\n{}", self.describe());
                    return Err(violation);
                }
            }
        }
        Err(self.violated("a run ends", "nothing is left to happen"))
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
        for (index, cable) in self.cables.iter().enumerate() {
            if cable.held.is_none() {
                offer(cable.link.next_arrival(), Event::Arrive(index));
            }
        }
        for (index, machine) in self.machines.iter().enumerate() {
            offer(machine.next_step, Event::Step(index));
            offer(machine.next_answer(), Event::Answer(index));
        }
        for (index, process) in self.processes.iter().enumerate() {
            let Some(process) = process else {
                offer(self.returns[index], Event::Return(index));
                continue;
            };
            for (number, (at, _)) in process.workers.iter().enumerate() {
                offer(*at, Event::Run(index, number));
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
            Event::Arrive(index) => self.arrive(index),
            Event::Step(index) => self.step(index)?,
            Event::Answer(index) => {
                self.machines[index].answer(self.now);
            }
            Event::Run(program, worker) => self.run_worker(program, worker)?,
            Event::Misbehave(program) => self.misbehave(program)?,
            Event::Return(program) => {
                self.returns[program] = None;
                self.start_program(program)
                    .map_err(|error| self.broken(&error))?;
            }
            Event::Mishap => self.mishap(),
            Event::Repair => self.repair(),
            Event::Tick => return self.tick(),
        }
        Ok(false)
    }

    fn arrive(&mut self, index: usize) {
        let cable = &mut self.cables[index];
        cable.held = cable.link.poll(self.now);
        self.deliver(index);
    }

    /// Hands what came over cable `index` to the host whose address it bears.
    fn deliver(&mut self, index: usize) {
        let Some(frame) = self.cables[index].held.take() else {
            return;
        };
        let to = frame.first_chunk::<6>();
        let machine = self
            .machines
            .iter_mut()
            .find(|machine| Some(&machine.mac.0) == to);
        let Some(machine) = machine else {
            return;
        };
        if machine.deliver(self.now, &frame) {
            self.digest.bytes(&frame);
            self.report.frames += 1;
        } else {
            self.cables[index].held = Some(frame);
        }
    }

    fn step(&mut self, index: usize) -> Result<(), Violation> {
        let now = self.now;
        let worked = self.machines[index].step(now);
        self.vain_steps[index] += u32::from(!worked);
        // A program that misbehaves may ring all day.
        if self.vain_steps[index] > VAIN_STEPS_MAX && !self.book.ledger.strangers {
            let text = format!("host {index} wakes up in vain, again and again");
            return Err(self.violated("an idle service sleeps", &text));
        }
        self.after_host(index);
        if self.machines[index].next_step.is_none() {
            self.report.sleeps += 1;
        }
        for cable in 0..self.cables.len() {
            self.deliver(cable);
        }
        Ok(())
    }

    /// Takes what a host sent, and wakes whom it rang.
    fn after_host(&mut self, index: usize) {
        let (now, link) = (self.now, &mut self.cables[index].link);
        self.machines[index].sent(now, |frame| link.push(now, frame));
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
        let waiting = self.scenario.connections.iter().filter(|plan| {
            let record = self.book.ledger.end(plan.id, Role::Client);
            plan.client == program && record.stage == Stage::NotYet
        });
        for (turn, plan) in waiting.enumerate() {
            let listener = &self.scenario.listeners[plan.listener];
            let host = self.scenario.programs[listener.programs[0]].host;
            let start = Start {
                at: plan.start.max(self.now),
                id: plan.id,
                to: Endpoint::new(address(host), listener.port),
            };
            process.workers[turn % workers].1.open_later(start);
        }
        self.processes[program] = Some(process);
        self.machines[spec.host].wake(self.now);
        Ok(())
    }

    fn kill_program(&mut self, program: usize, back: Option<Instant>) {
        let Some(process) = self.processes[program].take() else {
            return;
        };
        if let Some(misconduct) = &process.misconduct {
            self.swept[program] = misconduct.swept;
        }
        let (now, ledger) = (self.now, &mut self.book.ledger);
        for (_, worker) in &process.workers {
            for (id, role) in worker.open_sides() {
                if let Some(id) = id.filter(|_| role == Role::Server) {
                    ledger.server_died(now, id);
                }
            }
        }
        let listener = self.scenario.listener_of(program);
        ledger.program_died(now, program, listener, back.is_some());
        let host = self.scenario.programs[program].host;
        process.kill(now, &mut self.machines[host]);
        self.returns[program] = back;
        self.after_host(host);
        self.report.deaths += 1;
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
            self.kill_program(program, Some(self.now + Duration(1)));
        } else {
            for number in 0..process.workers.len() {
                self.run_worker(program, number)?;
            }
        }
        self.machines[host].wake(self.now);
        Ok(())
    }

    fn mishap(&mut self) {
        match self.mishaps.pop_front() {
            Some(Mishap::Death {
                program,
                back_after,
                ..
            }) => self.kill_program(program, back_after.map(|after| self.now + after)),
            Some(Mishap::Outage { lasts, .. }) => {
                let cut = LinkConfig {
                    loss: 1_000_000,
                    ..self.scenario.wire
                };
                self.cables
                    .iter_mut()
                    .for_each(|cable| cable.link.set_config(cut));
                self.repair = Some(self.now + lasts);
            }
            Some(Mishap::NeighboursForgotten { host, .. }) => {
                for other in (0..self.machines.len()).filter(|other| *other != host) {
                    self.machines[host].forget_neighbour(self.now, address(other));
                }
            }
            None => {}
        }
    }

    fn repair(&mut self) {
        let whole = self.scenario.wire;
        self.cables
            .iter_mut()
            .for_each(|cable| cable.link.set_config(whole));
        self.repair = None;
        self.book.ledger.restart_clocks(self.now);
    }

    fn violated(&self, rule: &'static str, text: &str) -> Violation {
        violation(self.now, rule, text)
    }

    fn broken(&self, error: &std::io::Error) -> Violation {
        self.violated("the machine has memory", &error.to_string())
    }
}
