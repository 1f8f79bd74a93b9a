//! An instance of Tidelane's TCP engine, with a driver (the environment of the engine). The driver
//! checks the stream positions of the bytes that the engine sends and of the payload that the
//! engine places.

use std::collections::BTreeMap;

use tidelane_engine::{
    Arrival, Driver, Duration, Endpoint, Engine, EngineConfig, Event, FlowId, FlowKey, FlowRoute,
    Instant, IpChange, LinkId, NewFlow, Segment, SegmentOut, SocketOptions, TxFull,
};
use tidelane_world::Content;

/// The link (the driver's id of a path to the network) of all flows.
pub const LINK: LinkId = LinkId(1);

/// A segment that an engine has sent, with its payload.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Header fields of the segment.
    pub out: SegmentOut,
    /// Payload bytes.
    pub payload: Vec<u8>,
}

/// The driver's state of one flow: the position of the simulated program in both streams, and the
/// receive buffer.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// Content of the sent stream. `None` stands for zeros.
    pub sends: Option<Content>,
    /// Expected content of the received stream. `None` if the content is not checked.
    pub expects: Option<Content>,
    /// Stream position up to which the program has written.
    pub tx_head: u32,
    /// Stream position up to which the program has read.
    pub rx_read: u32,
    /// Circular receive buffer, as long as the largest window. Empty until payload arrives.
    pub rx: Vec<u8>,
    /// True once the program has closed or aborted the flow.
    pub closed: bool,
}

/// The environment of one engine. The driver holds the receive buffers of the engine's flows, the
/// packets that the engine has sent, and the engine's events. The driver panics if the engine sends
/// bytes that the program has not written, or places payload outside of the largest receive window.
pub struct CheckingDriver {
    /// State of each flow.
    pub bindings: BTreeMap<FlowId, Binding>,
    /// Sent packets that are not delivered yet.
    pub sent: Vec<Packet>,
    /// Events that are not handled yet.
    pub events: Vec<(FlowId, Event)>,
    /// Largest receive window in bytes, a power of two.
    window: u32,
    /// Number of segments that the engine has sent.
    pub transmitted: u64,
    /// Number of further transmissions that the driver refuses with [`TxFull`].
    pub refuse: u32,
}

impl Driver for CheckingDriver {
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        if self.refuse > 0 {
            self.refuse -= 1;
            return Err(TxFull);
        }
        let mut payload = vec![0; out.payload_len as usize];
        match out.flow() {
            None => assert_eq!(out.payload_len, 0, "bytes without a flow"),
            Some(flow) => {
                let binding = self.bindings.entry(flow).or_default();
                let end = out.payload_pos.wrapping_add(out.payload_len);
                let unsent = binding.tx_head.wrapping_sub(end);
                assert!(
                    out.payload_len == 0 || (unsent as i32) >= 0,
                    "sent up to {end}, written up to {}",
                    binding.tx_head
                );
                if let Some(content) = binding.sends {
                    content.fill(u64::from(out.payload_pos), &mut payload);
                }
            }
        }
        self.transmitted += 1;
        self.sent.push(Packet { out: *out, payload });
        Ok(())
    }

    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let window = self.window;
        let binding = self.bindings.entry(flow).or_default();
        let end = pos.wrapping_add(payload.len() as u32);
        assert!(!payload.is_empty(), "an empty payload");
        assert!(
            pos.wrapping_sub(binding.rx_read) < window
                && end.wrapping_sub(binding.rx_read) <= window,
            "placed {pos}..{end}, read {}, window {window}",
            binding.rx_read
        );
        if binding.rx.is_empty() {
            binding.rx = vec![0; window as usize];
        }
        let mask = window - 1;
        for (offset, byte) in payload.iter().enumerate() {
            binding.rx[(pos.wrapping_add(offset as u32) & mask) as usize] = *byte;
        }
        true
    }

    fn event(&mut self, flow: FlowId, event: Event) {
        self.events.push((flow, event));
    }

    fn route(&mut self, _key: &FlowKey, link: LinkId) -> FlowRoute {
        FlowRoute { link, mtu: 1500 }
    }

    fn created(&mut self, _flow: FlowId, _new: &NewFlow) {}

    fn set_ip(&mut self, _flow: FlowId, _change: IpChange) {}
}

/// A simulated host: an engine, its driver, and the program that writes and reads the streams.
pub struct Party {
    /// The engine.
    pub engine: Engine,
    /// The engine's driver.
    pub driver: CheckingDriver,
    /// Number of received payload bytes with the expected content.
    pub verified: u64,
    /// Buffer for the expected content of received bytes.
    scratch: Vec<u8>,
    /// Buffer for received bytes whose content is checked.
    bytes: Vec<u8>,
}

impl Party {
    /// Returns a party whose engine has this configuration and this secret, without flows.
    pub fn new(config: EngineConfig, secret: [u8; 16]) -> Self {
        assert!(config.rx_window_max.is_power_of_two());
        Self {
            driver: CheckingDriver {
                bindings: BTreeMap::new(),
                sent: Vec::new(),
                events: Vec::new(),
                window: config.rx_window_max,
                transmitted: 0,
                refuse: 0,
            },
            engine: Engine::new(config, secret),
            verified: 0,
            scratch: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Passes a segment of the flow `key` to the engine.
    pub fn receive(&mut self, now: Instant, key: FlowKey, segment: &Segment<'_>) {
        let arrival = Arrival {
            key,
            link: LINK,
            ecn: Default::default(),
        };
        self.engine
            .segment_arrives(now, &arrival, segment, &mut self.driver);
    }

    /// Passes a packet of another party to the engine.
    pub fn receive_packet(&mut self, now: Instant, packet: &Packet) {
        let out = &packet.out;
        let segment = out.segment(&packet.payload);
        self.receive(now, out.key.reversed(), &segment);
    }

    /// Runs the timers that are due, and ends the batch of segments: the engine sends its data and
    /// ACKs.
    pub fn end_batch(&mut self, now: Instant) {
        if self.engine.next_timeout().is_some_and(|at| at <= now) {
            self.engine.advance_time(now, &mut self.driver);
        }
        self.engine.batch_end(now, &mut self.driver);
    }

    /// Opens a connection. `contents` are the content of the sent stream and the expected content
    /// of the received stream. Returns `None` if the engine refuses.
    pub fn open(
        &mut self,
        now: Instant,
        local: Endpoint,
        peer: Endpoint,
        contents: [Option<Content>; 2],
    ) -> Option<FlowId> {
        let route = FlowRoute {
            link: LINK,
            mtu: 1500,
        };
        let options = SocketOptions::default();
        let flow = self
            .engine
            .open(now, local, peer, route, options, &mut self.driver)
            .ok()?;
        let binding = self.driver.bindings.entry(flow).or_default();
        [binding.sends, binding.expects] = contents;
        Some(flow)
    }

    /// Writes the next `count` bytes of the sent stream, or fewer if the send buffer has less room.
    pub fn write(&mut self, flow: FlowId, count: u32) {
        let limit = self.engine.config().tx_limit;
        let Some(acked) = self.engine.flow(flow).map(|state| state.tx_acked()) else {
            return;
        };
        let Some(binding) = self.driver.bindings.get_mut(&flow) else {
            return;
        };
        let room = limit.saturating_sub(binding.tx_head.wrapping_sub(acked));
        let head = binding.tx_head.wrapping_add(count.min(room));
        let before = std::mem::replace(&mut binding.tx_head, head);
        if before != head
            && self.engine.tx_advance(flow, head).is_err()
            && let Some(binding) = self.driver.bindings.get_mut(&flow)
        {
            binding.tx_head = before;
        }
    }

    /// Reads up to `count` received bytes, and checks their content if the expected content is
    /// known.
    pub fn read(&mut self, flow: FlowId, count: u32) {
        let Some(head) = self.engine.flow(flow).map(|state| state.rx_head()) else {
            return;
        };
        let Some(binding) = self.driver.bindings.get_mut(&flow) else {
            return;
        };
        let unread = head.wrapping_sub(binding.rx_read);
        assert!(unread <= self.driver.window, "{unread} bytes unread");
        let count = unread.min(count);
        if count == 0 {
            return;
        }
        if let Some(expects) = binding.expects {
            let mask = self.driver.window - 1;
            let start = binding.rx_read;
            self.bytes.clear();
            self.bytes
                .extend((0..count).map(|at| binding.rx[(start.wrapping_add(at) & mask) as usize]));
            let wrong = expects.first_mismatch(u64::from(start), &self.bytes, &mut self.scratch);
            assert_eq!(wrong, None, "a byte of a verified flow is wrong");
            self.verified += u64::from(count);
        }
        binding.rx_read = binding.rx_read.wrapping_add(count);
        let read = binding.rx_read;
        let taken = self.engine.rx_advance(flow, read);
        assert_eq!(taken, Ok(()), "the engine refused a valid read");
    }

    /// Aborts the flow if `abort` is true. Otherwise closes the flow.
    pub fn close_or_abort(&mut self, now: Instant, flow: FlowId, abort: bool) {
        if let Some(binding) = self.driver.bindings.get_mut(&flow) {
            binding.closed = true;
        }
        if abort {
            self.engine.abort(now, flow, &mut self.driver);
        } else {
            self.engine.close(now, flow, &mut self.driver);
        }
    }

    /// Aborts all flows, runs all timers, and checks that the engine then has no flow, no
    /// connection in TIME-WAIT and no timer. Returns the time of the last timer, or `now` if no
    /// timer ran.
    pub fn assert_empty(&mut self, now: Instant) -> Instant {
        let flows: Vec<FlowId> = self.engine.flows().collect();
        for flow in flows {
            self.engine.abort(now, flow, &mut self.driver);
        }
        self.end_batch(now);
        let mut now = now;
        for _ in 0..1_000_000 {
            let Some(at) = self.engine.next_timeout() else {
                break;
            };
            now = at.max(now + Duration::from_micros(1));
            self.end_batch(now);
        }
        assert_eq!(self.engine.flows().count(), 0, "flows are left");
        assert_eq!(self.engine.time_wait_len(), 0, "TIME-WAIT does not empty");
        assert_eq!(self.engine.next_timeout(), None, "a timer is left");
        now
    }
}
