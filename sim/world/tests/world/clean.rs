//! Bulk flows over a link without loss. Hosts may retransmit only frames that the queue has
//! dropped.

use tidelane_netem::LinkConfig;
use tidelane_time::Duration;
use tidelane_world::{Bulk, Goodput};

/// Runs a hundred flows over a link of 2.5 Gbit/s with a round-trip time of 20 us and a queue of
/// `queue` frames. `bench/figures/tas-table4` uses the same path.
fn hundred_flows(queue: u32) -> Goodput {
    let link = LinkConfig {
        rate: 2_500_000_000,
        limit: queue,
        ..LinkConfig::with_delay(Duration::from_micros(10))
    };
    let bulk = Bulk {
        flows: 100,
        warm_up: Duration::from_millis(100),
        measured: Duration::from_millis(200),
        ..Bulk::over(link)
    };
    bulk.run().expect("no rule is broken")
}

#[test]
fn no_retransmission_is_spurious() {
    for (queue, overflows) in [(1_000, true), (100_000, false)] {
        let goodput = hundred_flows(queue);
        assert!(goodput.rate() > 0.94 * 2.5e9, "{}", goodput.rate());
        let count = |name| goodput.counter(name);
        assert_eq!(count("retrans_segs") > 0, overflows);
        let needless = [
            "dsack_recv",
            "dsack_sent",
            "drop_duplicate",
            "spurious_timeouts",
        ];
        assert_eq!(needless.map(count), [0; 4], "queue of {queue}");
    }
}
