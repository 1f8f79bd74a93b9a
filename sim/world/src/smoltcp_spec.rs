//! Parameters of a smoltcp host.

use tidelane_netem::Rng;
use tidelane_time::Duration;

/// Parameters of a smoltcp host, which has its own programs. The index of the host follows the
/// indices of the hosts with Tidelane's service. A program with smoltcp on a mux port (packet rings
/// to a service) has parameters of the same type.
#[derive(Clone, Copy, Debug)]
pub struct SmoltcpSpec {
    /// MTU of the host's interface, in bytes.
    pub mtu: u32,
    /// Capacity of a socket's receive buffer, in bytes.
    pub rx_len: u32,
    /// Capacity of a socket's send buffer, in bytes.
    pub tx_len: u32,
    /// Longest delay of an ACK. Zero disables delayed ACKs.
    pub ack_delay: Duration,
    /// True if a socket uses Nagle's algorithm until its program sets TCP_NODELAY. False if no
    /// socket uses Nagle's algorithm.
    pub nagle: bool,
    /// True if the host uses CUBIC. False if the host has no congestion control.
    pub cubic: bool,
}

/// Draws the parameters of a smoltcp host.
pub(crate) fn new_smoltcp(rng: &mut Rng) -> SmoltcpSpec {
    let delays = [0, 10_000, 10_000, 200_000];
    SmoltcpSpec {
        mtu: [1500, 1500, 576, 9000][rng.below(4) as usize],
        rx_len: 1 << rng.between(10, 18),
        tx_len: 1 << rng.between(10, 18),
        ack_delay: Duration::from_micros(delays[rng.below(4) as usize]),
        nagle: rng.chance_ppm(500_000),
        cubic: rng.chance_ppm(700_000),
    }
}
