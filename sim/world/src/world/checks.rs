//! Checks of the rules that depend on time, such as the progress of connections, and of the rules
//! at the end of a run, when no state may remain.

use tidelane_time::Duration;

use super::{FUZZ_BURSTS_MAX, TICK, World, fair_share};
use crate::{
    direct::DirectHost,
    ledger::{Entry, Stage, Violation},
    machine::Machine,
    ports::Ports,
    report::Report,
    smoltcp_host::SmoltcpHost,
};

/// Time without progress after which a connection counts as stuck: fifteen times the longest RTO
/// (120 s).
///
/// If an ACK is lost and a copy arrives minutes later, the RTT sample is minutes long (RFC 7323
/// §4.1, as in Linux). The RTO is then 120 s, so three consecutive losses take six minutes.
const STUCK_AFTER: Duration = Duration::from_secs(15 * 120);
/// Limit of two successive periods. After all connections are over, the well-behaved programs must
/// become idle, with all slots (records of connections) released, within this time. Then the drain
/// begins, in which timers must remove all other state within 2 MSL plus this time.
const DRAIN_MAX: Duration = Duration::from_secs(900);
/// Number of idle steps (steps without work) that a host may take per second. Some idle steps are
/// normal, because the timer wheel may report a time before the next deadline.
const IDLE_STEPS_MAX: u32 = 3_000;

impl World {
    /// Counts a step of host `index` if neither this step nor the step before it had work, and no
    /// slow NIC holds sent frames. Returns an error if there are too many of these steps, and no
    /// program is hostile.
    pub(super) fn check_sleep(&mut self, index: usize, worked: bool) -> Result<(), Violation> {
        // One idle step after work is allowed, because the host has to discover that it is idle.
        let was_idle = std::mem::replace(&mut self.idle[index], !worked);
        let machine = self.machines.get(index);
        let waits = machine.is_some_and(Machine::waits_for_nic);
        self.idle_steps[index] += u32::from(was_idle && !worked && !waits);
        // A hostile program may ring the doorbell without limit.
        if self.idle_steps[index] > IDLE_STEPS_MAX && !self.run_state.ledger.unplanned_clients {
            let text = format!("host {index} wakes up without work, again and again");
            return Err(self.violated("an idle service sleeps", &text));
        }
        Ok(())
    }

    /// Checks the rules that depend on time, once per `TICK`. Returns true if the run is over.
    pub(super) fn tick(&mut self) -> Result<bool, Violation> {
        self.next_tick = self.now + TICK;
        self.idle_steps.fill(0);
        if let Some(program) = self.foreign_bytes.choose(self.processes.len()) {
            self.check_memory(program)?;
        }
        if let Some(ports) = &mut self.ports {
            ports.tick(self.now)?;
        }
        let first = self.run_state.ledger.stuck(self.now, STUCK_AFTER).next();
        if let Some(entry) = first {
            if self.is_given_up(entry) {
                let (id, program) = (entry.plan.id, entry.plan.client);
                if self.give_up_direct(id, program) {
                    return Ok(false);
                }
                return self.kill_program(program, None).map(|()| false);
            }
            let text = format!("{}; {:?}", entry.plan, entry.ends);
            return Err(self.violated("a connection moves on", &text));
        }
        let Some(until) = self.drain_until else {
            return self.check_end().map(|()| false);
        };
        let quiet = |machine: &Machine| {
            let (_, flows, bytes) = machine.host.usage();
            flows == 0
                && bytes == 0
                && machine.host.time_wait_len() == 0
                && machine.host.next_timeout().is_none()
        };
        let are_over = self.ports.as_ref().is_none_or(Ports::are_over) && self.are_direct_over();
        if are_over && self.machines.iter().all(quiet) {
            return Ok(true);
        }
        if self.now > until {
            return Err(self.violated("nothing leaks", "state is left after the drain time"));
        }
        Ok(false)
    }

    /// Returns true if the server's host has probably aborted the connection on a timeout. The host
    /// does so if the server's program has closed the connection and the peer accepts no more data.
    /// The host counts these aborts, but does not name the connections. The function therefore
    /// returns true only if the number of aborts is at least the number of the host's stuck
    /// connections with an ended server and an open client.
    ///
    /// As in Linux, this abort sends no RST, so the client waits until its program gives up. If the
    /// function returns true, the caller makes the client give up. The caller ends the connection
    /// of a client on a direct host, and kills the program of a client on any other host.
    fn is_given_up(&self, entry: &Entry) -> bool {
        let host_of = |entry: &Entry| {
            let listener = &self.scenario.listeners[entry.plan.listener];
            listener
                .programs
                .first()
                .map(|program| self.scenario.programs[*program].host)
        };
        let Some(host) = host_of(entry) else {
            return false;
        };
        let waits = |entry: &&Entry| {
            let [client, server] = &entry.ends;
            host_of(entry) == Some(host)
                && client.stage == Stage::Open
                && server.stage == Stage::Ended
        };
        let stuck = self.run_state.ledger.stuck(self.now, STUCK_AFTER);
        let counters = self.counters_of(host).into_iter();
        let given_up = counters.filter(|(name, _)| name == "abort_on_timeout");
        let given_up: u64 = given_up.map(|(_, count)| count).sum();
        waits(&entry) && stuck.filter(waits).count() as u64 <= given_up
    }

    /// Checks that the memory of `program` contains no bytes of connections between other users.
    pub(super) fn check_memory(&mut self, program: usize) -> Result<(), Violation> {
        let user = self.scenario.programs[program].user;
        let Some(process) = &self.processes[program] else {
            return Ok(());
        };
        match self.foreign_bytes.find(user, &process.region) {
            None => Ok(()),
            Some(id) => {
                let text = format!("program {program} of user {user} has some of connection {id}");
                Err(self.violated("no byte of one user is in another's memory", &text))
            }
        }
    }

    /// Begins the drain if all connections are over and all well-behaved programs are idle. Returns
    /// an error if a well-behaved program is still not idle `DRAIN_MAX` after the last connection.
    /// Kills the hostile programs if the run has had `FUZZ_BURSTS_MAX` bursts of random writes.
    fn check_end(&mut self) -> Result<(), Violation> {
        if self.report.fuzz_bursts >= FUZZ_BURSTS_MAX {
            self.kill_hostile()?;
        }
        if !self.run_state.ledger.all_over() {
            return Ok(());
        }
        let since = *self.over_since.get_or_insert(self.now);
        if self.good_processes_idle() {
            self.begin_drain()?;
        } else if self.now - since > DRAIN_MAX {
            return Err(self.violated("a slot is released in the end", "a slot is still in use"));
        }
        Ok(())
    }

    fn kill_hostile(&mut self) -> Result<(), Violation> {
        for program in 0..self.processes.len() {
            if matches!(&self.processes[program], Some(p) if p.fuzzer.is_some()) {
                self.kill_program(program, None)?;
            }
        }
        Ok(())
    }

    fn good_processes_idle(&self) -> bool {
        let mut processes = self.processes.iter().flatten();
        processes.all(|process| process.fuzzer.is_some() || process.is_idle())
            && self.smoltcp.as_ref().is_none_or(SmoltcpHost::is_idle)
            && self.ports.as_ref().is_none_or(Ports::are_idle)
            && self.direct.iter().all(DirectHost::is_idle)
    }

    /// Starts the drain, the phase in which timers must remove the remaining state. Ends an outage,
    /// kills the hostile programs, and cancels planned faults and starts.
    fn begin_drain(&mut self) -> Result<(), Violation> {
        let longest = self.msl_max();
        self.report.busy = self.now;
        self.faults.clear();
        self.relaunches.fill(None);
        self.kill_hostile()?;
        if let Some(ports) = &mut self.ports {
            let machine = &mut self.machines[ports.host];
            ports.begin_drain(self.now, &mut machine.host)?;
            machine.wake(self.now);
        }
        if self.repair.is_some() {
            self.repair();
        }
        self.drain_until = Some(self.now + longest + longest + DRAIN_MAX);
        Ok(())
    }

    /// Checks that no state is left, and that each connection without a reason to end early has
    /// transferred all planned bytes. Returns the report.
    pub(super) fn finish(mut self) -> Result<Report, Violation> {
        for entry in self.run_state.ledger.entries() {
            let refused = self.run_state.ledger.refusals && entry.ends[1].stage == Stage::NotYet;
            if entry.must_be_complete() && !entry.is_complete() && !refused {
                let text = format!("{}; {:?}", entry.plan, entry.ends);
                return Err(self.violated("every planned exchange completes", &text));
            }
            self.report.count(entry);
        }
        for program in 0..self.processes.len() {
            self.check_memory(program)?;
            let Some(process) = self.processes[program].take() else {
                continue;
            };
            let bytes = process.program.send_buffer_bytes();
            if bytes != 0 {
                let text = format!("program {program} holds {bytes} bytes of send buffers");
                return Err(self.violated("nothing leaks", &text));
            }
            let host = self.scenario.programs[program].host;
            process.kill(self.now, &mut self.machines[host]);
        }
        if let Some(ports) = &mut self.ports {
            let service = &mut self.machines[ports.host].host;
            self.report.add_counters(ports.finish(self.now, service)?);
        }
        for (index, machine) in self.machines.iter().enumerate() {
            let (programs, flows, bytes) = machine.host.usage();
            if (programs, flows, bytes) != (0, 0, 0) {
                let text = format!(
                    "host {index}: {programs} programs, {flows} flows, {bytes} bytes at the end"
                );
                return Err(self.violated("nothing leaks", &text));
            }
            let charged = machine.charged();
            if !charged.is_empty() {
                let text = format!("host {index}: {}", charged.join(", "));
                return Err(self.violated("nothing leaks", &text));
            }
            self.report.add_counters(machine.host.counters());
        }
        self.report.spans = fair_share::spans(&self.scenario, self.run_state.ledger.entries());
        for direct in &self.direct {
            self.report.add_counters(direct.counters());
        }
        self.report.memory_searches = self.foreign_bytes.searches;
        self.report.bytes = self.run_state.ledger.bytes;
        self.report.checked_segments = self.wire_rules.segments;
        self.report.checked_windows = self.cwnd_rules.checks;
        self.report.links = self.network.counters();
        self.report.too_big = self.network.too_big();
        self.report.end = self.now;
        self.report.digest = self.digest.value();
        Ok(self.report)
    }

    pub(super) fn describe(&self) -> String {
        let mut lines = Vec::new();
        for (index, machine) in self.machines.iter().enumerate() {
            let usage = machine.host.usage();
            let time_wait = machine.host.time_wait_len();
            lines.push(format!(
                "host {index}: (programs, flows, bytes) {usage:?}, {time_wait} in TIME-WAIT, \
                 next step {:?}, timeout {:?}",
                machine.next_step,
                machine.host.next_timeout(),
            ));
            lines.extend(machine.describe());
            let counters = machine.host.counters();
            let counted = counters.iter().filter(|(_, value)| *value > 0);
            let counted: Vec<_> = counted
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            lines.push(counted.join(", "));
        }
        lines.extend(self.direct.iter().flat_map(DirectHost::describe));
        for (index, process) in self.processes.iter().enumerate() {
            let Some(process) = process else { continue };
            for (at, worker) in &process.workers {
                let sides: Vec<_> = worker.open_ends().collect();
                let closing = worker.closing();
                lines.push(format!(
                    "program {index}: runs {at:?}, sides {sides:?}, closing {closing:?}"
                ));
            }
        }
        lines.extend(self.ports.iter().flat_map(Ports::describe));
        lines.join("\n")
    }
}
