//! The set of flows that have a receive buffer. The host scans the set and frees the empty buffers
//! of idle flows.

use tidelane_engine::FlowId;

/// Number of flows above which the set is crowded. If the set is not crowded, an empty receive
/// buffer stays until the scan frees the buffer.
///
/// If the set is crowded, the host frees a buffer as soon as the program has read all data in
/// it. The next connection that receives data then gets the freed pages while these pages are still
/// in the CPU cache.
const CROWDED_ABOVE: usize = 1024;

/// The set of flows that have a receive buffer, scanned round-robin.
#[derive(Debug, Default)]
pub struct BufferedFlows {
    /// Bitmap of the flows in the set, by flow number.
    words: Vec<u64>,
    /// Number of flows in the set.
    count: usize,
    /// Number of the flow that the scan returned most recently.
    at: usize,
}

impl BufferedFlows {
    /// Adds a flow that has a receive buffer.
    pub fn add(&mut self, flow: FlowId) {
        let (word, bit) = bit_of(flow);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.count += usize::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    /// Removes a flow that has no receive buffer any more.
    pub fn remove(&mut self, flow: FlowId) {
        let (word, bit) = bit_of(flow);
        if let Some(bits) = self.words.get_mut(word) {
            self.count -= usize::from(*bits & bit != 0);
            *bits &= !bit;
        }
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if the set has more than `CROWDED_ABOVE` flows, so that the host frees a buffer
    /// as soon as the program has read all data in it.
    #[inline(always)]
    pub fn is_crowded(&self) -> bool {
        self.count > CROWDED_ABOVE
    }

    /// Returns the next flow of the scan. Returns `None` if the set is empty.
    pub fn next(&mut self) -> Option<FlowId> {
        if self.is_empty() {
            self.words = Vec::new();
            return None;
        }
        let total = self.words.len();
        let from = (self.at + 1) % (total * 64);
        let first = (from / 64, self.words[from / 64] & (u64::MAX << (from % 64)));
        let others = (1..=total).map(|n| (from / 64 + n) % total);
        let others = others.map(|word| (word, self.words[word]));
        let found = std::iter::once(first).chain(others);
        let (word, bits) = found.into_iter().find(|(_, bits)| *bits != 0)?;
        self.at = word * 64 + bits.trailing_zeros() as usize;
        Some(FlowId(self.at as u32))
    }
}

fn bit_of(flow: FlowId) -> (usize, u64) {
    (flow.index() / 64, 1 << (flow.index() % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(buffered_flows: &mut BufferedFlows, count: usize) -> Vec<u32> {
        let next = |_| buffered_flows.next().map_or(u32::MAX, |flow| flow.0);
        (0..count).map(next).collect()
    }

    #[test]
    fn each_holder_is_looked_at_in_turn() {
        let mut buffered_flows = BufferedFlows::default();
        assert_eq!(buffered_flows.next(), None);
        for flow in [0, 3, 63, 64, 200, 3] {
            buffered_flows.add(FlowId(flow));
        }
        assert_eq!(buffered_flows.len(), 5);
        assert_eq!(scan(&mut buffered_flows, 7), [3, 63, 64, 200, 0, 3, 63]);
        buffered_flows.remove(FlowId(64));
        buffered_flows.remove(FlowId(64));
        buffered_flows.remove(FlowId(7000));
        assert_eq!(scan(&mut buffered_flows, 3), [200, 0, 3]);
        for flow in [0, 63, 200] {
            buffered_flows.remove(FlowId(flow));
        }
        assert_eq!(scan(&mut buffered_flows, 2), [3, 3]);
        buffered_flows.remove(FlowId(3));
        assert!(buffered_flows.is_empty() && buffered_flows.next().is_none());
    }

    #[test]
    fn a_crowd_is_more_than_its_bound() {
        let mut buffered_flows = BufferedFlows::default();
        (0..CROWDED_ABOVE as u32).for_each(|flow| buffered_flows.add(FlowId(flow)));
        assert!(!buffered_flows.is_crowded());
        buffered_flows.add(FlowId(CROWDED_ABOVE as u32));
        assert!(buffered_flows.is_crowded());
    }
}
