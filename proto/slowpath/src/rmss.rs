//! RMSS: the MSS that our SYN announces.

use tidelane_flow::{EngineConfig, SocketOptions};
use tidelane_wire::IpAddress;

use crate::ip_sizes::ip_sizes;

/// Returns the MSS in bytes to announce to `peer` on a link with this MTU (RFC 9293 §3.7.1,
/// MUST-67, SHLD-6). The result is the smallest of three limits: the MSS that the MTU allows,
/// `segment_max` of the configuration, and TCP_MAXSEG of the application (`mss_max`). The first
/// limit is at least 88 bytes (Linux: `TCP_MIN_MSS`).
pub fn rmss(config: &EngineConfig, peer: IpAddress, mtu: u32, options: &SocketOptions) -> u16 {
    let headers = u32::from(ip_sizes(peer).headers);
    let of_link = mtu.saturating_sub(headers).clamp(88, 65_535 - headers) as u16;
    let wanted = if options.mss_max == 0 {
        u16::MAX
    } else {
        options.mss_max
    };
    of_link.min(config.segment_max).min(wanted)
}
