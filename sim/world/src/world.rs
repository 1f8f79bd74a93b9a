//! The event loop of the simulator. The loop takes the earliest event in virtual time and runs its
//! handler. A port is a mux port, through which a program with its own stack shares a host's NIC.

mod checks;
mod direct;
pub(crate) mod fair_share;
mod faults;
mod ports;
mod starts;

use std::{collections::VecDeque, io::Write};

use tidelane_netem::{Network, Rng};
use tidelane_time::{Duration, Instant};

use crate::{
    connection_end::RunState,
    cwnd_rules::CwndRules,
    digest::Digest,
    direct::DirectHost,
    fault::Fault,
    foreign_bytes::ForeignBytes,
    ledger::{Ledger, Violation, violation},
    machine::Machine,
    ports::{PortEvent, Ports},
    program::Process,
    program_spec::Behaviour,
    report::Report,
    scenario::Scenario,
    smoltcp_host::SmoltcpHost,
    topology::mac,
    wire_rules::WireRules,
};

/// Interval of the checks that depend on virtual time.
const TICK: Duration = Duration::from_secs(1);
/// Number of events after which a run counts as endless.
const EVENTS_MAX: u64 = 30_000_000;
/// Number of bursts of random writes to shared memory after which hostile programs write no more.
const FUZZ_BURSTS_MAX: u64 = 50_000;

/// An event. The numbers are indices of a link direction, a host, a direct host or a program. The
/// second number of `Run` is the index of the worker, a thread of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// A frame arrives on a link.
    Arrive(usize),
    /// The service of a host takes a step.
    Step(usize),
    /// A netlink answer of the kernel reaches a host's service.
    Answer(usize),
    /// The host with the smoltcp stack runs.
    Smoltcp,
    /// A direct host (a host whose programs run TCP within their own processes) runs.
    Direct(usize),
    /// A thread of a program runs.
    Run(usize, usize),
    /// A hostile program writes random values to its shared memory.
    Fuzz(usize),
    /// A killed program starts again.
    Launch(usize),
    /// The next fault of the scenario happens.
    Fault,
    /// The links that a fault has cut are restored.
    Repair,
    /// The checks that depend on virtual time run.
    Tick,
    /// An event of the mux ports.
    Port(PortEvent),
}

/// A run in progress, with its hosts, programs, links and virtual clock.
pub struct World {
    scenario: Scenario,
    now: Instant,
    run_state: RunState,
    machines: Vec<Machine>,
    smoltcp: Option<SmoltcpHost>,
    ports: Option<Ports>,
    /// Direct hosts. Their host numbers follow the numbers of all other hosts.
    direct: Vec<DirectHost>,
    network: Network,
    /// Frame that arrived while the host's NIC had no room, by host.
    held: Vec<Option<Vec<u8>>>,
    wire_rules: WireRules,
    cwnd_rules: CwndRules,
    foreign_bytes: ForeignBytes,
    root: Rng,
    processes: Vec<Option<Process>>,
    /// Time at which a killed program starts again, by program.
    relaunches: Vec<Option<Instant>>,
    faults: VecDeque<Fault>,
    /// Time at which links that a fault has cut are restored.
    repair: Option<Instant>,
    /// Time of the next checks that depend on virtual time.
    next_tick: Instant,
    /// Time by which all state of the hosts must disappear. `None` before the drain, the phase of
    /// the run after the last connection.
    drain_until: Option<Instant>,
    /// Time since which all connections have been over.
    over_since: Option<Instant>,
    /// Number of idle steps since the last tick, by host.
    idle_steps: Vec<u32>,
    /// True if the host's last step found no work, by host.
    idle: Vec<bool>,
    /// Number of words that a hostile program's processes have overwritten in order, by program.
    swept: Vec<u64>,
    digest: Digest,
    rng: Rng,
    /// Number of starts of programs and services. Each start has its own random numbers.
    launches: u64,
    report: Report,
}

impl World {
    /// Creates the world of `scenario` at time zero and starts its programs.
    pub fn new(scenario: Scenario) -> std::io::Result<Self> {
        let root = Rng::new(scenario.seed).fork(0x0770_771d);
        let mut ledger = Ledger::new(scenario.connections.iter().cloned());
        // The service drops payload if the program lacks memory, so a sender may time out.
        ledger.timeouts = scenario.may_time_out() || scenario.is_short_of_memory();
        ledger.refusals = scenario.has_low_limits();
        ledger.lossless = scenario.is_lossless();
        ledger.clock_jumps = scenario.has_clock_jumps();
        for (index, program) in scenario.programs.iter().enumerate() {
            if program.behaviour != Behaviour::Good {
                ledger.unplanned_clients = true;
                ledger.mark_client_hostile(index);
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
            run_state: RunState::new(ledger, scenario.seed),
            idle_steps: vec![0; scenario.host_count()],
            idle: vec![false; scenario.host_count()],
            network: scenario.topology.build(root.fork(200).next_u64()),
            held: vec![None; scenario.host_count()],
            smoltcp: None,
            ports: Ports::new(&scenario, root.fork(700)),
            direct: Vec::new(),
            machines,
            wire_rules: WireRules::default(),
            cwnd_rules: CwndRules::default(),
            foreign_bytes: ForeignBytes::new(&scenario, root.fork(600)),
            processes: scenario.programs.iter().map(|_| None).collect(),
            relaunches: vec![None; scenario.programs.len()],
            swept: vec![0; scenario.programs.len()],
            faults: scenario.faults.iter().copied().collect(),
            repair: None,
            next_tick: Instant::ZERO + TICK,
            drain_until: None,
            over_since: None,
            digest: Digest::default(),
            rng: root.fork(300),
            root,
            launches: 0,
            report: Report::default(),
            scenario,
        };
        world.configure_ports();
        world.start_all()?;
        Ok(world)
    }

    /// Writes the frames of host `index` to `out` as pcapng.
    pub fn capture(&mut self, index: usize, out: Box<dyn Write>) -> std::io::Result<()> {
        let machine = self.machines.remove(index).capture(out)?;
        self.machines.insert(index, machine);
        Ok(())
    }

    /// Runs to the end. Returns the report of the run, or the first violation of a rule. If the
    /// scenario demands a comparison, a second run follows without the hostile programs on mux
    /// ports, and the durations of the connections in both runs are compared.
    pub fn run(self) -> Result<Report, Violation> {
        let other = self.scenario.without_hostile();
        let hostile = self.scenario.ports.as_ref();
        let hostile = hostile.map_or(0, |ports| ports.hostile.len());
        let mut report = self.run_alone()?;
        if let Some(other) = other {
            let other = Self::new(other);
            let other = other.map_err(|error| {
                violation(report.end, "the machine has memory", error.to_string())
            })?;
            let alone = other.run_alone()?;
            let compared = fair_share::check(&report.spans, &alone.spans, hostile)?;
            let counter = ("port_connections_compared".to_owned(), compared);
            report.add_counters(vec![counter]);
        }
        Ok(report)
    }

    fn run_alone(mut self) -> Result<Report, Violation> {
        while let Some((at, event)) = self.next_event() {
            if self.report.events >= EVENTS_MAX {
                return Err(self.violated("a run ends", "too many events"));
            }
            if self.handle(at, event)? {
                return self.finish();
            }
        }
        Err(self.violated("a run ends", "nothing is left to happen"))
    }

    /// Runs until time `until`, or to the end of the run, whichever is earlier.
    pub(crate) fn run_until(&mut self, until: Instant) -> Result<(), Violation> {
        while let Some((at, event)) = self.next_event() {
            if at > until || self.handle(at, event)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the record of both ends of all connections.
    pub(crate) const fn ledger(&self) -> &Ledger {
        &self.run_state.ledger
    }

    /// Returns the counters of all hosts that have a service.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let machines = self.machines.iter();
        machines
            .flat_map(|machine| machine.host.counters())
            .collect()
    }

    /// Returns the smoothed round-trip time of the first connection of `host`. Returns `None` if
    /// the host has no service or no connection.
    pub(crate) fn srtt(&self, host: usize) -> Option<Duration> {
        let sockets = self.machines.get(host)?.host.sockets();
        sockets
            .iter()
            .find_map(|socket| Some(socket.info.as_ref()?.srtt))
    }

    /// Handles one event at time `at`. Returns true if the run is over.
    fn handle(&mut self, at: Instant, event: Event) -> Result<bool, Violation> {
        self.now = self.now.max(at);
        self.report.events += 1;
        self.digest.event(self.now, &event);
        self.dispatch(event).map_err(|mut violation| {
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
        if let Some((at, direction)) = self.network.next_arrival() {
            offer(Some(at), Event::Arrive(direction));
        }
        for (index, machine) in self.machines.iter().enumerate() {
            offer(machine.due(), Event::Step(index));
            offer(machine.next_answer(), Event::Answer(index));
        }
        offer(
            self.smoltcp.as_ref().and_then(|host| host.next),
            Event::Smoltcp,
        );
        for (at, host) in self.direct.iter().enumerate() {
            offer(host.due(), Event::Direct(at));
        }
        for (index, process) in self.processes.iter().enumerate() {
            let Some(process) = process else {
                offer(self.relaunches[index], Event::Launch(index));
                continue;
            };
            let pause = self.machines[self.scenario.programs[index].host].paused_until;
            for (number, (at, _)) in process.workers.iter().enumerate() {
                offer(at.map(|at| at.max(pause)), Event::Run(index, number));
            }
            if let Some(fuzzer) = &process.fuzzer
                && self.drain_until.is_none()
                && self.report.fuzz_bursts < FUZZ_BURSTS_MAX
            {
                offer(Some(fuzzer.next), Event::Fuzz(index));
            }
        }
        offer(self.faults.front().map(Fault::at), Event::Fault);
        offer(self.repair, Event::Repair);
        offer(Some(self.next_tick), Event::Tick);
        if let Some((at, event)) = self.ports.as_ref().and_then(Ports::next) {
            offer(Some(at), Event::Port(event));
        }
        next
    }

    /// Runs the handler of `event`. Returns true if the run is over.
    fn dispatch(&mut self, event: Event) -> Result<bool, Violation> {
        match event {
            Event::Arrive(direction) => self.arrive(direction),
            Event::Step(index) => self.step(index)?,
            Event::Answer(index) => {
                self.machines[index].answer(self.now);
            }
            Event::Smoltcp => self.run_smoltcp()?,
            Event::Direct(at) => self.run_direct(at)?,
            Event::Run(program, worker) => self.run_worker(program, worker)?,
            Event::Fuzz(program) => self.run_fuzzer(program)?,
            Event::Launch(program) => {
                self.relaunches[program] = None;
                self.start_program(program)
                    .map_err(|error| self.broken(&error))?;
            }
            Event::Fault => self.inject_fault()?,
            Event::Repair => self.repair(),
            Event::Tick => return self.tick(),
            Event::Port(event) => self.run_port(event)?,
        }
        Ok(false)
    }

    fn arrive(&mut self, direction: usize) {
        if let Some((host, frame)) = self.network.arrive(self.now, direction) {
            self.deliver(host, frame);
        }
    }

    /// Delivers a frame to `host`, or holds the frame until the host's NIC has room.
    fn deliver(&mut self, host: usize, frame: Vec<u8>) {
        // A NIC accepts only frames to its own address, so it drops a frame with a corrupt address.
        if frame.first_chunk() != Some(&mac(host).0) {
            return;
        }
        let now = self.now;
        let taken = if let Some(machine) = self.machines.get_mut(host) {
            machine.deliver(now, &frame)
        } else if let Some(direct) = self.direct_mut(host) {
            direct.deliver(now, &frame)
        } else {
            if let Some(smoltcp) = &mut self.smoltcp {
                smoltcp.deliver(self.now, &frame);
                self.digest.bytes(&frame);
                self.report.frames += 1;
            }
            return;
        };
        self.network.block(host, !taken);
        if taken {
            self.wire_rules.delivered(host, &frame);
            self.arrives_for_ports(host, &frame);
            self.digest.bytes(&frame);
            self.report.frames += 1;
        } else {
            self.held[host] = Some(frame);
        }
    }

    fn step(&mut self, index: usize) -> Result<(), Violation> {
        let now = self.now;
        let worked = self.machines[index].step(now);
        self.check_sleep(index, worked)?;
        self.after_host(index)?;
        if self.machines[index].next_step.is_none() {
            self.report.sleeps += 1;
        }
        self.deliver_held(index);
        Ok(())
    }

    /// Delivers the frame that waited for room in the NIC of host `index`, if there is one.
    fn deliver_held(&mut self, index: usize) {
        if let Some(frame) = self.held[index].take() {
            self.deliver(index, frame);
        }
    }

    /// Checks and sends the frames of host `index`, and wakes the workers whose doorbell has rung.
    fn after_host(&mut self, index: usize) -> Result<(), Violation> {
        let (now, network, rules) = (self.now, &mut self.network, &mut self.wire_rules);
        let mut ports = self.ports.as_mut().filter(|ports| ports.host == index);
        let mut checked = ports.as_mut().map_or(Ok(()), |ports| {
            ports.check_unsent(now, self.machines[index].host.mux_ports())
        });
        self.machines[index].sent(now, |frame| {
            if checked.is_ok() {
                let ruled = ports
                    .as_mut()
                    .map_or(Ok(true), |ports| ports.leaves(now, frame));
                checked = ruled.and_then(|ruled| match ruled {
                    true => rules.sent(now, index, frame),
                    false => Ok(()),
                });
            }
            network.send(now, index, frame);
        });
        checked?;
        self.after_ports(index)?;
        self.check_senders(index)?;
        let specs = &self.scenario.programs;
        for (spec, process) in specs.iter().zip(&mut self.processes) {
            let Some(process) = process.as_mut().filter(|_| spec.host == index) else {
                continue;
            };
            for (at, worker) in &mut process.workers {
                if worker.take_ring() {
                    let wake = now + Duration(self.rng.below(spec.wake_time_max.0 + 1));
                    *at = Some(at.map_or(wake, |at| at.min(wake)));
                }
            }
        }
        Ok(())
    }

    /// Checks the congestion control of host `index`, which has just sent.
    fn check_senders(&mut self, index: usize) -> Result<(), Violation> {
        let advances = std::mem::take(&mut self.wire_rules.advances);
        if !self.cwnd_rules.has_checks_left() {
            return Ok(());
        }
        let machine = &self.machines[index];
        self.cwnd_rules.check(self.now, index, &advances, machine)
    }

    fn run_worker(&mut self, program: usize, worker: usize) -> Result<(), Violation> {
        let Some(process) = &mut self.processes[program] else {
            return Ok(());
        };
        let bad = process.fuzzer.is_some();
        let (at, worker) = &mut process.workers[worker];
        match worker.run(self.now, &mut self.run_state) {
            Ok(next) => *at = next,
            // A program that overwrites its own shared memory may read any values.
            Err(_) if bad => *at = None,
            Err(violation) => return Err(violation),
        }
        self.answer_doorbell(self.scenario.programs[program].host);
        Ok(())
    }

    /// Wakes host `index` if a program has rung its doorbell.
    fn answer_doorbell(&mut self, index: usize) {
        let machine = &mut self.machines[index];
        if machine
            .doorbell_rang
            .swap(false, std::sync::atomic::Ordering::Relaxed)
        {
            machine.wake(self.now);
        }
    }

    fn run_smoltcp(&mut self) -> Result<(), Violation> {
        let index = self.machines.len();
        let Some(smoltcp) = &mut self.smoltcp else {
            return Ok(());
        };
        smoltcp.run(self.now, &mut self.run_state)?;
        for frame in smoltcp.take_frames() {
            self.network.send(self.now, index, &frame);
        }
        Ok(())
    }

    fn run_fuzzer(&mut self, program: usize) -> Result<(), Violation> {
        let host = self.scenario.programs[program].host;
        let Some(process) = &mut self.processes[program] else {
            return Ok(());
        };
        let Some(fuzzer) = &mut process.fuzzer else {
            return Ok(());
        };
        fuzzer.write_burst(self.now);
        self.report.fuzz_bursts += 1;
        let old = fuzzer.writes > 4096;
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
