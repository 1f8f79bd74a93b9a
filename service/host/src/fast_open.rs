//! TCP Fast Open (RFC 7413): the host's policy, the options of listeners, and active opens whose
//! SYN waits for data.

use tidelane_abi::{ControlRequest, fast_open};
use tidelane_engine::{
    Endpoint, FastOpenKeys, FastOpenPolicy, FastOpenRequest, FlowId, FlowRoute, ListenerId,
    OpenError, SocketOptions,
};
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;

use crate::Host;

/// Fast Open options of a listener's kernel socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerFastOpen {
    /// TCP_FASTOPEN: limit of pending Fast Open requests; zero disables Fast Open.
    pub places: u32,
    /// TCP_FASTOPEN_NO_COOKIE: true if the listener accepts data in SYNs without a cookie.
    pub without_cookie: bool,
    /// TCP_FASTOPEN_KEY: the cookie keys of the listener; `None` for the host's keys.
    pub keys: Option<FastOpenKeys>,
}

impl<P: PacketIo> Host<P> {
    /// Sets the host's Fast Open policy and cookie keys; `None` keeps the present keys.
    pub fn set_fast_open(&mut self, policy: FastOpenPolicy, keys: Option<FastOpenKeys>) {
        self.stack.engine.set_fast_open_policy(policy);
        if let Some(keys) = keys {
            self.stack.engine.set_fast_open_keys(None, keys);
        }
    }

    /// Sets the Fast Open options of a listener.
    pub fn set_listener_fast_open(&mut self, listener: ListenerId, set: &ListenerFastOpen) {
        let engine = &mut self.stack.engine;
        engine.set_fast_open_qlen_max(listener, set.places);
        engine.set_fast_open_without_cookie(listener, set.without_cookie);
        if let Some(keys) = set.keys {
            engine.set_fast_open_keys(Some(listener), keys);
        }
    }

    /// Opens a connection for a program. Returns the flow, and the number of bytes of data for
    /// which a SYN that waits for data has room. The number is 0 if the SYN does not wait.
    pub(crate) fn open(
        &mut self,
        now: Instant,
        (local, peer): (Endpoint, Endpoint),
        route: FlowRoute,
        options: SocketOptions,
        request: &ControlRequest,
    ) -> Result<(FlowId, u32), OpenError> {
        let (engine, io) = (&mut self.stack.engine, &mut self.stack.io);
        if request.fast_open & fast_open::REQUESTED == 0 {
            let flow = engine.open(now, local, peer, route, options, io)?;
            return Ok((flow, 0));
        }
        let how = FastOpenRequest {
            without_cookie: request.fast_open & fast_open::WITHOUT_COOKIE != 0,
            more_follows: false,
            held: true,
        };
        let room = engine.fast_open_room(now, peer.addr, route.mtu, &options, how);
        let flow = engine.open_fast(now, (local, peer), route, (options, how), io)?;
        Ok((flow, room.unwrap_or(0)))
    }
}
