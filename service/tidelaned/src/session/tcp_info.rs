//! The values of the socket option TCP_INFO. Only the connection's core (the polling thread of the
//! service that handles its segments) knows these values.

use std::{io, os::fd::AsFd};

use tidelane_abi::{Message, message, refusal};
use tidelane_ring::registration::{new_message, send_message};

use super::Session;
use crate::{core_link::NicPort, service_state::ServiceState};

impl Session {
    /// Handles TCP_INFO: answers with the counts and times of a connection.
    pub(super) fn tcp_info<P: NicPort>(
        &self,
        shared: &mut ServiceState<P>,
        request: &Message,
    ) -> io::Result<()> {
        let Some(registered) = &self.registered else {
            return Ok(());
        };
        let (slot, generation) = (request.slot, request.generation);
        // All cores are asked. A slot is the record of a connection in shared memory. Only the core
        // that owns the slot returns values.
        let tcp_info = shared.cores.call_each(|core| {
            let id = registered.ids[core];
            move |host, now| host.tcp_info(now, id, slot, generation)
        });
        let tcp_info = tcp_info.unwrap_or_default().into_iter().flatten().next();
        let Some(tcp_info) = tcp_info else {
            return self.answer(message::TCP_INFO, refusal::NOT_ENTITLED);
        };
        let answer = Message {
            tcp_info,
            ..new_message(message::TCP_INFO)
        };
        send_message(self.socket.as_fd(), &answer, &[])
    }
}
