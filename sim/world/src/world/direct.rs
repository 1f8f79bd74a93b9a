//! The events of direct hosts, which run TCP within their programs (`app/direct`).

use std::io;

use tidelane_time::Duration;

use super::World;
use crate::{
    direct::{DirectHost, Place},
    fault::Fault,
    ledger::Violation,
    plan::{ConnectionPlan, Role},
    worker::Start,
};

impl World {
    /// Creates all direct hosts. Their programs start with the first events.
    pub(super) fn start_direct(&mut self) -> io::Result<()> {
        for at in 0..self.scenario.direct.len() {
            let host = self.new_direct(at)?;
            self.direct.push(host);
        }
        Ok(())
    }

    /// Creates direct host `at` (the index among the direct hosts). The host's programs will open
    /// the planned connections that they have not opened yet.
    fn new_direct(&mut self, at: usize) -> io::Result<DirectHost> {
        self.launches += 1;
        let scenario = &self.scenario;
        let index = scenario.first_direct() + at;
        let is_here = |program: usize| scenario.programs[program].host == index;
        let programs = (0..scenario.programs.len()).filter(|program| is_here(*program));
        let mut starts: Vec<Start> = programs
            .flat_map(|program| self.starts_of(program))
            .collect();
        starts.sort_by_key(|start| start.at);
        let listeners = scenario.listeners.iter();
        let listeners = listeners.filter(|listener| is_here(listener.programs[0]));
        let place = Place {
            index,
            topology: &scenario.topology,
            listeners: listeners.collect(),
        };
        let rng = self.root.fork(900 + (self.launches << 16) + index as u64);
        DirectHost::new(&scenario.direct[at], &place, starts.into(), rng)
    }

    /// Returns the direct host with the index `host` among all hosts. Returns `None` if host `host`
    /// is not a direct host.
    pub(super) fn direct_mut(&mut self, host: usize) -> Option<&mut DirectHost> {
        let first = self.scenario.first_direct();
        self.direct.get_mut(host.checked_sub(first)?)
    }

    /// Runs direct host `at`, and checks and sends its frames.
    pub(super) fn run_direct(&mut self, at: usize) -> Result<(), Violation> {
        let index = self.scenario.first_direct() + at;
        let worked = self.direct[at].run(self.now, &mut self.run_state)?;
        let frames = self.direct[at].take_sent();
        self.check_sleep(index, worked || !frames.is_empty())?;
        self.send_direct(at, &frames)?;
        let advances = std::mem::take(&mut self.wire_rules.advances);
        if self.cwnd_rules.has_checks_left() {
            let host = &self.direct[at];
            self.cwnd_rules.check(self.now, index, &advances, host)?;
        }
        self.deliver_held(index);
        Ok(())
    }

    fn send_direct(&mut self, at: usize, frames: &[Vec<u8>]) -> Result<(), Violation> {
        let index = self.scenario.first_direct() + at;
        for frame in frames {
            self.wire_rules.sent(self.now, index, frame)?;
            self.network.send(self.now, index, frame);
        }
        Ok(())
    }

    /// Injects a fault of a direct host. Returns false if the fault concerns no direct host.
    pub(super) fn inject_direct_fault(&mut self, fault: &Fault) -> Result<bool, Violation> {
        let now = self.now;
        match *fault {
            Fault::Pause { host, lasts, .. } => {
                let Some(direct) = self.direct_mut(host) else {
                    return Ok(false);
                };
                direct.paused_until = direct.paused_until.max(now + lasts);
            }
            Fault::ClockJump { host, by, .. } => {
                let Some(direct) = self.direct_mut(host) else {
                    return Ok(false);
                };
                direct.jump(now, by);
            }
            Fault::Restart {
                host,
                lasts,
                orderly,
                ..
            } => {
                if self.direct_mut(host).is_none() {
                    return Ok(false);
                }
                let at = host - self.scenario.first_direct();
                self.restart_direct(at, lasts, orderly)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Ends the programs of direct host `at` and the context, which runs TCP for the programs. If
    /// `orderly` is true, the context resets its connections first. A new context and new programs
    /// start after `lasts`.
    fn restart_direct(
        &mut self,
        at: usize,
        lasts: Duration,
        orderly: bool,
    ) -> Result<(), Violation> {
        let (now, index) = (self.now, self.scenario.first_direct() + at);
        let back = now + lasts + Duration(1);
        let ledger = &mut self.run_state.ledger;
        for (id, role) in self.direct[at].open_ends() {
            if let Some(id) = id.filter(|_| role == Role::Server) {
                ledger.server_died(now, id);
            }
        }
        let scenario = &self.scenario;
        let is_here = |program: usize| scenario.programs[program].host == index;
        for program in (0..scenario.programs.len()).filter(|program| is_here(*program)) {
            ledger.program_died(now, program, scenario.listener_of(program), true);
        }
        ledger.service_died(now, |plan: &ConnectionPlan, role| match role {
            Role::Client => is_here(plan.client),
            Role::Server => is_here(scenario.listeners[plan.listener].programs[0]),
        });
        self.report.add_counters(self.direct[at].counters());
        self.report.restarts += 1;
        self.held[index] = None;
        self.network.block(index, false);
        let new = self.new_direct(at).map_err(|error| self.broken(&error))?;
        let frames = self.direct[at].restart(now, new, back, orderly);
        self.send_direct(at, &frames)?;
        self.wire_rules.advances.clear();
        self.wire_rules.forget(index);
        self.cwnd_rules.forget(index);
        Ok(())
    }

    /// Ends the client's end of connection `id`, because the server's host has aborted the
    /// connection on a timeout without a RST. `client` is the index of the client's program.
    /// Returns false if the program is not on a direct host.
    pub(super) fn give_up_direct(&mut self, id: u32, client: usize) -> bool {
        let (now, host) = (self.now, self.scenario.programs[client].host);
        let Some(direct) = self.direct_mut(host) else {
            return false;
        };
        direct.give_up(now, id);
        let ledger = &mut self.run_state.ledger;
        ledger.excuse(id, "its server gave up");
        ledger.mark_broken(now, id, Role::Client);
        ledger.close_end(now, id, Role::Client);
        true
    }

    /// Returns the counters of host `host`. A smoltcp host has none.
    pub(super) fn counters_of(&self, host: usize) -> Vec<(String, u64)> {
        let direct = || {
            self.direct
                .get(host.checked_sub(self.scenario.first_direct())?)
        };
        match self.machines.get(host) {
            Some(machine) => machine.host.counters(),
            None => direct().map_or(Vec::new(), DirectHost::counters),
        }
    }

    /// Returns true if no connection, timer, used buffer or used frame is left on direct hosts.
    pub(super) fn are_direct_over(&mut self) -> bool {
        let now = self.now;
        self.direct.iter_mut().all(|host| host.is_over(now))
    }

    /// Returns the longest MSL of all hosts.
    pub(super) fn msl_max(&self) -> Duration {
        let hosts = self.scenario.hosts.iter().map(|host| host.engine.msl);
        let direct = self.scenario.direct.iter().map(|host| host.engine.msl);
        hosts.chain(direct).max().unwrap_or_default()
    }
}
