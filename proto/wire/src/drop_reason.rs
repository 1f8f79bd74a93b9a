//! Reasons to drop a packet, and the names of these reasons in counters and logs. A flow is a TCP
//! connection.

use core::fmt;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// Reason for which a packet or segment was dropped. The code that drops the packet counts
        /// it under this reason.
        ///
        /// All layers share one list of reasons, so that one array can have the counters of all
        /// layers. [`DropReason::index`] is an index into this array.
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
    /// The frame ends within a header, or is shorter than a length field says. A UDP datagram whose
    /// length field is less than the length of a UDP header counts here, too.
    Truncated => "truncated",
    /// The Ethernet type is neither IPv4 nor IPv6. Frames with VLAN tags count here, too.
    UnsupportedEthertype => "unsupported_ethertype",
    /// The receiver does not handle the transport protocol of the packet, or of the packet that an
    /// ICMP error quotes.
    UnsupportedProtocol => "unsupported_protocol",
    /// The IP version, a header length, the total length, an option or the chain of IPv6 extension
    /// headers is invalid.
    BadIpHeader => "bad_ip_header",
    /// The IPv4 header checksum is wrong.
    BadIpChecksum => "bad_ip_checksum",
    /// A fragment reached a function that handles whole packets only.
    Fragment => "fragment",
    /// The fragment has an invalid length or offset, or the reassembled packet is too long. The
    /// first fragment of a TCP segment over IPv6 counts here, too, if the TCP header is incomplete.
    BadFragment => "bad_fragment",
    /// The fragment overlaps another fragment, or contradicts another fragment about the end of the
    /// packet (RFC 5722, RFC 8200 §4.5). Later fragments of this packet count here, too.
    FragmentOverlap => "fragment_overlap",
    /// The fragment is an exact duplicate of another fragment.
    FragmentDuplicate => "fragment_duplicate",
    /// The packet has too many fragments, or there is no memory for the fragment.
    FragmentLimit => "fragment_limit",
    /// The ECN fields of the packet's fragments are inconsistent (RFC 3168 §5.3).
    FragmentEcn => "fragment_ecn",
    /// The TCP data offset is invalid.
    BadTcpHeader => "bad_tcp_header",
    /// The TCP, UDP or ICMP checksum is wrong.
    BadChecksum => "bad_checksum",
    /// The ICMP message is not an error, has an invalid quote, or reports an MTU that is too low.
    BadIcmp => "bad_icmp",
    /// The source cannot be the address of one host: a multicast, broadcast or unspecified address,
    /// or an address in "this network" (`0.0.0.0/8`).
    BadAddress => "bad_address",
    /// The source is not possible on this link, such as an address of this host, a loopback
    /// address, or the broadcast address of a network of this host.
    MartianSource => "martian_source",
    /// `rp_filter` forbids the source (RFC 3704): there is no route to the source, or (in the
    /// strict mode) the route to the source uses another interface.
    ReversePath => "reverse_path",
    /// The packet has an IPv4 source route option (RFC 7126 §4.3, §4.4).
    SourceRoute => "source_route",
    /// The packet to send is longer than the MTU or than a frame, or its payload cannot be read
    /// from the send buffer. A received UDP datagram that is longer than a buffer counts here, too.
    TooLong => "too_long",

    // Demultiplexing.
    /// The core (a polling thread) that owns the flow cannot keep up with the packets that other
    /// cores pass on to it.
    CoreBusy => "core_busy",
    /// The destination is not an address of this host.
    NotOurs => "not_ours",
    /// There is no flow with this 4-tuple, and the segment does not open a flow.
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
    /// SEG.ACK acknowledges unsent data, or (during the handshake) does not acknowledge our SYN.
    AckUnsent => "ack_unsent",
    /// SEG.ACK is older than SND.UNA by more than MAX.SND.WND (RFC 5961 §5).
    AckTooOld => "ack_too_old",
    /// The segment has no ACK flag, but the state of the connection requires the flag.
    NoAck => "no_ack",
    /// The connection is in SYN-SENT, and the segment has neither SYN nor RST (RFC 9293 §3.10.7.3).
    BadFlags => "bad_flags",
    /// The segment is a SYN in a synchronized state (RFC 5961 §4). In SYN-RECEIVED, only a SYN with
    /// another sequence number than the first SYN counts here. The answer is a challenge ACK.
    UnexpectedSyn => "unexpected_syn",
    /// The segment is a RST in the window, but not at RCV.NXT (RFC 5961 §3).
    InexactRst => "inexact_rst",
    /// The segment has payload after the peer's FIN.
    DataAfterFin => "data_after_fin",
    /// The segment has payload, but the application has closed its socket.
    DataAfterClose => "data_after_close",
    /// The quoted sequence number of an ICMP error is not outstanding (RFC 5927 §4.1).
    IcmpOutOfWindow => "icmp_out_of_window",
    /// The segment is the last ACK of a handshake and carries no data, but the listener waits for
    /// data (TCP_DEFER_ACCEPT).
    AcceptDeferred => "accept_deferred",
    /// A rate limit suppressed the answer to a segment, such as a challenge ACK or a RST. The
    /// segment may also be counted under another reason.
    RateLimited => "rate_limited",

    // Limits of memory and queues.
    /// There is no memory for the payload in the flow's receive buffer, or no room in the receive
    /// queue of a UDP socket.
    RxBufferFull => "rx_buffer_full",
    /// The connection has too many out-of-order ranges.
    ReassemblyFull => "reassembly_full",
    /// There is no room for another half-open connection, and SYN cookies are disabled.
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
