//! Tests of the allocator of stream buffers, also with random sequences of calls.

use proptest::prelude::*;

use super::*;

#[test]
fn the_buffer_freed_last_is_allocated_first() {
    let mut allocator = BufferAllocator::new(4096..1 << 30);
    let a = allocator.alloc(12).unwrap();
    let b = allocator.alloc(12).unwrap();
    assert_ne!(a, b);
    assert!(allocator.free(a) && allocator.free(b));
    assert_eq!(allocator.alloc(12), Some(b));
    assert_eq!(allocator.alloc(12), Some(a));
    assert_eq!(allocator.allocated_bytes(), 8192);
}

#[test]
fn all_of_an_area_is_given_out_and_merged_again() {
    // The end of the area is within a chunk, and within a unit (2 KiB, the smallest buffer).
    let mut allocator = BufferAllocator::new(1000..(20 << 20) + 1000);
    let mut given = Vec::new();
    while let Some(buffer) = allocator.alloc(11) {
        given.push(buffer);
    }
    assert_eq!(given.len() as u64, allocator.capacity() / 2048);
    assert_eq!(allocator.allocated_bytes(), allocator.capacity());
    for buffer in given.drain(..) {
        assert!(allocator.free(buffer));
    }
    assert_eq!(allocator.allocated_bytes(), 0);
    assert!(allocator.alloc(23).is_some() && allocator.alloc(23).is_some());
    assert!(allocator.alloc(23).is_none() && allocator.alloc(21).is_some());
}

#[test]
fn sizes_out_of_range_and_foreign_buffers_are_refused() {
    let mut allocator = BufferAllocator::new(0..1 << 24);
    assert_eq!(allocator.alloc(10), None);
    assert_eq!(allocator.alloc(24), None);
    assert_eq!(allocator.alloc(255), None);
    let buffer = allocator.alloc(13).unwrap();
    assert!(!allocator.free(StreamBuffer { log2: 12, ..buffer }));
    assert!(!allocator.free(StreamBuffer {
        offset: buffer.offset + 1024,
        ..buffer
    }));
    assert!(!allocator.free(StreamBuffer {
        offset: 1 << 40,
        log2: 13
    }));
    assert!(!allocator.free(StreamBuffer {
        offset: buffer.offset,
        log2: 3
    }));
    assert!(allocator.free(buffer));
    assert!(!allocator.free(buffer));
    assert_eq!(BufferAllocator::new(0..100).alloc(11), None);
    assert_eq!(BufferAllocator::new(0..0).alloc(11), None);
    assert!(BufferAllocator::new(0..u64::MAX).alloc(11).is_some());
}

/// Takes all dirty blocks of at least `len_min` bytes from the allocator, and returns the blocks to
/// the caller. A dirty block is a free block whose pages may be resident.
fn take_all_dirty(allocator: &mut BufferAllocator, len_min: u64) -> Vec<StreamBuffer> {
    std::iter::from_fn(|| allocator.take_dirty(len_min)).collect()
}

#[test]
fn each_used_block_is_lent_once() {
    let mut allocator = BufferAllocator::new(0..1 << 24);
    let buffers: Vec<_> = (0..100).map(|_| allocator.alloc(16).unwrap()).collect();
    let kept = allocator.alloc(16).unwrap();
    assert!(!allocator.has_free_dirty());
    for buffer in buffers {
        allocator.free(buffer);
    }
    assert!(allocator.has_free_dirty());
    let given = take_all_dirty(&mut allocator, 1 << 16);
    assert!(!allocator.has_free_dirty());
    let total: u64 = given.iter().map(|block| u64::from(block.len())).sum();
    // The blocks contain the 100 freed buffers and the clean blocks that were merged with them. The
    // blocks do not contain the allocated buffer `kept`.
    assert!((100 << 16..(1 << 24)).contains(&total), "{total}");
    assert_eq!(allocator.allocated_bytes(), total + (1 << 16));
    let (start, end) = (kept.range().start, kept.range().end);
    let apart = |block: &StreamBuffer| block.range().end <= start || end <= block.offset;
    assert!(given.iter().all(apart));
    for block in given {
        assert!(allocator.return_clean(block) && !allocator.return_clean(block));
    }
    assert_eq!(allocator.take_dirty(1 << 16), None, "took a clean block");
    let again = allocator.alloc(16).unwrap();
    allocator.free(again);
    let dirty = take_all_dirty(&mut allocator, 1 << 16);
    assert!(
        dirty
            .iter()
            .any(|block| block.offset <= again.offset && again.range().end <= block.range().end)
    );
}

/// A call of the allocator in a random sequence. `Alloc` has the binary logarithm of the size.
/// `Free` frees one of the allocated buffers. `Trim` takes all dirty blocks of at least 4096 bytes
/// and returns them as clean blocks.
#[derive(Clone, Debug)]
enum Step {
    Alloc(u8),
    Free(prop::sample::Index),
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (11u8..=23).prop_map(Step::Alloc),
        6 => (11u8..=14).prop_map(Step::Alloc),
        10 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => Just(Step::Trim),
    ]
}

proptest! {
    #[test]
    fn buffers_in_use_never_overlap(steps in prop::collection::vec(step(), 1..600)) {
        let area = 6144..(33 << 20) + 8192;
        let mut allocator = BufferAllocator::new(area.clone());
        let mut used: Vec<StreamBuffer> = Vec::new();
        for step in steps {
            match step {
                Step::Alloc(log2) => {
                    if let Some(new) = allocator.alloc(log2) {
                        let (n, all) = (new.range(), area.clone());
                        prop_assert!(new.log2 == log2 && all.start <= n.start && n.end <= all.end);
                        let apart = |b: &StreamBuffer| {
                            n.end <= b.offset || b.range().end <= n.start
                        };
                        prop_assert!(used.iter().all(apart));
                        used.push(new);
                    }
                }
                Step::Free(_) if used.is_empty() => {}
                Step::Free(index) => {
                    let buffer = used.swap_remove(index.index(used.len()));
                    prop_assert!(allocator.free(buffer) && !allocator.free(buffer));
                }
                Step::Trim => {
                    let blocks = take_all_dirty(&mut allocator, 4096);
                    for block in &blocks {
                        let (at, end) = (block.offset, block.range().end);
                        let free = |b: &StreamBuffer| end <= b.offset || b.range().end <= at;
                        prop_assert!(used.iter().all(free));
                    }
                    for block in blocks {
                        prop_assert!(allocator.return_clean(block));
                    }
                }
            }
            let sum: u64 = used.iter().map(|buffer| u64::from(buffer.len())).sum();
            prop_assert_eq!(allocator.allocated_bytes(), sum);
        }
        for buffer in used.drain(..) {
            prop_assert!(allocator.free(buffer));
        }
        for _ in 0..4 {
            prop_assert!(allocator.alloc(23).is_some());
        }
    }
}
