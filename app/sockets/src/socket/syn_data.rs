//! The payload of a SYN (TCP Fast Open, RFC 7413). The service (the process `tidelaned`) reports
//! the number of bytes that the SYN can carry, and sends the SYN when this process has written
//! payload. If the SYN is to carry no payload, this process sets the flag OPEN_NOW instead.

use tidelane_abi::{fast_open, program_flags};
use tidelane_client::SendLimits;

use super::{Inner, Socket, state::State};

impl Inner {
    /// Returns the number of bytes that the SYN can carry, or 0 if no SYN waits for payload.
    pub(crate) fn syn_room(&self) -> u32 {
        match &self.state {
            State::Connecting(connecting) => connecting.syn_room,
            _ => 0,
        }
    }

    /// Sends the SYN with the payload that `write` writes, and returns the number of payload bytes.
    /// The second argument of `write` is the number of bytes written so far, which is 0. During the
    /// write, the send buffer is limited to the room in the SYN, so that a non-blocking call sends
    /// exactly the SYN's payload, as in Linux.
    pub(crate) fn send_with_syn(
        &mut self,
        socket: &Socket,
        write: &mut dyn FnMut(&mut Inner, usize) -> usize,
    ) -> usize {
        let (room, limits) = (self.syn_room(), self.options.sending());
        let bounded = SendLimits {
            unacked_max: room,
            unsent_max: 0,
        };
        self.limit_sending(bounded);
        let count = write(self, 0);
        self.limit_sending(limits);
        if let State::Connecting(connecting) = &mut self.state {
            connecting.syn_room = 0;
        }
        if let Some(connection) = self.connection()
            && count == 0
        {
            connection.stream.set_flag(program_flags::OPEN_NOW);
        }
        self.after_write(socket);
        count
    }

    fn limit_sending(&mut self, limits: SendLimits) {
        if let Some(connection) = self.connection() {
            connection.stream.limit_sending(limits);
        }
    }

    /// Returns the [`fast_open`] bits of a connect request. `with_data` is true for MSG_FASTOPEN.
    pub(crate) fn fast_open_flags(&self, with_data: bool) -> u32 {
        if !with_data && !self.options.fast_open_connect() {
            return 0;
        }
        match self.options.without_cookie() {
            true => fast_open::REQUESTED | fast_open::WITHOUT_COOKIE,
            false => fast_open::REQUESTED,
        }
    }
}
