//! Admission of new connections by the operator's rules and by the limits of the program's user.

use std::sync::Arc;

use tidelane_engine::{Admission, FlowId, ListenerId, Verdict};
use tidelane_packet_io::PacketIo;
use tidelane_wire::{DropReason, Endpoint, FlowKey};

use crate::{
    accounts::{Account, Charge, Resource},
    io::HostIo,
    program::ProgramId,
    rules::{Action, Credentials, Direction, Opening},
};

/// The charges for a passive open, from [`Driver::admit`](tidelane_engine::Driver::admit) until
/// [`Driver::created`](tidelane_engine::Driver::created) announces the flow.
#[derive(Debug, Default)]
pub struct Prepaid {
    /// The charge for the connection.
    flow: Option<Charge>,
    /// The charge for the place in the SYN queue.
    half_open: Option<Charge>,
    /// Credentials of the listener's first program.
    owner: Option<Arc<Credentials>>,
}

impl<P: PacketIo> HostIo<P> {
    /// Returns the credentials of the listener's first program.
    fn owner_of(&self, listener: ListenerId) -> Option<Arc<Credentials>> {
        Some(self.listeners.get(listener)?.owner.clone())
    }

    /// Returns the program's credentials, and the verdict of the operator's rules on a connection
    /// that the program opens. Counts a refusal as a drop.
    pub(crate) fn judge_connect(
        &mut self,
        program: ProgramId,
        local: Endpoint,
        peer: Endpoint,
    ) -> (Option<Arc<Credentials>>, Action) {
        let program = self.programs.get(program);
        let owner = program.map(|program| program.credentials.clone());
        let nobody = Credentials::default();
        let action = self.rules.verdict(&Opening {
            direction: Direction::Out,
            local,
            peer,
            owner: owner.as_deref().unwrap_or(&nobody),
        });
        if action != Action::Accept {
            self.counters.drops[DropReason::RuleDenied.index()] += 1;
        }
        (owner, action)
    }

    /// Returns the verdict of the operator's rules on a connection that a peer opens.
    #[inline(never)]
    pub(crate) fn judge_arrival(&mut self, listener: ListenerId, key: &FlowKey) -> Verdict {
        let Some(owner) = self.owner_of(listener) else {
            return Verdict::Refuse;
        };
        let opening = Opening {
            direction: Direction::In,
            local: key.local,
            peer: key.peer,
            owner: &owner,
        };
        match self.rules.verdict(&opening) {
            Action::Accept => Verdict::Accept,
            Action::Refuse => Verdict::Refuse,
            Action::Drop => Verdict::Drop,
        }
    }

    /// Charges the user of the listener for a passive open. The result tells the engine to make a
    /// flow, to send a SYN cookie, or to drop the SYN. If the engine makes a flow,
    /// [`hand_charge_to`](Self::hand_charge_to) assigns the charge to the flow.
    pub(crate) fn charge_flow(&mut self, listener: ListenerId, half_open: bool) -> Admission {
        self.prepaid = Prepaid {
            owner: self.owner_of(listener),
            ..Prepaid::default()
        };
        if self.staging.memory().is_exhausted() {
            return Admission::Drop;
        }
        let Some(account) = self.account_of(listener) else {
            return Admission::Flow;
        };
        let Ok(flow) = account.charge(Resource::Connections, 1) else {
            return Admission::Drop;
        };
        if half_open {
            match account.charge(Resource::HalfOpen, 1) {
                Ok(charge) => self.prepaid.half_open = Some(charge),
                Err(_) => return Admission::SynCookie,
            }
        }
        self.prepaid.flow = Some(flow);
        Admission::Flow
    }

    /// Assigns the last charge of [`charge_flow`](Self::charge_flow) to `flow`.
    pub(crate) fn hand_charge_to(&mut self, flow: FlowId) {
        let Prepaid {
            flow: charge,
            half_open,
            owner,
        } = std::mem::take(&mut self.prepaid);
        if let Some(binding) = self.bindings.get_mut(flow) {
            (binding.charge, binding.half_open) = (charge, half_open);
            binding.owner = owner;
        }
    }

    /// Returns the account of the first program that holds `listener`.
    pub(crate) fn account_of(&self, listener: ListenerId) -> Option<&Arc<Account>> {
        let holder = self.listeners.get(listener)?.holders.first()?;
        Some(&self.programs.get(*holder)?.account)
    }
}
