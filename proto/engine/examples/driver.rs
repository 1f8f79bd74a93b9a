//! A complete driver: a program that runs TCP engines (crate `tidelane-engine`). A wire in memory
//! connects two engines and loses every ninth segment. The application of one engine echoes all
//! data, and the application of the other engine checks the echo. Time is virtual.

use std::collections::{HashMap, VecDeque};

use tidelane_engine::*;

/// The sent and the received data of one flow (connection). A stream position is an index into the
/// data.
#[derive(Default)]
struct Streams {
    tx: Vec<u8>,
    rx: Vec<u8>,
}

/// The driver of one engine. `streams` has the data of each flow, `sent` has the segments that are
/// on the wire, and `events` has the events that the application has not handled yet.
#[derive(Default)]
struct Wire {
    streams: HashMap<FlowId, Streams>,
    sent: VecDeque<(SegmentOut, Vec<u8>)>,
    events: VecDeque<(FlowId, Event)>,
}

impl Driver for Wire {
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        let range = out.payload_pos as usize..(out.payload_pos + out.payload_len) as usize;
        let payload = match out.flow() {
            Some(flow) if !range.is_empty() => self.streams[&flow].tx[range].to_vec(),
            _ => Vec::new(),
        };
        self.sent.push_back((*out, payload));
        Ok(())
    }

    fn place(&mut self, flow: FlowId, pos: u32, payload: &[u8]) -> bool {
        let rx = &mut self.streams.entry(flow).or_default().rx;
        let end = pos as usize + payload.len();
        rx.resize(rx.len().max(end), 0);
        rx[pos as usize..end].copy_from_slice(payload);
        true
    }

    fn event(&mut self, flow: FlowId, event: Event) {
        self.events.push_back((flow, event));
    }

    fn route(&mut self, _key: &FlowKey, link: LinkId) -> FlowRoute {
        FlowRoute { link, mtu: 1500 }
    }

    fn created(&mut self, flow: FlowId, _new: &NewFlow) {
        self.streams.insert(flow, Streams::default());
    }

    // The wire has no IP headers.
    fn set_ip(&mut self, _flow: FlowId, _change: IpChange) {}
}

/// Gives `data` to the engine to send.
fn write(engine: &mut Engine, wire: &mut Wire, flow: FlowId, data: &[u8]) {
    let tx = &mut wire.streams.entry(flow).or_default().tx;
    tx.extend_from_slice(data);
    let written = engine.tx_advance(flow, tx.len() as u32);
    written.expect("the data fits into the send limit");
}

/// Returns the new data that has arrived in order, and tells the engine that this data was read.
fn read(engine: &mut Engine, wire: &Wire, flow: FlowId) -> Vec<u8> {
    let Some(state) = engine.flow(flow) else {
        return Vec::new();
    };
    let (from, to) = (state.rx_read(), state.rx_head());
    engine.rx_advance(flow, to).expect("the data has arrived");
    wire.streams[&flow].rx[from as usize..to as usize].to_vec()
}

fn main() {
    let (client, server) = (
        Endpoint::v4([10, 0, 0, 1], 4242),
        Endpoint::v4([10, 0, 0, 2], 80),
    );
    let mut now = Instant::from_secs(1);
    let mut engines = [1, 2].map(|seed| Engine::new(EngineConfig::default(), [seed; 16]));
    let mut wires = [Wire::default(), Wire::default()];
    let options = SocketOptions::default();
    engines[1]
        .listen(server, 16, options)
        .expect("the port is free");
    let route = FlowRoute {
        link: LinkId(0),
        mtu: 1500,
    };
    let flow = engines[0].open(now, client, server, route, options, &mut wires[0]);
    let flow = flow.expect("the 4-tuple is free");
    let request: Vec<u8> = (0..100_000).map(|n| (n % 251) as u8).collect();
    let (mut echoed, mut carried) = (Vec::new(), 0);
    while echoed.len() < request.len() {
        for end in [0, 1] {
            let (engine, wire) = (&mut engines[end], &mut wires[end]);
            engine.batch_end(now, wire);
            while let Some((flow, event)) = wire.events.pop_front() {
                match (end, event) {
                    (0, Event::Connected) => write(engine, wire, flow, &request),
                    (0, Event::Progress { .. }) => echoed.extend(read(engine, wire, flow)),
                    (1, Event::Progress { .. }) => {
                        let data = read(engine, wire, flow);
                        write(engine, wire, flow, &data);
                    }
                    _ => {}
                }
            }
            engine.batch_end(now, wire);
        }
        // The wire has a delay of 1 ms. If no segment is under way, time advances to the next
        // timer.
        now += Duration::from_millis(1);
        if wires.iter().all(|wire| wire.sent.is_empty()) {
            now = engines
                .iter()
                .filter_map(Engine::next_timeout)
                .min()
                .expect("a timer runs");
        }
        for end in [0, 1] {
            while let Some((out, payload)) = wires[end].sent.pop_front() {
                carried += 1;
                let (key, link, ecn) = (out.key.reversed(), LinkId(0), out.ecn);
                let arrival = Arrival { key, link, ecn };
                if carried % 9 > 0 {
                    let (engine, wire) = (&mut engines[1 - end], &mut wires[1 - end]);
                    engine.segment_arrives(now, &arrival, &out.segment(&payload), wire);
                }
            }
            engines[end].advance_time(now, &mut wires[end]);
        }
    }
    assert_eq!(echoed, request);
    engines[0].close(now, flow, &mut wires[0]);
    let retransmitted = engines[0].counters().retrans_segs + engines[1].counters().retrans_segs;
    println!(
        "{} bytes echoed, {carried} segments, {retransmitted} retransmitted",
        echoed.len()
    );
}
