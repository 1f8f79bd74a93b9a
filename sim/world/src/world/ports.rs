//! The events of mux ports. A mux port is a pair of packet rings through which a program with a
//! TCP/IP stack of its own shares the NIC.

use tidelane_time::Instant;

use super::World;
use crate::{
    ledger::Violation,
    plan::Role,
    ports::{ChangeKind, Launch, PortEvent},
};

impl World {
    /// Configures the host with mux ports: limits the rate of the NIC if the scenario demands a
    /// limit, and sets the operator's rules for the connections of the mux ports.
    pub(super) fn configure_ports(&mut self) {
        let Some(ports) = &self.scenario.ports else {
            return;
        };
        let machine = &mut self.machines[ports.host];
        if let Some(rate) = ports.nic_rate {
            machine.slow_down(rate as usize);
        }
        machine.host.set_rules(self.now, &ports.rules.rule_set());
    }

    pub(super) fn run_port(&mut self, event: PortEvent) -> Result<(), Violation> {
        match event {
            PortEvent::Launch(index) => self.launch_port(index, None)?,
            PortEvent::Change => self.change_port()?,
            event => {
                if let Some(ports) = &mut self.ports {
                    let machine = &mut self.machines[ports.host];
                    let service = &mut machine.host;
                    if ports.handle(self.now, event, service, &mut self.run_state)? {
                        machine.wake(self.now);
                    }
                }
            }
        }
        Ok(())
    }

    /// Starts program `index` on a new mux port. If the program replaces an old version, `retire`
    /// holds two values: the time at which the old version ends, and true if the claims of the old
    /// version move together instead of one by one. A claim gives the packets of a 3-tuple
    /// (protocol, local address, local port) to a mux port.
    fn launch_port(
        &mut self,
        index: usize,
        retire: Option<(Instant, bool)>,
    ) -> Result<(), Violation> {
        let Some(spec) = &self.scenario.ports else {
            return Ok(());
        };
        let starts = self.starts_of(spec.programs[index].program);
        self.launches += 1;
        let rng = self.root.fork(800 + (self.launches << 16) + index as u64);
        let Some(ports) = &mut self.ports else {
            return Ok(());
        };
        let place = (index, ports.starts[index]);
        let launch = Launch::new(&self.scenario, place, starts, rng);
        let service = &mut self.machines[ports.host].host;
        ports.launch(self.now, service, &launch, retire)
    }

    /// Makes the next planned change of a program on a mux port: the program dies, or hands its
    /// claims over to a new version.
    fn change_port(&mut self) -> Result<(), Violation> {
        let (Some(ports), Some(spec)) = (&mut self.ports, &self.scenario.ports) else {
            return Ok(());
        };
        let Some((change, sides)) = ports.take_change() else {
            return Ok(());
        };
        let (now, ledger) = (self.now, &mut self.run_state.ledger);
        for (id, role) in sides {
            if let Some(id) = id.filter(|_| role == Role::Server) {
                ledger.server_died(now, id);
            }
        }
        let program = spec.programs[change.index].program;
        let listener = self.scenario.listener_of(program);
        let returns = |after: &Option<_>| after.is_some();
        let comes_back = match &change.kind {
            ChangeKind::Death { restart_after } => returns(restart_after),
            ChangeKind::HandOver { .. } => true,
        };
        ledger.program_died(now, program, listener, comes_back);
        ledger.stack_died(now, |plan, role| match role {
            Role::Client => plan.client == program,
            Role::Server => Some(plan.listener) == listener,
        });
        self.report.deaths += 1;
        match change.kind {
            ChangeKind::Death { restart_after } => {
                let back = restart_after.map(|after| now + after);
                let service = &mut self.machines[ports.host].host;
                ports.kill(now, service, change.index, back)
            }
            ChangeKind::HandOver { all, lasts } => {
                self.launch_port(change.index, Some((now + lasts, all)))
            }
        }
    }

    /// Records a frame that has arrived at the NIC of `host`, if `host` has mux ports.
    pub(super) fn arrives_for_ports(&mut self, host: usize, frame: &[u8]) {
        if let Some(ports) = self.ports.as_mut().filter(|ports| ports.host == host) {
            ports.arrives(self.now, frame);
        }
    }

    /// Checks the frames that mux ports have received in a step of `host`, and wakes the ports'
    /// programs whose doorbell has rung.
    pub(super) fn after_ports(&mut self, host: usize) -> Result<(), Violation> {
        match self.ports.as_mut().filter(|ports| ports.host == host) {
            Some(ports) => ports.after_step(self.now, self.machines[host].host.mux_ports()),
            None => Ok(()),
        }
    }
}
