//! Zero-copy exchange of buffers with a port (a packet interface) that shares its memory, such as a
//! queue of a NIC with AF_XDP. The context's pool of buffers lies in this memory: received frames
//! become buffers, and the port sends from buffers that the context lends.

use std::{
    cell::RefCell,
    io,
    mem::{self, ManuallyDrop},
    ops::Range,
    rc::Rc,
};

use tidelane_packet_io::{FrameData, LinkFull, PacketIo, TxChecksum};
use tidelane_rings::{BackEndMemory, Buffer, Pool};

/// State of a buffer of the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LoanState {
    /// The port does not hold the buffer.
    None,
    /// The port may read the buffer, which still has an owner in the context.
    Lent,
    /// The port may read the buffer, but the owner has dropped the buffer. The buffer becomes free
    /// when the port returns the buffer.
    Ownerless,
}

/// The pool of a context, and a record of the buffers that are lent: the port may read them.
///
/// Each lent buffer belongs to a [`SentBuffer`], which refuses writes during the loan, so the data
/// cannot change while the port reads. A lent buffer becomes free after two events: its owner has
/// dropped the buffer, and the port has returned the buffer.
#[derive(Debug)]
pub struct Loans {
    pool: Pool,
    /// States by buffer number. Empty if the port does not share its memory.
    states: RefCell<Vec<LoanState>>,
    /// Number of bytes before the headers of a sent frame. The port may overwrite these bytes.
    tx_headroom: u32,
}

impl Loans {
    /// Creates the pool of a context. If `port` shares its memory, the pool lies in this memory.
    /// Otherwise, `make` creates the pool. `headroom` is the number of bytes for protocol headers
    /// before the payload of an allocated buffer.
    ///
    /// # Errors
    ///
    /// The errors of the creation of the pool.
    pub fn open<P: PacketIo>(
        port: &mut P,
        headroom: u32,
        make: impl FnOnce() -> io::Result<Pool>,
    ) -> io::Result<Rc<Self>> {
        let memory = port.shared_frames().and_then(|port| port.take_memory());
        let Some(memory) = memory else {
            return Ok(Rc::new(Self {
                pool: make()?,
                states: RefCell::default(),
                tx_headroom: 0,
            }));
        };
        let (count, tx_headroom) = (memory.count, memory.tx_headroom);
        let memory = BackEndMemory {
            owner: memory.owner,
            start: memory.start,
            count,
            buffer_len: memory.frame_len,
            free: memory.free,
        };
        // SAFETY: the port promises that the memory lives as long as the owner, and that it does
        // not access the free frames.
        let pool = unsafe { Pool::of_memory(memory, headroom + tx_headroom) }?;
        Ok(Rc::new(Self {
            pool,
            states: RefCell::new(vec![LoanState::None; count as usize]),
            tx_headroom,
        }))
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns true if the port shares its memory.
    pub fn is_shared(&self) -> bool {
        !self.states.borrow().is_empty()
    }

    /// Turns the frame of packet `at` of a burst (a batch of received packets) into a buffer whose
    /// payload is the packet. The port gets `spare` in exchange. Returns `spare` as the error if
    /// the port does not share its memory, or if the packet is not in one frame of the pool.
    pub fn exchange<P: PacketIo>(
        &self,
        port: &mut P,
        burst: &mut P::Burst,
        at: usize,
        spare: Buffer,
    ) -> Result<Buffer, Buffer> {
        let Some(port) = port.shared_frames().filter(|_| self.pool.owns(&spare)) else {
            return Err(spare);
        };
        let range = spare.range();
        let free = spare.into_index();
        // SAFETY: the buffer `spare` was the only access to its frame.
        match unsafe { port.rx_exchange(burst, at, free) } {
            // SAFETY: the frame belonged to the port, which does not access it any more.
            Some(frame) => Ok(unsafe { self.pool.adopt(frame.number, frame.range) }),
            // SAFETY: the port has not taken the frame.
            None => Err(unsafe { self.pool.adopt(free, range) }),
        }
    }

    /// Takes back the buffers that the port has finished reading. Frees each of these buffers whose
    /// owner has dropped the buffer.
    pub fn reclaim<P: PacketIo>(&self, port: &mut P) {
        let Some(port) = port.shared_frames().filter(|_| self.is_shared()) else {
            return;
        };
        while let Some(number) = port.tx_returned() {
            let state = self.replace(number, LoanState::None);
            debug_assert_ne!(state, LoanState::None, "a returned buffer was not lent");
            if state == LoanState::Ownerless {
                // SAFETY: the owner has given the buffer away by `into_index`, and the port does
                // not access it any more.
                drop(unsafe { self.pool.adopt(number, 0..0) });
            }
        }
    }

    fn state(&self, number: u32) -> LoanState {
        let states = self.states.borrow();
        states
            .get(number as usize)
            .copied()
            .unwrap_or(LoanState::None)
    }

    /// Sets the state of a buffer. Returns the previous state.
    fn replace(&self, number: u32, state: LoanState) -> LoanState {
        match self.states.borrow_mut().get_mut(number as usize) {
            Some(place) => mem::replace(place, state),
            None => LoanState::None,
        }
    }
}

/// A buffer with data to send. The type refuses writes while the port may read the data.
#[derive(Debug)]
pub struct SentBuffer {
    buffer: ManuallyDrop<Buffer>,
    loans: Rc<Loans>,
    /// True if the buffer lies in the memory that the port shares.
    is_shared: bool,
}

impl SentBuffer {
    /// Wraps a buffer for the context that owns `loans`.
    pub fn new(buffer: Buffer, loans: &Rc<Loans>) -> Self {
        Self {
            is_shared: loans.is_shared() && loans.pool.owns(&buffer),
            buffer: ManuallyDrop::new(buffer),
            loans: Rc::clone(loans),
        }
    }

    pub fn payload(&self) -> &[u8] {
        self.buffer.payload()
    }

    /// Returns the range of the payload within the buffer.
    pub fn range(&self) -> Range<u32> {
        self.buffer.range()
    }

    /// Returns the length of the payload in bytes.
    pub fn len(&self) -> u32 {
        self.buffer.len() as u32
    }

    /// Returns true while the port may read the buffer.
    fn is_lent(&self) -> bool {
        self.is_shared && self.loans.state(self.buffer.index()) != LoanState::None
    }

    /// Returns the bytes of the range `data` together with the `headers_len` bytes before them. The
    /// caller writes headers to the bytes before `data`, and must not need their present content.
    /// Returns `None` if the port may still read the buffer, if the port cannot send from the
    /// buffer, or if there is too little room before `data`.
    pub fn frame_mut(&mut self, data: Range<u32>, headers_len: u32) -> Option<&mut [u8]> {
        let start = data.start.checked_sub(headers_len)?;
        if !self.is_shared || self.is_lent() || start < self.loans.tx_headroom {
            return None;
        }
        let bytes = self.buffer.bytes_mut();
        bytes.get_mut(start as usize..data.end as usize)
    }

    /// Lends the buffer to the port, which sends the bytes of `frame` (see [`Self::frame_mut`]).
    ///
    /// # Errors
    ///
    /// `LinkFull` if the port is full, if the port may still read the buffer, if the port cannot
    /// send from the buffer, or if there is too little room before `frame`.
    pub fn lend<P: PacketIo>(
        &self,
        port: &mut P,
        frame: Range<u32>,
        checksum: TxChecksum,
    ) -> Result<(), LinkFull> {
        let port = port.shared_frames().ok_or(LinkFull)?;
        if !self.is_shared || self.is_lent() || frame.start < self.loans.tx_headroom {
            return Err(LinkFull);
        }
        let number = self.buffer.index();
        let data = FrameData {
            number,
            range: frame,
        };
        // SAFETY: this value is the only access to the buffer. Until the port returns the buffer,
        // `frame_mut` and `lend` refuse it, and `drop` does not free it.
        unsafe { port.tx_lend(data, checksum) }?;
        self.loans.replace(number, LoanState::Lent);
        Ok(())
    }
}

impl Drop for SentBuffer {
    fn drop(&mut self) {
        let is_lent = self.is_lent();
        // SAFETY: the value is not used after its drop.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        if is_lent {
            self.loans
                .replace(buffer.into_index(), LoanState::Ownerless);
        }
    }
}
