//! Injects faults. Each fault takes effect at its time, and some faults end later.

use tidelane_time::{Duration, Instant};

use super::World;
use crate::{
    family::Family,
    fault::Fault,
    ledger::Violation,
    machine::Machine,
    plan::{ConnectionPlan, Role},
    program_spec::Behaviour,
    topology::address,
};

impl World {
    /// Kills a program. The program starts again at time `back`, or stays dead if `back` is `None`.
    pub(super) fn kill_program(
        &mut self,
        program: usize,
        back: Option<Instant>,
    ) -> Result<(), Violation> {
        if self.scenario.programs[program].behaviour != Behaviour::Good {
            self.check_memory(program)?;
        }
        let Some(process) = self.processes[program].take() else {
            return Ok(());
        };
        if let Some(fuzzer) = &process.fuzzer {
            self.swept[program] = fuzzer.swept;
        }
        let (now, ledger) = (self.now, &mut self.run_state.ledger);
        for (_, worker) in &process.workers {
            for (id, role) in worker.open_ends() {
                if let Some(id) = id.filter(|_| role == Role::Server) {
                    ledger.server_died(now, id);
                }
            }
        }
        let listener = self.scenario.listener_of(program);
        ledger.program_died(now, program, listener, back.is_some());
        let host = self.scenario.programs[program].host;
        process.kill(now, &mut self.machines[host]);
        self.relaunches[program] = back;
        self.report.deaths += 1;
        self.after_host(host)
    }

    pub(super) fn inject_fault(&mut self) -> Result<(), Violation> {
        let now = self.now;
        let fault = self.faults.pop_front();
        if let Some(fault) = &fault
            && self.inject_direct_fault(fault)?
        {
            return Ok(());
        }
        match fault {
            Some(Fault::Death {
                program,
                restart_after,
                ..
            }) => return self.kill_program(program, restart_after.map(|after| now + after)),
            Some(Fault::Outage { lasts, .. }) => {
                self.network.set_cut(true);
                self.repair = Some(now + lasts);
            }
            Some(Fault::PathMtu { mtu, .. }) => self.network.set_path_mtu(mtu),
            Some(Fault::InterfaceMtu { host, mtu, .. }) => {
                let machine = &mut self.machines[host];
                machine.host.set_mtu(machine.clock(now), mtu);
                machine.wake(now);
            }
            Some(Fault::NeighboursExpired { host, .. }) => {
                self.forget_neighbours(host);
            }
            Some(Fault::Pause { host, lasts, .. }) => {
                let machine = &mut self.machines[host];
                machine.paused_until = machine.paused_until.max(now + lasts);
            }
            Some(Fault::ClockJump { host, by, .. }) => self.machines[host].jump(now, by),
            Some(Fault::Restart {
                host,
                lasts,
                orderly,
                ..
            }) => return self.restart(host, lasts, orderly),
            None => {}
        }
        Ok(())
    }

    /// Expires one neighbour entry of `host` for each IP version and each other host with a
    /// service: the entry of the gateway to the other host, or of the other host if there is no
    /// gateway.
    fn forget_neighbours(&mut self, host: usize) {
        let has_ipv6 = self.scenario.hosts[host].ipv6;
        for family in &Family::BOTH[..1 + usize::from(has_ipv6)] {
            for other in (0..self.machines.len()).filter(|other| *other != host) {
                let hop = self.scenario.topology.gateway(*family, host, other);
                let hop = hop.unwrap_or(address(*family, other));
                self.machines[host].forget_neighbour(self.now, hop);
            }
        }
    }

    /// Restores all links after an outage, and restarts the progress timers of the connections.
    pub(super) fn repair(&mut self) {
        self.network.set_cut(false);
        self.repair = None;
        self.run_state.ledger.restart_clocks(self.now);
    }

    /// Stops the service and the programs of `host`. If `orderly` is true, the service resets its
    /// connections first. The service and the programs start again after `lasts`. A dead program
    /// that has a later planned start keeps that start. A dead program without a planned start
    /// stays dead.
    fn restart(&mut self, host: usize, lasts: Duration, orderly: bool) -> Result<(), Violation> {
        let back = self.now + lasts + Duration(1);
        let machine = &mut self.machines[host];
        if orderly {
            machine.host.shut_down(machine.clock(self.now));
            self.after_host(host)?;
        }
        self.machines[host].down = true;
        let programs = self.scenario.programs.iter().enumerate();
        let here: Vec<usize> = programs
            .filter(|(_, spec)| spec.host == host)
            .map(|(program, _)| program)
            .collect();
        for program in here {
            let again = self.relaunches[program].map_or(back, |at| at.max(back));
            let gone_for_good =
                self.processes[program].is_none() && self.relaunches[program].is_none();
            if !gone_for_good {
                self.kill_program(program, Some(again))?;
                self.relaunches[program] = Some(again);
            }
        }
        let scenario = &self.scenario;
        let on_host = |program: usize| scenario.programs[program].host == host;
        let ends = |plan: &ConnectionPlan, role| match role {
            Role::Client => on_host(plan.client),
            Role::Server => on_host(scenario.listeners[plan.listener].programs[0]),
        };
        self.run_state.ledger.service_died(self.now, ends);
        self.wire_rules.forget(host);
        self.cwnd_rules.forget(host);
        self.renew(host, back).map_err(|error| self.broken(&error))
    }

    /// Replaces the machine of `host` by a new machine, whose service starts at time `back`.
    fn renew(&mut self, host: usize, back: Instant) -> std::io::Result<()> {
        self.launches += 1;
        self.held[host] = None;
        self.network.block(host, false);
        let rng = self.root.fork(400 + (self.launches << 16) + host as u64);
        let spec = &self.scenario.hosts[host];
        let new = Machine::new(host, spec, &self.scenario.topology, rng)?;
        self.report
            .add_counters(self.machines[host].host.counters());
        self.report.restarts += 1;
        self.machines[host].restart(new, back)
    }
}
