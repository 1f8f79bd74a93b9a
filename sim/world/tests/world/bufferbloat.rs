//! A bulk flow through a queue of 1.2 s, and a flow of small requests beside it.

use tidelane_time::Duration;
use tidelane_world::{Algorithm, LatencyUnderLoad, RoundTrips};

/// Round-trip time while the queue is empty.
const ROUND_TRIP: Duration = Duration::from_millis(40);

fn run(congestion: Algorithm) -> RoundTrips {
    let bloat = LatencyUnderLoad {
        rate: 10_000_000,
        delay: ROUND_TRIP / 2u64,
        queue: 1000,
        congestion,
        alone: Duration::from_secs(2),
        together: Duration::from_secs(30),
        seed: 1,
    };
    match bloat.run() {
        Ok(seen) => seen,
        Err(violation) => panic!("{violation}"),
    }
}

#[test]
fn bbr_leaves_round_trips_as_they_were_and_cubic_fills_the_queue() {
    let late = || Duration::from_secs(20)..Duration::from_secs(30);
    let [bbr, cubic] = [Algorithm::Bbr, Algorithm::Cubic].map(run);
    for (name, seen) in [("bbr", &bbr), ("cubic", &cubic)] {
        println!(
            "{name}: {:?}, then {:?}, at most {:?}; {:.2} Mbit/s",
            seen.mean_alone(),
            seen.mean(late()),
            seen.longest(),
            seen.rate() / 1e6
        );
        // The measured arrival times of replies have a resolution of one millisecond.
        let alone = seen.mean_alone();
        assert!(
            (ROUND_TRIP..ROUND_TRIP * 21u64 / 20u64).contains(&alone),
            "{alone:?}"
        );
    }
    assert!(bbr.mean(late()) < ROUND_TRIP * 2u64);
    assert!(bbr.rate() > 9e6 && cubic.rate() > 8e6);
    // CUBIC takes 14 s from the exit of HyStart until the queue is full.
    assert!(cubic.mean(late()) > ROUND_TRIP * 10u64);
    let early = Duration::from_secs(1)..Duration::from_secs(3);
    assert!(cubic.mean(early) < ROUND_TRIP * 4u64);
}
