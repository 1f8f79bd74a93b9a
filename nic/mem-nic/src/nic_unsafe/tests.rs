//! Tests of the simulated NIC: frames on the wire, exchanged frames, and changes during a
//! transmission.

use std::cell::Cell;

use tidelane_time::Duration;

use super::*;

fn nic(config: NicConfig) -> (Nic, WireEnd, Clock) {
    let clock: Clock = Rc::new(Cell::new(Instant::from_secs(1)));
    let (nic, end) = Nic::new(config, &clock);
    (nic, end, clock)
}

fn send(nic: &mut Nic, data: &[u8]) {
    nic.tx_frame().expect("free")[..data.len()].copy_from_slice(data);
    nic.tx_commit(data.len(), TxChecksum::Done);
    nic.tx_flush();
}

#[test]
fn frames_cross_the_wire_and_return_when_complete() {
    let config = NicConfig {
        tx_frames: 1,
        rx_frames: 2,
        is_shared: false,
        ..NicConfig::default()
    };
    let (mut nic, end, clock) = nic(config);
    assert!(nic.shared_frames().is_none());
    send(&mut nic, b"out");
    assert_eq!(end.take_sent(), [b"out"]);
    assert!(!end.is_full());
    assert!(nic.tx_frame().is_none() && end.is_full() && !end.is_complete());
    clock.set(clock.get() + config.completion);
    assert!(nic.tx_frame().is_some() && end.is_complete() && !end.is_full());

    assert!(end.deliver(b"one") && end.deliver(&[7; 1515]) && !end.deliver(b"three"));
    let mut burst = nic.new_burst();
    assert_eq!(nic.rx_burst(&mut burst, 64), 1, "a long frame is dropped");
    assert_eq!(burst.frame(0), Some(&b"one"[..]));
    assert!(!end.is_complete() && !end.has_arrived());
    nic.rx_release(&mut burst);
    assert!(end.is_complete() && end.deliver(b"three"));
}

/// Returns a NIC to which the test has lent the first free frame, with `data` in it. Also returns
/// the NIC's clock, and the memory of all frames.
fn lent(data: &[u8]) -> (Nic, Clock, FrameMemory) {
    let (mut nic, end, clock) = nic(NicConfig::default());
    let memory = nic.take_memory().expect("the first call");
    assert!(nic.take_memory().is_none());
    let frame = FrameData {
        number: memory.free.start,
        range: 100..100 + data.len() as u32,
    };
    // SAFETY: the frame is free, and the test alone has it.
    unsafe { nic.memory.bytes_mut(frame.number, frame.range.clone()) }.copy_from_slice(data);
    // SAFETY: as above. One test then breaks the rule not to write to a lent frame, and expects the
    // NIC's panic.
    unsafe { nic.tx_lend(frame, TxChecksum::Done) }.expect("room");
    nic.tx_flush();
    assert_eq!(end.take_sent(), [data]);
    (nic, clock, memory)
}

#[test]
fn a_lent_frame_returns_after_its_transmission() {
    let (mut nic, clock, memory) = lent(b"lent");
    assert_eq!(nic.tx_returned(), None);
    clock.set(clock.get() + Duration::from_micros(10));
    assert_eq!(nic.tx_returned(), Some(memory.free.start));
    assert_eq!(nic.tx_returned(), None);
}

#[test]
#[should_panic(expected = "a frame changed during its transmission")]
fn a_change_of_a_lent_frame_is_noticed() {
    let (mut nic, clock, memory) = lent(b"lent");
    // SAFETY: nobody borrows the frame.
    unsafe { nic.memory.bytes_mut(memory.free.start, 100..101) }.fill(b'x');
    clock.set(clock.get() + Duration::from_micros(10));
    nic.tx_returned();
}

#[test]
fn a_received_frame_is_exchanged() {
    let (mut nic, end, _) = nic(NicConfig::default());
    let memory = nic.take_memory().expect("the first call");
    assert!(end.deliver(b"kept"));
    let mut burst = nic.new_burst();
    assert_eq!(nic.rx_burst(&mut burst, 1), 1);
    // SAFETY: the frame is free, and nobody accesses it.
    let kept = unsafe { nic.rx_exchange(&mut burst, 0, memory.free.start) }.expect("a frame");
    nic.rx_release(&mut burst);
    assert!(end.is_complete());
    // SAFETY: the frame belongs to the test now.
    let bytes = unsafe { nic.memory.bytes(kept.number, kept.range) };
    assert_eq!(bytes, b"kept");
}
