//! Reasons to drop a packet, which the service counts. A flow is a TCP connection.

use core::fmt;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// Reason for which a packet or segment was dropped. The code that drops the packet counts
        /// it under this reason.
        ///
        /// All layers share one list, so that each dropped packet is counted once.
        /// [`DropReason::index`] is an index into an array of counters.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// All reasons, in the order of [`DropReason::index`].
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the name of the reason in counters and logs.
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
    /// The frame ends within a header or is shorter than a length field says, or the length of a
    /// UDP datagram is less than a header.
    Truncated => "truncated",
    /// The Ethernet type is neither IPv4 nor IPv6. Frames with VLAN tags count here, too.
    UnsupportedEthertype => "unsupported_ethertype",
    /// The receiver does not handle the transport protocol of the packet, or of the packet that an
    /// ICMP error quotes.
    UnsupportedProtocol => "unsupported_protocol",
    /// The IP version, a header length, the total length, an option or the chain of headers is
    /// invalid.
    BadIpHeader => "bad_ip_header",
    /// The IPv4 header checksum is wrong.
    BadIpChecksum => "bad_ip_checksum",
    /// A fragment reached a function that handles whole packets only.
    Fragment => "fragment",
    /// The fragment has an invalid length or offset.
    BadFragment => "bad_fragment",
    /// The fragment overlaps another fragment, contradicts the end of the packet, or belongs to a
    /// packet that an earlier fragment has invalidated in this way (RFC 5722, RFC 8200 §4.5).
    FragmentOverlap => "fragment_overlap",
    /// The fragment is an exact duplicate.
    FragmentDuplicate => "fragment_duplicate",
    /// The packet of the fragment consists of too many fragments, or there is no room for the
    /// fragment.
    FragmentLimit => "fragment_limit",
    /// The ECN fields of the packet's fragments are inconsistent (RFC 3168 §5.3).
    FragmentEcn => "fragment_ecn",
    /// The TCP data offset is invalid.
    BadTcpHeader => "bad_tcp_header",
    /// The checksum of the transport is wrong.
    BadChecksum => "bad_checksum",
    /// The ICMP message is not an error, or its quote is invalid.
    BadIcmp => "bad_icmp",
    /// The source cannot be the address of one host: a multicast, broadcast or unspecified address,
    /// or an address in "this network" (`0.0.0.0/8`).
    BadAddress => "bad_address",
    /// The source is not possible on this link, such as an address of this host, a loopback
    /// address, or a broadcast address of the link's routes.
    MartianSource => "martian_source",
    /// The route to the source uses another interface, and `rp_filter` forbids this (RFC 3704).
    ReversePath => "reverse_path",
    /// The packet has an IPv4 source route option (RFC 7126 §4.3, §4.4).
    SourceRoute => "source_route",
    /// The packet is longer than the path MTU or than a frame, or its payload cannot be read from
    /// the send buffer.
    TooLong => "too_long",

    // Demultiplexing.
    /// The core (a polling thread) that owns the flow cannot keep up with the packets that other
    /// cores pass on to it.
    CoreBusy => "core_busy",
    /// The destination is not an address of this host.
    NotOurs => "not_ours",
    /// There is no flow with this 4-tuple, and the segment does not open one.
    NoFlow => "no_flow",
    /// The segment is a SYN for a port without a listener, or the datagram is for a port without a
    /// socket.
    NoListener => "no_listener",
    /// An operator's rule refuses the connection.
    RuleDenied => "rule_denied",

    // Segment arrival.
    /// TSval is older than TS.Recent (RFC 7323 §5).
    Paws => "paws",
    /// SEG.SEQ is not in the receive window (RFC 9293 §3.10.7.4).
    OutOfWindow => "out_of_window",
    /// All data of the segment has already been received.
    Duplicate => "duplicate",
    /// SEG.ACK acknowledges unsent data, or does not acknowledge the SYN during the handshake.
    AckUnsent => "ack_unsent",
    /// SEG.ACK is older than SND.UNA by more than MAX.SND.WND (RFC 5961 §5).
    AckTooOld => "ack_too_old",
    /// The segment has no ACK flag, which the state of the connection requires.
    NoAck => "no_ack",
    /// The segment has neither SYN nor RST, one of which SYN-SENT requires (RFC 9293 §3.10.7.3).
    BadFlags => "bad_flags",
    /// The segment is a SYN in a synchronized state (RFC 5961 §4). The answer is a challenge ACK.
    UnexpectedSyn => "unexpected_syn",
    /// The segment is a RST in the window, but not at RCV.NXT (RFC 5961 §3).
    InexactRst => "inexact_rst",
    /// The segment has payload after the peer's FIN.
    DataAfterFin => "data_after_fin",
    /// The segment has payload, but the application has closed its socket.
    DataAfterClose => "data_after_close",
    /// The quoted sequence number of an ICMP error is not outstanding (RFC 5927 §4.1).
    IcmpOutOfWindow => "icmp_out_of_window",
    /// The segment is the ACK of a handshake without data, and the listener waits for data
    /// (TCP_DEFER_ACCEPT).
    AcceptDeferred => "accept_deferred",
    /// A rate limit suppressed the answer, such as a challenge ACK or a RST.
    RateLimited => "rate_limited",

    // Limits of memory and queues.
    /// There is no memory for the payload in the flow's receive buffer, or in the receive queue of
    /// a UDP socket.
    RxBufferFull => "rx_buffer_full",
    /// The connection has too many out-of-order ranges.
    ReassemblyFull => "reassembly_full",
    /// The SYN queue of the listener is full.
    SynQueueFull => "syn_queue_full",
    /// The accept queue of the listener is full.
    AcceptQueueFull => "accept_queue_full",
    /// The listener's user has the largest allowed number of connections.
    UserLimit => "user_limit",
    /// The flow table is full.
    FlowTableFull => "flow_table_full",
    /// There is no free transmit frame or ring entry.
    TxFull => "tx_full",
    /// The event ring is full because the application does not read it.
    EventRingFull => "event_ring_full",
    /// The MAC address of the next hop is not known yet.
    NoNeighbor => "no_neighbor",
    /// There is no route to the destination.
    NoRoute => "no_route",
    /// The queue of a link, or of the local path between programs of one host, is full.
    LinkQueueFull => "link_queue_full",
}

impl DropReason {
    /// Returns the index of the reason in an array of [`DropReason::COUNT`] counters.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the reason with this index.
    pub fn from_index(index: usize) -> Option<Self> {
        Self::ALL.get(index).copied()
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
