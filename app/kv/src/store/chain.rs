//! The keys and values of items. An item is a chain of blocks of equal size, which hold the key and
//! then the value. An [`Upload`] appends the bytes of a value to a chain as the bytes arrive. A
//! [`Reader`] reads a value in pieces.

use super::{
    Item, Mark, New, Store, Word,
    arena::{BLOCK_LEN, FIRST_DATA, NEXT_DATA, NONE},
};
use crate::{base64::KEY_LEN_MAX, clock::Second};

/// Error: no memory is left for the bytes of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// An item whose value is being received. The caller returns the upload to the store by
/// [`Store::link`], [`Store::join`] or [`Store::abandon`].
#[derive(Debug)]
pub struct Upload {
    item: Item,
    /// Last block of the chain.
    last: u32,
    /// Offset of the end of the data in the last block.
    at: usize,
    /// Number of bytes of the value that have not arrived. Until [`Store::begin`] has written the
    /// key, the number includes the key.
    missing: usize,
    /// Number of blocks of the chain.
    blocks: u32,
}

impl Upload {
    /// Returns the number of bytes of the value that have not arrived.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Returns the item, whose value may be incomplete.
    pub fn item(&self) -> Item {
        self.item
    }
}

/// A position in the value or the key of an item. A reader is valid while the item is pinned.
/// Without a pin, a reader is valid until the next change of the store.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    item: Item,
    /// Number of the block that contains the position.
    block: u32,
    /// Offset of the position in the block. If the offset is [`BLOCK_LEN`], the next byte is in the
    /// next block of the chain.
    at: usize,
    /// Number of bytes that are not yet read.
    left: usize,
}

impl Reader {
    /// Returns the number of bytes that are not yet read.
    pub fn left(&self) -> usize {
        self.left
    }
}

impl Store {
    /// Starts a new item, whose value is still to arrive.
    ///
    /// # Errors
    ///
    /// Fails if no memory is left, or if all uploads together hold half of the blocks.
    pub fn begin(&mut self, new: &New<'_>) -> Result<Upload, OutOfMemory> {
        let first = self.allocate_for_upload()?;
        let item = Item(first);
        self.write_head(item, new);
        let mut upload = Upload {
            item,
            last: first,
            at: FIRST_DATA,
            missing: new.key.len() + new.value_len,
            blocks: 1,
        };
        if self.extend(&mut upload, new.key).is_err() {
            self.abandon(upload);
            return Err(OutOfMemory);
        }
        Ok(upload)
    }

    /// Appends bytes to the value. Blocks are allocated only as the bytes arrive. Until bytes of
    /// the value arrive, a client that has announced a large value therefore holds only the blocks
    /// of the key.
    ///
    /// # Errors
    ///
    /// Fails if no memory is left, or if all uploads together hold half of the blocks.
    ///
    /// # Panics
    ///
    /// If the bytes exceed the announced length of the value.
    pub fn extend(&mut self, upload: &mut Upload, bytes: &[u8]) -> Result<(), OutOfMemory> {
        assert!(
            bytes.len() <= upload.missing,
            "the value is longer than announced"
        );
        let mut rest = bytes;
        while !rest.is_empty() {
            if upload.at == BLOCK_LEN {
                let block = self.allocate_for_upload()?;
                self.arena.get_mut(upload.last).set_word(Word::Next, block);
                upload.last = block;
                upload.at = NEXT_DATA;
                upload.blocks += 1;
            }
            let room = &mut self.arena.get_mut(upload.last).bytes_mut()[upload.at..];
            let len = room.len().min(rest.len());
            room[..len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
            upload.at += len;
            upload.missing -= len;
        }
        Ok(())
    }

    /// Returns a complete upload with the key, the client flags and the expiry of `old`. If
    /// `is_append` is true, the new value is the value of `old` followed by the value of `added`.
    /// If `is_append` is false, the value of `added` comes first.
    ///
    /// `old` does not change, and `added` is freed. The new item lacks [`Mark::BinaryKey`].
    ///
    /// # Errors
    ///
    /// Fails if no memory is left, or if all uploads together hold half of the blocks.
    pub fn join(
        &mut self,
        old: Item,
        added: Upload,
        is_append: bool,
    ) -> Result<Upload, OutOfMemory> {
        // The pin of `old` protects `old` from eviction while blocks of the new item are allocated.
        // `added` is not in the hash table, so `unpin` frees `added`.
        let added = self.finish_upload(added);
        let (old_reader, added_reader) = (self.pin(old), self.pin(added));
        let parts = match is_append {
            true => [old_reader, added_reader],
            false => [added_reader, old_reader],
        };
        let mut buffer = [0; KEY_LEN_MAX];
        let joined = self.begin(&New {
            key: self.copy_key(old, &mut buffer),
            value_len: self.value_len(old) + self.value_len(added),
            client_flags: self.client_flags(old),
            expiry: self.expiry(old),
            has_binary_key: false,
        });
        let joined = joined.and_then(|upload| self.extend_by(upload, parts));
        self.unpin(old_reader);
        self.unpin(added_reader);
        joined
    }

    /// Appends the values of two readers, in the order of `parts`, to the upload. On failure,
    /// abandons the upload.
    fn extend_by(&mut self, upload: Upload, parts: [Reader; 2]) -> Result<Upload, OutOfMemory> {
        let mut upload = upload;
        let mut buffer = [0; BLOCK_LEN];
        for mut reader in parts {
            while reader.left > 0 {
                let piece = self.next_piece(&mut reader, BLOCK_LEN);
                let len = piece.len();
                buffer[..len].copy_from_slice(piece);
                if self.extend(&mut upload, &buffer[..len]).is_err() {
                    self.abandon(upload);
                    return Err(OutOfMemory);
                }
            }
        }
        Ok(upload)
    }

    /// Replaces `old` by an item with the same key, client flags and expiry, and the value `value`.
    /// The new item lacks [`Mark::BinaryKey`].
    ///
    /// # Errors
    ///
    /// Fails if no memory is left, or if all uploads together hold half of the blocks. After a
    /// failure, `old` is unchanged.
    pub fn replace_value(
        &mut self,
        now: Second,
        old: Item,
        value: &[u8],
    ) -> Result<Item, OutOfMemory> {
        let reader = self.pin(old);
        let mut buffer = [0; KEY_LEN_MAX];
        let upload = self.begin(&New {
            key: self.copy_key(old, &mut buffer),
            value_len: value.len(),
            client_flags: self.client_flags(old),
            expiry: self.expiry(old),
            has_binary_key: false,
        });
        let upload = upload.and_then(|mut upload| match self.extend(&mut upload, value) {
            Ok(()) => Ok(upload),
            Err(error) => {
                self.abandon(upload);
                Err(error)
            }
        });
        // Until here, the pin of `old` protects `old` from eviction while blocks are allocated.
        self.unpin(reader);
        Ok(self.link(now, Some(old), upload?))
    }

    /// Takes a block for an upload. Fails if all uploads together hold half of the blocks.
    fn allocate_for_upload(&mut self) -> Result<u32, OutOfMemory> {
        if self.uploading >= self.arena.count_max() / 2 {
            return Err(OutOfMemory);
        }
        let block = self.allocate().ok_or(OutOfMemory)?;
        self.uploading += 1;
        Ok(block)
    }

    /// Ends an upload whose value has arrived. Returns the item, which is not in the hash table.
    pub(super) fn finish_upload(&mut self, upload: Upload) -> Item {
        assert_eq!(upload.missing, 0, "the value is incomplete");
        self.uploading -= upload.blocks;
        self.set_word(upload.item, Word::Last, upload.last);
        upload.item
    }

    /// Frees the memory of an upload.
    pub fn abandon(&mut self, upload: Upload) {
        self.uploading -= upload.blocks;
        self.arena
            .free_chain(upload.item.0, upload.last, upload.blocks);
    }

    /// Copies the key of an item to `buffer`, and returns the copied key.
    pub fn copy_key<'a>(&self, item: Item, buffer: &'a mut [u8; KEY_LEN_MAX]) -> &'a [u8] {
        let len = self.key_len(item);
        let mut reader = Reader {
            item,
            block: item.0,
            at: FIRST_DATA,
            left: len,
        };
        let mut end = 0;
        while reader.left > 0 {
            let piece = self.next_piece(&mut reader, BLOCK_LEN);
            buffer[end..end + piece.len()].copy_from_slice(piece);
            end += piece.len();
        }
        &buffer[..len]
    }

    /// Returns a reader at the start of the value, without a pin.
    pub fn reader(&self, item: Item) -> Reader {
        let mut reader = Reader {
            item,
            block: item.0,
            at: FIRST_DATA,
            left: self.key_len(item),
        };
        while reader.left > 0 {
            self.next_piece(&mut reader, BLOCK_LEN);
        }
        reader.left = self.value_len(item);
        reader
    }

    /// Returns the next bytes, at most `len_max` and at most to the end of a block. Advances the
    /// reader. Returns an empty slice at the end of the value.
    pub fn next_piece(&self, reader: &mut Reader, len_max: usize) -> &[u8] {
        if reader.left == 0 {
            return &[];
        }
        if reader.at == BLOCK_LEN {
            reader.block = self.arena.get(reader.block).word(Word::Next);
            reader.at = NEXT_DATA;
        }
        let bytes = &self.arena.get(reader.block).bytes()[reader.at..];
        let len = bytes.len().min(reader.left).min(len_max);
        reader.at += len;
        reader.left -= len;
        &bytes[..len]
    }

    /// Pins the item, so that its value does not change. Returns a reader at the start of the
    /// value. The caller ends the pin by [`Self::unpin`].
    pub fn pin(&mut self, item: Item) -> Reader {
        let pins = self.pins(item);
        self.set_word(item, Word::Pins, pins + 1);
        if pins == 0 {
            self.pinned += self.block_count(item);
        }
        self.reader(item)
    }

    /// Ends the pin of a reader. If the item is not in the hash table and has no other pin, frees
    /// the item.
    pub fn unpin(&mut self, reader: Reader) {
        let item = reader.item;
        let pins = self.pins(item) - 1;
        self.set_word(item, Word::Pins, pins);
        if pins > 0 {
            return;
        }
        self.pinned -= self.block_count(item);
        if !self.is_marked(item, Mark::Linked) {
            self.free(item);
        }
    }

    /// Overwrites the present value with `value`, padded with spaces to the length of the present
    /// value. Returns false, and changes nothing, if `value` is longer than the present value, or
    /// if the item is pinned.
    pub fn overwrite(&mut self, item: Item, value: &[u8]) -> bool {
        if value.len() > self.value_len(item) || self.pins(item) > 0 {
            return false;
        }
        let mut reader = self.reader(item);
        let mut rest = value;
        while reader.left > 0 {
            let len = self.next_piece(&mut reader, BLOCK_LEN).len();
            let place = reader.at - len..reader.at;
            let bytes = &mut self.arena.get_mut(reader.block).bytes_mut()[place];
            let count = len.min(rest.len());
            bytes[..count].copy_from_slice(&rest[..count]);
            bytes[count..].fill(b' ');
            rest = &rest[count..];
        }
        true
    }

    /// Returns true if each block in use belongs to an item of the LRU list, and if there are no
    /// uploads and no pins. For tests.
    pub fn has_no_leak(&self) -> bool {
        let mut blocks = 0;
        let mut at = self.newest;
        while at != NONE {
            blocks += self.block_count(Item(at));
            at = self.arena.get(at).word(Word::Older);
        }
        self.uploading == 0 && self.pinned == 0 && blocks == self.arena.used()
    }
}
