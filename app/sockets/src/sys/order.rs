//! The lock order: the order in which a thread takes the locks of this crate, so that the locks
//! cannot deadlock. Debug builds check the order.

/// A lock's position in the lock order: a thread that holds a lock takes only locks of higher rank.
/// The variants are in ascending order. `Lock::try_lock` and `Lock::lock_of_new` allow exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// The lock of an epoll instance, which protects the interest list and the ready list.
    Epoll,
    /// The lock of a socket, which protects the socket's state.
    Socket,
    /// The lock that a thread holds while it registers this process with the service (the process
    /// `tidelaned`).
    Session,
    /// The lock of a channel's rings, over which this process and the service exchange requests and
    /// events.
    Ring,
    /// Any other lock. A thread that holds a lock of this rank takes no further lock.
    Leaf,
}

#[cfg(debug_assertions)]
mod checked {
    use std::cell::Cell;

    use super::Rank;

    thread_local! {
        /// Number of locks of each rank that this thread holds.
        static HELD: [Cell<u32>; Rank::Leaf as usize + 1] = const { [const { Cell::new(0) }; 5] };
    }

    /// Returns the number of locks of rank number `lowest` or higher that this thread holds.
    fn count_from(lowest: usize) -> u32 {
        HELD.with(|held| held[lowest..].iter().map(Cell::get).sum())
    }

    /// The record that this thread holds a lock of this rank. The record ends when the value is
    /// dropped.
    #[derive(Debug)]
    pub struct Held(Rank);

    impl Held {
        /// Records that this thread takes a lock of `rank`.
        ///
        /// # Panics
        ///
        /// Panics if this thread holds a lock of the same or a higher rank.
        pub fn new(rank: Rank) -> Self {
            assert!(
                count_from(rank as usize) == 0,
                "a {rank:?} lock is taken while a lock of the same or a higher rank is held"
            );
            Self::new_unordered(rank)
        }

        /// Records that this thread takes the lock of a new object.
        ///
        /// # Panics
        ///
        /// Panics if this thread holds a lock of a higher rank, or several locks of the same rank.
        pub fn new_within(rank: Rank) -> Self {
            let (same_or_higher, higher) =
                (count_from(rank as usize), count_from(rank as usize + 1));
            assert!(
                higher == 0 && same_or_higher <= 1,
                "a new object's {rank:?} lock is taken while two locks of the same rank or a lock \
                 of a higher rank are held"
            );
            Self::new_unordered(rank)
        }

        /// Records that this thread holds a lock of `rank`, without checking the order.
        /// `try_lock` uses this function: it does not wait for the lock, and therefore cannot
        /// deadlock.
        pub fn new_unordered(rank: Rank) -> Self {
            HELD.with(|held| held[rank as usize].set(held[rank as usize].get() + 1));
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with(|held| held[self.0 as usize].set(held[self.0 as usize].get() - 1));
        }
    }
}

#[cfg(debug_assertions)]
pub(crate) use checked::Held;

/// The empty record of release builds, which do not check the order.
#[cfg(not(debug_assertions))]
#[derive(Debug)]
pub(crate) struct Held;

#[cfg(not(debug_assertions))]
impl Held {
    #[inline(always)]
    pub(crate) fn new(_rank: Rank) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn new_within(_rank: Rank) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn new_unordered(_rank: Rank) -> Self {
        Self
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::sys::Lock;

    #[test]
    fn locks_may_be_taken_in_order_with_gaps() {
        let [epoll, socket, ring] =
            [Rank::Epoll, Rank::Socket, Rank::Ring].map(|rank| Lock::ranked(rank, ()));
        let (_a, _b, _c) = (epoll.lock(), socket.lock(), ring.lock());
        drop((_a, _b, _c));
        let (_a, _c) = (epoll.lock(), ring.lock());
        // `try_lock` may be called against the order, because it does not wait.
        assert!(socket.try_lock().is_some());
    }

    #[test]
    #[should_panic(expected = "a Socket lock is taken while a lock of the same")]
    fn locks_against_the_order_panic() {
        let (socket, ring) = (Lock::ranked(Rank::Socket, ()), Lock::ranked(Rank::Ring, ()));
        let _ring = ring.lock();
        let _socket = socket.lock();
    }

    #[test]
    #[should_panic(expected = "a Socket lock is taken while a lock of the same")]
    fn two_locks_of_one_rank_panic() {
        let locks = [(), ()].map(|()| Lock::ranked(Rank::Socket, ()));
        let _first = locks[0].lock();
        let _second = locks[1].lock();
    }

    #[test]
    #[should_panic(expected = "a Socket lock is taken while a lock of the same")]
    fn the_order_is_checked_before_the_wait() {
        let (socket, ring) = (Lock::ranked(Rank::Socket, ()), Lock::ranked(Rank::Ring, ()));
        let _ring = ring.lock();
        std::thread::scope(|scope| {
            // The other thread ends without releasing the lock, so that a wait would not end.
            scope.spawn(|| std::mem::forget(socket.lock()));
        });
        let _socket = socket.lock();
    }

    #[test]
    fn a_new_lock_may_be_taken_within_one_of_its_rank() {
        let [old, new] = [(), ()].map(|()| Lock::ranked(Rank::Socket, ()));
        let _old = old.lock();
        let _new = new.lock_of_new();
    }

    #[test]
    #[should_panic(expected = "a new object's Socket lock is taken while")]
    fn a_new_lock_may_not_be_taken_against_the_order() {
        let (socket, ring) = (Lock::ranked(Rank::Socket, ()), Lock::ranked(Rank::Ring, ()));
        let _ring = ring.lock();
        let _socket = socket.lock_of_new();
    }
}
