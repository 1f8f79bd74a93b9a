use tidelane_rings::Pool;

use super::*;

/// Length of a buffer in bytes.
const BUFFER_LEN: u32 = 64;

/// Returns the test pattern's byte at a stream position.
fn byte(pos: u32) -> u8 {
    (pos.wrapping_mul(2_654_435_761) >> 24) as u8
}

fn bytes(pos: u32, len: u32) -> Vec<u8> {
    (0..len).map(|at| byte(pos.wrapping_add(at))).collect()
}

fn buffer(pool: &Pool, pos: u32, len: u32) -> Buffer {
    let mut buffer = pool.allocate().expect("a free buffer");
    assert_eq!(buffer.append(&bytes(pos, len)), len as usize);
    buffer
}

fn pool() -> Pool {
    Pool::new(1024, BUFFER_LEN).expect("there is memory")
}

fn chain_at(next: u32) -> ReceiveChain {
    ReceiveChain {
        next,
        ..ReceiveChain::default()
    }
}

fn taken(chain: &mut ReceiveChain) -> Vec<u8> {
    let buffers = std::iter::from_fn(|| chain.take());
    buffers
        .flat_map(|buffer| buffer.payload().to_vec())
        .collect()
}

#[test]
fn data_beyond_a_hole_appears_when_the_hole_closes() {
    let pool = pool();
    // Stream positions wrap at 2^32.
    let start = u32::MAX - 25;
    let mut chain = chain_at(start);
    for offset in [20, 40, 10] {
        chain.insert(
            start.wrapping_add(offset),
            buffer(&pool, start.wrapping_add(offset), 10),
        );
        assert!(!chain.has_ready());
    }
    chain.insert(start, buffer(&pool, start, 10));
    assert_eq!(chain.next(), start.wrapping_add(30));
    assert_eq!(taken(&mut chain), bytes(start, 30));
    chain.insert(
        start.wrapping_add(30),
        buffer(&pool, start.wrapping_add(30), 10),
    );
    assert_eq!(taken(&mut chain), bytes(start.wrapping_add(30), 20));
    assert_eq!(pool.free_count(), 1024);
}

/// A payload in two buffers fills a gap and repeats the data after the gap. The test tries each
/// split of the payload.
#[test]
fn a_second_buffer_may_repeat_bytes_beyond_a_filled_gap() {
    for first in 1..60 {
        let pool = pool();
        let start = u32::MAX - 20;
        let at = |offset: u32| start.wrapping_add(offset);
        let mut chain = chain_at(start);
        chain.insert(at(30), buffer(&pool, at(30), 10));
        chain.insert(start, buffer(&pool, start, first));
        chain.insert(at(first), buffer(&pool, at(first), 60 - first));
        assert_eq!(chain.next(), at(60), "{first}");
        assert_eq!(taken(&mut chain), bytes(start, 60), "{first}");
        assert_eq!(pool.free_count(), 1024, "{first}");
    }
}

/// Random overlapping segments arrive in random order. The chain yields each byte once. After the
/// drop of the chain, all buffers are free. A model of the received positions determines which data
/// is in order.
#[test]
fn overlaps_are_trimmed() {
    for seed in 1..400_u64 {
        let pool = pool();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below) as u32
        };
        let start = random(1 << 32);
        let mut chain = chain_at(start);
        let (mut held, mut got) = ([false; 600], Vec::new());
        for _ in 0..200 {
            let next = chain.next().wrapping_sub(start);
            let offset = next + random(120);
            let len = 1 + random(BUFFER_LEN.into());
            if offset + len > 600 || !chain.has_place(start.wrapping_add(offset)) {
                continue;
            }
            let pos = start.wrapping_add(offset);
            held[offset as usize..(offset + len) as usize].fill(true);
            if chain.wants_append(pos, len, random(2) == 0) {
                chain.append(pos, &bytes(pos, len));
            } else {
                chain.insert(pos, buffer(&pool, pos, len));
            }
            let in_order = held.iter().position(|held| !held).unwrap_or(600) as u32;
            assert_eq!(chain.next(), start.wrapping_add(in_order), "seed {seed}");
            if random(3) == 0 {
                got.extend(taken(&mut chain));
                assert_eq!(got, bytes(start, in_order), "seed {seed}");
            }
        }
        got.extend(taken(&mut chain));
        assert_eq!(got, bytes(start, got.len() as u32), "seed {seed}");
        drop(chain);
        assert_eq!(pool.free_count(), 1024, "seed {seed}");
    }
}

/// A peer that sends single bytes in order does not occupy a buffer per byte. If the bytes arrive
/// in reverse order, the chain accepts at most [`AHEAD_MAX`] out-of-order buffers.
#[test]
fn single_bytes_share_buffers() {
    let pool = pool();
    let mut chain = chain_at(0);
    let mut copies = 0;
    for pos in 0..10_000 {
        match chain.wants_append(pos, 1, false) {
            true => copies += chain.append(pos, &bytes(pos, 1)),
            false => copies += chain.insert(pos, buffer(&pool, pos, 1)),
        }
    }
    assert_eq!(copies, 0);
    assert!(1024 - pool.free_count() < 16 + 10_000 / BUFFER_LEN * 2);
    assert_eq!(taken(&mut chain), bytes(0, 10_000));
    // In reverse order, each accepted byte occupies a buffer. The buffers are joined when the gap
    // is filled.
    let mut refused = 0;
    for pos in (10_001..11_000).rev() {
        match chain.has_place(pos) {
            true => copies += chain.insert(pos, buffer(&pool, pos, 1)),
            false => refused += 1,
        }
    }
    assert_eq!(refused, 999 - AHEAD_MAX);
    let first = 11_000 - AHEAD_MAX as u32;
    for pos in 10_000..first {
        match chain.wants_append(pos, 1, false) {
            true => copies += chain.append(pos, &bytes(pos, 1)),
            false => copies += chain.insert(pos, buffer(&pool, pos, 1)),
        }
    }
    assert_eq!(chain.next(), 11_000);
    assert!(copies > 200, "the buffers beyond the hole were not joined");
    assert!(1024 - pool.free_count() < 16 + 1000 / BUFFER_LEN * 2);
    assert_eq!(taken(&mut chain), bytes(10_000, 1000));
}
