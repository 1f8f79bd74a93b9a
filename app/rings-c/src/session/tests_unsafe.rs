//! Tests of [`Session`] on two back ends that do not use the kernel's TCP: a back end that lends
//! its own memory, and the Tidelane TCP engine on a link in memory.

use std::{cell::Cell, io, rc::Rc, time::Duration};

use tidelane_direct::{DirectContext, DirectOptions, TimeSource};
use tidelane_embedded::{Instant, IpAddress, MemConfig, MemPort};

use super::{
    lending_unsafe::{DESCRIPTOR, Lending, SEND_LEN, Seen},
    *,
};

/// Returns a session that receives `data` in parts of `part_len` bytes, with at most `per_list`
/// parts in a ready list. `Seen` shows the parts that the back end has lent, and the payloads that
/// the session has sent.
fn lending(data: &[u8], part_len: usize, per_list: usize) -> (Session, Rc<Seen>) {
    let (context, seen) = Lending::new(data, part_len, per_list);
    (Session::new(Box::new(context), 1), seen)
}

/// Returns the payload of a buffer.
fn bytes(session: &Session, buffer: i64) -> Vec<u8> {
    let (start, len) = session.payload(buffer).expect("a buffer");
    // SAFETY: the session has the buffer, and nobody writes it meanwhile.
    unsafe { std::slice::from_raw_parts(start.as_ptr(), len as usize) }.to_vec()
}

/// Makes `data` the payload of a buffer.
fn write(session: &mut Session, buffer: i64, data: &[u8]) {
    session
        .set_payload(buffer, 0, data.len() as u32)
        .expect("room");
    let (start, len) = session.writable_payload(buffer).expect("a buffer");
    assert_eq!(len as usize, data.len());
    // SAFETY: the session has the buffer, whose payload has this length and is writable.
    unsafe { start.copy_from_nonoverlapping(NonNull::from(data).cast(), data.len()) };
}

#[test]
fn lent_data_is_read_in_place_and_returns_to_its_lender() {
    let (mut session, seen) = lending(b"abcdefghijklmnop", 4, 2);
    assert_eq!(session.sync(0), Ok(1));
    assert_eq!((session.slot_count(), seen.lent()), (2, (2, 0)));
    let (first, second) = (session.slot(0).unwrap(), session.slot(1).unwrap());
    assert_eq!((first.next, second.next), (1, NONE));
    assert_eq!(bytes(&session, first.buffer), b"abcd");
    assert_eq!(bytes(&session, second.buffer), b"efgh");
    // The payload cannot grow into the next part.
    assert_eq!(session.capacity(first.buffer), Ok(4));
    assert_eq!(session.set_payload(first.buffer, 0, 5), Err(Error::LENGTH));
    session.hold(second.buffer).expect("in the list");
    assert_eq!(session.sync(0), Ok(1));
    // The first part is free, the second is held, and the new list has the third and the fourth.
    assert_eq!(seen.lent(), (3, 0));
    assert_eq!(
        session.payload(first.buffer).err(),
        Some(Error::BUFFER_GONE)
    );
    assert_eq!(bytes(&session, second.buffer), b"efgh");
    session.release(second.buffer).expect("held");
    assert_eq!(session.sync(0), Ok(0));
    assert_eq!((seen.lent(), session.counters().buffers_held), ((0, 0), 0));
}

#[test]
fn a_change_of_received_data_is_a_copy() {
    let (mut session, seen) = lending(b"abcdefgh", 4, 2);
    session.sync(0).expect("data");
    let slot = session.slot(0).unwrap();
    let before = session.payload(slot.buffer).unwrap().0;
    write(&mut session, slot.buffer, b"wxyz");
    let after = session.payload(slot.buffer).unwrap().0;
    assert_ne!(before, after);
    assert_eq!(bytes(&session, slot.buffer), b"wxyz");
    // The lender has its first part back.
    assert_eq!(seen.lent(), (1, 0));
    session
        .send(DESCRIPTOR.0 as i32, slot.buffer)
        .expect("room");
    assert_eq!(*seen.sends.borrow(), [(b"wxyz".to_vec(), false)]);
    // The first change of a buffer makes a copy. A second change is made in place.
    let second = session.slot(1).unwrap().buffer;
    let first = session.writable_payload(second).unwrap().0;
    assert_eq!(session.writable_payload(second).unwrap().0, first);
}

#[test]
fn a_buffer_for_a_descriptor_is_memory_of_its_connection() {
    let (mut session, seen) = lending(b"", 1, 0);
    let descriptor = DESCRIPTOR.0 as i32;
    assert_eq!(session.allocate_for(9), Err(Error::DESCRIPTOR));
    let buffer = session.allocate_for(descriptor).expect("room");
    assert_eq!(session.capacity(buffer), Ok(SEND_LEN as u32));
    assert_eq!(session.allocate_for(descriptor), Err(Error::FULL));
    write(&mut session, buffer, b"no copy");
    seen.is_full.set(true);
    assert_eq!(session.send(descriptor, buffer), Err(Error::FULL));
    assert_eq!(bytes(&session, buffer), b"no copy");
    assert_eq!(session.counters().buffers_held, 1);
    seen.is_full.set(false);
    assert_eq!(session.send(descriptor, buffer), Ok(()));
    assert_eq!(session.send(descriptor, buffer), Err(Error::BUFFER_GONE));
    // A buffer of the pool can be sent as well.
    let buffer = session.allocate().expect("free");
    write(&mut session, buffer, b"copied");
    assert_eq!(session.send(descriptor, buffer), Ok(()));
    let sends = seen.sends.borrow();
    let expected = [(b"no copy".to_vec(), true), (b"copied".to_vec(), false)];
    assert_eq!(*sends, expected);
}

/// A ready list may have far more buffers than the pool has. If a program holds too many buffers, a
/// sync fails, and no data is lost.
#[test]
fn long_lists_have_a_number_for_each_buffer() {
    let data: Vec<u8> = (0..400_000_u32).map(|at| (at % 251) as u8).collect();
    let (mut session, seen) = lending(&data, 2, 100_000);
    let mut held = Vec::new();
    for round in 0..2 {
        assert_eq!(session.sync(0), Ok(1));
        assert_eq!(session.slot_count(), 100_000);
        for at in 0..session.slot_count() {
            let slot = session.slot(at).unwrap();
            let pos = round * 200_000 + at as usize * 2;
            assert_eq!(bytes(&session, slot.buffer), data[pos..pos + 2]);
            if at % 2 == 0 {
                session.hold(slot.buffer).expect("in the list");
                held.push((slot.buffer, pos));
            }
        }
    }
    // The program holds 100,000 buffers. With 31,072 more, it reaches the limit of 2^17 buffers.
    for _ in 0..31_072 {
        let (context, _) = Lending::new(b"x", 1, 1);
        let mut buffer = context.pool().allocate().expect("free");
        buffer.detach();
        let number = session.buffers.give(buffer, Owner::Program);
        assert!(number.is_some());
    }
    for _ in 0..2 {
        assert_eq!(session.sync(0), Err(Error::TOO_MANY_HELD));
        assert_eq!(session.rx_sync(0), Err(Error::TOO_MANY_HELD));
        assert_eq!(session.slot_count(), 100_000, "the list has changed");
    }
    for (buffer, pos) in held {
        assert_eq!(bytes(&session, buffer), data[pos..pos + 2]);
        session.release(buffer).expect("held");
    }
    assert_eq!(session.sync(0), Ok(0));
    assert_eq!(seen.lent(), (0, 0));
    assert!(!seen.is_aborted.get());
}

/// A virtual clock. Each wait advances the clock by 1 ms.
struct VirtualClock(Rc<Cell<Instant>>);

impl<P> TimeSource<P> for VirtualClock {
    fn now(&self) -> Instant {
        self.0.get()
    }

    fn wait(&mut self, _port: &mut P, _limit: Option<Duration>) -> io::Result<()> {
        self.0.set(Instant(self.0.get().0 + 1_000_000));
        Ok(())
    }
}

/// Returns two sessions on the TCP engine, one at each end of a link in memory.
fn direct_pair() -> [Session; 2] {
    let clock = Rc::new(Cell::new(Instant::from_secs(1)));
    let (near, far) = MemPort::pair(MemConfig::default());
    let mut ports = [Some(near), Some(far)];
    [0, 1].map(|end| {
        let address = IpAddress::from_v4([10, 0, 0, end as u8 + 1]);
        let mut options = DirectOptions::new(address, [end as u8 + 1; 16]);
        options.buffers = 64;
        options.buffer_len = 512;
        let port = ports[end].take().expect("one of each");
        let time = VirtualClock(Rc::clone(&clock));
        let context = DirectContext::open(&options, port, time).expect("possible");
        Session::new(Box::new(context), end as u32 + 1)
    })
}

/// A message passes through the TCP engine to the server and comes back. The server sends each
/// received buffer back as it is.
#[test]
fn a_direct_context_carries_messages_of_c_programs() {
    let [mut client, mut server] = direct_pair();
    let listener = server.listen(([10, 0, 0, 2], 80).into(), 0).expect("free");
    assert_eq!(server.socket(listener), Err(Error::NO_SOCKET));
    let descriptor = client.connect(([10, 0, 0, 2], 80).into()).expect("a port");
    let sent = client.allocate();
    let sent = sent.expect("free");
    // The payload cannot use the room for headers.
    let room = client.capacity(sent).expect("a buffer");
    assert!(room > 300 && room < client.counters().buffer_len);
    assert_eq!(client.set_payload(sent, 0, room + 1), Err(Error::LENGTH));
    let message: Vec<u8> = (0..room).map(|at| (at % 251) as u8).collect();
    write(&mut client, sent, &message);
    client.send(descriptor, sent).expect("room");
    let (mut got, mut accepted) = (Vec::new(), None);
    for _ in 0..1000 {
        client.sync(1_000_000).expect("a link");
        for slot in client.slots.clone() {
            assert_eq!(slot.descriptor, descriptor);
            got.extend(bytes(&client, slot.buffer));
        }
        server.sync(1_000_000).expect("a link");
        for at in 0..server.entry_count() {
            let entry = server.list.entry(at as usize);
            accepted = entry.listener.map(to_c).or(accepted);
        }
        for slot in server.slots.clone() {
            server.send(slot.descriptor, slot.buffer).expect("room");
        }
        if got.len() == message.len() {
            break;
        }
    }
    assert_eq!(accepted, Some(listener));
    assert!(got == message, "{} of {} bytes", got.len(), message.len());
    for session in [&client, &server] {
        assert_eq!(session.counters().buffers_held, 0);
    }
}
