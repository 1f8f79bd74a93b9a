//! Parameters of direct hosts. A direct host uses the direct back end of the ring API
//! (`app/direct`), which runs TCP within the calls of a context.

use tidelane_engine::EngineConfig;
use tidelane_mem_nic::NicConfig;
use tidelane_netem::Rng;
use tidelane_time::Duration;

use crate::{family::IPV6_MTU_MIN, host_spec::new_host};

/// Parameters of a direct host, whose programs use one `DirectContext`. The index of the host
/// follows the indices of the hosts with a service and of the smoltcp host.
#[derive(Clone, Debug)]
pub struct DirectSpec {
    /// MTU of the host's interface, in bytes.
    pub mtu: u32,
    /// True if the host has an IPv6 address in addition to its IPv4 address.
    pub ipv6: bool,
    /// The host's NIC.
    pub nic: NicConfig,
    /// Number of buffers of the context. Unused if the NIC shares its memory.
    pub buffers: u32,
    /// Length of a buffer in bytes. Unused if the NIC shares its memory.
    pub buffer_len: u32,
    /// Largest number of buffers of one descriptor that are queued or unacknowledged.
    pub send_queue_max: usize,
    /// True if TCP_NODELAY is set.
    pub nodelay: bool,
    /// Number of received bytes that a program holds before it pauses the connection.
    pub held_max: u32,
    /// Longest time between two cycles (runs of the context), if the context does not wait in the
    /// first cycle.
    pub step_time_max: Duration,
    /// Longest delay until a waiting context notices a frame.
    pub wake_time_max: Duration,
    /// Configuration of the engine.
    pub engine: EngineConfig,
}

impl DirectSpec {
    /// Draws the parameters of a direct host.
    pub(crate) fn new(rng: &mut Rng) -> Self {
        // The MTU, the times and the engine's configuration are drawn like those of a host with a
        // service.
        let host = new_host(rng);
        let mut spec = Self {
            mtu: host.mtu,
            ipv6: host.mtu >= IPV6_MTU_MIN,
            nic: NicConfig {
                frame_len_max: host.mtu + 14,
                rx_frames: [16, 64, 256][rng.below(3) as usize],
                tx_frames: [8, 64, 256][rng.below(3) as usize],
                user_frames: 1 << rng.between(8, 10),
                is_shared: rng.chance_ppm(600_000),
                completion: Duration::from_nanos(1 << rng.between(0, 22)),
            },
            buffers: 1 << rng.between(8, 12),
            buffer_len: [1024, 2048, 4096][rng.below(3) as usize],
            send_queue_max: 1 << rng.between(2, 8),
            nodelay: rng.chance_ppm(700_000),
            held_max: 1 << rng.between(4, 16),
            step_time_max: host.step_time_max,
            wake_time_max: host.wake_time_max,
            engine: host.engine,
        };
        let buffer_len = spec.nic.frame_len().max(spec.buffer_len);
        spec.engine.tx_limit = spec.engine.tx_limit.max(buffer_len);
        spec
    }

    /// Returns true if the context may lack buffers for received data, so that a sender may time
    /// out.
    pub fn is_short_of_memory(&self) -> bool {
        self.nic.user_frames.min(self.buffers) < 512
    }
}
