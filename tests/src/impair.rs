//! A wire (a test network of namespaces) that loses and reorders packets. `tidelane-impair`, a
//! program in the wire's middle namespace, drops and delays the packets.

use std::time::Duration;

use crate::{
    Running, Side, Stop, Wire, WireOptions,
    tools::{self, require_tools},
    wire::{BOTTLENECK, INTERFACE, MIDDLE},
};

/// Rates of loss and reordering in each direction, in IPv4 packets per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// Number of dropped packets per million.
    pub loss_ppm: u32,
    /// Number of delayed packets per million packets that are not dropped. The delay is a
    /// millisecond, so that later packets overtake the delayed packets.
    pub reorder_ppm: u32,
}

/// Makes a wire and starts `tidelane-impair` in the wire's middle namespace. `tidelane-impair`
/// impairs packets for `seconds` at most, and then prints its counters.
pub fn impaired_wire(
    options: &WireOptions,
    impairment: &Impairment,
    seconds: u64,
) -> Result<(Wire, Running), Stop> {
    require_tools(&["ethtool"])?;
    let wire = Wire::with(&WireOptions {
        middle: true,
        ..options.clone()
    })?;
    let path = tools::binary("tidelane-impair")?;
    let impair = wire.program(Side::Middle, &path.to_string_lossy());
    let near = match options.bottleneck {
        Some(_) => BOTTLENECK.0,
        None => MIDDLE.0,
    };
    let impair = impair.arg("--in").arg(near).arg("--out").arg(MIDDLE.1);
    let impair = impair.arg("--loss").arg(impairment.loss_ppm);
    let impair = impair.arg("--reorder").arg(impairment.reorder_ppm);
    let impair = impair.arg("--seconds").arg(seconds);
    let impair = impair.spawn_ready(Duration::from_secs(10))?;
    // XDP can redirect frames to one end of a veth pair only if the other end uses NAPI. GRO
    // enables NAPI.
    let mut ends = vec![(Side::Server, INTERFACE), (Side::Client, INTERFACE)];
    ends.extend(options.bottleneck.map(|_| (Side::Middle, BOTTLENECK.1)));
    for (side, interface) in ends {
        wire.set_offloads(side, interface, "gro on")?;
    }
    Ok((wire, impair))
}
