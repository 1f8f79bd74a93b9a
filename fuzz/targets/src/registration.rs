//! The fuzz target of the registration socket, over which programs open a session with the service.
//! Several hostile programs (the attackers) send messages with descriptors of every kind. The
//! victim is a well-behaved program of another user. [`crate::service`] describes the service and
//! the victim.

use tidelane_abi::{Message, message};
use tidelane_ring::registration::new_message;
use tidelane_time::Duration;

use crate::{
    bytes::Bytes,
    service::{Kind, Scene, TestNamespace, run},
};

/// Largest number of steps taken from one input.
const STEPS_MAX: u32 = 128;
/// Largest number of descriptors in a message.
const DESCRIPTORS_MAX: u8 = 4;
/// Limit of the length of an invalid message in bytes. The length is less than the limit.
const NONSENSE_MAX: u8 = 64;

/// Fuzz target: runs sessions with messages and descriptors while time passes.
pub fn registration(data: &[u8]) {
    TestNamespace::with(|namespace| run(namespace, |scene| play(scene, data)));
}

fn play(scene: &mut Scene<'_>, data: &[u8]) {
    let mut bytes = Bytes::new(data);
    scene.add_attacker();
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        act(scene, &mut bytes);
    }
}

/// Runs one step: an attacker sends a message, joins a listener or opens a connection, an attacker
/// is added or removed, a descriptor is closed, the peer opens a connection, or time passes.
pub fn act(scene: &mut Scene<'_>, bytes: &mut Bytes<'_>) {
    let what = bytes.u8();
    let at = usize::from(what >> 6);
    match what & 0x0f {
        0..7 => {
            let request = any_message(bytes);
            let kinds = any_kinds(bytes);
            scene.attack(at, &request, &kinds);
        }
        7 => {
            let len = bytes.u8() % NONSENSE_MAX;
            let nonsense: Vec<u8> = (0..len).map(|_| bytes.u8()).collect();
            let kinds = any_kinds(bytes);
            scene.attack_with_bytes(at, &nonsense, &kinds);
        }
        8 => scene.add_attacker(),
        9 => scene.remove_attacker(at),
        10 => scene.close(any_kind(bytes)),
        11 => scene.peer.connect(7000 + u16::from(bytes.u8() % 8)),
        12 => scene.wait(Duration::from_millis(u64::from(bytes.u16()))),
        13 => scene.join(at, bytes.u8().into()),
        14 => scene.connect(at, bytes.u8() & 1 == 0, bytes.u16()),
        _ => (0..1 + bytes.u8() % 8).for_each(|_| scene.step()),
    }
}

fn any_kind(bytes: &mut Bytes<'_>) -> Kind {
    Kind::ALL[usize::from(bytes.u8()) % Kind::ALL.len()]
}

fn any_kinds(bytes: &mut Bytes<'_>) -> Vec<Kind> {
    // Most messages carry no descriptor, or one.
    let count = match bytes.u8() {
        few @ 0..128 => few & 1,
        many => many % (1 + DESCRIPTORS_MAX),
    };
    (0..count).map(|_| any_kind(bytes)).collect()
}

/// Returns a message of any kind. One bit of the input decides whether the numbers of the message
/// are small, as in valid messages.
fn any_message(bytes: &mut Bytes<'_>) -> Message {
    let kind = bytes.u8();
    let mut request = new_message(u32::from(kind % (message::SUSPEND_LISTENER as u8 + 2)));
    let shape = bytes.u8();
    let number = |bytes: &mut Bytes<'_>| match shape & 1 {
        0 => u32::from(bytes.u8()),
        _ => bytes.u32(),
    };
    request.context = match request.kind {
        message::CONTEXT | message::TAKE_CONNECTION => number(bytes),
        _ => 0,
    };
    match request.kind {
        message::REGISTER => request.name = std::array::from_fn(|_| bytes.u8()),
        message::LISTEN => {
            request.backlog = number(bytes);
            request.cookie = number(bytes).into();
            request.options.rx_buffer = number(bytes);
            request.options.congestion = bytes.u8().into();
            request.options.mss_max = bytes.u16();
        }
        message::UNLISTEN => request.listener = number(bytes),
        message::REPORT_NOT_ACCELERATED => {
            request.inode = number(bytes).into();
            request.reason = number(bytes);
        }
        message::TAKE_CONNECTION | message::RELEASE_CONNECTION => {
            request.connection = number(bytes).into();
            request.tx_buffer = u64::from(number(bytes)) << 8 | u64::from(bytes.u8() & 31);
        }
        message::TCP_INFO => {
            request.slot = number(bytes);
            request.generation = number(bytes);
        }
        message::OPEN_PORT => request.packet_port.ring_len = 1 << (bytes.u8() & 31),
        message::RELEASE_TUPLE => {
            request.packet_port.protocol = bytes.u8().into();
            request.port = number(bytes);
        }
        _ => {}
    }
    if shape & 2 != 0 {
        request.refusal = bytes.u8().into();
        request.port = bytes.u16().into();
    }
    if shape & 12 == 12 {
        request.abi_version = request.abi_version.wrapping_add(bytes.u8().into());
    }
    request
}
