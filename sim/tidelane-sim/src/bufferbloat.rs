//! `tidelane-sim figure bufferbloat`: round-trip times of a small flow that shares a deep queue
//! with a bulk transfer.

use tidelane_time::Duration;
use tidelane_world::{Algorithm, LatencyUnderLoad, RoundTrips, Violation};

use crate::cubic_model::{Bottleneck, mean_round_trip};

/// Rate of the bottleneck in bits per second.
const RATE: u64 = 10_000_000;
/// One-way delay in each direction.
const ONE_WAY: Duration = Duration::from_millis(20);
/// Capacity of the queue in frames. A full queue drains in 1.2 s at [`RATE`]. Path and queue
/// together hold 1,033 frames.
const QUEUE: u32 = 1_000;
/// Time during which the small flow runs alone.
const ALONE: Duration = Duration::from_secs(5);
/// Time during which both flows run.
const TOGETHER: Duration = Duration::from_secs(120);
/// Start of each column of mean round-trip times, in seconds after the start of the bulk flow. A
/// column ends where the next column starts. [`BBR_MAX`] and [`CUBIC_MAX`] apply to the column from
/// 20 s to the end.
const COLUMNS: [u64; 5] = [0, 2, 5, 10, 20];
/// Length of a full frame in bytes.
const FRAME: f64 = 1514.0;
/// Largest ratio of two mean round-trip times of the small flow: its time beside a bulk flow with
/// BBR, divided by its time alone.
const BBR_MAX: f64 = 2.0;
/// Largest quotient of two ratios. Each ratio is the mean round-trip time of the small flow beside
/// a bulk flow, divided by its round-trip time alone. The first ratio is measured beside Tidelane's
/// CUBIC. The second ratio is computed for an ideal CUBIC sender.
const CUBIC_MAX: f64 = 1.1;
/// Smallest goodput of the bulk flow, as a share of [`RATE`].
const USED_MIN: f64 = 0.9;

fn millis(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e6
}

fn measure(congestion: Algorithm) -> Result<RoundTrips, Violation> {
    let scenario = LatencyUnderLoad {
        rate: RATE,
        delay: ONE_WAY,
        queue: QUEUE,
        congestion,
        alone: ALONE,
        together: TOGETHER,
        seed: 1,
    };
    scenario.run()
}

/// Returns the start and end of each column in seconds.
fn columns() -> impl Iterator<Item = (u64, u64)> {
    let ends = COLUMNS[1..].iter().copied().chain([TOGETHER.as_secs()]);
    COLUMNS.into_iter().zip(ends)
}

/// Returns the mean round-trip time beside an ideal CUBIC sender in one column, in milliseconds.
fn ideal((from, to): (u64, u64)) -> f64 {
    let path = Bottleneck {
        packet_s: FRAME * 8.0 / RATE as f64,
        rtt_s: 2e-3 * millis(ONE_WAY),
        queue: f64::from(QUEUE),
    };
    1e3 * mean_round_trip(path, from as f64, to as f64)
}

fn print_row(name: &str, alone: f64, means: impl Iterator<Item = f64>, rest: &str) {
    let means: String = means.map(|mean| format!("{mean:>9.1}")).collect();
    println!("  {name:<12}{alone:>9.1}{means}{rest}");
}

/// Measures and prints the figure. Returns true if all limits hold.
pub fn run() -> Result<bool, Violation> {
    let seconds = TOGETHER.as_secs();
    println!("10 Mbit/s, 40 ms, a queue of {QUEUE} frames; a bulk flow for {seconds} s,");
    println!(
        "requests of 64 bytes one after another beside it; mean round trips of the requests in ms"
    );
    let heads = columns().map(|(from, to)| format!("{:>9}", format!("{from}-{to} s")));
    let heads: String = heads.collect();
    println!("  {:<12}{:>9}{heads}  longest   Mbit/s", "", "alone");
    let mut passed = true;
    let mut last = Vec::new();
    for congestion in [Algorithm::Cubic, Algorithm::Bbr] {
        let measured = measure(congestion)?;
        let mean = |(from, to)| {
            let span = Duration::from_secs(from)..Duration::from_secs(to);
            millis(measured.mean(span))
        };
        let means: Vec<f64> = columns().map(mean).collect();
        let (longest, rate) = (millis(measured.longest()), measured.rate() / 1e6);
        let rest = format!("{longest:>9.1}{rate:>9.2}");
        let alone = millis(measured.mean_alone());
        print_row(congestion.name(), alone, means.iter().copied(), &rest);
        passed &= measured.rate() >= USED_MIN * RATE as f64;
        last.push(means[COLUMNS.len() - 1] / alone);
    }
    let path = 2.0 * millis(ONE_WAY);
    print_row("ideal cubic", path, columns().map(ideal), "");
    let of_ideal = ideal((COLUMNS[COLUMNS.len() - 1], seconds)) / path;
    passed &= last[0] <= CUBIC_MAX * of_ideal && last[1] <= BBR_MAX;
    Ok(passed)
}
