//! The maps of an eBPF object, as the service reads and writes them.

use std::os::fd::{AsRawFd, BorrowedFd};

use aya::{
    Pod,
    maps::{Array, HashMap, MapData, MapError, PerCpuArray, XskMap},
};

use super::{errno_of, failed};
use crate::SteeringError;

/// Keys of `K` bytes and values of `V` bytes of a [`BpfHashMap`].
pub(crate) type Entries<const K: usize, const V: usize> = Vec<([u8; K], [u8; V])>;

/// An array of one entry of `V` bytes. The eBPF program reads the entry.
pub(crate) struct ArrayEntry<const V: usize> {
    pub(super) map: Array<MapData, [u8; V]>,
}

impl<const V: usize> ArrayEntry<V>
where
    [u8; V]: Pod,
{
    pub(crate) fn set(&mut self, value: &[u8; V]) -> Result<(), SteeringError> {
        self.map
            .set(0, value, 0)
            .map_err(|error| failed("writing a map", &error))
    }
}

/// A hash map in the kernel, with keys of `K` bytes and values of `V` bytes.
pub(crate) struct BpfHashMap<const K: usize, const V: usize> {
    pub(super) map: HashMap<MapData, [u8; K], [u8; V]>,
}

impl<const K: usize, const V: usize> BpfHashMap<K, V>
where
    [u8; K]: Pod,
    [u8; V]: Pod,
{
    pub(crate) fn insert(&mut self, key: &[u8; K], value: &[u8; V]) -> Result<(), SteeringError> {
        self.map
            .insert(key, value, 0)
            .map_err(|error| failed("writing a map", &error))
    }

    /// Removes an entry. Returns false if the map had no entry with this key.
    pub(crate) fn remove(&mut self, key: &[u8; K]) -> Result<bool, SteeringError> {
        match self.map.remove(key) {
            Ok(()) => Ok(true),
            Err(MapError::KeyNotFound | MapError::ElementNotFound) => Ok(false),
            Err(error) if errno_of(&error) == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(failed("removing from a map", &error)),
        }
    }

    pub(crate) fn entries(&self) -> Result<Entries<K, V>, SteeringError> {
        let entries: Result<Vec<_>, MapError> = self.map.iter().collect();
        entries.map_err(|error| failed("reading a map", &error))
    }
}

/// The AF_XDP sockets to which an eBPF program redirects frames, by number. In the demux (the XDP
/// program that redirects packets to the service), the number is a receive queue. In the impaired
/// link of the tests, the number is a direction.
pub(crate) struct XskSocketMap {
    pub(super) map: XskMap<MapData>,
}

impl XskSocketMap {
    pub(crate) fn set(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), SteeringError> {
        let set = self.map.set(queue, socket.as_raw_fd(), 0);
        set.map_err(|error| failed("registering an AF_XDP socket", &error))
    }

    pub(crate) fn unset(&mut self, queue: u32) -> Result<(), SteeringError> {
        match self.map.unset(queue) {
            Ok(()) => Ok(()),
            Err(error) if errno_of(&error) == Some(libc::ENOENT) => Ok(()),
            Err(error) => Err(failed("removing an AF_XDP socket", &error)),
        }
    }
}

/// `N` counters. Each CPU has its own set of the counters.
pub(crate) struct PerCpuCounters<const N: usize> {
    pub(super) map: PerCpuArray<MapData, [u64; N]>,
}

impl<const N: usize> PerCpuCounters<N> {
    /// Returns the sums over all CPUs.
    pub(crate) fn sum(&self) -> Result<[u64; N], SteeringError> {
        let sets = self
            .map
            .get(&0, 0)
            .map_err(|error| failed("reading counters", &error))?;
        let mut sums = [0; N];
        for set in sets.iter() {
            for (sum, count) in sums.iter_mut().zip(set) {
                *sum += count;
            }
        }
        Ok(sums)
    }
}
