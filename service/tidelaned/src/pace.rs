//! Pacing of the Tidelane service's threads that share a CPU with a core. A core is a polling
//! thread that handles packets ([`crate::core`]).
//!
//! A core polls in the idle scheduling class, so a core waits while any other thread of its CPU
//! runs. Without pacing, the registration of one program would delay the traffic of all other
//! programs until the memory of the new program is mapped. A paced thread therefore works in short
//! pieces. The thread sleeps after each piece, and the core runs immediately.
//!
//! A paced thread calls [`rest`] wherever a piece may end. While the piece is short, the call only
//! reads the clock. If no core is awake on the thread's CPU, the thread continues without a sleep.
//! The length of a piece is its CPU time, because a thread that waits for a core's answer delays no
//! core.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// CPU time after which the next call of [`rest`] ends a piece.
const PIECE: Duration = Duration::from_micros(20);
/// Ratio of a sleep to the piece before the sleep. If [`REST_MAX`] does not shorten the sleep, the
/// core gets five sixths of the CPU.
const RESTS_PER_PIECE: u32 = 5;
/// Longest sleep. This maximum limits the delay of a thread after a long piece.
const REST_MAX: Duration = Duration::from_millis(1);

/// A function that returns true if a core is awake on the calling thread's CPU.
pub type IsBesideCore = Arc<dyn Fn() -> bool + Send + Sync>;

thread_local! {
    /// The check that [`install_check`] installed on this thread.
    static BESIDE: RefCell<Option<IsBesideCore>> = const { RefCell::new(None) };
    /// The start of this thread's current piece.
    static BEGAN: Cell<Option<Beginning>> = const { Cell::new(None) };
}

/// The start of a piece of work.
#[derive(Clone, Copy)]
struct Beginning {
    /// Time of the start.
    at: Instant,
    /// CPU time that the thread had used before the piece.
    used: Duration,
}

impl Beginning {
    fn now() -> Self {
        let used = clock_gettime(ClockId::ThreadCPUTime);
        Self {
            at: Instant::now(),
            used: Duration::new(used.tv_sec as u64, used.tv_nsec as u32),
        }
    }
}

/// Installs a check on the calling thread. Later calls of [`rest`] on this thread sleep only if
/// `is_beside_core` returns true.
pub fn install_check(is_beside_core: IsBesideCore) {
    BESIDE.set(Some(is_beside_core));
}

/// Starts a piece of work of the calling thread, which has just been woken.
pub fn begin() {
    BEGAN.set(Some(Beginning::now()));
}

/// If the current piece has used at least `PIECE` of CPU time, ends the piece and starts the next
/// piece. In this case, if a core is awake on this CPU, sleeps between the two pieces. On a thread
/// that never called [`begin`], does nothing.
pub fn rest() {
    let Some(began) = BEGAN.get() else {
        return;
    };
    // Reading the CPU time takes a system call. Reading the monotonic clock takes none.
    if began.at.elapsed() < PIECE {
        return;
    }
    let worked = Beginning::now().used.saturating_sub(began.used);
    if worked < PIECE {
        return;
    }
    let beside = BESIDE.with_borrow(|beside| beside.as_ref().is_some_and(|beside| beside()));
    if beside {
        thread::sleep((worked * RESTS_PER_PIECE).min(REST_MAX));
    }
    begin();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Spins until the calling thread has used `time` of CPU time. Time in which other threads have
    /// the CPU does not count.
    fn work(time: Duration) {
        let began = Beginning::now().used;
        while Beginning::now().used.saturating_sub(began) < time {
            std::hint::spin_loop();
        }
    }

    /// Makes a thread work for `time` and call [`rest`]. Returns the duration of that call, and the
    /// number of times that the thread checked for cores.
    fn rest_after(time: Duration, is_beside: bool) -> (Duration, u32) {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let rested = thread::spawn(move || {
            install_check(Arc::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
                is_beside
            }));
            begin();
            work(time);
            let began = Instant::now();
            rest();
            began.elapsed()
        });
        let rested = rested.join().expect("the thread ends");
        (rested, asked.load(Ordering::Relaxed))
    }

    #[test]
    fn a_thread_on_the_cpu_of_a_core_rests_longer_than_it_worked() {
        let (rested, asked) = rest_after(10 * PIECE, true);
        assert_eq!(asked, 1);
        assert!(rested >= 30 * PIECE, "it rested {rested:?}");
        let (rested, _) = rest_after(REST_MAX, true);
        assert!(rested >= REST_MAX, "it rested {rested:?}");
    }

    #[test]
    fn a_thread_that_waited_has_not_worked() {
        let rested = thread::spawn(|| {
            install_check(Arc::new(|| true));
            begin();
            thread::sleep(10 * REST_MAX);
            let began = Beginning::now().at;
            rest();
            began.elapsed()
        });
        let rested = rested.join().expect("the thread ends");
        assert!(rested < REST_MAX, "it rested {rested:?}");
    }

    #[test]
    fn a_thread_away_from_cores_only_asks() {
        let (_, asked) = rest_after(2 * PIECE, false);
        assert_eq!(asked, 1);
    }

    #[test]
    fn a_thread_without_a_check_continues() {
        begin();
        work(2 * PIECE);
        rest();
    }
}
