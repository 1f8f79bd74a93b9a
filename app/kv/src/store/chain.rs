//! The bytes of items: writing them while they arrive, and reading them piece by piece.

use super::{
    Item, Mark, New, Store, Word,
    arena::{BLOCK_LEN, FIRST_DATA, NEXT_DATA, NONE},
};
use crate::{base64::KEY_LEN_MAX, clock::Second};

/// No memory is left for the bytes of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// An item whose value is being received. The caller gives the upload back to the store, by
/// [`Store::link`] or [`Store::abandon`].
#[derive(Debug)]
pub struct Upload {
    item: Item,
    last: u32,
    /// End of the data in the last block.
    at: usize,
    /// Bytes of the value that are missing.
    missing: usize,
    blocks: u32,
}

impl Upload {
    /// Returns the number of bytes of the value that are missing.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Returns the item. Its value is not whole.
    pub fn item(&self) -> Item {
        self.item
    }
}

/// A position in the value of an item. Valid as long as the item is pinned, or until the next
/// change of the store.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    item: Item,
    block: u32,
    at: usize,
    left: usize,
}

impl Reader {
    /// Returns the number of bytes that are left.
    pub fn left(&self) -> usize {
        self.left
    }
}

impl Store {
    /// Starts an item.
    ///
    /// # Errors
    ///
    /// No memory is left.
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

    /// Appends bytes to the value. The memory grows with the bytes, so that a client that
    /// announces a large value takes no memory before it sends the value.
    ///
    /// # Errors
    ///
    /// No memory is left.
    ///
    /// # Panics
    ///
    /// If the bytes exceed the length of the value.
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

    /// Starts an item whose value is that of `old` with a received value behind or before it. Key,
    /// flags and expiry are those of `old`, which stays as it is.
    ///
    /// # Errors
    ///
    /// No memory is left.
    pub fn join(
        &mut self,
        old: Item,
        added: Upload,
        is_append: bool,
    ) -> Result<Upload, OutOfMemory> {
        // The pins keep both items while the new one makes others give way. The received value is
        // in no table, so the end of its pin frees it.
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

    /// Appends values to the upload.
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

    /// Replaces an item by one with the same key, flags and expiry, and another value.
    ///
    /// # Errors
    ///
    /// No memory is left. The item stays as it is.
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
        self.unpin(reader);
        let mut upload = upload?;
        match self.extend(&mut upload, value) {
            Ok(()) => Ok(self.link(now, Some(old), upload)),
            Err(error) => {
                self.abandon(upload);
                Err(error)
            }
        }
    }

    /// Takes a block, unless uploads hold half of the memory.
    fn allocate_for_upload(&mut self) -> Result<u32, OutOfMemory> {
        if self.uploading >= self.arena.count_max() / 2 {
            return Err(OutOfMemory);
        }
        let block = self.allocate().ok_or(OutOfMemory)?;
        self.uploading += 1;
        Ok(block)
    }

    pub(super) fn finish_upload(&mut self, upload: Upload) -> Item {
        assert_eq!(upload.missing, 0, "the value is whole");
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

    /// Copies the key of an item. Returns the key.
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

    /// Returns a reader at the start of the value.
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

    /// Returns at most `len_max` of the next bytes. Empty if none are left.
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

    /// Pins the item, so that its value stays as it is. Returns a reader at the start of the value,
    /// which the caller gives to [`Self::unpin`].
    pub fn pin(&mut self, item: Item) -> Reader {
        let pins = self.pins(item);
        self.set_word(item, Word::Pins, pins + 1);
        if pins == 0 {
            self.pinned += self.block_count(item);
        }
        self.reader(item)
    }

    /// Ends a pin.
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

    /// Overwrites the value with `value` and spaces. Returns false, and changes nothing, if the
    /// value is longer than the present one, or if the item is pinned.
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

    /// Returns true if no memory is used besides the items that can be found. For tests.
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
