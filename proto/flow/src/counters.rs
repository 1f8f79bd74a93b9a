//! What one engine has done, in the names of RFC 4898 and Linux' `TcpExt`.

use tidelane_wire::DropReason;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of one engine. They only grow.
        #[derive(Clone, Debug)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Segments that were discarded, by [`DropReason::index`].
            pub drops: [u64; DropReason::COUNT],
        }

        impl Default for Counters {
            fn default() -> Self {
                Self { $($name: 0,)+ drops: [0; DropReason::COUNT] }
            }
        }

        impl Counters {
            /// Each counter but the drops, with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }
    };
}

counters! {
    /// Segments that arrived.
    in_segs,
    /// Segments sent, without retransmissions.
    out_segs,
    /// Segments that the fast path received alone.
    fast_receives,
    /// Segments that the slow path received.
    slow_receives,
    /// Segments retransmitted.
    retrans_segs,
    /// RST segments sent.
    out_rsts,
    /// Active opens.
    active_opens,
    /// Passive opens.
    passive_opens,
    /// Opens that failed.
    attempt_fails,
    /// Connections reset by the peer or aborted once established.
    estab_resets,
    /// SYNs or final ACKs dropped because the accept queue was full.
    listen_overflows,
    /// SYNs or final ACKs dropped for any lack of room at a listener.
    listen_drops,
    /// SYN cookies sent.
    syncookies_sent,
    /// Connections opened by a SYN cookie that came back.
    syncookies_recv,
    /// Acknowledgments that might have brought a SYN cookie and did not.
    syncookies_failed,
    /// Text with SYN that servers took (RFC 7413).
    fast_open_active,
    /// Text with SYN that had to be sent again.
    fast_open_active_fails,
    /// Connections that were accepted with their SYN.
    fast_open_passive,
    /// Cookies that came and were none of ours.
    fast_open_passive_fails,
    /// SYNs with text or a cookie for which no place was left.
    fast_open_overflows,
    /// Acknowledgments sent late, by timer.
    delayed_acks,
    /// Pure acknowledgments sent.
    pure_acks,
    /// Segments placed out of order.
    ofo_queue,
    /// Segments merged or dropped because they had arrived before.
    dup_segs,
    /// DSACK blocks sent.
    dsack_sent,
    /// DSACK blocks received.
    dsack_recv,
    /// Challenge ACKs sent (RFC 5961).
    challenge_acks,
    /// Retransmission timeouts.
    timeouts,
    /// Retransmission timeouts that were not needed, taken back (RFC 5682, RFC 3522).
    spurious_timeouts,
    /// Windows reduced because the peer echoed congestion (RFC 3168).
    ecn_reductions,
    /// Fast retransmit episodes.
    fast_retrans,
    /// Retransmissions found lost themselves.
    lost_retransmit,
    /// Tail loss probes sent.
    loss_probes,
    /// Zero-window and corked-data probes sent.
    window_probes,
    /// Keepalive probes sent.
    keepalive_probes,
    /// SYN and SYN,ACK segments sent again.
    syn_retrans,
    /// Congestion windows reset after idling.
    slow_start_restarts,
    /// Connections ended by a time limit.
    abort_on_timeout,
    /// Connections reset because the program left bytes unread.
    abort_on_close,
    /// Connections reset because data came after close.
    abort_on_data,
    /// Connections that entered TIME-WAIT.
    time_waits,
    /// TIME-WAIT entries replaced by a new connection of the same ends.
    time_wait_reused,
    /// TIME-WAIT entries that made room before their time.
    time_wait_overflows,
    /// SYNs with a window scale above 14, which was taken for 14 (RFC 7323 §2.3).
    impossible_wscales,
    /// Segments that the driver had no frame for; sent later.
    tx_full,
    /// ICMP errors believed.
    icmp_errors,
    /// Segment sizes lowered by ICMP (RFC 1191).
    pmtu_lowered,
    /// Probes of a larger segment size sent (RFC 4821).
    mtu_probes,
    /// Those that arrived.
    mtu_raised,
    /// Paths that dropped full segments without a word (RFC 4821).
    mtu_black_holes,
    /// Requests of programs that were refused.
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
