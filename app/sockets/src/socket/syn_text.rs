//! Text that goes with a SYN (TCP Fast Open).

use tidelane_abi::{fast_open, program_flags};
use tidelane_client::SendLimits;

use super::{Inner, Socket, state::State};

impl Inner {
    /// How much SYN will carry, if it waits for that.
    pub(crate) fn syn_room(&self) -> u32 {
        match &self.state {
            State::Connecting(connecting) => connecting.syn_room,
            _ => 0,
        }
    }

    /// Lets SYN go, with what `give` writes. It finds as much room as SYN has: what a call that
    /// does not wait has sent is what SYN carries, as on the kernel.
    pub(crate) fn give_to_syn(
        &mut self,
        socket: &Socket,
        give: &mut dyn FnMut(&mut Inner, usize) -> usize,
    ) -> usize {
        let (room, limits) = (self.syn_room(), self.options.sending());
        let bounded = SendLimits {
            unacked_max: room,
            unsent_max: 0,
        };
        self.limit_sending(bounded);
        let count = give(self, 0);
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

    /// Options of a CONNECT on a socket with TCP_FASTOPEN_CONNECT or for MSG_FASTOPEN.
    pub(crate) fn fast_open_wish(&self, with_text: bool) -> u32 {
        if !with_text && !self.options.opens_with_text() {
            return 0;
        }
        match self.options.without_cookie() {
            true => fast_open::ASK | fast_open::WITHOUT_COOKIE,
            false => fast_open::ASK,
        }
    }
}
