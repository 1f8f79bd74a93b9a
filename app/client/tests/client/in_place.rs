//! Tests of in-place access to a stream: the program reads and writes the bytes directly in the
//! memory that it shares with the service, without copies. A part of a stream buffer is lent while
//! the program may access the part directly. A slot is the record of a connection in shared memory.

use std::sync::atomic::Ordering::Acquire;

use tidelane_client::{Context, Stream};

use crate::fake_service::FakeService;

const SLOT: u32 = 3;

/// Returns a fake service, a context (the rings of one thread of a program), and the stream of a
/// connection, with in-place access.
fn setup() -> (FakeService, Context, Stream) {
    let mut service = FakeService::new();
    let program = service.program();
    let context = program.new_context().unwrap();
    let generation = service.begin(SLOT, 1 << 16, 1 << 16);
    let mut stream = program.stream(SLOT, generation, 0).unwrap();
    stream.begin_in_place();
    (service, context, stream)
}

/// Submits the stream and lets the service handle the change.
fn exchange(service: &mut FakeService, context: &mut Context, stream: &mut Stream) {
    context.submit(stream);
    context.flush();
    service.advance();
}

/// Returns the word (offset and size) of the receive buffer that the program has confirmed most
/// recently. After the confirmation, the service may free the earlier receive buffers.
fn confirmed(service: &FakeService) -> u64 {
    let view = service.region.slot(SLOT).unwrap();
    view.program().rx_buffer_seen.load(Acquire)
}

#[test]
fn reserved_room_is_behind_the_written_bytes() {
    let (mut service, mut context, mut stream) = setup();
    let first = stream.reserve(0, 4096, 1).unwrap();
    assert_eq!(first.len, 4096);
    stream.set_room_lent(true);
    assert!(!stream.trim(), "a lent buffer is not freed");
    stream.commit(100);
    let next = stream.reserve(0, 50, 1).unwrap();
    assert_eq!(next.start, behind(first.start, 100));
    // The service sees nothing before the bytes are published.
    exchange(&mut service, &mut context, &mut stream);
    assert_eq!(service.unacked(SLOT).len(), 0);
    assert_eq!(stream.write_unpublished(&[7; 30]), 30);
    stream.publish();
    exchange(&mut service, &mut context, &mut stream);
    let unacked = service.unacked(SLOT);
    assert_eq!((unacked.len(), &unacked[100..]), (130, &[7; 30][..]));
    // The new send buffer also contains the unacknowledged bytes.
    let word = stream.tx_word();
    assert!(stream.replace_send_buffer() && stream.tx_word() != word);
    stream.publish();
    exchange(&mut service, &mut context, &mut stream);
    assert_eq!(service.unacked(SLOT), unacked);
    service.acknowledge(SLOT, 130);
    assert!(!stream.trim(), "the replaced buffer is still lent");
    stream.set_room_lent(false);
    stream.unacked();
    assert!(stream.trim());
}

/// Returns the address `offset` bytes after `start`.
fn behind(start: std::ptr::NonNull<u8>, offset: usize) -> std::ptr::NonNull<u8> {
    std::ptr::NonNull::new(start.as_ptr().wrapping_add(offset)).unwrap()
}

#[test]
fn room_ends_at_the_limit_and_at_the_wrap() {
    let (mut service, mut context, mut stream) = setup();
    // The limit of unacknowledged bytes is 64 KiB.
    assert!(stream.reserve(1 << 16, 100, 1).is_none(), "the limit");
    assert_eq!(stream.reserve((1 << 16) - 10, 100, 1).unwrap().len, 10);
    assert!(stream.reserve((1 << 16) - 10, 100, 11).is_none());
    assert_eq!(stream.write(&[1; 65_530]), 65_530);
    exchange(&mut service, &mut context, &mut stream);
    service.acknowledge(SLOT, 65_530);
    // The circular buffer has 64 KiB, so six bytes remain up to the end of its memory.
    assert_eq!(stream.reserve(0, 100, 1).unwrap().len, 6);
    assert_eq!(stream.reserve(6, 100, 1).unwrap().len, 100);
    stream.shutdown_write();
    assert!(stream.reserve(0, 100, 1).is_none());
}

#[test]
fn a_new_receive_buffer_is_confirmed_by_the_caller() {
    let (mut service, mut context, mut stream) = setup();
    assert!(service.receive(SLOT, &[1; 3000]));
    let first = stream.received_run(0).unwrap();
    assert_eq!(first.len, 3000);
    stream.confirm_rx_buffer();
    let word = stream.rx_word();
    assert_eq!(confirmed(&service), word);
    // The service replaces the buffer, and the stream finds the bytes in the new buffer.
    assert!(service.receive(SLOT, &[2; 3000]));
    let second = stream.received_run(3000).unwrap();
    assert_eq!(second.len, 3000);
    assert_ne!(stream.rx_word(), word);
    exchange(&mut service, &mut context, &mut stream);
    assert_eq!(confirmed(&service), word);
    stream.confirm_rx_buffer();
    assert!(stream.submit_due());
    exchange(&mut service, &mut context, &mut stream);
    assert_eq!(confirmed(&service), stream.rx_word());
    // `received_run` returns `None` for a position that is not the position of an unread byte.
    assert!(stream.received_run(6000).is_none());
    assert!(stream.received_run(u32::MAX).is_none());
    assert_eq!(stream.discard(4000), 4000);
    assert!(stream.received_run(3999).is_none());
    assert_eq!(stream.received_run(4000).unwrap().len, 2000);
}
