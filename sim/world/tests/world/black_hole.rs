//! A path that silently drops packets of more than 1280 bytes (RFC 4821).

use tidelane_netem::LinkConfig;
use tidelane_time::Duration;
use tidelane_world::{Algorithm, Bulk};

/// Rate of the link in bits per second.
const RATE: u64 = 10_000_000;
/// Length of a frame with a packet of 1280 bytes.
const FRAME_MAX: u32 = 14 + 1280;

#[test]
fn transfers_pass_a_black_hole_at_nearly_the_full_rate() {
    for congestion in Algorithm::ALL {
        let link = LinkConfig {
            rate: RATE,
            limit: 100,
            frame_max: FRAME_MAX,
            ..LinkConfig::with_delay(Duration::from_millis(10))
        };
        let bulk = Bulk {
            flows: 3,
            congestion,
            warm_up: Duration::from_secs(20),
            measured: Duration::from_secs(20),
            ..Bulk::over(link)
        };
        let goodput = match bulk.run() {
            Ok(goodput) => goodput,
            Err(violation) => panic!("{congestion}: {violation}"),
        };
        println!(
            "{congestion}: {:.3} Mbit/s, {} probes",
            goodput.rate() / 1e6,
            goodput.counter("mtu_probes")
        );
        assert_eq!(goodput.counter("mtu_black_holes"), 3, "{congestion}");
        // Each flow raises its MSS from 1024 bytes to 1234 bytes in five steps.
        assert_eq!(goodput.counter("mtu_raised"), 15, "{congestion}");
        // With an MSS of 1234 bytes, headers take 5.1 % of the rate.
        assert!(goodput.rate() > 0.9 * RATE as f64, "{congestion}");
    }
}
