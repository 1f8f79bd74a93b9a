//! Tests of claims: 3-tuples (address, protocol, port) whose packets go to the service. The demux,
//! the service's XDP program, enforces the claims. In these tests, a stand-in for the demux only
//! records the claims and counts the calls. The scope of a claim selects the packets that the
//! service gets.

use std::sync::{Arc, Mutex};

use tidelane_steering::DemuxCounters;
use tidelane_wire::protocol;

use super::*;

/// The claims that the demux has, with their scopes.
type DemuxClaims = Arc<Mutex<HashMap<Claim, Scope>>>;

/// A demux that records its claims and counts the calls of `claim` and `unclaim`.
struct RecordingDemux {
    demux_claims: DemuxClaims,
    calls: Arc<Mutex<usize>>,
}

impl Steering for RecordingDemux {
    fn claim(&mut self, claim: &Claim, _: StackId, scope: Scope) -> Result<(), SteeringError> {
        *self.calls.lock().unwrap() += 1;
        self.demux_claims.lock().unwrap().insert(*claim, scope);
        Ok(())
    }

    fn unclaim(&mut self, claim: &Claim) -> Result<bool, SteeringError> {
        *self.calls.lock().unwrap() += 1;
        Ok(self.demux_claims.lock().unwrap().remove(claim).is_some())
    }

    fn counters(&self) -> Result<DemuxCounters, SteeringError> {
        Ok(DemuxCounters::default())
    }
}

const FIRST_ADDRESS: IpAddress = IpAddress([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
const SECOND_ADDRESS: IpAddress =
    IpAddress([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]);
const START: Instant = Instant(1_000_000_000);

/// Claims on an interface with the addresses `FIRST_ADDRESS` and `SECOND_ADDRESS`, with a
/// [`RecordingDemux`].
struct Scene {
    claims: Claims,
    demux_claims: DemuxClaims,
    calls: Arc<Mutex<usize>>,
}

impl Scene {
    fn new() -> Self {
        let (demux_claims, calls) = (DemuxClaims::default(), Arc::default());
        let demux = RecordingDemux {
            demux_claims: Arc::clone(&demux_claims),
            calls: Arc::clone(&calls),
        };
        let mut claims = Claims::new(Box::new(demux));
        claims
            .set_addresses(vec![FIRST_ADDRESS, SECOND_ADDRESS])
            .unwrap();
        Self {
            claims,
            demux_claims,
            calls,
        }
    }

    fn claim(&mut self, owner: Owner, addr: IpAddress, port: u16) -> Result<(), SteeringError> {
        let terms = Terms {
            charge: None,
            reservation: None,
            shared: true,
            program: Some(vec![ProgramId(7)]),
        };
        let key = (owner, Endpoint { addr, port });
        self.claims.claim(key, terms, START)
    }

    /// Makes a listener's claim with the scope `Whole`, as on a port without connections of the
    /// kernel.
    fn listen(&mut self, cookie: u64, addr: IpAddress, port: u16) {
        self.claim(Owner::Listener(cookie), addr, port).unwrap();
        let key = (Owner::Listener(cookie), end(addr, port));
        self.claims.widen(key).unwrap();
    }

    /// Returns the scope of a TCP claim in the demux.
    fn scope(&self, addr: IpAddress, port: u16) -> Option<Scope> {
        let claim = Claim {
            addr: addr.0,
            proto: protocol::TCP,
            port,
        };
        self.demux_claims.lock().unwrap().get(&claim).copied()
    }
}

fn end(addr: IpAddress, port: u16) -> Endpoint {
    Endpoint { addr, port }
}

#[test]
fn a_released_listener_shares_its_packets_with_the_kernel() {
    let mut scene = Scene::new();
    let any = IpAddress::UNSPECIFIED_V4;
    let key = (Owner::Listener(1), end(any, 80));
    scene.listen(1, any, 80);
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), Some(Scope::Whole));
    assert_eq!(scene.scope(SECOND_ADDRESS, 80), Some(Scope::Whole));
    assert_eq!(scene.claims.next_check(), None);
    scene.claims.release(key, START).unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), Some(Scope::BesideKernel));
    let due = scene.claims.due(START, 10);
    assert_eq!(
        due,
        [Candidate {
            question: Question::IsNeeded,
            key,
            program: None
        }]
    );
    // The same socket listens again before its connections are over. The kernel may have accepted
    // connections meanwhile, so the scope is not `Whole` again.
    scene.claim(key.0, any, 80).unwrap();
    assert_eq!(
        scene.scope(FIRST_ADDRESS, 80),
        Some(Scope::BesideConnections)
    );
    scene.claims.release(key, START).unwrap();
    scene.claims.end_claim(key).unwrap();
    assert!(scene.demux_claims.lock().unwrap().is_empty());
}

/// Connections that clients opened before the claim stay with the kernel as long as the connections
/// live. When the kernel has no connections on the port, the service calls `widen`, and the scope
/// becomes `Whole`.
#[test]
fn a_listener_leaves_the_kernel_its_connections_until_there_are_none() {
    let mut scene = Scene::new();
    let key = (Owner::Listener(1), end(IpAddress::UNSPECIFIED_V4, 80));
    scene.claim(key.0, key.1.addr, 80).unwrap();
    let (mut now, mut checks) = (START, 0);
    while now < START + Duration::from_secs(60) {
        assert_eq!(
            scene.scope(FIRST_ADDRESS, 80),
            Some(Scope::BesideConnections)
        );
        now = scene.claims.next_check().unwrap();
        let due = scene.claims.due(now, 10);
        assert_eq!(due[0].question, Question::HasKernelConnections);
        scene.claims.schedule_next_check(key, now);
        checks += 1;
    }
    // The interval of the checks grows to five seconds.
    assert!((15..30).contains(&checks), "{checks} checks in a minute");
    scene.claims.widen(key).unwrap();
    assert_eq!(scene.scope(SECOND_ADDRESS, 80), Some(Scope::Whole));
    assert_eq!(scene.claims.next_check(), None);
    // A second process claims the port for the same listener. The scope stays `Whole`, because the
    // service has found no connection of the kernel meanwhile.
    scene.claim(key.0, key.1.addr, 80).unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), Some(Scope::Whole));
    assert_eq!(scene.claims.next_check(), None);
    // The kernel accepted a client while a core (polling thread of the service) did not respond. A
    // connection on another port does not change the claim.
    let found = |scene: &mut Scene, end| scene.claims.found_kernel_connection(end, START);
    found(&mut scene, end(FIRST_ADDRESS, 81)).unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), Some(Scope::Whole));
    found(&mut scene, end(FIRST_ADDRESS, 80)).unwrap();
    assert_eq!(
        scene.scope(FIRST_ADDRESS, 80),
        Some(Scope::BesideConnections)
    );
    assert_eq!(scene.claims.next_check(), Some(START + QUERY_DELAY_MIN));
}

/// The sessions' claims have the scope `BesideKernel`. The claim in the demux has the wider scope
/// `Whole` while the listener is an owner, and exists until the last owner ends its claim.
#[test]
fn a_port_with_several_owners_has_the_widest_scope_until_the_last_owner_ends() {
    let mut scene = Scene::new();
    let any = IpAddress::UNSPECIFIED_V4;
    scene.claim(Owner::Session(1), FIRST_ADDRESS, 80).unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), Some(Scope::BesideKernel));
    assert_eq!(scene.scope(SECOND_ADDRESS, 80), None);
    scene.listen(2, any, 80);
    scene.claim(Owner::Session(3), FIRST_ADDRESS, 80).unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), Some(Scope::Whole));
    scene
        .claims
        .end_claim((Owner::Listener(2), end(any, 80)))
        .unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), Some(Scope::BesideKernel));
    assert_eq!(scene.scope(SECOND_ADDRESS, 80), None);
    for session in [1, 3] {
        let key = (Owner::Session(session), end(FIRST_ADDRESS, 80));
        scene.claims.end_claim(key).unwrap();
    }
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), None);
}

/// A listener may pass its SYNs to the kernel. The claim stays, so that the segments of the
/// listener's connections still go to the service. Checks of the claim start only when the listener
/// has ended.
#[test]
fn a_listener_whose_syns_pass_to_the_kernel_keeps_its_claim() {
    let mut scene = Scene::new();
    let any = IpAddress::UNSPECIFIED_V4;
    scene.listen(1, any, 80);
    scene
        .claims
        .pass_syns_to_kernel(Owner::Listener(1))
        .unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), Some(Scope::BesideKernel));
    assert_eq!(scene.scope(SECOND_ADDRESS, 80), Some(Scope::BesideKernel));
    assert_eq!(
        scene.claims.next_check(),
        None,
        "a check may end the claim before the listener ends"
    );
    scene.claims.release_all(Owner::Listener(1), START).unwrap();
    assert_eq!(scene.claims.due(START, 10).len(), 1);
}

#[test]
fn claims_follow_the_addresses() {
    let mut scene = Scene::new();
    let any = IpAddress::UNSPECIFIED_V4;
    scene.listen(1, any, 80);
    scene.claim(Owner::Session(2), FIRST_ADDRESS, 81).unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 81), Some(Scope::BesideKernel));
    scene.claims.set_addresses(vec![SECOND_ADDRESS]).unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), None);
    assert_eq!(scene.scope(SECOND_ADDRESS, 80), Some(Scope::Whole));
    assert_eq!(scene.scope(FIRST_ADDRESS, 81), None);
    scene
        .claims
        .set_addresses(vec![FIRST_ADDRESS, SECOND_ADDRESS])
        .unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), Some(Scope::Whole));
    assert_eq!(scene.scope(FIRST_ADDRESS, 81), Some(Scope::BesideKernel));
    let before = *scene.calls.lock().unwrap();
    scene
        .claims
        .set_addresses(vec![FIRST_ADDRESS, SECOND_ADDRESS])
        .unwrap();
    assert_eq!(
        *scene.calls.lock().unwrap(),
        before,
        "the demux was called without a change"
    );
}

/// The NIC receives no frame for a listener or a port on loopback, so the demux needs no claim.
#[test]
fn addresses_that_the_interface_does_not_have_are_not_claimed() {
    let mut scene = Scene::new();
    let loopback = IpAddress::from_v4([127, 0, 0, 1]);
    scene.listen(1, loopback, 80);
    scene.claim(Owner::Session(2), loopback, 81).unwrap();
    scene.claim(Owner::Pool, loopback, 82).unwrap();
    assert!(scene.claims.has((Owner::Listener(1), end(loopback, 80))));
    assert!(scene.demux_claims.lock().unwrap().is_empty());
}

#[test]
fn a_reservation_waits_for_its_connection_and_goes_after_it() {
    let mut scene = Scene::new();
    let key = (Owner::Session(1), end(FIRST_ADDRESS, 4000));
    scene.claim(key.0, FIRST_ADDRESS, 4000).unwrap();
    assert!(scene.claims.due(START, 10).is_empty());
    let later = START + CONNECT_TIMEOUT;
    assert_eq!(scene.claims.due(later, 10).len(), 1);
    // A second socket reserves the port. Then the connection of the first socket ends.
    scene.claim(key.0, FIRST_ADDRESS, 4000).unwrap();
    scene.claims.connection_ended(key, START);
    assert!(
        scene.claims.due(START, 10).is_empty(),
        "a check is due before the second connection"
    );
    scene.claims.connection_ended(key, START);
    let program = Some(vec![ProgramId(7)]);
    let question = Question::IsNeeded;
    let expected = Candidate {
        question,
        key,
        program,
    };
    assert_eq!(scene.claims.due(START, 10), [expected]);
    // The claim of another program is separate.
    scene.claim(Owner::Session(2), FIRST_ADDRESS, 4000).unwrap();
    scene.claims.connection_ended(key, START);
    let due = scene.claims.due(START, 10);
    assert!(due.iter().all(|candidate| candidate.key == key));
    scene.claims.end_claim(key).unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 4000), Some(Scope::BesideKernel));
}

#[test]
fn a_claim_that_is_needed_is_checked_ever_more_rarely() {
    let mut scene = Scene::new();
    let key = (Owner::Listener(1), end(FIRST_ADDRESS, 80));
    scene.claim(key.0, FIRST_ADDRESS, 80).unwrap();
    scene.claims.release(key, START).unwrap();
    let (mut now, mut checks) = (START, 0);
    while now < START + Duration::from_secs(60) {
        assert_eq!(scene.claims.due(now, 10).len(), 1);
        scene.claims.schedule_next_check(key, now);
        now = scene.claims.next_check().unwrap();
        checks += 1;
    }
    // The interval of the checks grows to half a second.
    assert!(checks < 140, "{checks} checks in a minute");
}

/// The claims of a program that ends are removed in batches of a bounded size, with one call to the
/// demux for each claim.
#[test]
fn many_claims_end_in_batches_and_in_linear_time() {
    const BATCH: usize = 256;
    const MANY: u16 = 20_000;
    let mut scene = Scene::new();
    for port in 0..MANY {
        scene.claim(Owner::Session(1), FIRST_ADDRESS, port).unwrap();
    }
    let before = *scene.calls.lock().unwrap();
    scene.claims.release_all(Owner::Session(1), START).unwrap();
    let mut batches = 0;
    loop {
        let due = scene.claims.due(START, BATCH);
        if due.is_empty() {
            break;
        }
        assert!(due.len() <= BATCH);
        batches += 1;
        for candidate in due {
            scene.claims.end_claim(candidate.key).unwrap();
        }
    }
    assert_eq!(batches, usize::from(MANY).div_ceil(BATCH));
    let calls = *scene.calls.lock().unwrap() - before;
    assert_eq!(calls, usize::from(MANY));
    assert!(scene.demux_claims.lock().unwrap().is_empty());
}

#[test]
fn the_pool_returns_ports_above_its_minimum() {
    let mut scene = Scene::new();
    let loopback = IpAddress::from(std::net::IpAddr::from([127, 0, 0, 1]));
    let ports = scene.claims.reserve_ports(loopback, 100, START);
    assert_eq!(
        (ports.len(), scene.claims.pool_surplus()),
        (100, 100 - POOL_PORTS_MIN)
    );
    assert!(scene.claims.due(START, 200).is_empty());
    let later = START + POOL_CHECK_DELAY;
    let due = scene.claims.due(later, 200);
    assert_eq!(due.len(), 100);
    for candidate in &due[..100 - POOL_PORTS_MIN] {
        scene.claims.end_claim(candidate.key).unwrap();
        let free = PortReservation::new(loopback.0, candidate.key.1.port);
        free.expect("the kernel has the port again");
    }
    for candidate in &due[100 - POOL_PORTS_MIN..] {
        scene.claims.schedule_next_check(candidate.key, later);
    }
    assert_eq!(scene.claims.pool_surplus(), 0);
    assert_eq!(scene.claims.next_check(), Some(later + POOL_CHECK_DELAY));
    assert_eq!(scene.claims.count(), POOL_PORTS_MIN);
}

/// A mux port is a program with a TCP/IP stack of its own. `clashes` returns true if a 3-tuple has
/// an owner already. The service then refuses the claim of a mux port.
#[test]
fn a_port_of_the_mux_has_its_3_tuples_alone() {
    let mut scene = Scene::new();
    let port = |cookie, protocol| Owner::MuxPort { cookie, protocol };
    let (tcp, udp) = (port(1, protocol::TCP), port(2, protocol::UDP));
    for owner in [tcp, udp] {
        assert!(!scene.claims.clashes((owner, end(FIRST_ADDRESS, 80))));
        let terms = Terms {
            charge: None,
            reservation: None,
            shared: false,
            program: None,
        };
        let key = (owner, end(FIRST_ADDRESS, 80));
        scene.claims.claim(key, terms, START).unwrap();
        assert!(scene.claims.clashes((owner, end(FIRST_ADDRESS, 80))));
        assert!(
            scene
                .claims
                .clashes((owner, end(IpAddress::UNSPECIFIED_V4, 80)))
        );
        assert!(!scene.claims.clashes((owner, end(SECOND_ADDRESS, 80))));
    }
    // The demux can search the kernel for TCP connections only, so the UDP claim has the scope
    // `Whole`.
    assert_eq!(
        scene.scope(FIRST_ADDRESS, 80),
        Some(Scope::BesideConnections)
    );
    let claim = Claim {
        addr: FIRST_ADDRESS.0,
        proto: protocol::UDP,
        port: 80,
    };
    let of_udp = |scene: &Scene| scene.demux_claims.lock().unwrap().get(&claim).copied();
    assert_eq!(of_udp(&scene), Some(Scope::Whole));
    scene.claims.widen((tcp, end(FIRST_ADDRESS, 80))).unwrap();
    assert_eq!(scene.scope(FIRST_ADDRESS, 80), Some(Scope::Whole));
    assert_eq!(
        scene.claims.next_check(),
        None,
        "a check may end the claim of a mux port"
    );
    assert!(scene.claims.is_claimed_by_mux_port(end(FIRST_ADDRESS, 80)));
    scene
        .claims
        .end_claim((tcp, end(FIRST_ADDRESS, 80)))
        .unwrap();
    assert!(!scene.claims.is_claimed_by_mux_port(end(FIRST_ADDRESS, 80)));
    assert_eq!(of_udp(&scene), Some(Scope::Whole));
    scene
        .claims
        .end_claim((udp, end(FIRST_ADDRESS, 80)))
        .unwrap();
    assert!(scene.demux_claims.lock().unwrap().is_empty());
    // A claim of another owner clashes, too.
    scene.listen(7, IpAddress::UNSPECIFIED_V4, 81);
    assert!(scene.claims.clashes((tcp, end(FIRST_ADDRESS, 81))));
    assert!(!scene.claims.is_claimed_by_mux_port(end(FIRST_ADDRESS, 81)));
}

/// `Scene::claim` makes claims with the term `shared`: other sockets may bind the port and connect
/// from this port. The service therefore never widens the claim of this mux port.
#[test]
fn a_port_that_other_sockets_share_leaves_connections_to_the_kernel() {
    let mut scene = Scene::new();
    let owner = Owner::MuxPort {
        cookie: 1,
        protocol: protocol::TCP,
    };
    scene.claim(owner, FIRST_ADDRESS, 80).unwrap();
    assert_eq!(
        scene.scope(FIRST_ADDRESS, 80),
        Some(Scope::BesideConnections)
    );
    assert_eq!(
        scene.claims.next_check(),
        None,
        "a check may change the scope"
    );
}

/// A UDP claim of a wildcard address includes the multicast and broadcast datagrams of its IP
/// version. A UDP claim of one address does not include them, and neither does a TCP claim.
#[test]
fn a_wildcard_claim_of_udp_has_all_groups() {
    let mut scene = Scene::new();
    let port = |cookie, protocol| Owner::MuxPort { cookie, protocol };
    let groups = |scene: &Scene| {
        let demux = scene.demux_claims.lock().unwrap();
        let of = |addr, proto| Claim {
            addr,
            proto,
            port: 53,
        };
        [Claim::GROUP_V4, Claim::GROUP_V6].map(|group| {
            assert!(!demux.contains_key(&of(group, protocol::TCP)));
            demux.get(&of(group, protocol::UDP)).copied()
        })
    };
    let (v4, v6) = (IpAddress::UNSPECIFIED_V4, IpAddress::UNSPECIFIED_V6);
    scene.claim(port(1, protocol::TCP), v4, 53).unwrap();
    scene
        .claim(port(2, protocol::UDP), FIRST_ADDRESS, 53)
        .unwrap();
    assert_eq!(groups(&scene), [None, None]);
    scene
        .claims
        .end_claim((port(2, protocol::UDP), end(FIRST_ADDRESS, 53)))
        .unwrap();
    let udp = port(3, protocol::UDP);
    scene.claim(udp, v4, 53).unwrap();
    assert_eq!(groups(&scene), [Some(Scope::Whole), None]);
    scene.claim(udp, v6, 53).unwrap();
    scene.claims.set_addresses(vec![SECOND_ADDRESS]).unwrap();
    assert_eq!(groups(&scene), [Some(Scope::Whole); 2]);
    for addr in [v4, v6] {
        scene.claims.end_claim((udp, end(addr, 53))).unwrap();
    }
    assert_eq!(groups(&scene), [None, None]);
}
