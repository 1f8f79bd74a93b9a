//! Tests of a program whose service has several cores (polling threads). A slot is the record of a
//! connection in shared memory. A request about a slot goes to the core that owns the slot.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use tidelane_abi::{control_event, control_request, data_event, data_request};
use tidelane_client::{ClientEvent, Connect, Context, ListenerHandle, Program};
use tidelane_ring::{
    ControlEventProducer, ControlRequestConsumer, DataEventProducer, DataRequestConsumer, Layout,
    ProgramRegion, ServicePageMap, core_of, words::DataWord,
};

const CORES: u32 = 3;

/// A core's ends of the rings of the program's first context. A context is the set of rings of one
/// thread of the program.
struct Core {
    data_requests: DataRequestConsumer,
    data_events: DataEventProducer,
    control_requests: ControlRequestConsumer,
    control_events: ControlEventProducer,
    /// Number of the core's first slot.
    first_slot: u32,
}

impl Core {
    fn words(&mut self) -> Vec<DataWord> {
        let words = std::iter::from_fn(|| self.data_requests.pop().unwrap());
        words.map(DataWord::decode).collect()
    }
}

/// A program with one context, and each core's ends of the context's rings.
struct Service {
    cores: Vec<Core>,
    region: Arc<ProgramRegion>,
    page: Arc<ServicePageMap>,
    /// Number of times that the program has rung the doorbell of a core, which wakes the core.
    rung: Arc<AtomicU32>,
    program: Program,
    context: Context,
}

fn service() -> Service {
    let layout = Layout::new(96, 128 << 20, 1 << 20).unwrap();
    let region = Arc::new(ProgramRegion::heap(&layout).unwrap());
    let page = Arc::new(ServicePageMap::heap(CORES).unwrap());
    let rung = Arc::new(AtomicU32::new(0));
    let bell = rung.clone();
    let program = Program::in_memory(region.clone(), page.clone(), move || {
        bell.fetch_add(1, Ordering::Relaxed);
    });
    let core = |core| {
        let share = layout.share(core, CORES);
        let rings = share.ring_set(0).unwrap();
        Core {
            data_requests: DataRequestConsumer::new(region.clone(), rings).unwrap(),
            data_events: DataEventProducer::new(region.clone(), rings).unwrap(),
            control_requests: ControlRequestConsumer::new(region.clone(), rings).unwrap(),
            control_events: ControlEventProducer::new(region.clone(), rings).unwrap(),
            first_slot: share.slots.start,
        }
    };
    let context = program.new_context().unwrap();
    Service {
        cores: (0..CORES).map(core).collect(),
        region: region.clone(),
        page,
        rung,
        program,
        context,
    }
}

#[test]
fn requests_about_a_slot_ring_only_its_core() {
    let mut service = service();
    for line in (0..CORES).map(|core| service.page.core(core).unwrap()) {
        line.needs_wakeup.store(1, Ordering::Relaxed);
    }
    assert!(service.page.all_cores_sleep());
    let last = service.cores[2].first_slot + 1;
    let view = service.region.slot(last).unwrap();
    view.service().generation.store(1, Ordering::Relaxed);
    view.service().tx_limit.store(1 << 16, Ordering::Relaxed);
    let mut stream = service.program.stream(last, 1, 0).unwrap();
    assert_eq!(stream.write(b"x"), 1);
    service.context.submit(&mut stream);
    service.context.assign(last);
    service.context.accept_taken(ListenerHandle(7), last);
    service.context.flush();
    assert_eq!(service.rung.load(Ordering::Relaxed), 1);
    let kinds = |core: &mut Core| {
        core.words()
            .iter()
            .map(|word| word.kind)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        kinds(&mut service.cores[2]),
        [
            data_request::ADVANCE,
            data_request::ASSIGN,
            data_request::ACCEPT_TAKEN
        ]
    );
    service.context.assign(service.cores[1].first_slot);
    service.context.flush();
    assert_eq!(service.rung.load(Ordering::Relaxed), 2);
    assert_eq!(kinds(&mut service.cores[1]), [data_request::ASSIGN]);
    assert!(kinds(&mut service.cores[0]).is_empty() && kinds(&mut service.cores[2]).is_empty());
}

#[test]
fn slots_without_a_core_are_ignored() {
    let mut service = service();
    // All existing slots have a core, so use a slot that does not exist.
    service.context.assign(u32::MAX);
    service.context.flush();
    assert!(service.cores.iter_mut().all(|core| core.words().is_empty()));
}

#[test]
fn listeners_are_joined_on_all_cores_and_connects_go_where_the_connection_will_be() {
    let mut service = service();
    let listener = ListenerHandle(4);
    service.context.listener_join(listener, 9).unwrap();
    service.context.listener_leave(listener).unwrap();
    service.context.flush();
    for core in &mut service.cores {
        for kind in [
            control_request::LISTENER_JOIN,
            control_request::LISTENER_LEAVE,
        ] {
            let request = core.control_requests.pop().unwrap().unwrap();
            assert_eq!((request.kind, request.listener), (kind, 4));
        }
    }
    for local_port in 1000..1030 {
        let bound = Connect {
            local_port,
            peer_port: 80,
            ..Connect::default()
        };
        service.context.connect(&bound).unwrap();
        service.context.flush();
        let core = core_of(local_port, 80, CORES) as usize;
        let request = service.cores[core].control_requests.pop().unwrap().unwrap();
        assert_eq!(request.local_port, local_port);
    }
    // Connects without a local port go to the cores in turn.
    let any = Connect::default();
    (0..CORES).for_each(|_| service.context.connect(&any).unwrap());
    service.context.flush();
    for core in &mut service.cores {
        assert!(core.control_requests.pop().unwrap().is_some(), "in turn");
        assert!(core.control_requests.pop().unwrap().is_none());
    }
}

/// A context distributes connects without a local port over the cores in turn. With a service in
/// this process (simulator), the first core must not depend on the process id, so that simulated
/// runs are reproducible.
#[test]
fn in_memory_connects_begin_with_the_same_core_in_every_process() {
    let mut service = service();
    service.context.connect(&Connect::default()).unwrap();
    service.context.flush();
    let asked = |core: &mut Core| core.control_requests.pop().unwrap().is_some();
    let asked: Vec<bool> = service.cores.iter_mut().map(asked).collect();
    assert_eq!(asked, [false, true, false]);
}

#[test]
fn events_of_all_cores_are_reported_and_keep_a_context_awake() {
    let mut service = service();
    assert!(service.context.prepare_to_sleep());
    service.context.cancel_sleep();
    let mut accepted = tidelane_abi::ControlEvent {
        kind: control_event::ACCEPTED,
        slot: service.cores[1].first_slot,
        generation: 1,
        cause: 0,
        cookie: 5,
        listener: 3,
        syn_room: 0,
        reserved: Default::default(),
    };
    service.cores[1].control_events.push(accepted).unwrap();
    service.cores[1].control_events.publish();
    // The program ignores this event, because slot 96 does not exist.
    accepted.slot = 96;
    service.cores[0].control_events.push(accepted).unwrap();
    service.cores[0].control_events.publish();
    let ready = service.cores[2].first_slot;
    let word = DataWord::new(data_event::READY, ready).encode();
    service.cores[2].data_events.push(word).unwrap();
    service.cores[2].data_events.publish();
    assert!(service.context.has_events());
    assert!(!service.context.prepare_to_sleep());
    let mut events = Vec::new();
    assert_eq!(service.context.poll(&mut |event| events.push(event)), 2);
    assert_eq!(
        events,
        [
            ClientEvent::Accepted {
                cookie: 5,
                listener: ListenerHandle(3),
                slot: service.cores[1].first_slot,
                generation: 1,
            },
            ClientEvent::Ready { slot: ready },
        ]
    );
    assert!(service.context.prepare_to_sleep());
    // Each core has its own word in which it checks whether the context sleeps.
    for core in 0..CORES {
        let rings = service
            .region
            .layout()
            .share(core, CORES)
            .ring_set(0)
            .unwrap();
        let head = service.region.ring_set(rings).unwrap().head;
        assert_eq!(head.needs_wakeup.load(Ordering::Relaxed), 1);
    }
}

/// Each context needs a set of rings for each core, so the number of contexts depends on the number
/// of cores.
#[test]
fn contexts_end_where_the_cores_rings_end() {
    let service = service();
    let left = tidelane_ring::contexts_max(CORES) - 1;
    let contexts: Vec<_> = (0..left).map(|_| service.program.new_context()).collect();
    assert!(contexts.iter().all(Result::is_ok));
    assert!(service.program.new_context().is_err());
}
