//! Counters of a TCP engine (crate `tidelane-engine`), with the names of RFC 4898 and of Linux's
//! `TcpExt`. A flow is a connection, and the driver is the program that runs the engine. The fast
//! path is the engine's code for in-order data and ACKs of established flows. The slow path is the
//! code for all other segments.

use tidelane_wire::DropReason;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of one engine. A counter never decreases.
        #[derive(Clone, Debug)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Number of discarded segments for each [`DropReason`]. The array index is
            /// [`DropReason::index`].
            pub drops: [u64; DropReason::COUNT],
        }

        impl Default for Counters {
            fn default() -> Self {
                Self { $($name: 0,)+ drops: [0; DropReason::COUNT] }
            }
        }

        impl Counters {
            /// Returns an iterator over the names and values of all counters except `drops`.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Segments that the driver passed to the engine.
    in_segs,
    /// Sent segments with new data. SYNs, pure ACKs, RSTs and FINs without data do not count.
    out_segs,
    /// Segments that the fast path handled without the slow path.
    fast_receives,
    /// Segments of existing flows that the slow path handled.
    slow_receives,
    /// Segments retransmitted, including SYN and SYN,ACK segments after a timeout.
    retrans_segs,
    /// RST segments sent.
    out_rsts,
    /// Active opens started.
    active_opens,
    /// Passive opens: connections that a listener handed to the application.
    passive_opens,
    /// Active and passive opens that a RST or an ICMP error ended during the handshake. Half-open
    /// connections (passive opens that the application does not have yet) also count if a timeout
    /// or the end of their listener ended them.
    attempt_fails,
    /// Connections that the peer reset, or that our end aborted, after the handshake.
    estab_resets,
    /// SYNs and final ACKs (ACKs that would complete a handshake) that were dropped because the
    /// accept queue was full.
    listen_overflows,
    /// SYNs and final ACKs for a listener that were dropped for lack of room, or because the
    /// driver's rules or limits forbid the connection.
    listen_drops,
    /// SYN cookies sent.
    syncookies_sent,
    /// Connections opened by the ACK of a SYN cookie.
    syncookies_recv,
    /// ACKs that belong to no connection and return no valid SYN cookie, although the listener has
    /// sent SYN cookies recently.
    syncookies_failed,
    /// Our SYNs whose data the server acknowledged completely (RFC 7413).
    fast_open_active,
    /// Our SYNs whose data the server did not acknowledge completely.
    fast_open_active_fails,
    /// Connections that were given to the application before the handshake was complete (RFC 7413).
    fast_open_passive,
    /// Fast Open cookies that were not valid.
    fast_open_passive_fails,
    /// SYNs with data or a Fast Open option while the listener had too many pending requests.
    fast_open_overflows,
    /// ACKs sent by the delayed-ACK timer.
    delayed_acks,
    /// Pure ACKs sent.
    pure_acks,
    /// Segments stored out of order.
    ofo_queue,
    /// Unacceptable segments that ended at or before RCV.NXT, with or without data.
    dup_segs,
    /// DSACK blocks sent.
    dsack_sent,
    /// DSACK blocks received.
    dsack_recv,
    /// Challenge ACKs sent (RFC 5961).
    challenge_acks,
    /// Retransmission timeouts.
    timeouts,
    /// Spurious retransmission timeouts that were undone (RFC 5682, RFC 3522).
    spurious_timeouts,
    /// Window reductions after ECE (RFC 3168).
    ecn_reductions,
    /// Times that a flow entered fast recovery.
    fast_retrans,
    /// Retransmitted segments that were marked lost again.
    lost_retransmit,
    /// Tail loss probes sent.
    loss_probes,
    /// Probes of a closed window, and segments that the persist timer sent although a small window
    /// or a cork held the data back.
    window_probes,
    /// Keepalive probes sent.
    keepalive_probes,
    /// SYN and SYN,ACK segments retransmitted after a timeout.
    syn_retrans,
    /// Times that cwnd was reduced after an idle time.
    slow_start_restarts,
    /// Connections ended by a timeout after the handshake.
    abort_on_timeout,
    /// Connections reset because the application closed them with unread data.
    abort_on_close,
    /// Connections reset because data arrived for a closed socket.
    abort_on_data,
    /// Connections that entered TIME-WAIT.
    time_waits,
    /// TIME-WAIT entries replaced by a new connection with the same 4-tuple.
    time_wait_reused,
    /// TIME-WAIT entries replaced early because the table was full.
    time_wait_overflows,
    /// SYNs and SYN,ACKs with a window scale above 14, which counts as 14 (RFC 7323 §2.3).
    impossible_wscales,
    /// Times that a flow had to wait because the driver had no free transmit frame.
    tx_full,
    /// ICMP errors whose quoted sequence number was outstanding (RFC 5927 §4.1).
    icmp_errors,
    /// Path MTUs lowered by ICMP errors (RFC 1191).
    pmtu_lowered,
    /// MTU probes sent (RFC 4821).
    mtu_probes,
    /// MTU probes acknowledged.
    mtu_raised,
    /// Times that repeated timeouts suggested a path MTU black hole (RFC 4821 §7.7).
    mtu_black_holes,
    /// Invalid read, write or urgent positions of applications.
    misuses,
}

impl Counters {
    /// Counts a discarded segment.
    pub fn drop(&mut self, reason: DropReason) {
        if let Some(count) = self.drops.get_mut(reason.index()) {
            *count += 1;
        }
    }
}
