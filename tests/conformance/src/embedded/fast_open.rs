//! Linux's socket options for Fast Open (RFC 7413), implemented with the functions of the embedded
//! stack.

use tidelane_embedded::{Endpoint, Listener};
use tidelane_packetdrill::errno::{CallResult, Errno};

use super::host::Host;

/// The Fast Open options and state of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastOpen {
    /// TCP_FASTOPEN: limit on the connections whose SYN carried data and whose handshake is not
    /// complete. `None` if the program has not set the option.
    backlog: Option<u32>,
    /// TCP_FASTOPEN_CONNECT: if true and the SYN may carry data, the first write after `connect`
    /// sends the SYN.
    pub on_connect: bool,
    /// Peer of a deferred `connect`. The SYN leaves with the first write.
    pub deferred: Option<Endpoint>,
    /// True if `connect` sent a SYN with a cookie request. A later MSG_FASTOPEN fails.
    pub cookie_requested: bool,
    /// True from the call that opens the connection, until a call has reported that the connection
    /// is established.
    pub connecting: bool,
}

impl FastOpen {
    /// Handles `setsockopt` of the TCP option `name`. Returns `None` if `name` is not an option of
    /// Fast Open. `idle` is true if the socket is in CLOSED or LISTEN.
    pub fn set(
        &mut self,
        host: &Host,
        name: i32,
        value: &[u8],
        idle: bool,
    ) -> Option<CallResult<()>> {
        if ![libc::TCP_FASTOPEN, libc::TCP_FASTOPEN_CONNECT].contains(&name) {
            return None;
        }
        let number = value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
        Some(match number {
            Some(number @ 0..) if idle && name == libc::TCP_FASTOPEN => {
                self.backlog = Some(number as u32);
                Ok(())
            }
            Some(number @ 0..=1) if idle && name == libc::TCP_FASTOPEN_CONNECT => {
                self.on_connect = number == 1;
                match host.settings.fast_open().client {
                    true => Ok(()),
                    false => Err(Errno(libc::EOPNOTSUPP)),
                }
            }
            _ => Err(Errno::INVAL),
        })
    }

    /// Passes TCP_FASTOPEN of a listener to the stack, if the program has set the option.
    pub fn apply(&self, host: &mut Host, listener: Listener) {
        if let Some(backlog) = self.backlog {
            host.stack.set_fast_open_backlog(listener, backlog);
        }
    }
}
