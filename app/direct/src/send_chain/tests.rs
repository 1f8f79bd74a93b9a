use tidelane_rings::Pool;

use super::*;

fn push(chain: &mut SendChain, pool: &Pool, data: &[u8]) {
    let mut buffer = pool.allocate().expect("free");
    assert_eq!(buffer.append(data), data.len());
    chain.push(buffer);
}

fn acknowledge(chain: &mut SendChain, acked: u32) -> usize {
    std::iter::from_fn(|| chain.acknowledge(acked)).count()
}

#[test]
fn buffers_stay_until_their_last_byte_is_acknowledged() {
    let pool = Pool::with_headroom(8, 100, 40).expect("there is memory");
    // Stream positions wrap.
    let start = u32::MAX - 4;
    let mut chain = SendChain {
        head: start,
        acked: start,
        ..SendChain::default()
    };
    for data in [&b"abc"[..], b"defgh", b"i"] {
        push(&mut chain, &pool, data);
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
    assert_eq!((chain.len(), chain.bytes(), pool.free_count()), (2, 5, 6));
    let mut room = [0; 5];
    assert!(chain.copy_to(at(4), &mut room));
    assert_eq!(&room, b"efghi");
    assert_eq!(acknowledge(&mut chain, at(9)), 2);
    assert_eq!((chain.len(), chain.bytes(), pool.free_count()), (0, 0, 8));
    assert!(chain.copy_to(at(9), &mut []));
}
