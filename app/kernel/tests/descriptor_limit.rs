//! A listener cannot accept while its process has no free descriptor. The limit of descriptors
//! applies to the whole process, so this test has a process of its own.

mod open;

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use rustix::{
    net::{AddressFamily, SocketType, connect, getsockname, socket},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use tidelane_kernel::KernelOptions;
use tidelane_rings::{Context, Events, ListenOptions, ReadyList, Wait};

use crate::open::open;

/// Time for which the process has no free descriptor.
const AT_LIMIT: Duration = Duration::from_millis(400);
/// Time limit of the wait in one sync.
const WAIT: Duration = Duration::from_millis(20);

fn set_descriptor_limit(limit: Rlimit) {
    setrlimit(Resource::Nofile, limit).expect("a limit up to the maximum");
}

#[test]
fn a_listener_without_descriptors_waits() {
    let Some(mut context) = open(&KernelOptions::default()) else {
        return;
    };
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let listener = context
        .listen(any, &ListenOptions::default())
        .expect("a free port");
    let address = getsockname(context.socket(listener).expect("a socket")).expect("bound");
    let address = SocketAddr::try_from(address).expect("an address");
    let client = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let mut list = ReadyList::new();

    // The first sync submits the accept request, and the kernel then reads the limit. The limit is
    // therefore set before the first sync.
    let before = getrlimit(Resource::Nofile);
    set_descriptor_limit(Rlimit {
        current: Some(3),
        maximum: before.maximum,
    });
    connect(&client, &address).expect("the backlog has room");
    let (start, mut syncs) = (Instant::now(), 0);
    while start.elapsed() < AT_LIMIT {
        context.sync(&mut list, Wait::For(WAIT)).expect("a ring");
        assert!(list.is_empty(), "no descriptor is free");
        syncs += 1;
    }
    // About 20 waits end by their time limit, and a few by a new attempt to accept. A loop that
    // does not wait would make thousands of syncs.
    assert!(syncs < 60, "{syncs} syncs");

    set_descriptor_limit(before);
    let start = Instant::now();
    while list.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "no accept");
        context.sync(&mut list, Wait::For(WAIT)).expect("a ring");
    }
    let entry = list.entry(0);
    assert!(entry.events.intersects(Events::ACCEPTED));
    assert_eq!(entry.listener, Some(listener));

    // The program closes the listener while the process has no free descriptor.
    set_descriptor_limit(Rlimit {
        current: Some(3),
        maximum: before.maximum,
    });
    context.close(entry.descriptor);
    context.close(listener);
    context.sync(&mut list, Wait::For(WAIT)).expect("a ring");
    assert!(!context.is_open(listener));
    set_descriptor_limit(before);
}
