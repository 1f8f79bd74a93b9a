//! Tests of a context, which is the set of rings over which one thread of a program exchanges
//! requests and events with the service. The tests cover requests, events, the sleep protocol,
//! corrupt rings and routes.
//!
//! A slot is the record of a connection in shared memory. A core is a polling thread of the
//! service. A doorbell wakes a sleeping core or a sleeping thread of the program.

use std::sync::atomic::Ordering;

use tidelane_abi::{
    DATA_RING_LEN, ROUTE_ACCELERATED, ROUTE_ASK_SERVICE, control_event, control_request,
    data_event, data_request, program_flags,
};
use tidelane_client::{ClientEvent, Connect, Context, ListenerHandle, QueueError, Refusal};
use tidelane_ring::{PublishedRoute, words::DataWord};

use crate::fake_service::FakeService;

fn events(context: &mut Context) -> Vec<ClientEvent> {
    let mut events = Vec::new();
    let count = context.poll(&mut |event| events.push(event));
    assert_eq!(count, events.len());
    events
}

#[test]
fn requests_reach_the_service_at_the_flush() {
    let mut service = FakeService::new();
    let mut context = service.program().new_context().unwrap();
    let request = Connect {
        cookie: 7,
        peer_addr: [9; 16],
        peer_port: 443,
        local_port: 5,
        flags: program_flags::NODELAY,
        ..Connect::default()
    };
    context.connect(&request).unwrap();
    context.listener_join(ListenerHandle(3), 11).unwrap();
    context.listener_leave(ListenerHandle(4)).unwrap();
    assert!(context.has_queued() && service.control_request().is_none());
    context.flush();
    assert!(!context.has_queued());
    let got = service.control_request().unwrap();
    assert_eq!(
        (got.kind, got.cookie, got.flags),
        (control_request::CONNECT, 7, 1 << 4)
    );
    assert_eq!(
        (got.peer_addr, got.peer_port, got.local_port),
        ([9; 16], 443, 5)
    );
    let got = service.control_request().unwrap();
    assert_eq!(
        (got.kind, got.listener, got.cookie),
        (control_request::LISTENER_JOIN, 3, 11)
    );
    let got = service.control_request().unwrap();
    assert_eq!(
        (got.kind, got.listener),
        (control_request::LISTENER_LEAVE, 4)
    );
}

#[test]
fn events_are_reported_and_invalid_events_are_not() {
    let mut service = FakeService::new();
    let mut context = service.program().new_context().unwrap();
    let generation = service.begin(5, 1 << 16, 1 << 16);
    service.control_event(control_event::CONNECT_STARTED, 5, 1, 0);
    service.control_event(control_event::CONNECT_FAILED, 0, 2, 0);
    service.control_event(control_event::CONNECT_KERNEL, 0, 3, 0);
    service.control_event(control_event::ACCEPTED, 5, 4, 8);
    // Slot 64 does not exist. The number 99 is no kind of control event, and 77 is no kind of data
    // event.
    service.control_event(control_event::ACCEPTED, 64, 4, 8);
    service.control_event(99, 5, 4, 8);
    service.ready(5);
    service.ready(64);
    service
        .data_events
        .push(DataWord::new(77, 5).encode())
        .unwrap();
    assert!(!context.has_events());
    assert!(!service.publish());
    assert!(context.has_events());
    let listener = ListenerHandle(8);
    assert_eq!(
        events(&mut context),
        [
            ClientEvent::ConnectStarted {
                cookie: 1,
                slot: 5,
                generation,
                syn_room: 0,
            },
            ClientEvent::ConnectFailed {
                cookie: 2,
                cause: 4
            },
            ClientEvent::ConnectKernel {
                cookie: 3,
                reason: 4
            },
            ClientEvent::Accepted {
                cookie: 4,
                listener,
                slot: 5,
                generation
            },
            ClientEvent::Ready { slot: 5 },
        ]
    );
    assert!(events(&mut context).is_empty());
}

#[test]
fn a_stream_is_queued_once_per_flush() {
    let mut service = FakeService::new();
    let program = service.program();
    let mut context = program.new_context().unwrap();
    let generation = service.begin(5, 1 << 16, 1 << 16);
    let mut stream = program.stream(5, generation, 0).unwrap();
    context.submit(&mut stream);
    assert!(!context.has_queued());
    for _ in 0..3 {
        assert_eq!(stream.write(b"x"), 1);
        context.submit(&mut stream);
    }
    context.assign(5);
    context.accept_taken(ListenerHandle(2), 5);
    context.flush();
    let words = [
        DataWord::new(data_request::ADVANCE, 5),
        DataWord::with_arg(data_request::ASSIGN, 0, 5),
        DataWord::with_arg(data_request::ACCEPT_TAKEN, 1, 2),
    ];
    assert_eq!(service.requests(), words);
    context.submit(&mut stream);
    context.flush();
    assert!(service.requests().is_empty());
    assert_eq!(stream.write(b"x"), 1);
    context.submit(&mut stream);
    context.flush();
    assert_eq!(service.requests(), words[..1]);
}

#[test]
fn requests_wait_until_the_ring_has_room() {
    let mut service = FakeService::new();
    let mut context = service.program().new_context().unwrap();
    let total = DATA_RING_LEN + 100;
    (0..total).for_each(|slot| context.assign(slot));
    service
        .page
        .core(0)
        .unwrap()
        .needs_wakeup
        .store(1, Ordering::Relaxed);
    context.flush();
    assert!(context.has_queued());
    assert_eq!(service.rung.load(Ordering::Relaxed), 1);
    assert!(!context.prepare_to_sleep());
    let mut got = service.requests();
    context.flush();
    got.extend(service.requests());
    assert!(got.iter().map(|word| word.slot).eq(0..total));
    assert!(!context.has_queued() && context.prepare_to_sleep());

    for _ in 0..tidelane_abi::CONTROL_RING_LEN {
        context.connect(&Connect::default()).unwrap();
    }
    assert_eq!(context.connect(&Connect::default()), Err(QueueError::Full));
    assert!(service.control_request().is_some());
    assert_eq!(context.connect(&Connect::default()), Ok(()));
}

#[test]
fn the_doorbell_is_rung_only_when_a_core_sleeps() {
    let service = FakeService::new();
    let mut context = service.program().new_context().unwrap();
    let core = service.page.core(0).unwrap();
    let rung = || service.rung.load(Ordering::Relaxed);
    context.assign(1);
    context.flush();
    assert_eq!(rung(), 0);
    assert!(!service.page.all_cores_sleep());
    core.needs_wakeup.store(1, Ordering::Relaxed);
    assert!(service.page.all_cores_sleep());
    context.flush();
    assert_eq!(rung(), 0, "nothing was published");
    context.assign(1);
    context.flush();
    assert_eq!(rung(), 1);
    assert!(context.shares_cpu(Some(0)) && context.shares_cpu(None));
    // The word `cpu` contains the number of the CPU to which the core is pinned, plus one. So far,
    // the word was 0: the core may run on any CPU.
    core.cpu.store(1, Ordering::Relaxed);
    assert!(context.shares_cpu(Some(0)) && !context.shares_cpu(Some(1)));
    assert!(
        context.shares_cpu(None),
        "the thread may run on the core's CPU"
    );
}

#[test]
fn a_sleeper_is_woken_once_and_does_not_sleep_with_events_pending() {
    let mut service = FakeService::new();
    let mut context = service.program().new_context().unwrap();
    assert!(context.prepare_to_sleep());
    service.ready(1);
    assert!(service.publish());
    service.ready(2);
    assert!(!service.publish(), "only one waker rings");
    context.cancel_sleep();
    assert!(!context.prepare_to_sleep(), "events are pending");
    assert_eq!(events(&mut context).len(), 2);
    service.ready(3);
    assert!(!service.publish(), "the sleep was cancelled");
}

#[test]
fn a_corrupt_producer_position_ends_the_session() {
    let service = FakeService::new();
    let program = service.program();
    let mut context = program.new_context().unwrap();
    let head = service.region.ring_set(0).unwrap().head;
    head.data_event.produced.store(1 << 20, Ordering::Relaxed);
    assert!(program.is_service_alive());
    assert!(events(&mut context).is_empty());
    assert!(!program.is_service_alive() && program.service_known_gone());
    assert!(!context.prepare_to_sleep());
    assert_eq!(
        context.connect(&Connect::default()),
        Err(QueueError::ServiceGone)
    );
}

#[test]
fn a_consumer_that_overtakes_the_producer_ends_the_session() {
    let service = FakeService::new();
    let program = service.program();
    let mut context = program.new_context().unwrap();
    let head = service.region.ring_set(0).unwrap().head;
    head.data_request.consumed.store(5, Ordering::Relaxed);
    (0..2 * DATA_RING_LEN).for_each(|slot| context.assign(slot));
    context.flush();
    assert!(program.service_known_gone());
}

#[test]
fn the_number_of_contexts_is_limited() {
    let service = FakeService::new();
    let program = service.program();
    let contexts: Vec<Context> = (0..128).map(|_| program.new_context().unwrap()).collect();
    assert!(contexts.iter().map(Context::id).eq(0..128));
    for _ in 0..2 {
        assert!(matches!(program.new_context(), Err(Refusal::Limit(_))));
    }
}

#[test]
fn routes_decide_which_connections_are_accelerated() {
    let service = FakeService::new();
    let program = service.program();
    assert!(!program.route_accelerated([1; 16]));
    let route = |n, handling| PublishedRoute {
        addr: [n; 16],
        prefix_len: 128,
        handling,
    };
    service
        .page
        .set_routes(&[route(1, ROUTE_ACCELERATED), route(2, ROUTE_ASK_SERVICE)])
        .unwrap();
    assert!(program.route_accelerated([1; 16]) && program.route_accelerated([2; 16]));
    assert_eq!(program.route([2; 16]), ROUTE_ASK_SERVICE);
    assert!(!program.route_accelerated([3; 16]));
    program.mark_service_gone();
    assert!(!program.route_accelerated([1; 16]));
}

#[test]
fn data_events_decode_as_in_the_abi() {
    let mut service = FakeService::new();
    let mut context = service.program().new_context().unwrap();
    let words = [
        u64::from(data_event::READY) << 56 | 9,
        u64::from(data_event::RELEASED) << 56 | 9,
    ];
    words
        .iter()
        .for_each(|&word| service.data_events.push(word).unwrap());
    service.publish();
    let expected = [
        ClientEvent::Ready { slot: 9 },
        ClientEvent::Released { slot: 9 },
    ];
    assert_eq!(events(&mut context), expected);
}
