//! A buffer: memory with one owner at a time, and the range of its payload.
//!
//! The memory is a piece of a [`Pool`](crate::Pool), or memory that a back end (an implementation
//! of [`Context`](crate::Context)) lends, such as a part of a connection's stream buffer. If the
//! memory is writable, the [`Buffer`] is the only access to it. Read-only memory may be read, but
//! not written, by other code. The owner of a buffer may be the program, the context, or a ready
//! list, in which a context passes received data to the program. When the last owner drops the
//! buffer, the memory returns to the pool or to the lender ([`Lender`]).
//!
//! A buffer stores the address of its memory, so that an access costs the same for pool memory and
//! lent memory.

use std::{cell::UnsafeCell, fmt, mem::ManuallyDrop, ops::Range, ptr::NonNull, rc::Rc, slice};

use crate::pieces_unsafe::Pieces;

/// Owner of memory that is lent as buffers: a part of a back end.
pub trait Lender {
    /// Takes back the memory with the number `number` ([`Loan::number`]): the last owner has
    /// dropped the buffer, or a copy has replaced the memory ([`Buffer::detach`]).
    fn reclaim(&self, number: u32);
}

/// Memory that a back end lends as a buffer: see [`Buffer::lend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// Number by which the lender knows the memory.
    pub number: u32,
    /// Start of the memory.
    pub start: NonNull<u8>,
    /// Length of the memory in bytes.
    pub len: u32,
    /// True if the owner of the buffer may write the memory.
    pub is_writable: bool,
}

/// Pool or lender to which a buffer's memory returns when the buffer is dropped.
enum MemoryOwner {
    /// A pool. The memory is one of its pieces.
    Pool(Rc<Pieces>),
    /// The lender of memory that the owner of the buffer may write.
    Lent(Rc<dyn Lender>),
    /// The lender of memory that the owner of the buffer may only read.
    ReadOnly(Rc<dyn Lender>),
}

impl MemoryOwner {
    /// Returns the memory with this number to the pool or to the lender.
    #[inline]
    fn reclaim(&self, number: u32) {
        match self {
            Self::Pool(pieces) => pieces.free(number),
            Self::Lent(lender) | Self::ReadOnly(lender) => lender.reclaim(number),
        }
    }
}

/// Memory that belongs to one buffer alone: the copy that [`Buffer::detach`] makes.
struct Copied(Box<[UnsafeCell<u8>]>);

impl Lender for Copied {
    fn reclaim(&self, _: u32) {}
}

/// A buffer: memory with one owner, and the range of its payload.
pub struct Buffer {
    owner: MemoryOwner,
    /// Start of the memory.
    start: NonNull<u8>,
    /// Length of the memory in bytes.
    len: u32,
    /// Number of the piece within its pool, or the lender's number of the memory.
    number: u32,
    /// Range of the payload within the memory.
    payload: Range<u32>,
}

impl Buffer {
    /// Returns a buffer whose memory is piece `index` of a pool.
    pub(crate) fn of_pool(pieces: Rc<Pieces>, index: u32, payload: Range<u32>) -> Self {
        Self {
            start: pieces.address(index),
            len: pieces.buffer_len,
            number: index,
            payload,
            owner: MemoryOwner::Pool(pieces),
        }
    }

    /// Returns a buffer of memory that `lender` lends. The payload is the whole memory. The lender
    /// gets the memory back by [`Lender::reclaim`].
    ///
    /// # Safety
    ///
    /// The memory is valid and initialized as long as the lender exists. Until `reclaim` or
    /// [`Self::into_index`], no other code writes the memory. If the memory is writable, no other
    /// code reads it either.
    pub unsafe fn lend(lender: Rc<dyn Lender>, loan: Loan) -> Self {
        Self {
            owner: match loan.is_writable {
                true => MemoryOwner::Lent(lender),
                false => MemoryOwner::ReadOnly(lender),
            },
            start: loan.start,
            len: loan.len,
            number: loan.number,
            payload: 0..loan.len,
        }
    }

    /// Returns the payload.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        // SAFETY: the range is within the memory. The buffer is the only access to its memory, or
        // nobody writes the memory.
        unsafe {
            let start = self.start.add(self.payload.start as usize);
            slice::from_raw_parts(start.as_ptr(), self.len())
        }
    }

    /// Returns the payload as writable memory. If the memory is read-only, as the received data of
    /// some back ends is, the call first replaces the memory by a writable copy.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.make_writable();
        // SAFETY: as in `payload`. The memory is writable, and the access is exclusive.
        unsafe {
            let start = self.start.add(self.payload.start as usize);
            slice::from_raw_parts_mut(start.as_ptr(), self.len())
        }
    }

    /// Returns all bytes of the buffer, not only the payload. The program writes a message to them,
    /// and then calls [`Self::set_payload`]. Read-only memory is replaced by a copy, as in
    /// [`Self::payload_mut`].
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.make_writable();
        // SAFETY: as in `payload_mut`, for the whole memory.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len as usize) }
    }

    /// Replaces read-only memory by a copy.
    fn make_writable(&mut self) {
        if matches!(self.owner, MemoryOwner::ReadOnly(_)) {
            self.detach();
        }
    }

    /// Replaces the memory by a copy that belongs to the buffer alone. The original memory returns
    /// to the pool or to the lender.
    pub fn detach(&mut self) {
        // SAFETY: the memory is initialized, and nobody else writes it.
        let bytes = unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len as usize) };
        let copied = Rc::new(Copied(bytes.iter().copied().map(UnsafeCell::new).collect()));
        self.start = NonNull::from(&*copied.0).cast();
        let before = std::mem::replace(&mut self.owner, MemoryOwner::Lent(copied));
        before.reclaim(self.number);
    }

    /// Sets the range of the payload within the buffer.
    ///
    /// # Panics
    ///
    /// If the range is not within the buffer.
    pub fn set_payload(&mut self, payload: Range<u32>) {
        assert!(
            payload.start <= payload.end && payload.end <= self.len,
            "the payload is longer than the buffer"
        );
        self.payload = payload;
    }

    /// Removes the first `len` bytes of the payload.
    ///
    /// # Panics
    ///
    /// If the payload is shorter than `len` bytes.
    pub fn advance(&mut self, len: u32) {
        self.set_payload(self.payload.start + len..self.payload.end);
    }

    /// Appends the first bytes of `data` to the payload, as many as the buffer has room for.
    /// Returns the number of appended bytes.
    pub fn append(&mut self, data: &[u8]) -> usize {
        let at = self.payload.end;
        let len = data.len().min((self.len - at) as usize);
        if len > 0 {
            let at = at as usize;
            self.bytes_mut()[at..at + len].copy_from_slice(&data[..len]);
            self.payload.end += len as u32;
        }
        len
    }

    /// Returns the address of the payload, for programs in C. Only the owner of the buffer may use
    /// the address, until the buffer is dropped or gets other memory ([`Self::detach`]). Only
    /// writable memory may be written.
    pub fn address(&self) -> NonNull<u8> {
        // SAFETY: the payload is within the memory.
        unsafe { self.start.add(self.payload.start as usize) }
    }

    /// Returns the length of the payload in bytes.
    pub fn len(&self) -> usize {
        (self.payload.end - self.payload.start) as usize
    }

    /// Returns true if there is no payload.
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// Returns the length in bytes of the buffer's memory, including the bytes around the payload.
    pub fn capacity(&self) -> u32 {
        self.len
    }

    /// Returns the number of bytes from the end of the payload to the end of the buffer.
    pub fn tail_room(&self) -> u32 {
        self.len - self.payload.end
    }

    /// Returns the range of the payload within the buffer.
    pub fn range(&self) -> Range<u32> {
        self.payload.clone()
    }

    /// Returns the number of the piece within its pool, or the lender's number of the memory.
    pub fn index(&self) -> u32 {
        self.number
    }

    /// Returns true if the memory of the buffer is one of the `pieces` of a pool.
    pub(crate) fn is_of(&self, pieces: &Rc<Pieces>) -> bool {
        matches!(&self.owner, MemoryOwner::Pool(own) if Rc::ptr_eq(own, pieces))
    }

    /// Returns true if `lender` has lent the memory as writable.
    pub fn is_lent_by<L: Lender>(&self, lender: &Rc<L>) -> bool {
        let own = match &self.owner {
            MemoryOwner::Pool(_) | MemoryOwner::ReadOnly(_) => return false,
            MemoryOwner::Lent(own) => Rc::as_ptr(own).cast::<()>(),
        };
        own == Rc::as_ptr(lender).cast::<()>()
    }

    /// Converts the buffer to its number, for a back end. A piece of a pool stays in use until
    /// [`Pool::adopt`](crate::Pool::adopt) converts the number to a buffer again. Lent memory is at
    /// the lender's disposal without a call of [`Lender::reclaim`].
    pub fn into_index(self) -> u32 {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the value is not dropped, so its reference to the memory is dropped here once.
        unsafe { std::ptr::drop_in_place(&raw mut this.owner) };
        this.number
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        self.owner.reclaim(self.number);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("index", &self.number)
            .field("payload", &self.payload)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::Pool;

    /// A lender of parts of one allocation, which records the numbers of the returned parts.
    struct Parts {
        bytes: Box<[UnsafeCell<u8>]>,
        returned: RefCell<Vec<u32>>,
    }

    impl Parts {
        fn new(text: &[u8]) -> Rc<Self> {
            Rc::new(Self {
                bytes: text.iter().copied().map(UnsafeCell::new).collect(),
                returned: RefCell::default(),
            })
        }

        /// Lends a part. No other buffer may have bytes of this part.
        fn lend(self: &Rc<Self>, number: u32, range: Range<usize>, is_writable: bool) -> Buffer {
            let part = &self.bytes[range];
            let loan = Loan {
                number,
                start: NonNull::from(part).cast(),
                len: part.len() as u32,
                is_writable,
            };
            // SAFETY: the tests lend disjoint parts, and nothing else accesses the bytes.
            unsafe { Buffer::lend(self.clone(), loan) }
        }
    }

    impl Lender for Parts {
        fn reclaim(&self, number: u32) {
            self.returned.borrow_mut().push(number);
        }
    }

    #[test]
    fn lent_memory_returns_to_its_lender() {
        let parts = Parts::new(b"abcdefgh");
        let other = Parts::new(b"x");
        let mut first = parts.lend(7, 0..4, true);
        let second = parts.lend(8, 4..8, true);
        assert!(first.is_lent_by(&parts) && !first.is_lent_by(&other));
        assert_eq!((first.payload(), first.capacity()), (&b"abcd"[..], 4));
        assert_eq!(
            first.address().as_ptr().cast_const(),
            first.payload().as_ptr()
        );
        first.payload_mut()[0] = b'z';
        first.set_payload(0..1);
        assert_eq!(first.append(b"123456"), 3);
        assert_eq!(first.payload(), b"z123");
        assert_eq!(second.payload(), b"efgh");
        drop(first);
        assert_eq!(*parts.returned.borrow(), [7]);
        assert_eq!(second.into_index(), 8);
        assert_eq!(*parts.returned.borrow(), [7]);
        assert_eq!(Rc::strong_count(&parts), 1);
    }

    #[test]
    fn a_change_of_read_only_memory_is_a_copy() {
        let parts = Parts::new(b"abcdefgh");
        let mut buffer = parts.lend(1, 2..6, false);
        buffer.advance(1);
        assert!(!buffer.is_lent_by(&parts));
        assert_eq!(buffer.append(b"x"), 0);
        assert_eq!(buffer.payload(), b"def");
        assert!(parts.returned.borrow().is_empty());
        buffer.payload_mut().make_ascii_uppercase();
        assert_eq!(*parts.returned.borrow(), [1]);
        assert_eq!(buffer.payload(), b"DEF");
        assert_eq!(buffer.bytes_mut(), b"cDEF");
        drop(buffer);
        assert_eq!(*parts.returned.borrow(), [1]);
        let pool = Pool::new(1, 8).expect("there is memory");
        let mut piece = pool.allocate().expect("free");
        piece.append(b"xy");
        piece.detach();
        assert_eq!((piece.payload(), pool.free_count()), (&b"xy"[..], 1));
        drop(piece);
        assert_eq!(pool.free_count(), 1);
        let again = parts.lend(2, 2..6, false);
        assert_eq!(again.payload(), b"cdef");
    }

    #[test]
    fn the_memory_lives_as_long_as_a_buffer() {
        let parts = Parts::new(b"abc");
        let buffer = parts.lend(0, 0..3, false);
        drop(parts);
        assert_eq!(buffer.payload(), b"abc");
    }
}
