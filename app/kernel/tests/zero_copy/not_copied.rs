//! Zero-copy sends (the kernel reads the program's buffers) whose payload the kernel does not copy.
//!
//! A veth device with an XDP program copies each packet into a page of its own before the receiver
//! gets the packet, as the DMA of a NIC does. The sender's stack then does not copy the payload.
//! The notification, which tells the sender that the kernel has finished reading the buffers,
//! reports no copy.

use tidelane_kernel::{KernelOptions, ZeroCopy};

use crate::{Joined, WINDOW, always, learn, lend, link::VethPair, pattern, read_slowly};

/// Returns options with which a report of a copy ends the zero-copy sends.
fn learning() -> KernelOptions {
    KernelOptions {
        zero_copy: ZeroCopy::WhereItPays { min: 1 },
        ..always()
    }
}

/// With an XDP program, the kernel reports no copy of the first send, and the second send is a
/// zero-copy send, too. Without a program, the kernel reports a copy, and the second send copies.
#[test]
fn zero_copy_sends_go_on_without_reports_of_copies() {
    for has_program in [false, true] {
        let Some(pair) = VethPair::new() else {
            return;
        };
        let program = has_program.then(|| pair.attach());
        let Some(mut joined) = Joined::with(&learning(), &pair.listen(), WINDOW / 4) else {
            return;
        };
        learn(&mut joined);
        // The data fits into the socket's send buffer, but not into the peer's receive window.
        let data = pattern(40_000);
        let (free, still_free) = lend(&mut joined, &data);
        assert_eq!(
            still_free < free,
            has_program,
            "{still_free} of {free} buffers are free after the send"
        );
        let reader = read_slowly(joined.stream.try_clone().expect("a socket"), data.len());
        joined.sync_until(|_| reader.is_finished());
        assert!(reader.join().expect("the data") == data);
        joined.sync_until(|joined| joined.free() == free);
        drop(program);
    }
}

#[test]
fn a_slow_peer_gets_each_byte_without_copies() {
    let Some(pair) = VethPair::new() else {
        return;
    };
    let _program = pair.attach();
    let Some(mut joined) = Joined::with(&learning(), &pair.listen(), WINDOW) else {
        return;
    };
    let free = joined.free();
    let data = pattern(2_000_000);
    let reader = read_slowly(joined.stream.try_clone().expect("a socket"), data.len());
    let mut queued = 0;
    joined.sync_until(|joined| {
        queued += joined.queue_some(&data[queued..]);
        reader.is_finished()
    });
    assert!(reader.join().expect("the data") == data);
    joined.sync_until(|joined| joined.free() == free);
}
