//! Ports that share the memory of their frames with their user, so that payload is not copied
//! (StackMap §4.2, netmap). The user of a port is the TCP/IP stack that opened the port.
//!
//! The memory consists of numbered frames of equal length. At each time, a frame belongs to the
//! port or to the user. A user that keeps a received frame gives the port a free frame in exchange,
//! so that the port never runs out of frames. To transmit data without a copy, the user lends a
//! frame to the port, and gets the frame back when the port no longer reads the frame.

use std::{any::Any, ops::Range, ptr::NonNull};

use crate::{LinkFull, TxChecksum};

/// The memory of a port's frames.
pub struct FrameMemory {
    /// Owner of the memory. The memory exists as long as the owner.
    pub owner: Box<dyn Any>,
    /// Start of the first frame.
    pub start: NonNull<u8>,
    /// Number of frames.
    pub count: u32,
    /// Length of a frame in bytes.
    pub frame_len: u32,
    /// Numbers of the frames that belong to the user at the start. All other frames belong to the
    /// port at the start.
    pub free: Range<u32>,
    /// Length in bytes of the headroom, which lies before the data of a lent frame. The port may
    /// write to the headroom.
    pub tx_headroom: u32,
}

/// Data in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameData {
    /// Number of the frame.
    pub number: u32,
    /// Range of the data within the frame.
    pub range: Range<u32>,
}

/// A port that shares the memory of its frames with its user. `B` is the port's burst.
///
/// # Safety
///
/// The memory of [`Self::take_memory`] is mapped and initialized as long as its owner exists. The
/// port accesses a frame only while the frame belongs to the port, or is lent. Before
/// [`Self::tx_lend`] returns, the port may write the checksum of the lent frame, and the headroom
/// before the data. After the return, the port only reads the lent frame.
pub unsafe trait SharedFrames<B> {
    /// Returns the memory, and gives its free frames ([`FrameMemory::free`]) to the caller. Returns
    /// `None` if the port shares no frames, or if an earlier call has returned the memory.
    fn take_memory(&mut self) -> Option<FrameMemory>;

    /// Gives the frame of packet `at` of `burst` to the caller, and takes the frame `free` in
    /// exchange. The burst then has an empty packet in this place. Returns `None`, without any
    /// effect, if the burst has no packet `at`, or if the packet does not lie within a single frame
    /// of the memory.
    ///
    /// # Safety
    ///
    /// The frame `free` belongs to the caller, and no reference to the frame exists.
    unsafe fn rx_exchange(&mut self, burst: &mut B, at: usize, free: u32) -> Option<FrameData>;

    /// Queues a frame of the caller for transmission, after all frames that were committed earlier.
    /// The argument `checksum` has the meaning that it has in
    /// [`tx_commit`](crate::PacketIo::tx_commit). Returns an error, without any effect, while the
    /// port has no space for another frame.
    ///
    /// # Safety
    ///
    /// The frame belongs to the caller. Until [`Self::tx_returned`] returns the number of the
    /// frame, the caller writes neither the data nor the headroom before the data.
    unsafe fn tx_lend(&mut self, data: FrameData, checksum: TxChecksum) -> Result<(), LinkFull>;

    /// Returns the number of a lent frame that the port no longer reads. The frame then belongs to
    /// the caller again. Returns `None` if the port still reads all lent frames, or if no frame is
    /// lent.
    fn tx_returned(&mut self) -> Option<u32>;
}
