//! Why a packet went no further. Each reason is counted by whoever drops.

use core::fmt;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// Why a packet or segment was discarded.
        ///
        /// One list for all layers, so that a packet is counted once, in one place, and a counter
        /// array can be indexed by [`DropReason::index`].
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// Every reason, in the order of [`DropReason::index`].
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// How many reasons there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name that counters and logs use.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

drop_reasons! {
    // Wire.
    /// The frame ends within a header, or before the length that a header promises.
    Truncated => "truncated",
    /// The Ethernet type is neither IPv4 nor IPv6 (VLAN tags included).
    UnsupportedEthertype => "unsupported_ethertype",
    /// Neither TCP nor ICMP.
    UnsupportedProtocol => "unsupported_protocol",
    /// IP version, a header's length, the total length or the chain of headers makes no sense.
    BadIpHeader => "bad_ip_header",
    /// The IPv4 header checksum is wrong.
    BadIpChecksum => "bad_ip_checksum",
    /// A fragment where only a whole packet will do.
    Fragment => "fragment",
    /// A fragment of impossible length or place.
    BadFragment => "bad_fragment",
    /// A fragment that overlaps another one, or is of a datagram where some did (RFC 5722, RFC 8200
    /// §4.5).
    FragmentOverlap => "fragment_overlap",
    /// A fragment that had arrived before.
    FragmentDuplicate => "fragment_duplicate",
    /// A fragment of a datagram that has too many.
    FragmentLimit => "fragment_limit",
    /// Fragments whose congestion fields do not go together (RFC 3168 §5.3).
    FragmentEcn => "fragment_ecn",
    /// The TCP data offset makes no sense.
    BadTcpHeader => "bad_tcp_header",
    /// The TCP or ICMP checksum is wrong.
    BadChecksum => "bad_checksum",
    /// An ICMP message that is not an error, or quotes too little.
    BadIcmp => "bad_icmp",
    /// An address that cannot be the source or destination of TCP (multicast, broadcast, this
    /// network).
    BadAddress => "bad_address",
    /// A source that cannot be on this link: an address of this host, of its loopback, or to which
    /// its routes broadcast.
    MartianSource => "martian_source",
    /// The route to the source leads elsewhere, and `rp_filter` demands otherwise (RFC 3704).
    ReversePath => "reverse_path",
    /// A source route among the options of IPv4 (RFC 7126 §4.3, §4.4).
    SourceRoute => "source_route",
    /// Longer than the path or the frame allows.
    TooLong => "too_long",

    // Demultiplexing.
    /// The core that has the flow does not keep up with what other cores hand over.
    CoreBusy => "core_busy",
    /// The destination is not an address of ours.
    NotOurs => "not_ours",
    /// No program claims the destination.
    NotClaimed => "not_claimed",
    /// No flow, and not the start of one.
    NoFlow => "no_flow",
    /// A SYN for a port without a listener.
    NoListener => "no_listener",
    /// A rule of the operator refuses the connection.
    RuleDenied => "rule_denied",

    // Segment arrival.
    /// Older than TS.Recent (RFC 7323 §5).
    Paws => "paws",
    /// SEG.SEQ is not in the receive window (RFC 9293 §3.10.7.4).
    OutOfWindow => "out_of_window",
    /// All of the segment's bytes had arrived before.
    Duplicate => "duplicate",
    /// SEG.ACK acknowledges what was never sent.
    AckUnsent => "ack_unsent",
    /// SEG.ACK is older than the largest window that the peer offered (RFC 5961 §5).
    AckTooOld => "ack_too_old",
    /// No ACK where the state demands one.
    NoAck => "no_ack",
    /// Flags that no state allows (SYN with FIN, none at all).
    BadFlags => "bad_flags",
    /// A SYN on a synchronized connection (RFC 5961 §4); answered with a challenge ACK.
    UnexpectedSyn => "unexpected_syn",
    /// A RST that is in the window but not exact (RFC 5961 §3).
    InexactRst => "inexact_rst",
    /// Payload after the peer's FIN.
    DataAfterFin => "data_after_fin",
    /// Payload for a program that closed its end.
    DataAfterClose => "data_after_close",
    /// An ICMP error whose quoted sequence number is not outstanding (RFC 5927 §4.1).
    IcmpOutOfWindow => "icmp_out_of_window",
    /// The end of a handshake without text, for a listener that wants text first
    /// (TCP_DEFER_ACCEPT).
    AcceptDeferred => "accept_deferred",
    /// Answer withheld by a rate limit (challenge ACKs, RSTs).
    RateLimited => "rate_limited",

    // Room.
    /// No memory in the program's region for the payload.
    RxBufferFull => "rx_buffer_full",
    /// Too many out-of-order ranges.
    ReassemblyFull => "reassembly_full",
    /// The listener's half-open connections are at their limit.
    SynQueueFull => "syn_queue_full",
    /// The listener's accept queue is at its backlog.
    AcceptQueueFull => "accept_queue_full",
    /// The listener's user has as many connections as they may have.
    UserLimit => "user_limit",
    /// No more flows.
    FlowTableFull => "flow_table_full",
    /// No transmit frame or ring slot.
    TxFull => "tx_full",
    /// The event ring of a program that does not read it.
    EventRingFull => "event_ring_full",
    /// No MAC address for the next hop yet.
    NoNeighbor => "no_neighbor",
    /// No route to the destination.
    NoRoute => "no_route",
    /// The queue of a link, or of the memory wire, is full.
    LinkQueueFull => "link_queue_full",
}

impl DropReason {
    /// The reason's place in a counter array of [`DropReason::COUNT`].
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The reason with this index.
    pub fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
