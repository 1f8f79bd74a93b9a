//! The order of locks, asserted in debug builds.

/// A lock's place in the order: a thread that has one takes only those behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// The registrations and the ready list of an epoll instance.
    Interest,
    /// A socket.
    Socket,
    /// The process' registration with the service.
    Session,
    /// The rings of a lane.
    Ring,
    /// All others: nothing is taken below them.
    Leaf,
}

#[cfg(debug_assertions)]
mod checked {
    use std::cell::Cell;

    use super::Rank;

    thread_local! {
        /// How many locks of each rank this thread has.
        static HELD: [Cell<u32>; Rank::Leaf as usize + 1] = const { [const { Cell::new(0) }; 5] };
    }

    /// A lock is held while this lives.
    #[derive(Debug)]
    pub struct Held(Rank);

    impl Held {
        /// # Panics
        ///
        /// If this thread has a lock that comes behind `rank`, or another one of `rank`.
        pub fn new(rank: Rank) -> Self {
            HELD.with(|held| {
                let behind = &held[rank as usize..];
                assert!(
                    behind.iter().all(|count| count.get() == 0),
                    "a {rank:?} lock is taken below one that comes behind it"
                );
            });
            Self::new_unordered(rank)
        }

        /// As `new`, in any order: the lock was free.
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

/// Nothing, in release builds.
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
    pub(crate) fn new_unordered(_rank: Rank) -> Self {
        Self
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use crate::sys::Lock;

    #[test]
    fn the_order_may_be_taken_and_skipped() {
        let [interest, socket, ring] =
            [Rank::Interest, Rank::Socket, Rank::Ring].map(|rank| Lock::ranked(rank, ()));
        let (_a, _b, _c) = (interest.lock(), socket.lock(), ring.lock());
        drop((_a, _b, _c));
        let (_a, _c) = (interest.lock(), ring.lock());
        // Against the order, without waiting.
        assert!(socket.try_lock().is_some());
    }

    #[test]
    #[should_panic(expected = "a Socket lock is taken below")]
    fn against_the_order() {
        let (socket, ring) = (Lock::ranked(Rank::Socket, ()), Lock::ranked(Rank::Ring, ()));
        let _ring = ring.lock();
        let _socket = socket.lock();
    }

    #[test]
    #[should_panic(expected = "a Socket lock is taken below")]
    fn two_of_a_kind() {
        let locks = [(), ()].map(|()| Lock::ranked(Rank::Socket, ()));
        let _first = locks[0].lock();
        let _second = locks[1].lock();
    }
}
