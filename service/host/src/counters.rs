//! The counters of a host.

use tidelane_wire::DropReason;

/// Counters of a host, in addition to the counters of its engine.
#[derive(Clone, Debug)]
pub struct HostCounters {
    /// Frames received from the NIC queues of this core.
    pub in_frames: u64,
    /// Segments that the local path delivered. The local path joins two programs of this host in
    /// memory.
    pub memory_segments: u64,
    /// Segments passed to a NIC queue, or to the mux, through which programs with TCP/IP stacks of
    /// their own share the NIC.
    pub out_segments: u64,
    /// Requests of an unknown kind.
    pub bad_requests: u64,
    /// Connections aborted because their program wrote invalid values to the slot (the shared
    /// record of the connection).
    pub misuses: u64,
    /// Programs disconnected because their rings had invalid indices.
    pub corrupt_rings: u64,
    /// Programs disconnected because the host could not ring their doorbell.
    pub stuck_doorbells: u64,
    /// Requests to the kernel to probe a neighbour again, because a peer did not answer.
    pub path_doubts: u64,
    /// ICMP Time Exceeded errors sent about packets whose fragments did not all arrive in time.
    pub out_time_excds: u64,
    /// Dropped packets, by [`DropReason::index`].
    pub drops: [u64; DropReason::COUNT],
}

impl Default for HostCounters {
    fn default() -> Self {
        Self {
            in_frames: 0,
            memory_segments: 0,
            out_segments: 0,
            bad_requests: 0,
            misuses: 0,
            corrupt_rings: 0,
            stuck_doorbells: 0,
            path_doubts: 0,
            out_time_excds: 0,
            drops: [0; DropReason::COUNT],
        }
    }
}

impl HostCounters {
    /// Counts the packet as dropped if `taken`, the result of the packet's processing, is an error.
    pub fn count_drop(&mut self, taken: Result<(), DropReason>) {
        if let Err(reason) = taken {
            self.drops[reason.index()] += 1;
        }
    }
}
