//! Checks that the fast path (the engine's code for the common segments of established connections)
//! has the same effects as the slow path (the code for all segments of a connection). Two TCP
//! engines, one of them without the fast path, get the same segments, which are generated from a
//! seed. After each batch (a group of segments and requests), the test compares the engines. Both
//! engines must have stored the same bytes, reported the same events, and sent the same segments in
//! the same order. Both engines must also be in the same state.
//!
//! The comparison leaves out state that the fast path does not update: the minimum RTT, the largest
//! window of the peer, the end of an idle time for CUBIC, the exact time of the last segment, and
//! the start of the present round (round trip) of slow start. Comments in `config` explain the
//! effects of the idle time and of the round.
//!
//! A developer adds a seed that has failed to [`REGRESSION_SEEDS`]. The environment variable
//! `TIDELANE_DIFFERENTIAL_SEEDS` sets the number of other seeds.

use tidelane_engine::{Algorithm, Duration, EcnPolicy, EngineConfig, SocketOptions, TcpFlags};

mod engine_pair;
mod peer;
mod rng;

use engine_pair::{EnginePair, Output};
use peer::{Peer, byte_at};
use rng::Rng;

/// Seeds that have failed once. Each run of the tests tries these seeds again.
const REGRESSION_SEEDS: &[u64] = &[];
/// Default number of seeds.
const SEEDS: u64 = 1500;
/// Largest number of differences that the failure message shows.
const SHOWN: usize = 5;
/// Largest number of steps per seed.
const STEPS: u32 = 300;

fn config(rng: &mut Rng) -> EngineConfig {
    let window = rng.pick(&[8 << 10, 64 << 10, 1 << 20]);
    EngineConfig {
        rx_window_initial: window.min(64 << 10),
        rx_window_max: window,
        // CUBIC is left out: after a loss, CUBIC does not count the time in which its window is not
        // in use, and the fast path does not record the end of that time. The times that CUBIC
        // counts in the two engines would differ by a part of a round trip.
        congestion: rng.pick(&[Algorithm::NewReno, Algorithm::Dctcp]),
        // An initial window of two segments is left out. In slow start, cwnd grows only if the
        // flight exceeded half of cwnd in the present round trip (round). An ACK on the fast path
        // starts no round, so a round may start at different ACKs in the two engines. In a window
        // of two segments, the flight is often close to half of cwnd. The two engines could
        // therefore differ in cwnd.
        initial_window: rng.pick(&[10, 20]),
        eager_acks: rng.chance(30),
        ecn: EcnPolicy::Accept,
        ..EngineConfig::default()
    }
}

fn options(rng: &mut Rng) -> SocketOptions {
    SocketOptions {
        nodelay: rng.chance(50),
        cork: rng.chance(10),
        quickack: rng.chance(20),
        ..SocketOptions::default()
    }
}

/// One connection of each engine, with the peer of both connections.
struct Run {
    rng: Rng,
    engines: EnginePair,
    peer: Peer,
    /// Number of bytes that the application has written.
    written: u32,
    /// True while the path has no loss and no reordering.
    clean_path: bool,
    /// True while the drivers have few transmit frames, or no memory for received data.
    resources_limited: bool,
    /// True after the engines' application has closed its sending direction.
    shut: bool,
    /// True after the peer has sent its FIN.
    finished: bool,
}

impl Run {
    fn begin(seed: u64) -> Result<Self, String> {
        let mut rng = Rng::new(seed);
        let (config, options) = (config(&mut rng), options(&mut rng));
        let burst = rng.pick(&[0, 0, 10_000, 65_000]);
        let (peer, syn) = Peer::open(&mut rng);
        let mut run = Self {
            engines: EnginePair::new(&config, options, burst),
            rng,
            peer,
            written: 0,
            clean_path: true,
            resources_limited: false,
            shut: false,
            finished: false,
        };
        run.engines.arrive(&syn);
        run.end()?;
        // The fast path does not update the minimum RTT. Make the first RTT the least possible RTT
        // (1 us), so that the minimum RTT never changes.
        let output = run.engines.wait(Duration::from_micros(1))?;
        run.handle_output(output);
        let pure_ack = run.peer.pure_ack();
        run.engines.arrive(&pure_ack);
        run.end()?;
        Ok(run)
    }

    fn handle_output(&mut self, output: Output) {
        for out in &output.out {
            self.peer.handle(out);
        }
        for (pos, payload) in &output.placed {
            let good = |(at, byte): (usize, &u8)| *byte == byte_at(pos.wrapping_add(at as u32));
            assert!(payload.iter().enumerate().all(good), "not the peer's bytes");
        }
    }

    fn end(&mut self) -> Result<(), String> {
        let output = self.engines.end()?;
        self.handle_output(output);
        Ok(())
    }

    fn wait(&mut self, ms: u64) -> Result<(), String> {
        let us = u64::from(self.rng.below(1000));
        let output = self.engines.wait(Duration::from_micros(ms * 1000 + us))?;
        self.handle_output(output);
        Ok(())
    }

    /// Executes one random step.
    fn step(&mut self) -> Result<(), String> {
        if self.resources_limited && self.rng.chance(30) {
            self.lift_limits();
        }
        if self.rng.below(60) == 0 {
            self.clean_path = !self.clean_path;
            if self.clean_path {
                self.restore_clean_path()?;
            }
        }
        match self.rng.below(100) {
            0..55 => {
                for _ in 0..=self.rng.pick(&[0, 0, 0, 1, 4]) {
                    let segment = match self.clean_path {
                        true => self.peer.next_on_clean_path(&mut self.rng),
                        false => self.peer.next(&mut self.rng),
                    };
                    self.engines.arrive(&segment);
                }
            }
            55..70 if !self.shut => {
                let len = self.rng.pick(&[1, 100, 1000, 5000, 60_000]);
                let unsent = self.engines.info().map_or(0, |info| info.unsent);
                if unsent < 200_000 {
                    self.written += 1 + self.rng.below(len);
                    self.engines.write(self.written);
                }
            }
            70..85 => self.read(),
            85..96 => {
                self.end()?;
                let ms = self.rng.pick(&[0, 1, 1, 3, 10, 10, 30, 100, 300, 2000]);
                return self.wait(ms);
            }
            96..98 => {
                let options = options(&mut self.rng);
                self.engines.set_options(options);
            }
            98 => {
                let frames = self.rng.pick(&[0, 1, 3]);
                self.engines.set_frames(frames);
                self.resources_limited = true;
            }
            _ => {
                self.engines.set_full(true);
                self.resources_limited = true;
            }
        }
        if self.rng.chance(70) {
            self.end()
        } else {
            Ok(())
        }
    }

    /// Fills all holes in the peer's data, and acknowledges all data of the engines. Then waits
    /// until the slow path has dropped its scoreboard (the record of lost and SACKed data), so that
    /// the fast path can send again.
    fn restore_clean_path(&mut self) -> Result<(), String> {
        self.lift_limits();
        while let Some(segment) = self.peer.fill_next_hole() {
            self.engines.arrive(&segment);
            self.end()?;
        }
        for ms in [10, 10, 1_500, 10] {
            let pure_ack = self.peer.pure_ack();
            self.engines.arrive(&pure_ack);
            self.end()?;
            self.wait(ms)?;
            self.peer.fill_next_hole();
        }
        Ok(())
    }

    fn lift_limits(&mut self) {
        self.engines.set_full(false);
        self.engines.set_frames(u32::MAX);
        self.resources_limited = false;
    }

    /// Lets the application read some or all of the received data.
    fn read(&mut self) {
        let Some(info) = self.engines.info() else {
            return;
        };
        let head = info.bytes_received as u32;
        let unread = match self.rng.below(3) {
            0 => self.rng.below(info.unread + 1),
            _ => 0,
        };
        self.engines.read(head - unread.min(info.unread));
    }

    /// Closes the sending direction of the engines with a small probability, and the sending
    /// direction of the peer with the same probability.
    fn maybe_finish(&mut self) {
        if !self.shut && self.rng.below(300) == 0 {
            self.shut = true;
            self.engines.shut_down();
        }
        if !self.finished && self.rng.below(300) == 0 {
            self.finished = true;
            let fin = self.peer.finish();
            self.engines.arrive(&fin);
        }
    }

    /// Fills all holes in the peer's data, reads some or all of the received data, and closes the
    /// socket. After 5 s, the peer sends a RST. The engines then have 400 s for their remaining
    /// timers.
    fn finish_all(&mut self) -> Result<(), String> {
        self.lift_limits();
        self.end()?;
        while let Some(segment) = self.peer.fill_next_hole() {
            self.engines.arrive(&segment);
            self.end()?;
        }
        let reset = TcpFlags::RST | TcpFlags::ACK;
        self.read();
        self.engines.close();
        self.end()?;
        self.wait(5_000)?;
        let mut last = self.peer.pure_ack();
        last.flags = reset;
        self.engines.arrive(&last);
        self.end()?;
        self.wait(400_000)
    }
}

/// Runs one seed. Returns the number of segments that the fast path handled, or the first
/// difference.
fn run(seed: u64) -> Result<u64, String> {
    let mut done = 0;
    let mut go = || -> Result<u64, String> {
        let mut run = Run::begin(seed)?;
        while done < STEPS && run.engines.flow().is_some() {
            done += 1;
            run.step()?;
            run.maybe_finish();
        }
        run.finish_all()?;
        let [fast, slow] = run.engines.fast_receives();
        assert_eq!(slow, 0, "the fast path was not off");
        Ok(fast)
    };
    let result = go();
    result.map_err(|difference| format!("seed {seed}, step {done}: {difference}"))
}

#[test]
fn regression_seeds_show_no_difference() {
    for seed in REGRESSION_SEEDS {
        assert_eq!(run(*seed).err(), None);
    }
}

#[test]
fn the_fast_path_and_the_slow_path_behave_alike() {
    let seeds = std::env::var("TIDELANE_DIFFERENTIAL_SEEDS");
    let seeds = seeds.ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    let (mut fast, mut differences) = (0, Vec::new());
    for seed in 1..=seeds {
        match run(seed) {
            Ok(taken) => fast += taken,
            Err(difference) => differences.push(difference),
        }
    }
    let count = differences.len();
    differences.truncate(SHOWN);
    assert_eq!(count, 0, "{}", differences.join("\n\n"));
    // If the fast path handled no segments, the test would compare the slow path with itself.
    assert!(fast > 10 * seeds, "{fast} segments in {seeds} runs");
}
