//! Tests of the source address checks against a table of routes.

use core::net::IpAddr;

use super::*;

fn address(text: &str) -> IpAddress {
    IpAddress::from(text.parse::<IpAddr>().expect("an address"))
}

fn route(prefix: &str, len: u8, way: Way) -> KernelRoute {
    let prefix = address(prefix);
    KernelRoute {
        prefix,
        prefix_len: if prefix.is_v4() { 96 + len } else { len },
        way,
    }
}

/// Returns the routes of a host that has 10.0.0.1/24, fd00::1/64 and an IPv4 default route on the
/// served interface (on which the service runs), and 192.168.7.1/24 on another interface. The route
/// to 198.51.100.0/24 has the type unreachable. The only route to fe80::/64 leads over the other
/// interface.
fn routes() -> Vec<KernelRoute> {
    vec![
        route("127.0.0.0", 8, Way::Local),
        route("127.0.0.1", 32, Way::Local),
        route("127.255.255.255", 32, Way::Broadcast),
        route("10.0.0.1", 32, Way::Local),
        route("10.0.0.255", 32, Way::Broadcast),
        route("10.0.0.0", 24, Way::Out),
        route("192.168.7.1", 32, Way::Local),
        route("192.168.7.255", 32, Way::Broadcast),
        route("192.168.7.0", 24, Way::Elsewhere),
        route("198.51.100.0", 24, Way::Unreachable),
        route("0.0.0.0", 0, Way::Out),
        route("::1", 128, Way::Local),
        route("fd00::1", 128, Way::Local),
        route("fe80::1", 128, Way::Local),
        route("ff00::", 8, Way::Broadcast),
        route("fe80::", 64, Way::Elsewhere),
        route("fd00::", 64, Way::Out),
    ]
}

fn policy(checks: SourceChecks) -> IngressPolicy {
    IngressPolicy::new(vec![routes()], checks)
}

/// Checks that `check_peer` returns the given result for each source.
fn verdicts(checks: SourceChecks, sources: &[(&str, Result<(), DropReason>)]) {
    let policy = policy(checks);
    for (source, verdict) in sources {
        assert_eq!(policy.check_peer(address(source)), *verdict, "{source}");
    }
}

const DEFAULT: SourceChecks = SourceChecks {
    reverse_path: ReversePathFilter::Off,
    accept_local: false,
    route_localnet: false,
};
const BAD: Result<(), DropReason> = Err(DropReason::BadAddress);
const MARTIAN: Result<(), DropReason> = Err(DropReason::MartianSource);
const REVERSE_PATH: Result<(), DropReason> = Err(DropReason::ReversePath);
const NO_ROUTE: Result<(), DropReason> = Err(DropReason::NoRoute);

#[test]
fn peers_on_the_link_and_behind_its_routers_are_taken() {
    let all = ["10.0.0.2", "10.0.0.254", "8.8.8.8", "240.0.0.1", "fd00::2"];
    for filter in [
        ReversePathFilter::Off,
        ReversePathFilter::Loose,
        ReversePathFilter::Strict,
    ] {
        let checks = SourceChecks {
            reverse_path: filter,
            ..DEFAULT
        };
        verdicts(checks, &all.map(|source| (source, Ok(()))));
    }
}

#[test]
fn martians_are_refused() {
    verdicts(
        DEFAULT,
        &[
            ("127.0.0.1", MARTIAN),
            ("127.9.9.9", MARTIAN),
            ("10.0.0.1", MARTIAN),
            // The host also owns the addresses of its other interfaces.
            ("192.168.7.1", MARTIAN),
            ("10.0.0.255", MARTIAN),
            ("192.168.7.255", MARTIAN),
            ("255.255.255.255", BAD),
            ("224.0.0.1", BAD),
            ("239.1.2.3", BAD),
            ("0.0.0.0", BAD),
            ("0.0.0.5", BAD),
            ("0.255.255.255", BAD),
            ("::", BAD),
            ("ff02::1", BAD),
            ("::1", MARTIAN),
            ("fd00::1", MARTIAN),
            ("fe80::1", MARTIAN),
        ],
    );
}

#[test]
fn a_source_behind_another_interface_depends_on_the_filter_and_gets_no_answer() {
    let with = |reverse_path| SourceChecks {
        reverse_path,
        ..DEFAULT
    };
    let elsewhere = address("192.168.7.9");
    let nowhere = address("198.51.100.9");
    for (filter, of_elsewhere, of_nowhere) in [
        (ReversePathFilter::Off, Ok(()), Ok(())),
        (ReversePathFilter::Loose, Ok(()), REVERSE_PATH),
        (ReversePathFilter::Strict, REVERSE_PATH, REVERSE_PATH),
    ] {
        let policy = policy(with(filter));
        assert_eq!(policy.check_source(elsewhere), of_elsewhere, "{filter:?}");
        assert_eq!(policy.check_source(nowhere), of_nowhere, "{filter:?}");
        assert!(!policy.leads_out(elsewhere));
        assert!(policy.check_peer(elsewhere).is_err());
    }
    verdicts(DEFAULT, &[("192.168.7.9", NO_ROUTE), ("fd99::1", NO_ROUTE)]);
}

#[test]
fn own_addresses_get_no_answer_even_if_settings_admit_them() {
    let checks = SourceChecks {
        accept_local: true,
        route_localnet: true,
        ..DEFAULT
    };
    let own = ["127.0.0.1", "10.0.0.1", "192.168.7.1"];
    verdicts(checks, &own.map(|source| (source, NO_ROUTE)));
    assert_eq!(policy(checks).check_source(address("10.0.0.1")), Ok(()));
    // `route_localnet` applies to IPv4 only, so the check refuses the loopback address of IPv6.
    verdicts(checks, &[("::1", MARTIAN)]);
}

/// The peer has a link-local IPv6 address. The host accepts the peer, although the only route to
/// fe80::/64 leads over another interface.
#[test]
fn an_address_of_the_link_alone_is_on_every_link() {
    verdicts(DEFAULT, &[("fe80::2", Ok(()))]);
}

#[test]
fn tables_are_asked_in_order_and_within_one_the_longest_prefix_counts() {
    let local = vec![route("10.7.0.0", 16, Way::Local)];
    let main = [vec![route("10.7.7.0", 24, Way::Out)], routes()].concat();
    let policy = IngressPolicy::new(vec![local, main], DEFAULT);
    assert_eq!(policy.way_to(address("10.7.7.7")), Some(Way::Local));
    assert_eq!(policy.way_to(address("10.0.0.255")), Some(Way::Broadcast));
    assert_eq!(policy.way_to(address("10.0.0.8")), Some(Way::Out));
    assert_eq!(policy.way_to(address("fd00::8")), Some(Way::Out));
    // There is a default route for IPv4 only.
    assert_eq!(policy.way_to(address("2001:db8::1")), None);
    assert_eq!(IngressPolicy::default().way_to(address("10.0.0.8")), None);
}
