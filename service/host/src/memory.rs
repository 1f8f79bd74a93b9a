//! Memory for received data: thresholds for the total of the service, and an account for each user.
//!
//! The host charges each receive buffer to the user of the connection's program, and to the
//! [`StreamMemory`] that all cores of a service share. Send buffers are memory of the programs,
//! which the kernel charges to the programs.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use tidelane_ring::{BufferAllocator, Region, StreamBuffer};

use crate::accounts::{Account, Charge, Resource};

/// Size in bytes of the smallest free block that contains a whole page.
const IDLE_MIN: u64 = 4096;

/// Thresholds of the allocated bytes. The three values have the meaning of `net.ipv4.tcp_mem`, but
/// `tcp_mem` counts pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Memory pressure ends when usage falls below this threshold.
    pub low: u64,
    /// Memory pressure begins when usage exceeds this threshold. Under memory pressure, receive
    /// windows do not grow.
    pub pressure: u64,
    /// Usage never exceeds this threshold. At the threshold, the host drops payload and new SYNs.
    pub high: u64,
}

impl MemoryLimits {
    /// No thresholds: usage never reaches these values.
    pub const NONE: Self = Self {
        low: u64::MAX,
        pressure: u64::MAX,
        high: u64::MAX,
    };

    /// Returns the thresholds that the kernel chooses for `tcp_mem` on a system with `bytes` bytes
    /// of memory.
    pub fn of_system(bytes: u64) -> Self {
        let pressure = (bytes / 16).max(512 << 10);
        let low = pressure / 4 * 3;
        Self {
            low,
            pressure,
            high: low * 2,
        }
    }
}

/// The number of bytes that all cores of a service have allocated for receive buffers. Clones share
/// the number.
#[derive(Clone, Debug)]
pub struct StreamMemory(Arc<StreamUsage>);

/// The thresholds, and the usage that all cores share.
#[derive(Debug)]
struct StreamUsage {
    limits: MemoryLimits,
    /// Allocated bytes.
    used: AtomicU64,
    /// True under memory pressure.
    pressed: AtomicBool,
}

impl Default for StreamMemory {
    fn default() -> Self {
        Self::new(MemoryLimits::NONE)
    }
}

impl StreamMemory {
    /// Returns a usage of zero bytes with the thresholds `limits`.
    pub fn new(limits: MemoryLimits) -> Self {
        Self(Arc::new(StreamUsage {
            limits,
            used: AtomicU64::new(0),
            pressed: AtomicBool::new(false),
        }))
    }

    /// Returns the thresholds.
    pub fn limits(&self) -> MemoryLimits {
        self.0.limits
    }

    /// Returns the number of allocated bytes.
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// Returns true under memory pressure: from the time at which usage exceeds `pressure` until
    /// usage is below `low`.
    pub fn is_pressed(&self) -> bool {
        self.0.pressed.load(Acquire)
    }

    /// Returns true if usage has reached `high`.
    pub fn is_exhausted(&self) -> bool {
        self.used() >= self.0.limits.high
    }

    /// Adds `bytes` to the usage. Returns false and adds nothing if the sum would exceed `high`.
    fn take(&self, bytes: u64) -> bool {
        let StreamUsage { limits, used, .. } = &*self.0;
        let now = used.fetch_add(bytes, Relaxed).saturating_add(bytes);
        if now > limits.high {
            used.fetch_sub(bytes, Relaxed);
            return false;
        }
        if now > limits.pressure {
            self.0.pressed.store(true, Release);
        }
        true
    }

    /// Subtracts `bytes` from the usage. Ends memory pressure if usage falls below `low`.
    fn give_back(&self, bytes: u64) {
        let before = self.0.used.fetch_sub(bytes, Relaxed);
        if before.saturating_sub(bytes) < self.0.limits.low && self.is_pressed() {
            self.0.pressed.store(false, Release);
        }
    }
}

/// An allocator of receive buffers that charges one account.
pub trait Buffers {
    /// Allocates a buffer of `2^log2` bytes. Returns `None` if there is no memory, or if the
    /// account's limit is reached.
    fn alloc(&mut self, log2: u8) -> Option<StreamBuffer>;
    /// Frees a buffer, and refunds its charge.
    fn free(&mut self, buffer: StreamBuffer);
}

/// The receive buffers of one program.
#[derive(Debug)]
pub struct RxBuffers {
    allocator: BufferAllocator,
    /// The charge to the program's user for all buffers. `None` if the user's account refused the
    /// charge: the program then gets no buffer.
    charge: Option<Charge>,
    memory: StreamMemory,
    /// Number of bytes in allocated buffers.
    given_out: u64,
    /// True if a buffer was allocated since the last call of `check_idle`.
    busy: bool,
    /// True if no buffer was allocated between the last two calls of `check_idle`, and the free
    /// blocks may have pages to free.
    idle: bool,
}

impl RxBuffers {
    /// Returns the receive memory of a program, without allocated buffers. The host charges
    /// `account` for each buffer.
    pub fn new(allocator: BufferAllocator, account: &Arc<Account>, memory: StreamMemory) -> Self {
        Self {
            allocator,
            charge: account.charge(Resource::StreamBytes, 0).ok(),
            memory,
            given_out: 0,
            busy: false,
            idle: false,
        }
    }

    /// Replaces `staged`, a buffer of the [`Staging`] area, by a new buffer of the same size, and
    /// frees `staged`. The caller has to copy the data immediately. If there is no room, or if the
    /// user's account refuses the charge, allocates nothing, keeps `staged`, and returns `None`.
    ///
    /// The charge for `staged` moves to the new buffer, so that a user at the limit can still
    /// accept the connection.
    pub fn alloc_instead(
        &mut self,
        staging: &mut Staging,
        staged: StreamBuffer,
    ) -> Option<StreamBuffer> {
        let charge = self.charge.as_mut()?;
        let buffer = self.allocator.alloc(staged.log2)?;
        let bytes = u64::from(buffer.len());
        let mut paid = staging.charges.remove(&staged.offset).unwrap_or_default();
        let absorbed = paid.stream.take().map(|paid| charge.absorb(paid));
        paid.stream = absorbed.and_then(Result::err);
        // If another user paid for the staging buffer, drop that charge, and charge this program's
        // user.
        let owed = bytes.saturating_sub(charge.units() - self.given_out);
        if charge.grow(owed).is_err() {
            staging.charges.insert(staged.offset, paid);
            self.allocator.free(buffer);
            return None;
        }
        staging.allocator.free(staged);
        self.given_out += bytes;
        self.busy = true;
        Some(buffer)
    }

    /// Returns true if no buffer was allocated since the last call, and free blocks may have
    /// resident pages. The following calls return false until a buffer is allocated, or a block is
    /// taken.
    pub fn check_idle(&mut self) -> bool {
        let busy = std::mem::take(&mut self.busy);
        let asked = std::mem::replace(&mut self.idle, !busy && self.allocator.has_free_dirty());
        self.idle && !asked
    }

    /// Returns true if the host has to call [`check_idle`](Self::check_idle) again.
    pub fn needs_idle_check(&self) -> bool {
        self.allocator.has_free_dirty() && !self.idle
    }

    /// Takes at most `most` free blocks that may have resident pages. Takes no block if `idle` is
    /// false. The caller frees the pages of the blocks, and then calls
    /// [`return_clean`](Self::return_clean).
    pub fn take_dirty_if_idle(&mut self, most: usize) -> Vec<StreamBuffer> {
        let idle = std::mem::take(&mut self.idle);
        let blocks = std::iter::from_fn(|| self.allocator.take_dirty(IDLE_MIN));
        blocks.take(if idle { most } else { 0 }).collect()
    }

    /// Frees a block from [`take_dirty_if_idle`](Self::take_dirty_if_idle), whose pages the caller
    /// has freed.
    pub fn return_clean(&mut self, block: StreamBuffer) {
        self.allocator.return_clean(block);
    }

    /// Returns the length in bytes of the longest possible buffer.
    pub fn longest(&self) -> u32 {
        self.allocator.longest()
    }

    /// Returns the number of allocated bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.given_out
    }
}

impl Buffers for RxBuffers {
    fn alloc(&mut self, log2: u8) -> Option<StreamBuffer> {
        let bytes = 1u64.checked_shl(log2.into())?;
        let charge = self.charge.as_mut()?;
        charge.grow(bytes).ok()?;
        if !self.memory.take(bytes) {
            charge.shrink(bytes);
            return None;
        }
        let Some(buffer) = self.allocator.alloc(log2) else {
            charge.shrink(bytes);
            self.memory.give_back(bytes);
            return None;
        };
        self.given_out += bytes;
        self.busy = true;
        Some(buffer)
    }

    fn free(&mut self, buffer: StreamBuffer) {
        if self.allocator.free(buffer) {
            let bytes = u64::from(buffer.len());
            self.given_out -= bytes;
            if let Some(charge) = &mut self.charge {
                charge.shrink(bytes);
            }
            self.memory.give_back(bytes);
        }
    }
}

impl Drop for RxBuffers {
    fn drop(&mut self) {
        self.memory.give_back(self.given_out);
    }
}

/// The staging area: receive buffers of connections that no program has yet. The host charges the
/// buffers to the users of the listeners.
#[derive(Debug)]
pub struct Staging {
    /// The host's own region, which contains the buffers.
    region: Region,
    allocator: BufferAllocator,
    memory: StreamMemory,
    /// The charges for each allocated buffer, by the offset of the buffer.
    charges: BTreeMap<u64, Paid>,
}

/// The charges for a staging buffer. Both are `None` for a buffer without a user.
#[derive(Debug, Default)]
struct Paid {
    /// The charge for [`Resource::StreamBytes`].
    stream: Option<Charge>,
    /// The charge for [`Resource::StagedBytes`].
    _place: Option<Charge>,
}

impl Paid {
    fn by(account: &Arc<Account>, bytes: u64) -> Option<Self> {
        Some(Self {
            stream: Some(account.charge(Resource::StreamBytes, bytes).ok()?),
            _place: Some(account.charge(Resource::StagedBytes, bytes).ok()?),
        })
    }
}

impl Staging {
    /// Returns the staging area `region`, without buffers.
    pub fn new(region: Region, memory: StreamMemory) -> Self {
        Self {
            allocator: BufferAllocator::new(0..region.len()),
            region,
            memory,
            charges: BTreeMap::new(),
        }
    }

    /// Returns the region, and an allocator that charges `account`. Without an account, the
    /// allocator charges no user.
    pub fn of<'s>(&'s mut self, account: Option<&'s Arc<Account>>) -> (&'s Region, Staged<'s>) {
        let staged = Staged {
            allocator: &mut self.allocator,
            memory: &self.memory,
            charges: &mut self.charges,
            account,
        };
        (&self.region, staged)
    }

    /// Returns the region, which contains the buffers.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the usage that all cores share.
    pub fn memory(&self) -> &StreamMemory {
        &self.memory
    }

    /// Sets the usage that all cores share. The staging area must not have a buffer yet.
    pub fn set_memory(&mut self, memory: StreamMemory) {
        assert!(self.charges.is_empty(), "a buffer exists");
        self.memory = memory;
    }
}

/// The allocator of staging buffers for one user, or for no user.
#[derive(Debug)]
pub struct Staged<'s> {
    allocator: &'s mut BufferAllocator,
    memory: &'s StreamMemory,
    charges: &'s mut BTreeMap<u64, Paid>,
    account: Option<&'s Arc<Account>>,
}

impl Buffers for Staged<'_> {
    fn alloc(&mut self, log2: u8) -> Option<StreamBuffer> {
        let bytes = 1u64.checked_shl(log2.into())?;
        let paid = match self.account {
            Some(account) => Paid::by(account, bytes)?,
            None => Paid::default(),
        };
        if !self.memory.take(bytes) {
            return None;
        }
        let Some(buffer) = self.allocator.alloc(log2) else {
            self.memory.give_back(bytes);
            return None;
        };
        self.charges.insert(buffer.offset, paid);
        Some(buffer)
    }

    fn free(&mut self, buffer: StreamBuffer) {
        if self.allocator.free(buffer) {
            self.charges.remove(&buffer.offset);
            self.memory.give_back(buffer.len().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::{Ledger, User, UserId, Weight};

    const LIMITS: MemoryLimits = MemoryLimits {
        low: 8 << 10,
        pressure: 16 << 10,
        high: 32 << 10,
    };

    fn user(id: u32) -> Arc<User> {
        Arc::new(User::new(UserId(id), Weight::Unlimited))
    }

    fn buffers(memory: &StreamMemory, account: &Arc<Account>) -> RxBuffers {
        RxBuffers::new(BufferAllocator::new(0..1 << 20), account, memory.clone())
    }

    #[test]
    fn the_thresholds_are_the_kernel_s() {
        let limits = MemoryLimits::of_system(16 << 30);
        assert_eq!(limits.pressure, 1 << 30);
        assert_eq!((limits.low, limits.high), (768 << 20, 1536 << 20));
    }

    #[test]
    fn pressure_begins_above_one_threshold_and_ends_below_another() {
        let memory = StreamMemory::new(LIMITS);
        let account = Ledger::default().account(&user(1));
        let mut buffers = buffers(&memory, &account);
        let held: Vec<_> = (0..5).map(|_| buffers.alloc(12).expect("room")).collect();
        assert!(memory.is_pressed() && !memory.is_exhausted());
        let pressed = held.into_iter().map(|buffer| {
            buffers.free(buffer);
            memory.is_pressed()
        });
        assert_eq!(
            pressed.collect::<Vec<_>>(),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn no_buffer_is_allocated_above_the_last_threshold() {
        let memory = StreamMemory::new(LIMITS);
        let mut ledger = Ledger::default();
        let mut first = buffers(&memory, &ledger.account(&user(1)));
        let mut second = buffers(&memory, &ledger.account(&user(2)));
        assert!(first.alloc(14).is_some() && second.alloc(14).is_some());
        assert!(memory.is_exhausted() && second.alloc(11).is_none());
        drop(first);
        assert_eq!(memory.used(), 16 << 10);
        assert!(second.alloc(14).is_some());
    }

    /// One user cannot fill the staging area: a second user still gets buffers.
    #[test]
    fn the_staging_area_is_shared_among_users() {
        let memory = StreamMemory::default();
        let mut ledger = Ledger::default();
        ledger.set_capacity(Resource::StagedBytes, 64 << 12);
        let shared = |id| Arc::new(User::new(UserId(id), Weight::User));
        let accounts = [1, 2].map(|id| ledger.account(&shared(id)));
        let region = Region::heap(64 << 12).expect("there is memory");
        let mut staging = Staging::new(region, memory.clone());
        let mut fill = |account: &Arc<Account>| {
            let mut staged = staging.of(Some(account)).1;
            std::iter::from_fn(|| staged.alloc(12)).count()
        };
        assert_eq!(accounts.each_ref().map(&mut fill), [28, 14]);
        assert_eq!(memory.used(), 42 << 12);
        assert_eq!(accounts[0].used(Resource::StreamBytes), 28 << 12);
    }

    /// A refused allocation changes no account.
    #[test]
    fn each_user_pays_for_their_own_buffers() {
        let memory = StreamMemory::new(LIMITS);
        let mut ledger = Ledger::default();
        let (poor, rich) = (user(1), user(2));
        poor.set_limit(Resource::StreamBytes, 8 << 10);
        let accounts = [ledger.account(&poor), ledger.account(&rich)];
        let region = Region::heap(1 << 20).expect("there is memory");
        let mut staging = Staging::new(region, memory.clone());
        let mut program = buffers(&memory, &accounts[0]);
        let staged = staging.of(Some(&accounts[0])).1.alloc(12).expect("room");
        assert!(program.alloc(12).is_some());
        assert!(program.alloc(11).is_none(), "staging is not counted");
        assert!(staging.of(Some(&accounts[0])).1.alloc(11).is_none());
        assert!(staging.of(Some(&accounts[1])).1.alloc(13).is_some());
        assert_eq!(memory.used(), 16 << 10);
        staging.of(None).1.free(staged);
        assert_eq!(accounts[0].used(Resource::StreamBytes), 4 << 10);
        assert_eq!(accounts[0].used(Resource::StagedBytes), 0);
        assert!(program.alloc(12).is_some());
        drop(program);
        assert_eq!(accounts[0].used(Resource::StreamBytes), 0);
        assert_eq!(memory.used(), 8 << 10);
    }
}
