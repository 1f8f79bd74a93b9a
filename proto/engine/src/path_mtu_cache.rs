//! Cache of path MTUs by destination (RFC 1191 §6.2, RFC 4821 §5.2). A new connection starts with
//! the path MTU that an earlier connection to the same destination has found.

use std::collections::{BTreeMap, VecDeque};

use tidelane_slowpath::{PathMtu, PathMtuStore};
use tidelane_time::Instant;
use tidelane_wire::IpAddress;

/// Largest number of entries. In a full cache, a new entry replaces the oldest entry.
const PATHS_MAX: usize = 1024;

/// Path MTUs by destination. Only a destination whose path MTU is below the MTU of the link has an
/// entry.
#[derive(Debug, Default)]
pub struct PathMtuCache {
    known: BTreeMap<IpAddress, PathMtu>,
    /// Destinations in order of insertion, each once.
    order: VecDeque<IpAddress>,
}

impl PathMtuCache {
    /// Returns the entry of `peer`, or `None` if there is no entry or if the entry has expired at
    /// `now`.
    pub fn find(&self, now: Instant, peer: IpAddress) -> Option<PathMtu> {
        if self.known.is_empty() {
            return None;
        }
        let path = self.known.get(&peer)?;
        (now < path.until).then_some(*path)
    }
}

impl PathMtuStore for PathMtuCache {
    fn learn(&mut self, peer: IpAddress, path: PathMtu) {
        if self.known.insert(peer, path).is_some() {
            return;
        }
        self.order.push_back(peer);
        if self.order.len() > PATHS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    fn forget(&mut self, peer: IpAddress) {
        if self.known.remove(&peer).is_some() {
            self.order.retain(|known| *known != peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u32) -> IpAddress {
        IpAddress::from_v4(n.to_be_bytes())
    }

    fn path(mss: u16, until: u64) -> PathMtu {
        let until = Instant::from_secs(until);
        let found_by_probe = false;
        PathMtu {
            mss,
            until,
            found_by_probe,
        }
    }

    #[test]
    fn a_path_is_known_for_its_time() {
        let mut cache = PathMtuCache::default();
        cache.learn(peer(1), path(1000, 10));
        let find =
            |cache: &PathMtuCache, s| cache.find(Instant::from_secs(s), peer(1)).map(|p| p.mss);
        assert_eq!((find(&cache, 9), find(&cache, 10)), (Some(1000), None));
        cache.learn(peer(1), path(900, 20));
        assert_eq!(find(&cache, 10), Some(900));
        cache.forget(peer(1));
        assert_eq!(find(&cache, 10), None);
        assert!(cache.order.is_empty());
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut cache = PathMtuCache::default();
        for n in 0..2_000 {
            cache.learn(peer(n), path(1000, 10));
            cache.learn(peer(n), path(900, 10));
        }
        assert_eq!(
            (cache.known.len(), cache.order.len()),
            (PATHS_MAX, PATHS_MAX)
        );
        assert_eq!(cache.find(Instant::ZERO, peer(975)), None);
        assert!(cache.find(Instant::ZERO, peer(976)).is_some());
    }
}
