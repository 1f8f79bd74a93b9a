//! Bulk transfers over a path whose MTU is smaller than the MTU of the hosts. The routers on the
//! path report the path MTU by ICMP errors (RFC 1191, RFC 8201).

use tidelane_netem::LinkConfig;
use tidelane_time::Duration;
use tidelane_world::{Algorithm, Bulk, Family};

/// Rate of the link in bits per second.
const RATE: u64 = 10_000_000;
/// Number of connections.
const FLOWS: u32 = 3;

fn narrow(family: Family, congestion: Algorithm) -> Bulk {
    let link = LinkConfig {
        rate: RATE,
        limit: 100,
        ..LinkConfig::with_delay(Duration::from_millis(10))
    };
    Bulk {
        flows: FLOWS,
        family,
        path_mtu: Some(1280),
        congestion,
        warm_up: Duration::from_secs(5),
        measured: Duration::from_secs(10),
        ..Bulk::over(link)
    }
}

#[test]
fn transfers_go_on_with_the_size_that_the_router_names() {
    for family in Family::BOTH {
        for congestion in Algorithm::ALL {
            let goodput = match narrow(family, congestion).run() {
                Ok(goodput) => goodput,
                Err(violation) => panic!("{family:?} {congestion}: {violation}"),
            };
            let lowered = goodput.counter("pmtu_lowered");
            println!(
                "{family:?} {congestion}: {:.3} Mbit/s, {lowered} times a smaller size, {} errors",
                goodput.rate() / 1e6,
                goodput.counter("icmp_errors"),
            );
            assert!((1..=u64::from(FLOWS)).contains(&lowered), "{lowered}");
            assert_eq!(goodput.counter("mtu_black_holes"), 0);
            assert_eq!(goodput.counter("timeouts"), 0);
            // In a frame with an IP packet of 1280 bytes, the headers from Ethernet to TCP (with
            // timestamps) take 5.1 % over IPv4, and 6.6 % over IPv6.
            assert!(
                goodput.rate() > 0.9 * RATE as f64,
                "{family:?} {congestion}"
            );
        }
    }
}
