//! Tests of registration messages: order of descriptors, invalid messages and leaks.

use std::os::fd::AsFd;

use rustix::{
    fs::{MemfdFlags, memfd_create},
    net::{AddressFamily, SocketFlags, SocketType, send, socketpair},
};
use tidelane_abi::message;

use super::*;

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn file(content: &[u8]) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&fd, content, 0).unwrap();
    fd
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_message_arrives_with_its_descriptors_in_order() {
    let (a, b) = pair();
    let mut sent = new_message(message::REGISTER);
    sent.name[..4].copy_from_slice(b"test");
    let (first, second) = (file(b"first"), file(b"second"));
    send_message(a.as_fd(), &sent, &[first.as_fd(), second.as_fd()]).unwrap();
    let (got, descriptors) = recv_message(b.as_fd()).unwrap().unwrap();
    assert_eq!(to_bytes(&got), to_bytes(&sent));
    assert_eq!(descriptors.len(), 2);
    for (fd, expected) in descriptors.iter().zip([&b"first"[..], b"second"]) {
        let mut content = [0; 16];
        let len = rustix::io::pread(fd, &mut content, 0).unwrap();
        assert_eq!(&content[..len], expected);
        let flags = rustix::io::fcntl_getfd(fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}

#[test]
fn an_empty_socket_differs_from_a_closed_one() {
    let (a, b) = pair();
    let Err(RecvError::Io(error)) = recv_message(b.as_fd()) else {
        panic!("nothing was sent")
    };
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    drop(a);
    assert!(recv_message(b.as_fd()).unwrap().is_none());
}

#[test]
fn wrong_sizes_magic_and_version_are_refused() {
    let (a, b) = pair();
    let good = to_bytes(&new_message(message::LISTEN));
    let mut long = good.to_vec();
    long.push(0);
    let mut magic = good;
    magic[0] ^= 1;
    for bad in [&good[..95], &long, &good[..10], &good[..3], &magic] {
        send(&a, bad, SendFlags::empty()).unwrap();
        assert!(
            matches!(recv_message(b.as_fd()), Err(RecvError::Malformed)),
            "{}",
            bad.len()
        );
    }
    // A future version is recognised even if its messages have another size.
    long[8..12].copy_from_slice(&(ABI_VERSION + 7).to_ne_bytes());
    send(&a, &long, SendFlags::empty()).unwrap();
    let Err(RecvError::Version(theirs)) = recv_message(b.as_fd()) else {
        panic!("accepted")
    };
    assert_eq!(theirs, ABI_VERSION + 7);
}

// This test counts all descriptors of the process. The comparison tolerates the descriptors of
// concurrent tests. Each message is sent 100 times, so that a leak exceeds the tolerance.
#[test]
fn refused_descriptors_are_closed() {
    let (a, b) = pair();
    let many: Vec<OwnedFd> = (0..DESCRIPTORS_MAX + 2).map(|_| file(b"x")).collect();
    let borrowed: Vec<BorrowedFd<'_>> = many.iter().map(|fd| fd.as_fd()).collect();
    let before = open_descriptors();
    for _ in 0..100 {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX + 2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        let bytes = to_bytes(&new_message(message::LISTEN));
        sendmsg(
            &a,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        assert!(matches!(recv_message(b.as_fd()), Err(RecvError::Malformed)));
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed[..3])));
        sendmsg(
            &a,
            &[IoSlice::new(b"short")],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        assert!(matches!(recv_message(b.as_fd()), Err(RecvError::Malformed)));
    }
    assert!(open_descriptors() < before + 100);
}
