//! Example of a program that adds its own congestion control to the TCP engine: Scalable TCP
//! (Kelly, CCR 33(2), 2003). The file uses only the public interface of the engine.

use tidelane_engine::*;

/// Scalable TCP: after slow start, cwnd grows by 1 % of the acknowledged bytes. A loss reduces cwnd
/// by an eighth.
#[derive(Clone, Debug)]
struct Scalable {
    window: Window,
}

/// Value for `EngineConfig::congestion` that selects Scalable TCP.
const SCALABLE: Algorithm = Algorithm::Custom(CustomAlgorithm {
    name: "scalable",
    needs_ecn: false,
    create: |window| Box::new(Scalable { window }),
});

impl CongestionControl for Scalable {
    fn window(&self) -> &Window {
        &self.window
    }

    fn window_mut(&mut self) -> &mut Window {
        &mut self.window
    }

    fn on_ack(&mut self, _: Instant, acked_bytes: u32, _: Duration, cwnd_limited: bool) {
        if !cwnd_limited {
            return self.window.on_ack_without_growth();
        }
        let rest = self.window.slow_start(acked_bytes);
        self.window.grow(rest / 100);
    }

    fn on_congestion_signal(&mut self, _: Instant, _flight_size: u32) -> u32 {
        self.window.reduce_to(self.window.cwnd() / 8 * 7);
        self.window.ssthresh()
    }

    fn on_recovery_exit(&mut self, _: Instant) {}

    fn on_rto(&mut self, _: Instant, flight_size: u32) -> u32 {
        self.window.collapse_to_loss_window(flight_size / 2);
        self.window.ssthresh()
    }

    fn on_idle_restart(&mut self, _: Instant, idle_rtos: u32) {
        self.window.restart(idle_rtos);
    }
}

/// The driver: the program that runs the engine. This driver only records the segments that the
/// engine sends.
#[derive(Default)]
struct Sent(Vec<SegmentOut>);

impl Driver for Sent {
    fn transmit(&mut self, out: &SegmentOut) -> Result<(), TxFull> {
        self.0.push(*out);
        Ok(())
    }

    fn place(&mut self, _: FlowId, _: u32, _: &[u8]) -> bool {
        true
    }

    fn event(&mut self, _: FlowId, _: Event) {}

    fn route(&mut self, _: &FlowKey, link: LinkId) -> FlowRoute {
        FlowRoute { link, mtu: 1040 }
    }

    fn created(&mut self, _: FlowId, _: &NewFlow) {}

    fn set_ip(&mut self, _: FlowId, _: IpChange) {}
}

/// An established connection with segments of 1000 bytes. The test plays the peer.
struct Connection {
    engine: Engine,
    sent: Sent,
    now: Instant,
    key: FlowKey,
    flow: FlowId,
    /// Initial sequence number of the engine.
    iss: SeqNumber,
}

impl Connection {
    fn open() -> Self {
        let config = EngineConfig {
            congestion: SCALABLE,
            timestamps: false,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(config, [3; 16]);
        let (local, peer) = (
            Endpoint::v4([10, 0, 0, 1], 99),
            Endpoint::v4([10, 0, 0, 2], 80),
        );
        let (mut sent, now) = (Sent::default(), Instant::from_secs(5));
        let route = sent.route(&FlowKey { local, peer }, LinkId(0));
        let flow = engine
            .open(now, local, peer, route, SocketOptions::default(), &mut sent)
            .unwrap();
        let iss = sent.0.pop().unwrap().seq;
        let key = FlowKey { local, peer };
        let mut connection = Self {
            engine,
            sent,
            now,
            key,
            flow,
            iss,
        };
        let options = TcpOptions {
            mss: Some(1000),
            sack_permitted: true,
            wscale: Some(7),
            ..TcpOptions::NONE
        };
        connection.receive(0, TcpFlags::SYN | TcpFlags::ACK, 1, options);
        connection
    }

    /// Advances the time by 10 ms and delivers a segment without payload. `seq` is relative to the
    /// peer's initial sequence number (zero), and `ack` to the engine's.
    fn receive(&mut self, seq: u32, flags: TcpFlags, ack: u32, options: TcpOptions) {
        self.now += Duration::from_millis(10);
        let segment = Segment {
            src_port: self.key.peer.port,
            dst_port: self.key.local.port,
            seq: SeqNumber(seq),
            ack: self.iss.add(ack),
            flags,
            wnd: 60_000,
            urgent: 0,
            options,
            payload: &[],
        };
        let arrival = Arrival {
            key: self.key,
            link: LinkId(0),
            ecn: Ecn::NotEct,
        };
        self.engine
            .segment_arrives(self.now, &arrival, &segment, &mut self.sent);
        self.engine.batch_end(self.now, &mut self.sent);
    }

    /// Lets the application write up to stream position `end`.
    fn write(&mut self, end: u32) {
        self.engine.tx_advance(self.flow, end).unwrap();
        self.engine.batch_end(self.now, &mut self.sent);
    }

    fn info(&self) -> FlowInfo {
        self.engine.info(self.flow).unwrap()
    }
}

#[test]
fn a_program_brings_its_congestion_control_in_one_file() {
    let mut connection = Connection::open();
    assert_eq!(connection.info().congestion, "scalable");
    assert_eq!(connection.info().cwnd, 10_000);
    connection.write(1_000_000);
    assert_eq!(connection.info().flight_size, 10_000);
    // Slow start doubles cwnd.
    connection.receive(1, TcpFlags::ACK, 10_001, TcpOptions::NONE);
    assert_eq!(connection.info().cwnd, 20_000);
    // The first segment of the next flight is lost: ssthresh becomes seven eighths of cwnd.
    let mut lost = TcpOptions::NONE;
    lost.sack
        .push(connection.iss.add(11_001), connection.iss.add(30_001));
    connection.receive(1, TcpFlags::ACK, 10_001, lost);
    assert_eq!(connection.info().ca_state, CaState::Recovery);
    assert_eq!(connection.info().ssthresh, 17_500);
    // The recovery ends. The next ACK then grows cwnd by 1 % of the acknowledged bytes.
    let end = 10_001 + connection.info().flight_size;
    connection.receive(1, TcpFlags::ACK, end, TcpOptions::NONE);
    assert_eq!(connection.info().ca_state, CaState::Open);
    let before = connection.info().cwnd;
    assert_eq!(before, 17_500);
    let flight = connection.info().flight_size;
    connection.receive(1, TcpFlags::ACK, end + flight, TcpOptions::NONE);
    assert_eq!(connection.info().cwnd, before + flight / 100);
}

#[test]
fn a_spurious_recovery_restores_the_state_of_the_algorithm() {
    let mut connection = Connection::open();
    connection.write(1_000_000);
    connection.receive(1, TcpFlags::ACK, 10_001, TcpOptions::NONE);
    let mut late = TcpOptions::NONE;
    late.sack
        .push(connection.iss.add(11_001), connection.iss.add(30_001));
    connection.receive(1, TcpFlags::ACK, 10_001, late);
    assert_eq!(connection.info().ssthresh, 17_500);
    // A DSACK shows that the retransmitted segment had not been lost.
    let mut duplicate = TcpOptions::NONE;
    duplicate
        .sack
        .push(connection.iss.add(10_001), connection.iss.add(11_001));
    connection.receive(1, TcpFlags::ACK, 30_001, duplicate);
    assert_eq!(connection.info().ca_state, CaState::Open);
    assert_eq!(connection.info().ssthresh, u32::MAX);
    assert!(connection.info().cwnd >= 20_000);
}
