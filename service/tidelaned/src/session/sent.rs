//! Messages with descriptors. Another thread checks the descriptors before the control thread
//! handles the message.

use std::os::fd::OwnedFd;

use tidelane_abi::{Message, message, refusal};

use super::{Next, Session};
use crate::{
    core::Port,
    descriptors::{CheckedMessage, Found, Sent},
    service_state::ServiceState,
};

impl Session {
    /// Passes a message to the thread that checks the message's descriptors.
    pub(super) fn check_descriptors<P: Port>(
        &self,
        shared: &mut ServiceState<P>,
        message: Message,
        descriptors: Vec<OwnedFd>,
    ) {
        let sent = Sent {
            session: self.number,
            message,
            descriptors,
            addresses: shared.addresses().to_vec(),
        };
        shared.descriptors.check(self.user_number(), sent);
    }

    /// Handles a message whose descriptors were checked.
    pub fn handle_checked<P: Port>(
        &mut self,
        shared: &mut ServiceState<P>,
        checked: CheckedMessage,
    ) -> Next {
        let CheckedMessage { message, found, .. } = checked;
        let kind = message.kind;
        let is_of_port = matches!(kind, message::OPEN_PORT | message::CLAIM_TUPLE);
        let done = match (kind, found) {
            _ if self.registered.is_none() && !is_of_port => self.answer(kind, refusal::MALFORMED),
            // Tidelane's library never sends a message with the wrong number of descriptors, so the
            // program is hostile, and its session ends.
            (_, Found::WrongCount) => return Next::End,
            (message::OPEN_PORT, Found::Doorbell(bell)) => self.open_port(shared, &message, bell),
            (message::CLAIM_TUPLE, Found::Proof(proof)) => self.claim_tuple(shared, *proof),
            (message::CLAIM_TUPLE, Found::Shared) => self.answer(kind, refusal::IN_USE),
            (message::CONTEXT, Found::Doorbell(bell)) => self.context(shared, &message, bell),
            (message::LISTEN, Found::Entitled(socket)) => self.listen(shared, &message, *socket),
            (message::RESERVE, Found::Entitled(socket)) => self.reserve(shared, &message, *socket),
            (message::CONTEXT | message::OPEN_PORT, _) => self.answer(kind, refusal::MALFORMED),
            _ => self.answer(kind, refusal::NOT_ENTITLED),
        };
        match Next::after(&done) {
            Next::More => Next::Continue,
            next => next,
        }
    }
}
