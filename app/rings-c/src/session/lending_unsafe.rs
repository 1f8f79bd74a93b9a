//! A back end for tests. Like the back end of the Tidelane service, it lends its own memory as
//! buffers: received data, which the program may only read, and memory for data to send.

use std::{
    cell::{Cell, RefCell, UnsafeCell},
    collections::BTreeSet,
    io,
    net::SocketAddr,
    ops::Range,
    os::fd::BorrowedFd,
    ptr::NonNull,
    rc::Rc,
};

use tidelane_rings::{
    Buffer, Context, Descriptor, Lender, ListenOptions, Loan, Pool, ReadyList, SendError,
    SendRefusal, Wait,
};

/// The descriptor of the only connection.
pub const DESCRIPTOR: Descriptor = Descriptor(3);
/// Number of bytes in the memory for data to send.
pub const SEND_LEN: usize = 64;

/// Memory whose parts are lent as buffers. A part is lent to at most one buffer at a time.
pub struct Stream {
    bytes: Box<[UnsafeCell<u8>]>,
    /// Offset of the start of each part that is lent.
    lent: RefCell<BTreeSet<u32>>,
}

impl Stream {
    fn new(bytes: Vec<u8>) -> Rc<Self> {
        Rc::new(Self {
            bytes: bytes.into_iter().map(UnsafeCell::new).collect(),
            lent: RefCell::default(),
        })
    }

    /// Lends the part `range`. Returns `None` if the memory has no such part, or if a part with the
    /// same start is lent already.
    fn lend(self: &Rc<Self>, range: Range<usize>, is_writable: bool) -> Option<Buffer> {
        let part = self.bytes.get(range.clone())?;
        if !self.lent.borrow_mut().insert(range.start as u32) {
            return None;
        }
        let loan = Loan {
            number: range.start as u32,
            start: NonNull::from(part).cast(),
            len: part.len() as u32,
            is_writable,
        };
        // SAFETY: the tests lend disjoint parts, each to at most one buffer at a time. Nothing else
        // accesses a part that is lent.
        Some(unsafe { Buffer::lend(self.clone(), loan) })
    }
}

impl Lender for Stream {
    fn reclaim(&self, number: u32) {
        assert!(self.lent.borrow_mut().remove(&number), "returned twice");
    }
}

/// State of the back end that a test can inspect and change.
pub struct Seen {
    /// Memory of the received data.
    pub received: Rc<Stream>,
    /// Memory for data to send.
    pub sent: Rc<Stream>,
    /// Each payload that the program has sent, and true if the payload lay in the memory `sent`, so
    /// that no copy is needed.
    pub sends: RefCell<Vec<(Vec<u8>, bool)>>,
    /// True if the back end refuses each send.
    pub is_full: Cell<bool>,
    /// True once the session has aborted a descriptor.
    pub is_aborted: Cell<bool>,
}

impl Seen {
    /// Returns two numbers of parts that are lent: first of `received`, then of `sent`.
    pub fn lent(&self) -> (usize, usize) {
        let count = |stream: &Stream| stream.lent.borrow().len();
        (count(&self.received), count(&self.sent))
    }
}

/// A context with one connection, which receives a fixed stream.
pub struct Lending {
    pool: Pool,
    seen: Rc<Seen>,
    /// Parts of the received data, each for one slot.
    parts: Vec<Range<usize>>,
    /// Largest number of parts in one ready list.
    per_list: usize,
    /// Index of the next part to receive.
    next: usize,
}

impl Lending {
    /// Returns a context that receives `data` in parts of `part_len` bytes. A ready list has at
    /// most `per_list` parts.
    pub fn new(data: &[u8], part_len: usize, per_list: usize) -> (Self, Rc<Seen>) {
        let starts = (0..data.len()).step_by(part_len);
        let seen = Rc::new(Seen {
            received: Stream::new(data.to_vec()),
            sent: Stream::new(vec![0; SEND_LEN]),
            sends: RefCell::default(),
            is_full: Cell::new(false),
            is_aborted: Cell::new(false),
        });
        let context = Self {
            pool: Pool::new(4, 100).expect("there is memory"),
            seen: Rc::clone(&seen),
            parts: starts
                .map(|start| start..data.len().min(start + part_len))
                .collect(),
            per_list,
            next: 0,
        };
        (context, seen)
    }
}

impl Context for Lending {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn allocate(&mut self, descriptor: Descriptor) -> Option<Buffer> {
        assert_eq!(descriptor, DESCRIPTOR);
        let mut buffer = self.seen.sent.lend(0..SEND_LEN, true)?;
        buffer.set_payload(0..0);
        Some(buffer)
    }

    fn listen(&mut self, _: SocketAddr, _: &ListenOptions) -> io::Result<Descriptor> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn connect(&mut self, _: SocketAddr) -> io::Result<Descriptor> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn send(&mut self, _: Descriptor, buffer: Buffer) -> Result<(), SendError> {
        if self.seen.is_full.get() {
            let refusal = SendRefusal::Full;
            return Err(SendError { buffer, refusal });
        }
        let is_own = buffer.is_lent_by(&self.seen.sent);
        let sent = (buffer.payload().to_vec(), is_own);
        self.seen.sends.borrow_mut().push(sent);
        Ok(())
    }

    fn sync(&mut self, list: &mut ReadyList, wait: Wait) -> io::Result<()> {
        self.rx_sync(list, wait)
    }

    fn tx_sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn rx_sync(&mut self, list: &mut ReadyList, _: Wait) -> io::Result<()> {
        list.clear();
        for _ in 0..self.per_list {
            let part = self.parts.get(self.next).cloned();
            if let Some(buffer) = part.and_then(|part| self.seen.received.lend(part, false)) {
                self.next += 1;
                list.add_buffer(DESCRIPTOR, buffer);
            }
        }
        Ok(())
    }

    fn pause(&mut self, _: Descriptor) {}

    fn resume(&mut self, _: Descriptor) -> io::Result<()> {
        Ok(())
    }

    fn shutdown(&mut self, _: Descriptor) {}

    fn close(&mut self, _: Descriptor) {}

    fn abort(&mut self, _: Descriptor) {
        self.seen.is_aborted.set(true);
    }

    fn is_open(&self, descriptor: Descriptor) -> bool {
        descriptor == DESCRIPTOR
    }

    fn socket(&self, _: Descriptor) -> Option<BorrowedFd<'_>> {
        None
    }

    fn system_calls(&self) -> u64 {
        0
    }
}
