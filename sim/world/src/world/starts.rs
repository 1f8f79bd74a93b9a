//! Starts the programs of a run. A program uses one of four implementations of TCP: the service of
//! its host, the smoltcp stack of its host, a stack of its own on a mux port (a pair of packet
//! rings), or the direct back end of the ring API, which runs TCP within the program.

use tidelane_wire::Endpoint;

use super::World;
use crate::{
    ledger::Stage,
    plan::{ConnectionPlan, Role},
    program::{Launch, Process},
    smoltcp_host::SmoltcpHost,
    topology::address,
    worker::Start,
};

impl World {
    /// Creates the smoltcp host and the direct hosts, and starts the programs on services. All
    /// other programs start with the first events.
    pub(super) fn start_all(&mut self) -> std::io::Result<()> {
        self.start_smoltcp();
        self.start_direct()?;
        for program in 0..self.processes.len() {
            let spec = &self.scenario.programs[program];
            let ports = self.scenario.ports.as_ref();
            let on_port = ports.is_some_and(|ports| ports.index_of(program).is_some());
            if spec.host < self.machines.len() && !on_port {
                self.start_program(program)?;
            }
        }
        Ok(())
    }

    /// Returns the planned active opens that a program has not yet begun.
    pub(super) fn starts_of(&self, program: usize) -> Vec<Start> {
        let waiting = self.scenario.connections.iter().filter(|plan| {
            let record = self.run_state.ledger.end(plan.id, Role::Client);
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

    fn start_smoltcp(&mut self) {
        let (index, scenario) = (self.machines.len(), &self.scenario);
        let Some(spec) = &scenario.smoltcp else {
            return;
        };
        let programs = 0..scenario.programs.len();
        let own = programs.filter(|program| scenario.programs[*program].host == index);
        let mut starts: Vec<Start> = own.flat_map(|program| self.starts_of(program)).collect();
        starts.sort_by_key(|start| start.at);
        let rng = self.root.fork(500);
        let mut host = SmoltcpHost::new(index, spec, &scenario.topology, starts.into(), rng);
        for listener in &scenario.listeners {
            if scenario.programs[listener.programs[0]].host == index {
                host.listen(listener.port, scenario.connections.len() + 1);
            }
        }
        self.smoltcp = Some(host);
    }

    pub(super) fn start_program(&mut self, program: usize) -> std::io::Result<()> {
        self.launches += 1;
        let spec = &self.scenario.programs[program];
        let machine = &mut self.machines[spec.host];
        let launch = Launch {
            name: format!("program-{program}"),
            rng: self.rng.fork(self.launches << 16 | program as u64),
            swept: self.swept[program],
        };
        let mut process = Process::start(self.now, spec, machine, &launch)?;
        if let Some(listener) = self.scenario.listener_of(program) {
            let listener_spec = &self.scenario.listeners[listener];
            let listens = process.listen(machine, spec.host, listener, listener_spec);
            assert!(listens, "the service refuses the listener");
        }
        let workers = process.workers.len();
        for (turn, start) in self.starts_of(program).into_iter().enumerate() {
            process.workers[turn % workers].1.open_later(start);
        }
        self.processes[program] = Some(process);
        self.machines[spec.host].wake(self.now);
        Ok(())
    }
}
