//! Fast Open (RFC 7413): SYNs with data or a cookie at listeners, and active opens with data.
//!
//! A flow is a connection. A Fast Open request is pending at a listener while the application
//! already has the flow, but the handshake is not complete.

use tidelane_flow::{
    Clock, CloseCause, Driver, FastOpenPolicy, FlowId, FlowRoute, ListenerId, OpenError,
    SocketOptions, State, flags,
};
use tidelane_slowpath::{SlowPath, syn_room};
use tidelane_time::Instant;
use tidelane_wire::{Endpoint, FastOpenOption, FlowKey, IpAddress, Segment};

use super::Engine;
use crate::{
    fast_open::{
        cache::{Cache, Offer},
        keys::{CookieValidity, FastOpenKeys},
        queue::Queues,
    },
    secret::Secret,
};

/// Fast Open state of the engine: the listeners' cookie keys, the listeners' limits of pending
/// requests, and the cookies of servers.
#[derive(Debug)]
pub(super) struct FastOpenState {
    /// Keys of the listeners without keys of their own.
    keys: FastOpenKeys,
    /// Number and limit of the pending requests of each listener, and its Fast Open options.
    queues: Queues,
    /// Cookies that servers have granted to active opens.
    cache: Cache,
}

impl FastOpenState {
    /// Creates the state, with a first cookie key that is derived from `secret`.
    pub(super) fn new(secret: &Secret) -> Self {
        let half = |number| secret.hash(number).to_le_bytes();
        let mut primary = [0; 16];
        primary[..8].copy_from_slice(&half(u64::MAX));
        primary[8..].copy_from_slice(&half(u64::MAX - 1));
        Self {
            keys: FastOpenKeys {
                primary,
                backup: None,
            },
            queues: Queues::default(),
            cache: Cache::default(),
        }
    }
}

/// Decision of a listener on a SYN with data or with a Fast Open option.
#[derive(Clone, Copy, Default)]
pub(super) struct FastOpenVerdict {
    /// True if the application gets the flow and the data of the SYN before the handshake is
    /// complete.
    pub accept: bool,
    /// Fast Open option of the SYN,ACK: a cookie, or `None`.
    pub option: Option<FastOpenOption>,
}

/// Options of an active open with Fast Open ([`Engine::open_fast`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FastOpenRequest {
    /// TCP_FASTOPEN_NO_COOKIE: the SYN may carry data without a cookie.
    pub without_cookie: bool,
    /// True if the application will write more data than the SYN may carry. The engine then delays
    /// the ACK of the SYN,ACK, so that the first segment with the rest of the data carries the ACK.
    pub more_follows: bool,
    /// If true, a SYN that may carry data is delayed until the application has written data, or
    /// until the driver calls [`Engine::release_syn`].
    pub held: bool,
}

impl Engine {
    /// Changes the policy of connections that are opened after this call.
    pub fn set_fast_open_policy(&mut self, policy: FastOpenPolicy) {
        self.config.fast_open = policy;
    }

    /// Sets the cookie keys of `listener`, if this listener exists. If `listener` is `None`, sets
    /// the keys of all listeners without keys of their own.
    pub fn set_fast_open_keys(&mut self, listener: Option<ListenerId>, keys: FastOpenKeys) {
        match listener {
            Some(id) if self.listeners.get(id).is_none() => {}
            Some(id) => self.fast_open.queues.get_or_insert(id).keys = Some(keys),
            None => self.fast_open.keys = keys,
        }
    }

    /// Sets the largest number of pending Fast Open requests at a listener (TCP_FASTOPEN). Zero
    /// turns Fast Open off at this listener.
    pub fn set_fast_open_qlen_max(&mut self, id: ListenerId, places: u32) {
        if self.listeners.get(id).is_some() {
            self.fast_open.queues.get_or_insert(id).set_max(places);
        }
    }

    /// Sets whether a listener accepts data in a SYN without a cookie (TCP_FASTOPEN_NO_COOKIE).
    pub fn set_fast_open_without_cookie(&mut self, id: ListenerId, without: bool) {
        if self.listeners.get(id).is_some() {
            self.fast_open.queues.get_or_insert(id).without_cookie = without;
        }
    }

    /// Removes all servers from the cookie cache.
    pub fn forget_fast_open_servers(&mut self) {
        self.fast_open.cache.clear();
    }

    /// Enables Fast Open at a new listener if the policy enables it at every listener.
    pub(super) fn begin_fast_open(&mut self, id: ListenerId, backlog: u32) {
        let policy = self.config.fast_open;
        if policy.server && policy.every_listener {
            self.set_fast_open_qlen_max(id, backlog);
        }
    }

    /// Removes the Fast Open state of a listener. The flows of its pending requests stay open, but
    /// count against no limit.
    pub(super) fn end_fast_open(&mut self, id: ListenerId) {
        self.fast_open.queues.remove(id);
        for cold in self.connections.iter_mut() {
            if cold.listener == Some(id) {
                cold.fast_open.counts_as_pending = false;
            }
        }
    }

    /// Decides whether the application gets the flow before the handshake is complete, and which
    /// cookie the SYN,ACK carries (RFC 7413 §4.2.2).
    pub(super) fn check_fast_open(
        &mut self,
        now: Instant,
        key: &FlowKey,
        syn: &Segment<'_>,
        id: ListenerId,
    ) -> FastOpenVerdict {
        let policy = self.config.fast_open;
        let asked = syn.options.fast_open();
        if !policy.server || (asked.is_none() && syn.payload.is_empty()) {
            return FastOpenVerdict::default();
        }
        let state = &mut self.fast_open;
        let Some(queue) = state.queues.get_mut(id) else {
            return FastOpenVerdict::default();
        };
        if !queue.has_room(now) {
            self.counters.fast_open_overflows += 1;
            return FastOpenVerdict::default();
        }
        if policy.server_without_cookie || queue.without_cookie {
            let option = None;
            return FastOpenVerdict {
                accept: true,
                option,
            };
        }
        let Some(asked) = asked else {
            return FastOpenVerdict::default();
        };
        let keys = queue.keys.unwrap_or(state.keys);
        let validity = keys.check(key, &asked.cookie);
        let given = match validity {
            CookieValidity::Valid => None,
            CookieValidity::Outdated(cookie) => Some(cookie),
            CookieValidity::Invalid => Some(keys.cookie(key)),
        };
        let accept = validity != CookieValidity::Invalid;
        let failed = !accept && !asked.cookie.is_request();
        self.counters.fast_open_passive_fails += u64::from(failed);
        let option = given.map(|cookie| FastOpenOption { cookie, ..asked });
        FastOpenVerdict { accept, option }
    }

    /// Gives a half-open flow to the application before the handshake is complete.
    pub(super) fn accept_fast_open(
        &mut self,
        clock: Clock,
        id: FlowId,
        listener: ListenerId,
        syn: &Segment<'_>,
        driver: &mut impl Driver,
    ) {
        let Some(mut slow) = slow_path!(self, id, clock, driver) else {
            return;
        };
        slow.cold.fast_open.counts_as_pending = true;
        slow.accept_fast_open(syn, listener);
        self.counters.fast_open_passive += 1;
        self.fast_open.queues.get_or_insert(listener).acquire();
        self.half_open = self.half_open.saturating_sub(1);
        if let Some(entry) = self.listeners.get_mut(listener) {
            entry.syn_queue = entry.syn_queue.saturating_sub(1);
            entry.accept_queue += 1;
        }
    }

    /// Updates the Fast Open state after a call of the slow path for the flow `id`, or, if `gone`
    /// is true, before the flow is freed. Stores a server's answer in the cookie cache. Ends the
    /// flow's pending request if the client has acknowledged the SYN,ACK, or if the flow has ended.
    pub(super) fn update_fast_open(&mut self, now: Instant, id: FlowId, gone: bool) {
        let (Some(flow), Some(Some(cold))) =
            (self.table.get(id), self.connections.get_mut(id.index()))
        else {
            return;
        };
        let fast_open = &mut cold.fast_open;
        if let Some(answer) = fast_open.answer.take() {
            let acked = u64::from(fast_open.syn_data_acked);
            self.counters.fast_open_active += acked;
            self.counters.fast_open_active_fails += u64::from(answer.data) - acked;
            self.fast_open.cache.learn(now, flow.key.peer.addr, &answer);
        }
        let is_over = gone || flow.state != State::SynReceived;
        if fast_open.counts_as_pending && is_over {
            fast_open.counts_as_pending = false;
            let reset = !gone && cold.cause == Some(CloseCause::Reset);
            if let Some(queue) = cold
                .listener
                .and_then(|listener| self.fast_open.queues.get_mut(listener))
            {
                queue.release(now, reset);
            }
        }
    }

    /// Returns the Fast Open contents that the next SYN to `peer` may have.
    fn offer(&self, now: Instant, peer: IpAddress, request: FastOpenRequest) -> Offer {
        let policy = self.config.fast_open;
        let cache = &self.fast_open.cache;
        cache.offer(now, peer, policy, request.without_cookie)
    }

    /// Returns the number of data bytes that a SYN to `peer` may carry, over a link whose MTU is
    /// `mtu` bytes. Returns `None` in three cases: the SYN needs a cookie and the cache has none
    /// for this peer, the policy forbids Fast Open, or Fast Open to this peer pauses after lost
    /// SYNs.
    pub fn fast_open_room(
        &self,
        now: Instant,
        peer: IpAddress,
        mtu: u32,
        options: &SocketOptions,
        request: FastOpenRequest,
    ) -> Option<u32> {
        let offer = self.offer(now, peer, request);
        let room = syn_room(&self.config, peer, mtu, options, offer.mss);
        offer.data.then_some(room)
    }

    /// Performs an active OPEN with Fast Open (RFC 7413 §4.2.1, client). The engine sends the SYN
    /// at the next [`Engine::batch_end`], or later if the SYN is [held](FastOpenRequest::held). The
    /// SYN carries the data that the application has written until then, but at most
    /// [`Engine::fast_open_room`] bytes.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`Engine::open`].
    pub fn open_fast(
        &mut self,
        now: Instant,
        (local, peer): (Endpoint, Endpoint),
        route: FlowRoute,
        (options, request): (SocketOptions, FastOpenRequest),
        driver: &mut impl Driver,
    ) -> Result<FlowId, OpenError> {
        let clock = Clock::at(now);
        let offer = self.offer(now, peer.addr, request);
        let id = self.begin_open(clock, FlowKey { local, peer }, route, options)?;
        self.report_new(id, None, driver);
        let room = syn_room(&self.config, peer.addr, route.mtu, &options, offer.mss);
        if let Some(Some(cold)) = self.connections.get_mut(id.index()) {
            cold.fast_open.option = offer.option;
            cold.fast_open.room = if offer.data { room } else { 0 };
            cold.fast_open.more_follows = request.more_follows;
            cold.fast_open.offered = offer.data || offer.option.is_some();
            cold.fast_open.held = request.held && offer.data && room > 0;
        }
        self.want_to_send(id);
        Ok(id)
    }

    /// Schedules a transmission of the flow for the end of the batch.
    fn want_to_send(&mut self, id: FlowId) {
        if let Some(flow) = self.table.get_mut(id) {
            flow.set(flags::SEND_WANTED);
        }
        self.set_pending(id);
    }

    /// Sends a held SYN at the end of the batch, with or without data.
    pub fn release_syn(&mut self, id: FlowId) {
        if let Some(Some(cold)) = self.connections.get_mut(id.index())
            && std::mem::take(&mut cold.fast_open.held)
        {
            self.want_to_send(id);
        }
    }
}
