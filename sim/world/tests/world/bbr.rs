//! BBR over a bottleneck of 10 Mbit/s with a round-trip time of 40 ms. The queue holds eight
//! bandwidth-delay products. One test also uses a queue of one bandwidth-delay product.

use tidelane_netem::LinkConfig;
use tidelane_time::Duration;
use tidelane_world::{Algorithm, Bulk, Goodput};

/// Rate of the bottleneck in bits per second.
const RATE: u64 = 10_000_000;
/// One-way delay of the link.
const ONE_WAY: Duration = Duration::from_millis(20);
/// Capacity of the queue in frames. The bandwidth-delay product is 33 frames.
const QUEUE: u32 = 264;

/// Returns the parameters of one flow over the bottleneck.
fn narrow(congestion: Algorithm) -> Bulk {
    let forward = LinkConfig {
        rate: RATE,
        limit: QUEUE,
        ..LinkConfig::with_delay(ONE_WAY)
    };
    Bulk {
        reverse: LinkConfig::with_delay(ONE_WAY),
        congestion,
        window: 4 << 20,
        warm_up: Duration::from_secs(5),
        measured: Duration::from_secs(25),
        ..Bulk::over(forward)
    }
}

fn run(bulk: &Bulk) -> Goodput {
    match bulk.run() {
        Ok(goodput) => goodput,
        Err(violation) => panic!("{violation}"),
    }
}

/// Returns the goodput of all flows as a fraction of the bottleneck's rate.
fn part(goodput: &Goodput) -> f64 {
    goodput.rate() / RATE as f64
}

#[test]
fn bbr_fills_the_path_and_keeps_the_queue_small() {
    let bbr = run(&narrow(Algorithm::Bbr));
    let cubic = run(&narrow(Algorithm::Cubic));
    println!("bbr {:.3} {:?}", part(&bbr), bbr.srtt);
    println!("cubic {:.3} {:?}", part(&cubic), cubic.srtt);
    // Headers take 4.4 % of the rate. ProbeRTT lowers cwnd for about 200 ms in ten seconds.
    assert!(part(&bbr) > 0.9, "{}", part(&bbr));
    assert!(bbr.srtt < Duration::from_millis(60), "{:?}", bbr.srtt);
    assert!(cubic.srtt > bbr.srtt * 2u64, "{:?}", cubic.srtt);
}

#[test]
fn random_loss_does_not_slow_bbr_down() {
    let lossy = |congestion| {
        let mut bulk = narrow(congestion);
        // 10,000 parts per million are one percent.
        bulk.forward.loss = 10_000;
        run(&bulk)
    };
    let (bbr, cubic) = (lossy(Algorithm::Bbr), lossy(Algorithm::Cubic));
    println!("bbr {:.3}, cubic {:.3}", part(&bbr), part(&cubic));
    assert!(part(&bbr) > 0.85, "{}", part(&bbr));
    assert!(part(&cubic) < 0.5, "{}", part(&cubic));
}

#[test]
fn beside_cubic_neither_starves() {
    for queue in [33, QUEUE] {
        let mut bulk = narrow(Algorithm::Bbr);
        bulk.forward.limit = queue;
        bulk.competing = Some(Algorithm::Cubic);
        bulk.measured = Duration::from_secs(55);
        let both = run(&bulk);
        let whole: u64 = both.bytes.iter().sum();
        let share = both.bytes[0] as f64 / whole as f64;
        println!("queue {queue}: bbr {share:.3} of {:.3}", part(&both));
        assert!((0.1..0.9).contains(&share), "queue {queue}: {share}");
        assert!(part(&both) > 0.9, "queue {queue}: {}", part(&both));
    }
}

#[test]
fn bbr_flows_share_the_path_fairly() {
    let mut bulk = narrow(Algorithm::Bbr);
    bulk.flows = 4;
    bulk.measured = Duration::from_secs(55);
    let four = run(&bulk);
    println!("{:.3} {:.3}", four.fairness(), part(&four));
    assert!(four.fairness() > 0.9, "{}", four.fairness());
    assert!(part(&four) > 0.9, "{}", part(&four));
}
