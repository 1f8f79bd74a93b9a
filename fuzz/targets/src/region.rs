//! The fuzz target of the shared memory. A hostile program (the attacker) writes to its own region,
//! and tries to punch holes into the region, while connections use the region. The region is the
//! memory that the program shares with the service: ring entries, ring indices, buffers, and for
//! each connection a slot with its state. The victim is a well-behaved program of another user.
//! [`crate::service`] describes the service and the victim.

use tidelane_abi::{
    CONTROL_REQUEST_OFFSET, ControlRequest, DATA_REQUEST_OFFSET, HEADER_LEN, RingSetHead, Slot,
    message, ring_set_offset,
};
use tidelane_ring::{new_control_request, registration::new_message, words::DataWord};
use tidelane_time::Duration;

use crate::{
    bytes::Bytes,
    registration,
    service::{Kind, Scene, TestNamespace, may_be_secret, run},
};

/// Largest number of steps taken from one input.
const STEPS_MAX: u32 = 192;
/// The target writes to this many of the region's first slots.
const SLOTS: u64 = 8;
/// The target writes to this many bytes at the start of each buffer area.
const BUFFERS: u64 = 1 << 16;

/// Fuzz target: writes to the region of a program that is registered, listens and has connections.
pub fn region(data: &[u8]) {
    TestNamespace::with(|namespace| run(namespace, |scene| play(scene, data)));
}

fn play(scene: &mut Scene<'_>, data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let start = bytes.u8();
    scene.add_attacker();
    scene.attack(0, &new_message(message::REGISTER), &[]);
    scene.attack(0, &new_message(message::CONTEXT), &[Kind::Event]);
    let mut listen = new_message(message::LISTEN);
    listen.backlog = 8;
    scene.attack(0, &listen, &[Kind::Listens]);
    // The service numbers the listeners: the victim's is 1, and the attacker's is 2.
    scene.join(0, 2);
    if start & 1 == 0 {
        scene.peer.connect(7000);
    }
    if start & 2 == 0 {
        scene.connect(0, true, 0);
    }
    (0..8).for_each(|_| scene.step());
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        act(scene, &mut bytes);
    }
}

fn act(scene: &mut Scene<'_>, bytes: &mut Bytes<'_>) {
    match bytes.u8() & 0x0f {
        0..5 => write_word(scene, bytes),
        5 => push_data(scene, bytes),
        6 => push_control(scene, bytes),
        7 => carry(scene, bytes),
        8 => carry_as_peer(scene, bytes),
        9 => punch(scene, bytes),
        10 => registration::act(scene, bytes),
        11 => scene.wait(Duration::from_millis(u64::from(bytes.u16()))),
        _ => (0..1 + bytes.u8() % 8).for_each(|_| scene.step()),
    }
}

/// Writes 1, 4 or 8 bytes to a structure that the service reads, to a buffer area, or anywhere in
/// the first 256 KiB of the region.
fn write_word(scene: &mut Scene<'_>, bytes: &mut Bytes<'_>) {
    let place = bytes.u8();
    let (at, value) = (u64::from(bytes.u16()), any_value(bytes));
    let Some(program) = scene.attackers.first().and_then(|a| a.program.as_ref()) else {
        return;
    };
    let layout = program.region.layout();
    let slots = layout.slot_offset(0).unwrap_or(HEADER_LEN);
    let context = ring_set_offset(u32::from(place >> 7));
    let (start, len) = match place & 7 {
        0 | 1 => (context, size_of::<RingSetHead>() as u64),
        2 => (context + DATA_REQUEST_OFFSET, 1 << 10),
        3 => (context + CONTROL_REQUEST_OFFSET, 1 << 10),
        4 | 5 => (slots, SLOTS * size_of::<Slot>() as u64),
        6 if place & 8 == 0 => (layout.rx_area().start, BUFFERS),
        6 => (layout.tx_area().start, BUFFERS),
        _ => (0, program.region.len()),
    };
    let size = [1, 4, 8, 4][usize::from(place >> 4 & 3)];
    let offset = start + at * 4 % len;
    // The attacker writes no secret bytes itself, so that a secret byte in its memory is a leak.
    let word = value.to_le_bytes().map(|byte| match may_be_secret(byte) {
        true => byte & 0x1f,
        false => byte,
    });
    program
        .region
        .copy_in(offset - offset % size, &word[..size as usize]);
}

/// Returns a boundary value, or any other value.
fn any_value(bytes: &mut Bytes<'_>) -> u64 {
    match bytes.u8() {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << (bytes.u8() & 63),
        3 => (1 << (bytes.u8() & 63)) - 1,
        4..64 => bytes.u8().into(),
        64..160 => bytes.u16().into(),
        160..224 => bytes.u32().into(),
        _ => u64::from(bytes.u32()) << 32 | u64::from(bytes.u32()),
    }
}

/// Pushes a data request with arbitrary content to the attacker's ring of data requests, by the
/// ring protocol.
fn push_data(scene: &mut Scene<'_>, bytes: &mut Bytes<'_>) {
    let (kind, arg, slot) = (bytes.u8() & 7, u32::from(bytes.u16()), bytes.u8());
    let Some(rings) = scene.attackers.first_mut().and_then(|a| a.rings.as_mut()) else {
        return;
    };
    let core = &mut rings.cores()[0];
    let word = DataWord::with_arg(kind, arg, slot.into());
    let _ = core.data_requests.push(word.encode());
    core.data_requests.publish();
}

/// Pushes a control request with arbitrary content to the attacker's ring of control requests, by
/// the ring protocol.
fn push_control(scene: &mut Scene<'_>, bytes: &mut Bytes<'_>) {
    let (kind, which) = (bytes.u8() & 3, bytes.u8());
    let to = [10, 77, 0, which & 3];
    let peer_addr = match which >> 2 & 3 {
        0..3 => [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, to[0], to[1], to[2], to[3],
        ],
        _ => std::array::from_fn(|_| bytes.u8()),
    };
    // Exclude the victim's port: the victim would send its secret on this connection, too.
    let peer_port = match bytes.u16() {
        80 => 81,
        port if which & 16 == 0 => 9000 + port % 4,
        port => port,
    };
    let request = ControlRequest {
        flags: bytes.u16().into(),
        cookie: bytes.u8().into(),
        peer_addr,
        peer_port,
        local_port: match which >> 5 & 1 {
            0 => 0,
            _ => 7000 + u16::from(bytes.u8() & 7),
        },
        listener: bytes.u8().into(),
        fast_open: u32::from(bytes.u8() & 3),
        ..new_control_request(kind.into())
    };
    let Some(rings) = scene.attackers.first_mut().and_then(|a| a.rings.as_mut()) else {
        return;
    };
    let core = &mut rings.cores()[0];
    let _ = core.control_requests.push(request);
    core.control_requests.publish();
}

/// Sends, reads or closes on a connection of the attacker, by the ring protocol. The stream
/// position of the bytes may be wrong.
fn carry(scene: &mut Scene<'_>, bytes: &mut Bytes<'_>) {
    let (what, which) = (bytes.u8(), usize::from(bytes.u8()));
    let (pos, len) = (u32::from(bytes.u16()), usize::from(bytes.u16() % 4096));
    let Some(attacker) = scene.attackers.first_mut() else {
        return;
    };
    // Accept the connections that arrived at listener 2, the attacker's listener.
    attacker.poll(2);
    let count = attacker.connections.len().max(1);
    let connection = attacker.connections.get(which % count).copied();
    let (Some(connection), Some(rings)) = (connection, attacker.rings.as_mut()) else {
        return;
    };
    match what & 3 {
        0 => rings.send(connection, 0, &vec![0x41; len]),
        1 => rings.send(connection, pos, &vec![0x42; len]),
        2 => rings.read_all(connection),
        _ => rings.close(connection),
    }
}

/// Lets the peer send, read or close on a connection with an attacker. The peer sends at stream
/// position 0 only.
fn carry_as_peer(scene: &mut Scene<'_>, bytes: &mut Bytes<'_>) {
    let (what, which, len) = (bytes.u8(), bytes.u8(), usize::from(bytes.u16() % 4096));
    let Some(connection) = scene.peer_connection(which.into()) else {
        return;
    };
    let rings = scene.peer.rings();
    match what & 3 {
        0 | 1 => rings.send(connection, 0, &vec![0x55; len]),
        2 => rings.read_all(connection),
        _ => rings.close(connection),
    }
}

/// Tries to punch a hole into the attacker's region.
fn punch(scene: &mut Scene<'_>, bytes: &mut Bytes<'_>) {
    let (page, pages) = (u64::from(bytes.u16()), u64::from(bytes.u8()));
    let Some(program) = scene.attackers.first().and_then(|a| a.program.as_ref()) else {
        return;
    };
    let starts = [0, program.region.layout().rx_area().start];
    let start = starts[usize::from(bytes.u8() & 1)];
    let _ = program.region.punch_hole(start + page * 4096, pages * 4096);
}
