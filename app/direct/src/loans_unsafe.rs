//! The exchange of buffers with a port that shares its memory: the pool over this memory, received
//! frames that become buffers, and buffers that the port reads.

use std::{
    cell::RefCell,
    io,
    mem::{self, ManuallyDrop},
    ops::Range,
    rc::Rc,
};

use tidelane_packet_io::{FrameData, LinkFull, PacketIo, TxChecksum};
use tidelane_rings::{BackEndMemory, Buffer, Pool};

/// State of a buffer of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loan {
    /// The port does not have the buffer.
    None,
    /// The port reads the buffer, which also has an owner in the context.
    Lent,
    /// The port reads the buffer, which is free when the port returns it.
    Ownerless,
}

/// The buffers that a port reads.
///
/// No code writes to a lent buffer, because only [`SentBuffer`] has it. A lent buffer is free when
/// its owner has dropped it and the port has returned it.
#[derive(Debug)]
pub struct Loans {
    pool: Pool,
    /// States by the number of the buffer; empty if the port does not share its memory.
    states: RefCell<Vec<Loan>>,
    /// Bytes before the headers that the port may write.
    tx_headroom: u32,
}

impl Loans {
    /// Returns the pool of a context, over the memory of `port` if the port shares it. `make` makes
    /// the pool for other ports.
    ///
    /// # Errors
    ///
    /// The errors are those of the pool.
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
            states: RefCell::new(vec![Loan::None; count as usize]),
            tx_headroom,
        }))
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns true if the port shares its memory.
    pub fn is_shared(&self) -> bool {
        !self.states.borrow().is_empty()
    }

    /// Takes the frame of packet `at` of a burst as a buffer, whose payload is the packet. The port
    /// gets `spare` for it. Returns `spare` if the packet is not in a frame of the pool.
    pub fn exchange<P: PacketIo>(
        &self,
        port: &mut P,
        burst: &mut P::Burst,
        at: usize,
        spare: Buffer,
    ) -> Result<Buffer, Buffer> {
        let Some(port) = port.shared_frames().filter(|_| spare.is_of(&self.pool)) else {
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

    /// Frees the buffers that the port no longer reads and that have no owner.
    pub fn take_back<P: PacketIo>(&self, port: &mut P) {
        let Some(port) = port.shared_frames().filter(|_| self.is_shared()) else {
            return;
        };
        while let Some(number) = port.tx_returned() {
            let state = self.replace(number, Loan::None);
            debug_assert_ne!(state, Loan::None, "the port returns lent buffers only");
            if state == Loan::Ownerless {
                // SAFETY: the owner has given the buffer away by `into_index`, and the port does
                // not access it any more.
                drop(unsafe { self.pool.adopt(number, 0..0) });
            }
        }
    }

    fn state(&self, number: u32) -> Loan {
        let states = self.states.borrow();
        states.get(number as usize).copied().unwrap_or(Loan::None)
    }

    /// Sets the state of a buffer. Returns the state before.
    fn replace(&self, number: u32, state: Loan) -> Loan {
        match self.states.borrow_mut().get_mut(number as usize) {
            Some(place) => mem::replace(place, state),
            None => Loan::None,
        }
    }
}

/// A buffer with data that is not acknowledged. The data does not change. The port may read it.
#[derive(Debug)]
pub struct SentBuffer {
    buffer: ManuallyDrop<Buffer>,
    loans: Rc<Loans>,
    /// True if the buffer is in the memory that the port shares.
    is_shared: bool,
}

impl SentBuffer {
    /// Returns the buffer for the context of `loans`.
    pub fn new(buffer: Buffer, loans: &Rc<Loans>) -> Self {
        Self {
            is_shared: loans.is_shared() && buffer.is_of(&loans.pool),
            buffer: ManuallyDrop::new(buffer),
            loans: Rc::clone(loans),
        }
    }

    /// Returns the data.
    pub fn payload(&self) -> &[u8] {
        self.buffer.payload()
    }

    /// Returns the range of the data within the buffer.
    pub fn range(&self) -> Range<u32> {
        self.buffer.range()
    }

    /// Returns the length of the data in bytes.
    pub fn len(&self) -> u32 {
        self.buffer.len() as u32
    }

    /// Returns true while the port reads the buffer.
    fn is_lent(&self) -> bool {
        self.is_shared && self.loans.state(self.buffer.index()) != Loan::None
    }

    /// Returns the `headers_len` bytes before `data` together with the data, for headers. The
    /// caller owns the bytes before the data. Returns `None` if the port reads the buffer, cannot
    /// send it, or if there is too little room before the data.
    pub fn frame_mut(&mut self, data: Range<u32>, headers_len: u32) -> Option<&mut [u8]> {
        let start = data.start.checked_sub(headers_len)?;
        if !self.is_shared || self.is_lent() || start < self.loans.tx_headroom {
            return None;
        }
        let bytes = self.buffer.bytes_mut();
        bytes.get_mut(start as usize..data.end as usize)
    }

    /// Lends the buffer to the port, which sends the bytes of `frame`. [`Self::frame_mut`] has
    /// returned these bytes.
    ///
    /// # Errors
    ///
    /// The port has no room.
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
        self.loans.replace(number, Loan::Lent);
        Ok(())
    }
}

impl Drop for SentBuffer {
    fn drop(&mut self) {
        let is_lent = self.is_lent();
        // SAFETY: the value is not used after its drop.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        if is_lent {
            self.loans.replace(buffer.into_index(), Loan::Ownerless);
        }
    }
}
