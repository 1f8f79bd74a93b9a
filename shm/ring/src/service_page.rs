//! Methods of the service page, a page that the service (process `tidelaned`) writes and all
//! programs map read-only. The page has a line for each core (polling thread of the service), and
//! the route table, which programs read under a sequence lock. The table tells a program whether
//! the service or the kernel handles connections to a destination.

use std::{
    sync::atomic::{Ordering, fence},
    time::{Duration, Instant},
};

use rustix::thread::sched_getcpu;
use tidelane_abi::{CoreLine, ROUTES_MAX, RouteEntry};

use crate::ServicePageMap;

/// A route as the service publishes it: an address prefix, and the way to handle connections to
/// addresses in the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedRoute {
    /// Address of the prefix. An IPv4 address has the form `::ffff:a.b.c.d`.
    pub addr: [u8; 16],
    /// Prefix length in bits, in the 128-bit form of the address. For an IPv4 prefix, `prefix_len`
    /// is 96 more than the usual length.
    pub prefix_len: u8,
    /// One of [`tidelane_abi::ROUTE_KERNEL`], `ROUTE_ACCELERATED`, `ROUTE_ASK_SERVICE` and
    /// `ROUTE_WITHIN_HOST`.
    pub handling: u32,
}

/// Reason why a route table was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutesError {
    /// The table has more than [`ROUTES_MAX`] entries.
    TooMany,
    /// A prefix length is above 128.
    PrefixLen,
    /// The page is mapped read-only, which is the case in a program.
    ReadOnly,
}

/// Largest number of attempts of a lookup to read the table while the service does not write it.
/// After these attempts, the lookup assumes that the service died during a write.
const ATTEMPTS_MAX: u32 = 1000;
/// Number of times that a poll looks for work between two looks at the clock.
const CALLS_PER_CLOCK_READ: u32 = 16;

impl ServicePageMap {
    /// Returns true if a core of the service may run on `cpu`, so that a thread that polls on `cpu`
    /// would delay the core. A core that is not pinned may run on any CPU. If `cpu` is `None`, the
    /// CPU of the thread is unknown, and may be the CPU of a core.
    pub fn may_run_on(&self, cpu: Option<u32>) -> bool {
        let Some(cpu) = cpu else {
            return true;
        };
        self.lines()
            .map(|line| line.cpu.load(Ordering::Relaxed).checked_sub(1))
            .any(|pinned_to| pinned_to.is_none_or(|core| core == cpu))
    }

    /// Returns true if all cores of the service sleep, so that a poll of their rings is useless.
    pub fn all_cores_sleep(&self) -> bool {
        self.lines()
            .all(|line| line.needs_wakeup.load(Ordering::Relaxed) != 0)
    }

    /// Returns true if a thread on `cpu` should poll before it sleeps: a core is awake, and no core
    /// may run on `cpu`.
    pub fn should_poll(&self, cpu: Option<u32>) -> bool {
        !self.all_cores_sleep() && !self.may_run_on(cpu)
    }

    /// Polls with `found` for at most `time`, until `found` returns true. Calls `found` only once
    /// if this thread should not poll ([`should_poll`](Self::should_poll)). Returns true if `found`
    /// did.
    pub fn poll(&self, time: Duration, mut found: impl FnMut() -> bool) -> bool {
        if found() {
            return true;
        }
        if time.is_zero() || !self.should_poll(Some(sched_getcpu() as u32)) {
            return false;
        }
        let start = Instant::now();
        while start.elapsed() < time {
            for _ in 0..CALLS_PER_CLOCK_READ {
                if found() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    /// Returns the lines of all cores.
    fn lines(&self) -> impl Iterator<Item = &CoreLine> {
        (0..self.cores()).filter_map(|core| self.core(core))
    }

    /// Replaces the table. The caller ensures that only one thread writes the table at a time.
    pub fn set_routes(&self, routes: &[PublishedRoute]) -> Result<(), RoutesError> {
        if !self.region().is_writable() {
            return Err(RoutesError::ReadOnly);
        }
        if routes.len() > ROUTES_MAX {
            return Err(RoutesError::TooMany);
        }
        if routes.iter().any(|route| route.prefix_len > 128) {
            return Err(RoutesError::PrefixLen);
        }
        // `lookup` uses the first match, so the longest prefixes come first.
        let mut sorted = routes.to_vec();
        sorted.sort_by_key(|route| std::cmp::Reverse(route.prefix_len));
        let page = self.page();
        let sequence = page.routes_sequence.load(Ordering::Relaxed);
        page.routes_sequence
            .store(sequence.wrapping_add(1), Ordering::Relaxed);
        // The release fence orders the store of the odd sequence number before the stores below.
        fence(Ordering::Release);
        for (entry, route) in page.routes.iter().zip(&sorted) {
            let [high, low] = halves(route.addr);
            entry.addr[0].store(high, Ordering::Relaxed);
            entry.addr[1].store(low, Ordering::Relaxed);
            entry
                .prefix_len
                .store(u32::from(route.prefix_len), Ordering::Relaxed);
            entry.handling.store(route.handling, Ordering::Relaxed);
        }
        page.routes_len
            .store(sorted.len() as u32, Ordering::Relaxed);
        page.routes_sequence
            .store(sequence.wrapping_add(2), Ordering::Release);
        Ok(())
    }

    /// Returns the handling (a `ROUTE_*` constant) of the longest prefix that contains `addr`.
    /// Returns `None` if no prefix contains `addr`, or if each of 1000 attempts met a write of the
    /// table.
    pub fn lookup(&self, addr: [u8; 16]) -> Option<u32> {
        let page = self.page();
        for _ in 0..ATTEMPTS_MAX {
            let before = page.routes_sequence.load(Ordering::Acquire);
            if before % 2 == 1 {
                std::hint::spin_loop();
                continue;
            }
            let len = (page.routes_len.load(Ordering::Relaxed) as usize).min(ROUTES_MAX);
            let found = page.routes[..len]
                .iter()
                .find(|entry| matches(entry, addr))
                .map(|entry| entry.handling.load(Ordering::Relaxed));
            // The acquire fence orders the loads above before the second load of the sequence
            // number.
            fence(Ordering::Acquire);
            if page.routes_sequence.load(Ordering::Relaxed) == before {
                return found;
            }
        }
        None
    }
}

/// First bytes of an IPv4 address in the 128-bit form.
const V4_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Splits an address into two words. The words have the bytes of the address in memory order,
/// whatever the byte order of the CPU.
fn halves(addr: [u8; 16]) -> [u64; 2] {
    let (high, low) = addr.split_at(8);
    [high, low].map(|half| u64::from_ne_bytes(half.try_into().expect("half of 16 is 8")))
}

fn matches(entry: &RouteEntry, addr: [u8; 16]) -> bool {
    let bits = |[high, low]: [u64; 2]| {
        u128::from(u64::from_be_bytes(high.to_ne_bytes())) << 64
            | u128::from(u64::from_be_bytes(low.to_ne_bytes()))
    };
    let theirs = bits([0, 1].map(|n| entry.addr[n].load(Ordering::Relaxed)));
    let differing = bits(halves(addr)) ^ theirs;
    // No IPv6 prefix contains an IPv4 address, not even `::/0`.
    let prefix_len_min = if addr.starts_with(&V4_PREFIX) { 96 } else { 0 };
    match entry.prefix_len.load(Ordering::Relaxed) {
        prefix_len if prefix_len < prefix_len_min || prefix_len > 128 => false,
        0 => true,
        prefix_len => differing >> (128 - prefix_len) == 0,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use tidelane_abi::{ROUTE_ACCELERATED, ROUTE_ASK_SERVICE, ROUTE_KERNEL};

    use super::*;

    fn v4(a: u8, b: u8, c: u8, d: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
    }

    fn route(addr: [u8; 16], prefix_len: u8, handling: u32) -> PublishedRoute {
        PublishedRoute {
            addr,
            prefix_len,
            handling,
        }
    }

    #[test]
    fn the_longest_prefix_decides_through_a_read_only_mapping() {
        let (ours, fd) = ServicePageMap::create(2).unwrap();
        let theirs = ServicePageMap::map(fd.as_fd()).unwrap();
        assert_eq!(theirs.cores(), 2);
        assert!(theirs.core(1).is_some() && theirs.core(2).is_none());
        assert_eq!(theirs.lookup(v4(10, 0, 0, 1)), None);
        let routes = [
            route(v4(10, 0, 0, 0), 96 + 8, ROUTE_ACCELERATED),
            route(v4(10, 1, 0, 0), 96 + 16, ROUTE_KERNEL),
            route(v4(10, 1, 2, 3), 128, ROUTE_ASK_SERVICE),
            route([0xfe; 16], 7, ROUTE_ACCELERATED),
        ];
        ours.set_routes(&routes).unwrap();
        assert_eq!(theirs.lookup(v4(10, 0, 0, 1)), Some(ROUTE_ACCELERATED));
        assert_eq!(theirs.lookup(v4(10, 1, 0, 1)), Some(ROUTE_KERNEL));
        assert_eq!(theirs.lookup(v4(10, 1, 2, 3)), Some(ROUTE_ASK_SERVICE));
        assert_eq!(theirs.lookup(v4(11, 1, 2, 3)), None);
        assert_eq!(theirs.lookup([0xff; 16]), Some(ROUTE_ACCELERATED));
        let defaults = [
            route([0; 16], 0, ROUTE_KERNEL),
            route(v4(0, 0, 0, 0), 96, ROUTE_ACCELERATED),
        ];
        ours.set_routes(&defaults).unwrap();
        assert_eq!(theirs.lookup([0xfe; 16]), Some(ROUTE_KERNEL));
        assert_eq!(theirs.lookup(v4(10, 1, 2, 3)), Some(ROUTE_ACCELERATED));
        ours.set_routes(&defaults[..1]).unwrap();
        assert_eq!(theirs.lookup(v4(10, 1, 2, 3)), None);
        assert_eq!(theirs.set_routes(&[]), Err(RoutesError::ReadOnly));
        assert_eq!(
            ours.set_routes(&[routes[0]; 257]),
            Err(RoutesError::TooMany)
        );
        assert_eq!(
            ours.set_routes(&[route([0; 16], 129, 0)]),
            Err(RoutesError::PrefixLen)
        );
    }

    #[test]
    fn an_unfinished_change_does_not_hang_readers() {
        let page = ServicePageMap::heap(1).unwrap();
        page.page().routes_sequence.store(1, Ordering::Relaxed);
        assert_eq!(page.lookup([0; 16]), None);
    }

    #[test]
    fn readers_never_see_half_a_change() {
        let page = ServicePageMap::heap(1).unwrap();
        let table = |n: u8| [route(v4(n, n, n, n), 128, u32::from(n))];
        page.set_routes(&table(1)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in (0..20_000).map(|n| (n % 2) as u8 + 1) {
                    page.set_routes(&table(n)).unwrap();
                }
            });
            for _ in 0..20_000 {
                for n in [1, 2] {
                    let found = page.lookup(v4(n, n, n, n));
                    assert!(found.is_none_or(|found| found == u32::from(n)), "{found:?}");
                }
            }
        });
    }
}
