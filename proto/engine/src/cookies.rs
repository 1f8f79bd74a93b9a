//! SYN cookies (RFC 4987 §3.6). When the SYN queue is full, the ISS of the SYN,ACK encodes the
//! state of the half-open connection, and the peer's ACK returns this ISS. A SYN flood therefore
//! neither uses memory nor keeps other clients out.
//!
//! ```text
//!  31                       8 7      6         5      3 2      0
//! +--------------------------+-------+----------+--------+--------+
//! | keyed hash, 24 bits      | epoch | SACK     | wscale | MSS    |
//! +--------------------------+-------+----------+--------+--------+
//! ```
//!
//! MSS and window scale are rounded down to a table entry. An MSS below the lowest entry is
//! replaced by the lowest entry. A cookie needs no bit for timestamps, because a peer sends
//! timestamps only if our SYN,ACK had timestamps. The lowest bit of our TSval, before the timestamp
//! offset is added, tells if ECN was negotiated. The peer returns this TSval in TSecr.

use core::hash::Hasher;

use siphasher::sip::SipHasher24;
use tidelane_flow::{
    Arrival, Clock, EngineConfig, FlowState, Origin, SegmentOut, SocketOptions, flags,
};
use tidelane_time::{Duration, Instant};
use tidelane_wire::{FlowKey, Segment, SeqNumber, TcpFlags, TcpOptions, Timestamps};

use tidelane_slowpath::{PeerSyn, initial_window, ip_sizes, rmss, window_scale};

use crate::secret::Secret;

/// Length of an epoch. A cookie is valid during its epoch and during the next epoch.
const EPOCH: Duration = Duration::from_secs(64);
/// MSS values in bytes that a cookie can encode.
const MSS: [u16; 8] = [48, 536, 1200, 1300, 1400, 1440, 1460, 8960];
/// Window shifts that a cookie can encode. The entry at index 0 means that the peer did not offer
/// window scaling.
const WSCALE: [u8; 8] = [0, 0, 2, 4, 6, 7, 8, 10];
/// Bit that is set if the peer's SYN permitted SACK.
const SACK_BIT: u32 = 1 << 6;
/// Lowest bit of the number of the epoch in which the cookie was made.
const EPOCH_BIT: u32 = 1 << 7;
/// Bits of the keyed hash.
const HASH_MASK: u32 = !0xff;

/// Returns the index of the last entry of `table` that is not above `value`, or 0 if all entries
/// are above `value`.
fn round_down<T: PartialOrd + Copy>(table: &[T], value: T) -> u32 {
    let place = table.iter().rposition(|entry| *entry <= value);
    place.unwrap_or(0) as u32
}

/// Returns the number of the epoch at `now`.
fn epoch(now: Instant) -> u64 {
    now.0 / EPOCH.0
}

/// Returns the keyed hash of a cookie. `low` holds the bits of the cookie that encode the options
/// and the epoch.
fn hash(secret: &Secret, key: &FlowKey, irs: SeqNumber, epoch: u64, low: u32) -> u32 {
    let mut hasher = SipHasher24::new_with_key(secret.bytes());
    hasher.write(&key.local.addr.0);
    hasher.write(&key.peer.addr.0);
    hasher.write_u16(key.local.port);
    hasher.write_u16(key.peer.port);
    hasher.write_u32(irs.to_u32());
    hasher.write_u64(epoch);
    hasher.write_u32(low);
    hasher.finish() as u32 & HASH_MASK
}

/// Returns the ISS that encodes `options` of a peer's SYN with sequence number `irs`.
pub fn make(
    secret: &Secret,
    key: &FlowKey,
    irs: SeqNumber,
    options: &TcpOptions,
    now: Instant,
) -> SeqNumber {
    let mss_default = ip_sizes(key.peer.addr).mss_default;
    let mss = round_down(&MSS, options.mss.unwrap_or(mss_default));
    let wscale = match options.wscale {
        None => 0,
        Some(shift) => 1 + round_down(&WSCALE[1..], shift),
    };
    let sack = if options.sack_permitted { SACK_BIT } else { 0 };
    let epoch = epoch(now);
    let parity = if epoch % 2 == 1 { EPOCH_BIT } else { 0 };
    let low = mss | wscale << 3 | sack | parity;
    SeqNumber(hash(secret, key, irs, epoch, low) | low)
}

/// Returns the options that `cookie` encodes, or `None` if the cookie is forged or too old. `irs`
/// is the sequence number of the peer's SYN.
pub fn check(
    secret: &Secret,
    key: &FlowKey,
    irs: SeqNumber,
    cookie: SeqNumber,
    now: Instant,
) -> Option<TcpOptions> {
    let low = cookie.to_u32() & !HASH_MASK;
    let this = epoch(now);
    let parity = u64::from(low & EPOCH_BIT != 0);
    let made = if this % 2 == parity {
        this
    } else {
        this.checked_sub(1)?
    };
    if hash(secret, key, irs, made, low) != cookie.to_u32() & HASH_MASK {
        return None;
    }
    let wscale = (low >> 3 & 7) as usize;
    Some(TcpOptions {
        mss: MSS.get((low & 7) as usize).copied(),
        wscale: WSCALE.get(wscale).copied().filter(|_| wscale > 0),
        sack_permitted: low & SACK_BIT != 0,
        ..TcpOptions::NONE
    })
}

/// Builds the SYN,ACK that answers `syn` with a cookie. The engine keeps no state of the
/// connection. `options` are the socket options of the listener, and `mtu` is the MTU of the link
/// in bytes.
pub fn reply(
    secret: &Secret,
    config: &EngineConfig,
    clock: &Clock,
    arrival: &Arrival,
    syn: &Segment<'_>,
    (options, mtu): (&SocketOptions, u32),
) -> SegmentOut {
    let rmss = rmss(config, arrival.key.peer.addr, mtu, options);
    let asked = TcpOptions {
        sack_permitted: config.sack && syn.options.sack_permitted,
        ..syn.options
    };
    let theirs = syn.options.timestamps.filter(|_| config.timestamps);
    // The lowest bit of TSval encodes ECN, so a connection without timestamps cannot use ECN.
    let ecn = theirs.is_some() && PeerSyn::of(syn, arrival.ecn).agrees_to_ecn(config, options);
    let echo = if ecn { TcpFlags::ECE } else { TcpFlags::NONE };
    SegmentOut {
        origin: Origin::NoFlow(options.ip.to(arrival.key.peer.addr)),
        key: arrival.key,
        link: arrival.link,
        seq: make(secret, &arrival.key, syn.seq, &asked, clock.now),
        ack: syn.seq.add(1),
        flags: TcpFlags::SYN | TcpFlags::ACK | echo,
        wnd: initial_window(config, rmss, options).min(0xffff) as u16,
        urgent: 0,
        options: TcpOptions {
            mss: Some(rmss),
            wscale: syn.options.wscale.map(|_| window_scale(config, options)),
            sack_permitted: asked.sack_permitted,
            timestamps: theirs.map(|theirs| Timestamps {
                tsval: tsval_with_ecn(clock.ms.0, ecn)
                    .wrapping_add(secret.timestamp_offset(&arrival.key, config)),
                tsecr: theirs.tsval,
            }),
            ..TcpOptions::NONE
        },
        payload_pos: 0,
        payload_len: 0,
        segment_size: 0,
        ecn: tidelane_wire::Ecn::NotEct,
    }
}

/// Returns the most recent timestamp in ms that is not after `now` and whose lowest bit is `ecn`.
fn tsval_with_ecn(now: u32, ecn: bool) -> u32 {
    let even = now & !1;
    match (ecn, now & 1 == 1) {
        (false, _) => even,
        (true, true) => now,
        (true, false) => even.wrapping_sub(1),
    }
}

/// Reconstructs the peer's SYN from its ACK and from `kept`, the options that the cookie encodes.
pub fn peer_syn(kept: &TcpOptions, acknowledgment: &Segment<'_>) -> PeerSyn {
    let timestamps = acknowledgment.options.timestamps;
    PeerSyn {
        irs: acknowledgment.seq.sub(1),
        options: TcpOptions {
            timestamps,
            ..*kept
        },
        wnd: acknowledgment.wnd,
        ecn: timestamps.is_some_and(|t| t.tsecr & 1 == 1),
        ect: false,
    }
}

/// Sets the hot state of a flow (the state that the fast path and the slow path share) as if the
/// flow had sent the SYN,ACK that carried the cookie.
pub fn resume(hot: &mut FlowState, clock: &Clock, acknowledgment: &Segment<'_>) {
    hot.snd_nxt = hot.iss.add(1);
    hot.rcv_adv = hot.rcv_nxt.add(hot.rcv_wnd_limit.min(0xffff));
    if let Some(t) = acknowledgment
        .options
        .timestamps
        .filter(|_| hot.has(flags::TIMESTAMPS))
    {
        let ms = clock.ms.0.wrapping_sub(t.tsecr);
        hot.set(flags::RTT_TIMING);
        hot.rtt_stamp = clock.us().wrapping_sub(ms.wrapping_mul(1000));
    }
}

#[cfg(test)]
mod tests {
    use tidelane_wire::Endpoint;

    use super::*;

    const SECRET: Secret = Secret::new([3; 16]);
    const IRS: SeqNumber = SeqNumber(77);

    fn key(port: u16) -> FlowKey {
        FlowKey::new(
            Endpoint::v4([10, 0, 0, 1], 80),
            Endpoint::v4([10, 0, 0, 2], port),
        )
    }

    fn options(mss: u16, wscale: Option<u8>, sack_permitted: bool) -> TcpOptions {
        TcpOptions {
            mss: Some(mss),
            wscale,
            sack_permitted,
            ..TcpOptions::NONE
        }
    }

    #[test]
    fn rfc4987_section_3_6_options_come_back_rounded_down() {
        let now = Instant(5_000_000_000_000);
        let cases = [
            (options(1460, Some(7), true), options(1460, Some(7), true)),
            (options(1459, Some(9), false), options(1440, Some(8), false)),
            (options(9000, Some(14), true), options(8960, Some(10), true)),
            (options(100, None, true), options(48, None, true)),
            (options(536, Some(0), true), options(536, Some(0), true)),
            (options(1400, Some(1), true), options(1400, Some(0), true)),
        ];
        for (asked, kept) in cases {
            let cookie = make(&SECRET, &key(5), IRS, &asked, now);
            assert_eq!(check(&SECRET, &key(5), IRS, cookie, now), Some(kept));
        }
    }

    #[test]
    fn a_cookie_is_invalid_for_another_flow_or_irs_or_secret_or_time() {
        let now = Instant(5_000_000_000_000);
        let asked = options(1460, Some(7), true);
        let cookie = make(&SECRET, &key(5), IRS, &asked, now);
        assert!(check(&SECRET, &key(6), IRS, cookie, now).is_none());
        assert!(check(&SECRET, &key(5), IRS.add(1), cookie, now).is_none());
        assert!(check(&Secret::new([4; 16]), &key(5), IRS, cookie, now).is_none());
        for bit in 0..32 {
            let other = SeqNumber(cookie.to_u32() ^ 1 << bit);
            assert!(
                check(&SECRET, &key(5), IRS, other, now).is_none(),
                "bit {bit}"
            );
        }
        let later = |epochs: u64| Instant(now.0 + epochs * EPOCH.0);
        assert!(check(&SECRET, &key(5), IRS, cookie, later(1)).is_some());
        assert!(check(&SECRET, &key(5), IRS, cookie, later(2)).is_none());
        assert!(check(&SECRET, &key(5), IRS, cookie, later(3)).is_none());
    }
}
