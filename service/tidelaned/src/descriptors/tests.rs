//! Tests of the threads that check descriptors which programs sent. Each user has one thread, which
//! starts with the user's first session. The tests make the descriptors.

use std::{
    io::Write,
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidelane_ring::registration::new_message;

use super::*;

/// Index of the loopback interface.
const LOOPBACK: u32 = 1;
/// Time after which a test fails if no check has ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a set without threads. Returns `None` if this process does not run as root.
fn threads() -> Option<DescriptorThreads> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return None;
    }
    Some(DescriptorThreads::new(LOOPBACK).expect("threads"))
}

/// Returns a message of kind `kind` with `descriptors`, as session `session` receives it.
fn sent(session: u64, kind: u32, descriptors: Vec<OwnedFd>) -> MessageWithDescriptors {
    MessageWithDescriptors {
        session,
        message: new_message(kind),
        descriptors,
        addresses: vec![IpAddress::from(std::net::IpAddr::from([127, 0, 0, 1]))],
    }
}

/// Waits for the next checked message.
fn next(threads: &DescriptorThreads) -> CheckedMessage {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(checked) = threads.next() {
            return checked;
        }
        assert!(Instant::now() < until, "no check ends");
        let bell = threads.bell();
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let _ = poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&second));
    }
}

/// Returns an eventfd, the descriptor that a CONTEXT message requires.
fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")
}

#[test]
fn a_message_with_a_wrong_number_of_descriptors_is_malformed() {
    let Some(mut threads) = threads() else {
        return;
    };
    threads.join(1).expect("a thread");
    for (kind, count) in [
        (message::CONTEXT, 0),
        (message::CONTEXT, 2),
        (message::LISTEN, 0),
        (message::RESERVE, 2),
        (message::REPORT_NOT_ACCELERATED, 1),
        (message::REGISTER, 1),
        (u32::MAX, 1),
    ] {
        threads.check(1, sent(1, kind, (0..count).map(|_| bell()).collect()));
        let result = next(&threads).result;
        assert!(
            matches!(result, CheckResult::WrongCount),
            "{kind}: {result:?}"
        );
    }
    threads.check(1, sent(1, message::CONTEXT, vec![bell()]));
    assert!(matches!(next(&threads).result, CheckResult::Doorbell(_)));
    let file = std::fs::File::open("/dev/null").expect("a file");
    threads.check(1, sent(1, message::CONTEXT, vec![file.into()]));
    assert!(matches!(next(&threads).result, CheckResult::Unfit));
}

#[test]
fn a_checked_socket_has_a_reservation() {
    let Some(mut threads) = threads() else {
        return;
    };
    threads.join(1).expect("a thread");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("its name");
    threads.check(1, sent(1, message::LISTEN, vec![listener.into()]));
    let checked = next(&threads);
    let CheckResult::Entitled(entitled) = checked.result else {
        panic!("{checked:?}");
    };
    assert!(entitled.socket.listens());
    // The check has closed the last descriptor of the listener.
    assert!(TcpStream::connect(addr).is_err());
    let taken = TcpListener::bind(addr).expect_err("the reservation has the port");
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    drop(entitled);
    let listener = TcpListener::bind(addr).expect("the port is free");
    threads.check(1, sent(1, message::RESERVE, vec![listener.into()]));
    assert!(matches!(next(&threads).result, CheckResult::Unfit));
}

/// SUSPEND_LISTENER requires a TCP socket that does not listen. The check returns the cookie of the
/// socket.
#[test]
fn only_a_socket_that_listens_no_more_suspends_its_listener() {
    let Some(mut threads) = threads() else {
        return;
    };
    threads.join(1).expect("a thread");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client =
        TcpStream::connect(listener.local_addr().expect("a name")).expect("an accept queue");
    let mut check = |fd: OwnedFd| {
        threads.check(1, sent(1, message::SUSPEND_LISTENER, vec![fd]));
        next(&threads).result
    };
    let duplicate = listener.try_clone().expect("a descriptor");
    assert!(matches!(check(duplicate.into()), CheckResult::Unfit));
    assert!(matches!(check(bell()), CheckResult::Unfit));
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    assert!(matches!(check(datagrams.into()), CheckResult::Unfit));
    let cookie = |fd: &OwnedFd| rustix::net::sockopt::socket_cookie(fd).expect("a socket");
    for socket in [OwnedFd::from(client), listener.into()] {
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).expect("allowed");
        let expected = cookie(&socket);
        let result = check(socket);
        assert!(matches!(result, CheckResult::ListensNoMore(number) if number == expected));
    }
}

/// Returns a socket with unsent data and SO_LINGER, and the listener to which the socket is
/// connected. A `close` of the socket blocks for up to `seconds`, because nothing reads the data.
fn lingering(seconds: u64) -> (OwnedFd, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).expect("a connection");
    client.set_nonblocking(true).expect("allowed");
    while client.write(&[0; 65_536]).is_ok() {}
    let linger = Some(Duration::from_secs(seconds));
    rustix::net::sockopt::set_socket_linger(&client, linger).expect("allowed");
    client.set_nonblocking(false).expect("allowed");
    (client.into(), listener)
}

#[test]
fn a_descriptor_that_takes_long_to_close_holds_up_its_user_alone() {
    let Some(mut threads) = threads() else {
        return;
    };
    threads.join(1).expect("a thread");
    threads.join(2).expect("a thread");
    let (slow, _unread) = lingering(600);
    threads.check(1, sent(1, message::REPORT_NOT_ACCELERATED, vec![slow]));
    threads.check(1, sent(2, message::CONTEXT, vec![bell()]));
    threads.check(2, sent(3, message::CONTEXT, vec![bell()]));
    let checked = next(&threads);
    assert_eq!(
        checked.session, 3,
        "the other user's message waited: {checked:?}"
    );
    assert!(threads.next().is_none(), "the slow close held up nothing");
    // None of these calls waits for the slow socket.
    let (another, _unread_either) = lingering(600);
    threads.close(1, vec![another]);
    threads.leave(1, bell());
    assert!(threads.bell().as_fd().try_clone_to_owned().is_ok());
}
