//! The engine's methods: each finds the flow, calls a path, and settles what that left behind.

use tidelane_flow::{
    Arrival, Counters, EngineConfig, Env, FlowId, FlowInfo, FlowState, FlowTable, ListenError,
    ListenerId, Misuse, OpenError, Route, SocketOptions,
};
use tidelane_time::Instant;
use tidelane_wire::{Endpoint, FlowKey, IcmpError, Segment};

/// See the crate's documentation.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    table: FlowTable,
    counters: Counters,
}

impl Engine {
    /// An engine without flows. `secret` keys initial sequence numbers and the flow table's hash.
    ///
    /// # Panics
    ///
    /// If [`EngineConfig::check`] fails.
    pub fn new(config: EngineConfig, secret: [u8; 16]) -> Self {
        assert_eq!(
            config.check(),
            Ok(()),
            "the driver checks its configuration first"
        );
        let half = |range: core::ops::Range<usize>| {
            secret[range]
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte))
        };
        let table = FlowTable::new(config.flows_max, [half(0..8), half(8..16)]);
        Self {
            config,
            table,
            counters: Counters::default(),
        }
    }

    /// SEGMENT ARRIVES (RFC 9293 §3.10.7). `segment` passed wire parsing: bounds and checksum.
    pub fn segment_arrives(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        segment: &Segment<'_>,
        env: &mut impl Env,
    ) {
        let _ = (now, arrival, segment, env);
    }

    /// Ends a batch of arrivals and requests: sends the acknowledgments that it owes, at most one
    /// per flow, and data that acknowledgments made room for. Then numbers of released flows may
    /// be given out again.
    pub fn batch_end(&mut self, now: Instant, env: &mut impl Env) {
        let _ = (now, env);
    }

    /// An ICMP error that quotes a segment of ours.
    pub fn icmp_error(&mut self, now: Instant, error: &IcmpError, env: &mut impl Env) {
        let _ = (now, error, env);
    }

    /// Passive OPEN. An unspecified address listens on all of them.
    pub fn listen(
        &mut self,
        local: Endpoint,
        backlog: u32,
        options: SocketOptions,
    ) -> Result<ListenerId, ListenError> {
        let _ = (local, backlog, options);
        Err(ListenError::Full)
    }

    /// Ends a listener; its half-open flows are reset. Accepted flows that no program has taken are
    /// the driver's to abort: it knows which.
    pub fn unlisten(&mut self, now: Instant, id: ListenerId, env: &mut impl Env) {
        let _ = (now, id, env);
    }

    /// Changes a listener's backlog.
    pub fn set_backlog(&mut self, id: ListenerId, backlog: u32) {
        let _ = (id, backlog);
    }

    /// A program took `count` connections from the accept queue.
    pub fn accept_taken(&mut self, id: ListenerId, count: u32) {
        let _ = (id, count);
    }

    /// Active OPEN: sends SYN.
    pub fn open(
        &mut self,
        now: Instant,
        local: Endpoint,
        peer: Endpoint,
        route: Route,
        options: SocketOptions,
        env: &mut impl Env,
    ) -> Result<FlowId, OpenError> {
        let _ = (now, local, peer, route, options, env);
        Err(OpenError::Full)
    }

    /// The program has written bytes up to stream position `tx_head`.
    pub fn tx_advance(
        &mut self,
        now: Instant,
        id: FlowId,
        tx_head: u32,
        env: &mut impl Env,
    ) -> Result<(), Misuse> {
        let _ = (now, id, tx_head, env);
        Err(Misuse::NoFlow)
    }

    /// The program has read bytes up to stream position `rx_read`.
    pub fn rx_advance(
        &mut self,
        now: Instant,
        id: FlowId,
        rx_read: u32,
        env: &mut impl Env,
    ) -> Result<(), Misuse> {
        let _ = (now, id, rx_read, env);
        Err(Misuse::NoFlow)
    }

    /// CLOSE for sending only: FIN after all that was written.
    pub fn shutdown_write(&mut self, now: Instant, id: FlowId, env: &mut impl Env) {
        let _ = (now, id, env);
    }

    /// CLOSE: the program is gone from this flow. FIN, or RST if received bytes are unread
    /// (RFC 2525 §2.17). [`Released`](tidelane_flow::Event::Released) follows, now or later.
    pub fn close(&mut self, now: Instant, id: FlowId, env: &mut impl Env) {
        let _ = (now, id, env);
    }

    /// ABORT: RST. [`Released`](tidelane_flow::Event::Released) comes before this returns.
    pub fn abort(&mut self, now: Instant, id: FlowId, env: &mut impl Env) {
        let _ = (now, id, env);
    }

    /// Changes the options of a flow.
    pub fn set_options(
        &mut self,
        now: Instant,
        id: FlowId,
        options: SocketOptions,
        env: &mut impl Env,
    ) {
        let _ = (now, id, options, env);
    }

    /// Does what is due.
    pub fn advance_time(&mut self, now: Instant, env: &mut impl Env) {
        let _ = (now, env);
    }

    /// When [`Engine::advance_time`] must be called next. May be early, never late.
    pub fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// The driver has transmit frames again after [`Env::transmit`] returned
    /// [`TxFull`](tidelane_flow::TxFull).
    pub fn resume_transmit(&mut self, now: Instant, env: &mut impl Env) {
        let _ = (now, env);
    }

    /// The hot state of a flow.
    pub fn flow(&self, id: FlowId) -> Option<&FlowState> {
        self.table.get(id)
    }

    /// A flow as `ss -ti` shows it.
    pub fn info(&self, id: FlowId) -> Option<FlowInfo> {
        let _ = id;
        None
    }

    /// All flows.
    pub fn flows(&self) -> impl Iterator<Item = FlowId> {
        self.table.iter().map(|(id, _)| id)
    }

    /// What the engine has done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The policy it runs under.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Whether a SYN for `local` would find a listener.
    pub fn has_listener(&self, local: Endpoint) -> bool {
        let _ = local;
        false
    }

    /// Whether an active open with these ends is possible: no flow has them, and TIME-WAIT does not
    /// hold them.
    pub fn is_free(&self, key: &FlowKey) -> bool {
        self.table.find(key).is_none()
    }

    /// Connections in TIME-WAIT.
    pub fn time_wait_len(&self) -> usize {
        0
    }
}
