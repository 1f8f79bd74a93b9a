//! `tidelane-sim figure`: measures goodput, fairness and latency of bulk transfers over simulated
//! links in virtual time.

use clap::ValueEnum;
use tidelane_netem::LinkConfig;
use tidelane_time::Duration;
use tidelane_world::{Algorithm, Bulk, LinuxBulk, Violation};

use crate::{bufferbloat, cubic_model, loss};

/// The figures that the `figure` command can measure.
#[derive(Clone, Copy, ValueEnum)]
pub enum Figure {
    /// One flow over 10 Gbit/s, 100 ms, 0.01 % loss, against an ideal CUBIC
    FatPath,
    /// Flows over 1 Gbit/s or less: penalty of loss and reordering, against a model of Linux
    Loss,
    /// 100 flows over 10 Gbit/s: penalty of loss and reordering, against a model of Linux
    LossFast,
    /// 10 flows on a short path: penalty of loss and reordering, against a model of Linux
    LossShort,
    /// Equal flows over one bottleneck: Jain's index
    Fairness,
    /// One bulk flow through a deep queue: round-trip times of a small flow beside it
    Bufferbloat,
}

/// Payload bytes of a full segment with timestamps over an MTU of 1,500 bytes.
const MSS: f64 = 1448.0;
/// Smallest share of an ideal CUBIC sender's rate that Tidelane must reach on the path with a large
/// bandwidth-delay product ([`Figure::FatPath`]).
const FAT_PATH_MIN: f64 = 0.9;
/// Smallest fairness index (Jain's index) that equal flows must reach.
const FAIRNESS_MIN: f64 = 0.9;
/// Number of seeds for [`Figure::FatPath`]. One seed is not enough, because the mean of one run
/// varies by some percent.
const FAT_PATH_SEEDS: u64 = 2;

impl Figure {
    /// Measures and prints the figure. Returns true if all limits hold.
    pub fn run(self) -> Result<bool, Violation> {
        match self {
            Self::FatPath => fat_path(),
            Self::Loss => loss::run(&loss::SLOWER),
            Self::LossFast => loss::run(&loss::FASTER),
            Self::LossShort => loss::run(&loss::SHORT),
            Self::Fairness => fairness(),
            Self::Bufferbloat => bufferbloat::run(),
        }
    }
}

fn link(rate: u64, delay: Duration, limit: u32) -> LinkConfig {
    LinkConfig {
        rate,
        limit,
        ..LinkConfig::with_delay(delay)
    }
}

fn fat_path() -> Result<bool, Violation> {
    let (p, rtt) = (1e-4, 0.1);
    let path = link(10_000_000_000, Duration::from_millis(50), 100_000);
    let (mut rates, mut linux) = (Vec::new(), 0.0);
    for seed in 0..FAT_PATH_SEEDS {
        let bulk = Bulk {
            forward: LinkConfig { loss: 100, ..path },
            window: 64 << 20,
            warm_up: Duration::from_secs(100),
            measured: Duration::from_secs(600),
            seed,
            ..Bulk::over(path)
        };
        let goodput = bulk.run()?;
        println!(
            "seed {seed}: {:.2} Mbit/s, {} timeouts, {} fast retransmissions",
            goodput.rate() / 1e6,
            goodput.counter("timeouts"),
            goodput.counter("fast_retrans")
        );
        rates.push(goodput.rate());
        let hz = loss::HZ;
        linux += LinuxBulk { bulk, hz }.run().rate() / FAT_PATH_SEEDS as f64;
    }
    let rate = rates.iter().sum::<f64>() / rates.len() as f64;
    let of_window = |segments: f64| segments * MSS * 8.0 / rtt;
    let formula = of_window(cubic_model::response(p, rtt));
    let simulated = of_window(cubic_model::simulate(p, rtt, 400_000, 1));
    println!("10 Gbit/s, 100 ms, 0.01 % loss, one flow, {FAT_PATH_SEEDS} runs of 600 s");
    println!(
        "  tidelane, mean                      {:>8.2} Mbit/s",
        rate / 1e6
    );
    println!(
        "  model of linux, mean                {:>8.2} Mbit/s",
        linux / 1e6
    );
    println!(
        "  response function of RFC 9438       {:>8.2} Mbit/s",
        formula / 1e6
    );
    println!(
        "  ideal sender, same loss             {:>8.2} Mbit/s",
        simulated / 1e6
    );
    let ideal = formula.max(simulated);
    println!(
        "  tidelane / the better ideal         {:>8.3}",
        rate / ideal
    );
    Ok(rate >= FAT_PATH_MIN * ideal)
}

fn fairness() -> Result<bool, Violation> {
    println!(
        "Equal flows, 50 Mbit/s, 20 ms, queue of 100 frames, measured for 30 s after a \
         warm-up of 10 s"
    );
    println!("  flows  congestion   Mbit/s      Jain");
    let mut fair = true;
    for congestion in Algorithm::ALL {
        for flows in [2, 10, 30] {
            let path = link(50_000_000, Duration::from_millis(10), 100);
            let marks = (congestion == Algorithm::Dctcp).then_some(20);
            let bulk = Bulk {
                flows,
                forward: LinkConfig {
                    ecn_threshold: marks,
                    ..path
                },
                congestion,
                window: 4 << 20,
                warm_up: Duration::from_secs(10),
                measured: Duration::from_secs(30),
                ..Bulk::over(path)
            };
            let goodput = bulk.run()?;
            let index = goodput.fairness();
            println!(
                "  {flows:>5}  {:<10} {:>8.2} {index:>9.3}",
                congestion.name(),
                goodput.rate() / 1e6,
            );
            fair &= index >= FAIRNESS_MIN;
        }
    }
    Ok(fair)
}
