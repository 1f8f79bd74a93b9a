//! Memory for what peers send: thresholds for all of it, and an account for each user's part.
//!
//! A buffer is paid for when it is given out, by whom it is for: to their account, and to the
//! [`StreamMemory`] that all cores of a service share. Send buffers are their programs' own memory,
//! which the kernel charges to them.

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

/// Free blocks below a page have none to give back.
const IDLE_MIN: u64 = 4096;

/// Thresholds in bytes, with the meaning of the three of `net.ipv4.tcp_mem`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Below it there is no pressure any more.
    pub low: u64,
    /// Above it there is pressure: receive windows grow no more.
    pub pressure: u64,
    /// The limit: beyond it payload is dropped, and connections do not begin.
    pub high: u64,
}

impl MemoryLimits {
    /// No thresholds.
    pub const NONE: Self = Self {
        low: u64::MAX,
        pressure: u64::MAX,
        high: u64::MAX,
    };

    /// As the kernel chooses `tcp_mem` for a system with so many bytes of memory.
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

/// The memory that all cores of a service have given out for received bytes. Clones share it.
#[derive(Clone, Debug)]
pub struct StreamMemory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: MemoryLimits,
    used: AtomicU64,
    pressed: AtomicBool,
}

impl Default for StreamMemory {
    fn default() -> Self {
        Self::new(MemoryLimits::NONE)
    }
}

impl StreamMemory {
    /// Nothing is given out yet.
    pub fn new(limits: MemoryLimits) -> Self {
        Self(Arc::new(Shared {
            limits,
            used: AtomicU64::new(0),
            pressed: AtomicBool::new(false),
        }))
    }

    /// The thresholds.
    pub fn limits(&self) -> MemoryLimits {
        self.0.limits
    }

    /// Bytes given out.
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// Returns true from when too much is given out until it is little enough again.
    pub fn is_pressed(&self) -> bool {
        self.0.pressed.load(Acquire)
    }

    /// Returns true if nothing more is given out.
    pub fn is_exhausted(&self) -> bool {
        self.used() >= self.0.limits.high
    }

    /// Takes `bytes`. Returns false, and takes nothing, if they would be too many.
    fn take(&self, bytes: u64) -> bool {
        let Shared { limits, used, .. } = &*self.0;
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

    fn give_back(&self, bytes: u64) {
        let before = self.0.used.fetch_sub(bytes, Relaxed);
        if before.saturating_sub(bytes) < self.0.limits.low && self.is_pressed() {
            self.0.pressed.store(false, Release);
        }
    }
}

/// Gives out receive buffers to somebody who pays for them.
pub trait Buffers {
    /// A buffer of `2^log2` bytes; none if there is no memory, or too little of it is theirs.
    fn alloc(&mut self, log2: u8) -> Option<StreamBuffer>;
    /// Takes a buffer back.
    fn free(&mut self, buffer: StreamBuffer);
}

/// The receive buffers of one program.
#[derive(Debug)]
pub struct RxBuffers {
    allocator: BufferAllocator,
    charge: Option<Charge>,
    memory: StreamMemory,
    /// Bytes that connections have.
    given_out: u64,
    /// Something was given out since the last look.
    busy: bool,
    /// Nothing was, and there may be pages to give back.
    idle: bool,
}

impl RxBuffers {
    /// All of `allocator` is free; what is given out is `account`'s.
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

    /// A buffer for what lies in `staged`, which is free from now on and of which the bytes are to
    /// be copied at once. Whoever paid for that pays for this: a connection that waits needs no
    /// more memory than it has.
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
        // Another user's, or nobody's, who has it back where this one may not have so much.
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

    /// Returns true if free memory has pages and nothing was given out since the last call: once,
    /// until something is.
    pub fn look_idle(&mut self) -> bool {
        let busy = std::mem::take(&mut self.busy);
        let asked = std::mem::replace(&mut self.idle, !busy && self.allocator.is_loose());
        self.idle && !asked
    }

    /// Returns true if [`look_idle`](Self::look_idle) is to be called again.
    pub fn is_loose(&self) -> bool {
        self.allocator.is_loose() && !self.idle
    }

    /// While it is idle: no more than `most` blocks of free memory whose pages go back to the
    /// system.
    pub fn lend_idle(&mut self, most: usize) -> Vec<StreamBuffer> {
        let idle = std::mem::take(&mut self.idle);
        let blocks = std::iter::from_fn(|| self.allocator.lend(IDLE_MIN));
        blocks.take(if idle { most } else { 0 }).collect()
    }

    /// Takes lent memory back as free, without its pages.
    pub fn take_back(&mut self, block: StreamBuffer) {
        self.allocator.take_back(block);
    }

    /// Bytes of the longest buffer that there can be when nothing is given out.
    pub fn longest(&self) -> u32 {
        self.allocator.longest()
    }

    /// Bytes that are given out.
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

/// Memory for connections that no program has yet, by the users who hold their listeners.
#[derive(Debug)]
pub struct Staging {
    /// The host's own region.
    pub region: Region,
    allocator: BufferAllocator,
    memory: StreamMemory,
    /// For each buffer that is given out, by its offset.
    charges: BTreeMap<u64, Paid>,
}

/// The charge for a staging buffer; none for a buffer of nobody.
#[derive(Debug, Default)]
struct Paid {
    /// Of all stream buffers.
    stream: Option<Charge>,
    /// Of the staging area.
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
    /// All of `region` is free.
    pub fn new(region: Region, memory: StreamMemory) -> Self {
        Self {
            allocator: BufferAllocator::new(0..region.len()),
            region,
            memory,
            charges: BTreeMap::new(),
        }
    }

    /// The region, and the staging buffers of `account`; of nobody's if there is none.
    pub fn of<'s>(&'s mut self, account: Option<&'s Arc<Account>>) -> (&'s Region, Staged<'s>) {
        let staged = Staged {
            allocator: &mut self.allocator,
            memory: &self.memory,
            charges: &mut self.charges,
            account,
        };
        (&self.region, staged)
    }

    /// Gives out from another memory from now on, before anything is given out.
    pub fn set_memory(&mut self, memory: StreamMemory) {
        assert!(self.charges.is_empty(), "the host is new");
        self.memory = memory;
    }
}

/// Staging buffers of one user.
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
    fn nothing_is_given_out_beyond_the_last_threshold() {
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

    /// However much one user's connections wait for accept, another's find room, and root's.
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

    /// A refusal leaves no trace in any of the two books.
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
        assert!(program.alloc(11).is_none(), "staging counts, too");
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
