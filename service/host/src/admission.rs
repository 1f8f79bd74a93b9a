//! Admission of new connections by the operator's rules and by the limits of the program's user.

use std::sync::Arc;

use tidelane_engine::{Admission, Verdict};
use tidelane_wire::{Endpoint, FlowKey};

use crate::{
    accounts::{Account, Charge, Resource},
    bindings::Binding,
    credentials::Credentials,
    rules::{Action, Direction, Opening, RuleSet},
};

/// The charges for a passive open: counted units of resources that the user takes. The host keeps
/// the charges from [`Driver::admit`](tidelane_engine::Driver::admit) until
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

impl Prepaid {
    /// Charges `account` for a passive open. The result tells the engine to make a flow, to send a
    /// SYN cookie, or to drop the segment. If the engine makes a flow, [`hand_to`](Self::hand_to)
    /// assigns the charges to the flow. `owner` has the credentials of the listener's first
    /// program. `half_open` is true for a SYN, and false for an ACK with a valid SYN cookie.
    pub fn charge(
        &mut self,
        account: Option<&Arc<Account>>,
        owner: Option<Arc<Credentials>>,
        half_open: bool,
    ) -> Admission {
        *self = Self {
            owner,
            ..Self::default()
        };
        let Some(account) = account else {
            return Admission::Flow;
        };
        let Ok(flow) = account.charge(Resource::Connections, 1) else {
            return Admission::Drop;
        };
        if half_open {
            match account.charge(Resource::HalfOpen, 1) {
                Ok(charge) => self.half_open = Some(charge),
                Err(_) => return Admission::SynCookie,
            }
        }
        self.flow = Some(flow);
        Admission::Flow
    }

    /// Assigns the charges and the credentials of the most recent [`charge`](Self::charge) to the
    /// binding (the host's record) of the new flow.
    pub fn hand_to(&mut self, binding: &mut Binding) {
        let Self {
            flow,
            half_open,
            owner,
        } = std::mem::take(self);
        (binding.charge, binding.half_open) = (flow, half_open);
        binding.owner = owner;
    }
}

/// Returns the verdict of the operator's rules on a connection that a program opens. `owner` has
/// the credentials of the program.
pub fn judge_connect(
    rules: &mut RuleSet,
    owner: Option<&Credentials>,
    local: Endpoint,
    peer: Endpoint,
) -> Action {
    let nobody = Credentials::default();
    rules.verdict(&Opening {
        direction: Direction::Out,
        local,
        peer,
        owner: owner.unwrap_or(&nobody),
    })
}

/// Returns the verdict of the operator's rules on a connection that a peer opens. `owner` has the
/// credentials of the listener's first program.
#[inline(never)]
pub fn judge_arrival(rules: &mut RuleSet, owner: &Credentials, key: &FlowKey) -> Verdict {
    let opening = Opening {
        direction: Direction::In,
        local: key.local,
        peer: key.peer,
        owner,
    };
    match rules.verdict(&opening) {
        Action::Accept => Verdict::Accept,
        Action::Refuse => Verdict::Refuse,
        Action::Drop => Verdict::Drop,
    }
}

/// Returns true if the operator's rules deny an existing connection. `owner` has the credentials of
/// the program that listened or connected.
pub fn is_denied(
    rules: &RuleSet,
    direction: Direction,
    key: &FlowKey,
    owner: Option<&Credentials>,
) -> bool {
    let nobody = Credentials::default();
    let opening = Opening {
        direction,
        local: key.local,
        peer: key.peer,
        owner: owner.unwrap_or(&nobody),
    };
    rules.uncounted_action(&opening) != Action::Accept
}
