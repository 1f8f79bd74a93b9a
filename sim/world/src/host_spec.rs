//! Parameters of a host with a service. The service is the simulated counterpart of `tidelaned`:
//! the process that runs TCP for the programs of the host.

use tidelane_engine::{Algorithm, EcnPolicy, EngineConfig};
use tidelane_netem::Rng;
use tidelane_time::Duration;

/// Usual value of [`HostSpec::ports`]. Some hosts have fewer ports, so that ports become scarce.
pub(crate) const PORTS: u32 = 4096;

/// Parameters of a host with a service.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// Number of fast-path cores (threads that run TCP) of the host's service.
    pub cores: u32,
    /// MTU of the host's interface, in bytes.
    pub mtu: u32,
    /// True if the host has an IPv6 address in addition to its IPv4 address.
    pub ipv6: bool,
    /// Number of frames in the NIC queue of each core, for each direction.
    pub frames: u32,
    /// Longest duration of a step, in which each core of the service does its pending work once.
    pub step_time_max: Duration,
    /// Longest delay until a sleeping service notices a frame, or a doorbell (a wake-up) of a
    /// program.
    pub wake_time_max: Duration,
    /// Number of ephemeral TCP ports (local ports for active opens) at each address of the host.
    pub ports: u32,
    /// Configuration of the engine.
    pub engine: EngineConfig,
}

/// Draws the parameters of a host. The scenario may then change `cores`, `ports` and `ipv6`.
pub(crate) fn new_host(rng: &mut Rng) -> HostSpec {
    let mtu = [1500, 1500, 1500, 576, 1280, 9000][rng.below(6) as usize];
    let rx_window_max = 1 << rng.between(14, 22);
    let rx_window_initial = (1 << rng.between(12, 17)).min(rx_window_max);
    let algorithms = Algorithm::ALL;
    HostSpec {
        cores: 1,
        mtu,
        ipv6: false,
        frames: [16, 64, 256, 256][rng.below(4) as usize],
        step_time_max: Duration::from_nanos(1 << rng.between(8, 14)),
        wake_time_max: Duration::from_nanos(1 << rng.between(0, 16)),
        ports: if rng.chance_ppm(100_000) { 16 } else { PORTS },
        engine: EngineConfig {
            rx_window_max,
            rx_window_initial,
            tx_limit: 1 << rng.between(12, 20),
            flows_max: 4096,
            congestion: algorithms[rng.below(algorithms.len() as u64) as usize],
            msl: Duration::from_millis(rng.between(100, 30_000)),
            timestamps: rng.chance_ppm(800_000),
            sack: rng.chance_ppm(800_000),
            ecn: [EcnPolicy::Off, EcnPolicy::Accept, EcnPolicy::Request][rng.below(3) as usize],
            ..EngineConfig::default()
        },
    }
}
