//! Memory in blocks of equal size. A chain of blocks holds one item.
//!
//! ```text
//! first block:  next | head of the item        | 72 bytes of key and value
//! other blocks: next | 124 bytes of key and value
//! ```
//!
//! Blocks of equal size cannot fragment the memory, because any freed block fits any item. The
//! kernel allocates a page of the memory at the first use of a block in the page.

/// Length of a block in bytes.
pub const BLOCK_LEN: usize = 128;
/// Block number that means "no block": the end of a chain or list.
pub const NONE: u32 = u32::MAX;
/// Offset in bytes of the data (key and value) in the first block of an item.
pub const FIRST_DATA: usize = 56;
/// Offset in bytes of the data in the other blocks of an item.
pub const NEXT_DATA: usize = 4;

const _: () = assert!(size_of::<Block>() == BLOCK_LEN && align_of::<Block>() == BLOCK_LEN);

/// Index of a 32-bit word in a block: the link of the chain, and the fields of the item's head.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Word {
    /// Next block of the chain or of the free list.
    Next,
    /// Next item in the bucket of the hash table.
    BucketNext,
    /// Neighbour in the LRU list that was used more recently.
    Newer,
    /// Neighbour in the LRU list that was used less recently.
    Older,
    /// Hash of the key.
    Hash,
    /// Length of the value in bytes.
    ValueLen,
    /// Second of the expiry, or zero for never.
    Expiry,
    /// Second of the last access.
    LastAccess,
    /// Flags that the client stores with the item.
    ClientFlags,
    /// Number of readers that pin the item.
    Pins,
    /// Last block of the chain.
    Last,
    /// Low half of the CAS number.
    CasLow,
    /// High half of the CAS number.
    CasHigh,
    /// Length of the key in bytes (the low 8 bits), and the marks (flag bits) of the item.
    KeyLenAndMarks,
}

const _: () = assert!((Word::KeyLenAndMarks as usize + 1) * 4 == FIRST_DATA);

/// A block: 128 bytes, aligned to 128 bytes, so that a block fills two cache lines of 64 bytes.
#[derive(Clone)]
#[repr(align(128))]
pub struct Block([u8; BLOCK_LEN]);

impl Block {
    pub fn word(&self, word: Word) -> u32 {
        u32::from_ne_bytes(self.0.as_chunks().0[word as usize])
    }

    pub fn set_word(&mut self, word: Word, value: u32) {
        self.0.as_chunks_mut().0[word as usize] = value.to_ne_bytes();
    }

    /// Returns the bytes of the block.
    pub fn bytes(&self) -> &[u8; BLOCK_LEN] {
        &self.0
    }

    /// Returns the bytes of the block, mutably.
    pub fn bytes_mut(&mut self) -> &mut [u8; BLOCK_LEN] {
        &mut self.0
    }
}

/// Blocks, each of which is free or part of a chain.
pub struct Arena {
    /// The blocks that were ever in use.
    blocks: Vec<Block>,
    /// First block of the list of freed blocks, or [`NONE`].
    free: u32,
    /// Number of blocks in use.
    used: u32,
    /// Limit of the number of blocks.
    count_max: u32,
}

impl Arena {
    /// Returns an arena of at most `count_max` blocks.
    pub fn new(count_max: u32) -> Self {
        Self {
            // The capacity never changes, so the blocks are never moved.
            blocks: Vec::with_capacity(count_max as usize),
            free: NONE,
            used: 0,
            count_max,
        }
    }

    /// Returns the number of blocks in use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Returns the limit of the number of blocks.
    pub fn count_max(&self) -> u32 {
        self.count_max
    }

    /// Takes a free block as a chain of one block. Returns `None` if all blocks are in use.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = match self.free {
            NONE if (self.blocks.len() as u32) < self.count_max => {
                self.blocks.push(Block([0; BLOCK_LEN]));
                self.blocks.len() as u32 - 1
            }
            NONE => return None,
            block => {
                self.free = self.get(block).word(Word::Next);
                block
            }
        };
        self.get_mut(block).set_word(Word::Next, NONE);
        self.used += 1;
        Some(block)
    }

    /// Frees a chain of `count` blocks from `first` to `last`.
    pub fn free_chain(&mut self, first: u32, last: u32, count: u32) {
        let free = std::mem::replace(&mut self.free, first);
        self.get_mut(last).set_word(Word::Next, free);
        self.used -= count;
    }

    pub fn get(&self, block: u32) -> &Block {
        &self.blocks[block as usize]
    }

    pub fn get_mut(&mut self, block: u32) -> &mut Block {
        &mut self.blocks[block as usize]
    }
}

/// Returns the number of blocks for an item with `len` bytes of key and value.
pub fn blocks_for(len: usize) -> u32 {
    let rest = len.saturating_sub(BLOCK_LEN - FIRST_DATA);
    1 + rest.div_ceil(BLOCK_LEN - NEXT_DATA) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_chains_are_used_again() {
        let mut arena = Arena::new(5);
        let blocks: Vec<u32> = (0..5).filter_map(|_| arena.allocate()).collect();
        assert_eq!(blocks, [0, 1, 2, 3, 4]);
        assert_eq!(arena.allocate(), None);
        arena.get_mut(1).set_word(Word::Next, 2);
        arena.get_mut(2).set_word(Word::Next, 3);
        arena.free_chain(1, 3, 3);
        arena.free_chain(0, 0, 1);
        assert_eq!(arena.used(), 1);
        let again: Vec<u32> = (0..5).map_while(|_| arena.allocate()).collect();
        assert_eq!(again, [0, 1, 2, 3]);
        assert_eq!(arena.get(3).word(Word::Next), NONE);
    }

    #[test]
    fn the_number_of_blocks_follows_from_the_length() {
        for (len, count) in [
            (0, 1),
            (72, 1),
            (73, 2),
            (196, 2),
            (197, 3),
            (1 << 20, 8457),
        ] {
            assert_eq!(blocks_for(len), count, "{len}");
        }
    }
}
