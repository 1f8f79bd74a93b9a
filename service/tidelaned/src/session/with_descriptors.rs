//! Messages with descriptors on a session, which is a program's connection to the service. Another
//! thread checks the descriptors before the control thread handles the message.

use std::os::fd::OwnedFd;

use tidelane_abi::{Message, message, refusal};

use super::{NextStep, Session};
use crate::{
    clock::now,
    core_link::NicPort,
    descriptors::{CheckResult, CheckedMessage, MessageWithDescriptors},
    service_state::ServiceState,
};

impl Session {
    /// Passes a message to the thread that checks the message's descriptors.
    pub(super) fn check_descriptors<P: NicPort>(
        &self,
        shared: &mut ServiceState<P>,
        message: Message,
        descriptors: Vec<OwnedFd>,
    ) {
        let sent = MessageWithDescriptors {
            session: self.number,
            message,
            descriptors,
            addresses: shared.addresses().to_vec(),
        };
        shared.descriptors.check(self.charged_uid(), sent);
    }

    /// Handles a message whose descriptors were checked.
    pub fn handle_checked<P: NicPort>(
        &mut self,
        shared: &mut ServiceState<P>,
        checked: CheckedMessage,
    ) -> NextStep {
        let CheckedMessage {
            message, result, ..
        } = checked;
        let kind = message.kind;
        let is_of_port = matches!(kind, message::OPEN_PORT | message::CLAIM_TUPLE);
        let done = match (kind, result) {
            _ if self.registered.is_none() && !is_of_port => self.answer(kind, refusal::MALFORMED),
            // Tidelane's library never sends a message with the wrong number of descriptors, so the
            // program is hostile, and its session ends.
            (_, CheckResult::WrongCount) => return NextStep::End,
            (message::OPEN_PORT, CheckResult::Doorbell(bell)) => {
                self.open_port(shared, &message, bell)
            }
            (message::CLAIM_TUPLE, CheckResult::Proof(proof)) => self.claim_tuple(shared, *proof),
            (message::CLAIM_TUPLE, CheckResult::Shared) => self.answer(kind, refusal::IN_USE),
            (message::CONTEXT, CheckResult::Doorbell(bell)) => self.context(shared, &message, bell),
            (message::LISTEN, CheckResult::Entitled(socket)) => {
                self.listen(shared, &message, *socket)
            }
            (message::RESERVE, CheckResult::Entitled(socket)) => {
                self.reserve(shared, &message, *socket)
            }
            (message::SUSPEND_LISTENER, CheckResult::ListensNoMore(cookie)) => {
                shared.suspend_listener(cookie);
                // After the answer, the program may call `listen`, which needs the port. The check
                // of the released claims ends the unused claims and their reservations of the port.
                shared.finish_claims(now());
                self.answer(kind, 0)
            }
            (message::CONTEXT | message::OPEN_PORT, _) => self.answer(kind, refusal::MALFORMED),
            _ => self.answer(kind, refusal::NOT_ENTITLED),
        };
        match NextStep::after(&done) {
            NextStep::More => NextStep::Continue,
            next => next,
        }
    }
}
