//! The pool of buffers of a context (the sockets of one thread): memory cut into pieces of equal
//! length, each with one owner at a time.
//!
//! A [`Buffer`] is the only access to its piece of memory. When its last owner drops the buffer,
//! the piece is free again.

use std::{any::Any, cell::RefCell, fmt, io, ops::Range, ptr::NonNull, rc::Rc};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::{Buffer, pieces_unsafe::Pieces};

/// Largest number of buffers of a pool. The number of a buffer thus fits into a `u16`.
const BUFFERS_MAX: u32 = 1 << 15;
/// Largest length of a buffer in bytes.
const BUFFER_LEN_MAX: u32 = 1 << 20;

/// Memory of a back end, cut into pieces of equal length: for [`Pool::of_memory`].
pub struct BackEndMemory {
    /// Keeps the memory mapped. The pool and its buffers share this owner, which is dropped with
    /// the last of them.
    pub owner: Box<dyn Any>,
    /// Start of the memory.
    pub start: NonNull<u8>,
    /// Number of pieces.
    pub count: u32,
    /// Length of each piece in bytes.
    pub buffer_len: u32,
    /// Numbers of the pieces that are free. The other pieces are in use by the back end.
    pub free: Range<u32>,
}

/// A pool of buffers of equal length. Clones refer to the same pool. A pool belongs to one thread.
#[derive(Clone)]
pub struct Pool(Rc<Pieces>);

impl Pool {
    /// Creates a pool of `count` buffers of `buffer_len` bytes.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `count` is zero or more than 32,768, or if `buffer_len` is zero or more
    /// than 1 MiB. Otherwise the errors of `mmap`.
    pub fn new(count: u32, buffer_len: u32) -> io::Result<Self> {
        Self::with_headroom(count, buffer_len, 0)
    }

    /// Creates a pool as [`Self::new`] does. The payload of an allocated buffer begins after
    /// `headroom` bytes, to which the back end writes headers.
    ///
    /// # Errors
    ///
    /// As those of [`Self::new`]. `InvalidInput` also if the headroom is not less than
    /// `buffer_len`.
    pub fn with_headroom(count: u32, buffer_len: u32, headroom: u32) -> io::Result<Self> {
        check(count, buffer_len, headroom)?;
        let len = count as usize * buffer_len as usize;
        // SAFETY: the kernel chooses the address of a new mapping, so no other memory is affected.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Rc::new(Pieces {
            start,
            count,
            buffer_len,
            headroom,
            free: RefCell::new((0..count).rev().collect()),
            owner: None,
        })))
    }

    /// Creates a pool over memory of a back end, with `headroom` as in [`Self::with_headroom`]. The
    /// back end may exchange its pieces for free pieces of the pool, by [`Buffer::into_index`] and
    /// [`Self::adopt`].
    ///
    /// # Errors
    ///
    /// `InvalidInput` as for [`Self::with_headroom`], and if the range `free` of `memory` is not
    /// within the numbers of its pieces.
    ///
    /// # Safety
    ///
    /// The memory is mapped and initialized as long as `owner` exists. No other code accesses the
    /// free pieces.
    pub unsafe fn of_memory(memory: BackEndMemory, headroom: u32) -> io::Result<Self> {
        check(memory.count, memory.buffer_len, headroom)?;
        if memory.free.start > memory.free.end || memory.free.end > memory.count {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self(Rc::new(Pieces {
            start: memory.start,
            count: memory.count,
            buffer_len: memory.buffer_len,
            headroom,
            free: RefCell::new(memory.free.rev().collect()),
            owner: Some(memory.owner),
        })))
    }

    /// Returns a free buffer without payload; `None` if no buffer is free.
    pub fn allocate(&self) -> Option<Buffer> {
        let index = self.0.free.borrow_mut().pop()?;
        let headroom = self.0.headroom;
        Some(self.buffer(index, headroom..headroom))
    }

    /// Returns the buffer of a piece that has no other owner.
    fn buffer(&self, index: u32, payload: Range<u32>) -> Buffer {
        Buffer::of_pool(self.0.clone(), index, payload)
    }

    /// Returns true if the buffer is a piece of this pool.
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.is_of(&self.0)
    }

    /// Returns the number of free buffers.
    pub fn free_count(&self) -> u32 {
        self.0.free.borrow().len() as u32
    }

    /// Returns the number of buffers, including the pieces that a back end uses.
    pub fn count(&self) -> u32 {
        self.0.count
    }

    /// Returns the length of each buffer in bytes.
    pub fn buffer_len(&self) -> u32 {
        self.0.buffer_len
    }

    /// Returns the room for the payload of an allocated buffer in bytes: the length of a buffer,
    /// less the room for headers.
    pub fn payload_len_max(&self) -> u32 {
        self.0.buffer_len - self.0.headroom
    }

    /// Returns the address of a buffer's memory, for a back end that lets the kernel fill the
    /// buffer. Only the back end that owns the buffer may use the address, after
    /// [`Buffer::into_index`] and before [`Self::adopt`].
    ///
    /// # Panics
    ///
    /// If the pool has no buffer with this number.
    pub fn address(&self, index: u32) -> NonNull<u8> {
        self.0.address(index)
    }

    /// Converts a number of [`Buffer::into_index`] back to a buffer, with `payload` as the range of
    /// its payload.
    ///
    /// # Panics
    ///
    /// If the pool has no buffer with this number, or if the range is not within the buffer.
    ///
    /// # Safety
    ///
    /// The back end has the piece with this number: the number came from `into_index` of a buffer
    /// of this pool, or the piece was not in [`BackEndMemory::free`]. The number was not adopted
    /// since. No other code, in this process or in the kernel, accesses the memory of the buffer
    /// any more.
    pub unsafe fn adopt(&self, index: u32, payload: Range<u32>) -> Buffer {
        assert!(index < self.0.count, "no buffer of the pool");
        assert!(
            payload.start <= payload.end && payload.end <= self.0.buffer_len,
            "the payload is longer than the buffer"
        );
        self.buffer(index, payload)
    }
}

/// Returns an error if a pool cannot have these sizes.
fn check(count: u32, buffer_len: u32, headroom: u32) -> io::Result<()> {
    let is_possible = (1..=BUFFERS_MAX).contains(&count)
        && (1..=BUFFER_LEN_MAX).contains(&buffer_len)
        && headroom < buffer_len;
    match is_possible {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("count", &self.count())
            .field("buffer_len", &self.buffer_len())
            .field("free", &self.free_count())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_buffer_has_its_own_memory_and_comes_back() {
        let pool = Pool::new(4, 100).expect("there is memory");
        let mut buffers: Vec<Buffer> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!((buffers.len(), pool.free_count()), (4, 0));
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.is_empty());
            assert_eq!(buffer.append(&[number as u8; 60]), 60);
            assert_eq!(buffer.append(&[number as u8; 60]), 40);
        }
        for (number, buffer) in buffers.iter().enumerate() {
            assert_eq!(buffer.payload(), [number as u8; 100]);
        }
        let last = buffers.pop().map(|buffer| buffer.index());
        assert_eq!(pool.allocate().map(|buffer| buffer.index()), last);
        drop(buffers);
        assert_eq!(pool.free_count(), 4);
    }

    #[test]
    fn a_given_buffer_is_not_free_until_it_is_adopted() {
        let pool = Pool::new(1, 10).expect("there is memory");
        let mut buffer = pool.allocate().expect("free");
        buffer.append(b"abcdefgh");
        buffer.advance(3);
        assert_eq!(buffer.payload(), b"defgh");
        let index = buffer.into_index();
        assert!(pool.allocate().is_none());
        // SAFETY: the number came from `into_index`, and nothing else accesses the buffer.
        let buffer = unsafe { pool.adopt(index, 1..4) };
        assert_eq!(buffer.payload(), b"bcd");
        drop(buffer);
        assert_eq!(pool.free_count(), 1);
        // The memory lives as long as a buffer.
        let buffer = pool.allocate().expect("free");
        drop(pool);
        assert_eq!(buffer.len(), 0);
    }

    #[test]
    fn an_allocated_buffer_has_headroom() {
        let pool = Pool::with_headroom(1, 100, 40).expect("there is memory");
        assert_eq!(pool.payload_len_max(), 60);
        let mut buffer = pool.allocate().expect("free");
        assert_eq!((buffer.range(), buffer.tail_room()), (40..40, 60));
        assert_eq!(buffer.append(&[1; 99]), 60);
        assert_eq!((buffer.len(), buffer.capacity()), (60, 100));
        assert!(Pool::with_headroom(1, 100, 100).is_err());
    }

    #[test]
    fn the_memory_of_a_back_end_outlives_the_pool() {
        struct Watched(Box<[u8]>, Rc<RefCell<bool>>);
        impl Drop for Watched {
            fn drop(&mut self) {
                *self.1.borrow_mut() = true;
            }
        }
        let is_gone = Rc::default();
        let mut owner = Box::new(Watched(vec![0; 400].into(), Rc::clone(&is_gone)));
        let memory = BackEndMemory {
            start: NonNull::from(&mut owner.0[..]).cast(),
            owner,
            count: 4,
            buffer_len: 100,
            free: 1..3,
        };
        // SAFETY: the box is initialized and lives as long as the owner. Nothing else accesses it.
        let pool = unsafe { Pool::of_memory(memory, 8) }.expect("possible");
        assert_eq!((pool.free_count(), pool.count()), (2, 4));
        let mut buffer = pool.allocate().expect("free");
        assert_eq!((buffer.index(), buffer.range().start), (1, 8));
        // The back end takes the free piece 2, and gives its own piece 3 in exchange.
        let free = pool.allocate().expect("free").into_index();
        assert_eq!((free, pool.allocate().is_none()), (2, true));
        // SAFETY: the back end does not access its piece 3 any more.
        drop(unsafe { pool.adopt(3, 0..0) });
        assert_eq!(pool.free_count(), 1);
        drop(pool);
        buffer.append(b"still here");
        assert!(!*is_gone.borrow());
        drop(buffer);
        assert!(*is_gone.borrow());
    }

    #[test]
    fn impossible_pools_are_refused() {
        for (count, len) in [
            (0, 10),
            (10, 0),
            (BUFFERS_MAX + 1, 10),
            (1, BUFFER_LEN_MAX + 1),
        ] {
            assert!(Pool::new(count, len).is_err(), "{count} {len}");
        }
    }

    #[test]
    #[should_panic(expected = "longer than the buffer")]
    fn a_payload_stays_within_its_buffer() {
        let pool = Pool::new(1, 10).expect("there is memory");
        pool.allocate().expect("free").set_payload(5..11);
    }
}
