use std::rc::Rc;

use tidelane_packet_io::{MemConfig, MemPort};
use tidelane_rings::Pool;

use super::*;
use crate::loans_unsafe::Loans;

/// Returns a pool of 8 buffers in its [`Loans`], which record the buffers that a port may read. The
/// port of these tests does not share its memory, so no buffer is ever lent.
fn loans() -> Rc<Loans> {
    let mut port = MemPort::loopback(MemConfig::default());
    let loans = Loans::open(&mut port, 40, || Pool::with_headroom(8, 100, 40));
    loans.expect("there is memory")
}

fn push(chain: &mut SendChain, loans: &Rc<Loans>, data: &[u8]) {
    let mut buffer = loans.pool().allocate().expect("free");
    assert_eq!(buffer.append(data), data.len());
    chain.push(SentBuffer::new(buffer, loans));
}

fn acknowledge(chain: &mut SendChain, acked: u32) -> usize {
    std::iter::from_fn(|| chain.acknowledge(acked)).count()
}

#[test]
fn buffers_stay_until_their_last_byte_is_acknowledged() {
    let loans = loans();
    // Stream positions wrap at 2^32.
    let start = u32::MAX - 4;
    let mut chain = SendChain {
        head: start,
        acked: start,
        ..SendChain::default()
    };
    for data in [&b"abc"[..], b"defgh", b"i"] {
        push(&mut chain, &loans, data);
    }
    assert_eq!((chain.len(), chain.bytes()), (3, 9));
    let at = |offset: u32| start.wrapping_add(offset);
    for (from, to) in [(0, 9), (1, 2), (2, 7), (3, 8), (8, 9)] {
        let mut room = vec![0; to - from];
        assert!(chain.copy_to(at(from as u32), &mut room));
        assert_eq!(room, b"abcdefghi"[from..to]);
    }
    assert!(!chain.copy_to(at(5), &mut [0; 5]), "beyond the end");
    assert_eq!(acknowledge(&mut chain, at(2)), 0);
    assert_eq!(acknowledge(&mut chain, at(4)), 1);
    assert_eq!(
        (chain.len(), chain.bytes(), loans.pool().free_count()),
        (2, 5, 6)
    );
    let mut room = [0; 5];
    assert!(chain.copy_to(at(4), &mut room));
    assert_eq!(&room, b"efghi");
    assert_eq!(acknowledge(&mut chain, at(9)), 2);
    assert_eq!(
        (chain.len(), chain.bytes(), loans.pool().free_count()),
        (0, 0, 8)
    );
    assert!(chain.copy_to(at(9), &mut []));
}

/// Headers may overwrite bytes before the segment only if the peer has acknowledged these bytes.
#[test]
fn headers_overwrite_acknowledged_bytes_only() {
    let loans = loans();
    let mut chain = SendChain::default();
    push(&mut chain, &loans, b"abcdef");
    push(&mut chain, &loans, b"gh");
    let mut range = |pos, len| chain.buffer_with(pos, len).map(|(_, range)| range);
    assert_eq!(range(0, 6), Some(40..46));
    assert_eq!(range(0, 2), Some(40..42));
    assert_eq!(range(2, 2), None, "bytes 0 and 1 are not acknowledged");
    assert_eq!(range(6, 2), Some(40..42), "the start of a buffer");
    assert_eq!(range(4, 4), None, "two buffers");
    assert_eq!(range(8, 1), None, "beyond the end");
    assert_eq!(acknowledge(&mut chain, 2), 0);
    let mut range = |pos, len| chain.buffer_with(pos, len).map(|(_, range)| range);
    assert_eq!(range(2, 4), Some(42..46));
    assert_eq!(range(3, 1), None);
    assert_eq!(
        range(1, 2),
        Some(41..43),
        "a retransmission of acknowledged bytes"
    );
}
