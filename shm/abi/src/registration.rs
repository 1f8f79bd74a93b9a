//! Messages over the registration socket.

/// A registration message, in both directions. File descriptors travel with it (SCM_RIGHTS).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// [`MESSAGE_MAGIC`](crate::MESSAGE_MAGIC).
    pub magic: u64,
    /// [`ABI_VERSION`](crate::ABI_VERSION) of the sender.
    pub abi_version: u32,
    /// One of [`message`].
    pub kind: u32,
    /// Answers: 0, or the reason of a refusal ([`refusal`]).
    pub refusal: u32,
    /// CONTEXT, TAKE: number of the context.
    pub context: u32,
    /// LISTEN: the program's number of the listener.
    pub cookie: u64,
    /// LISTEN's answer, UNLISTEN: the service's number of the listener.
    pub listener: u32,
    /// LISTEN: length of the accept queue.
    pub backlog: u32,
    /// REGISTERED: length of the program region in bytes.
    pub region_len: u64,
    /// NOTE: inode number of the kernel socket that `reason` refers to.
    pub inode: u64,
    /// NOTE: one of [`not_accelerated`]. An answer with [`refusal::LIMIT`] has it too.
    pub reason: u32,
    /// RESERVE: the reserved port, in host byte order.
    pub port: u32,
    /// TAKE, DISOWN: [`SlotNames::connection`](crate::SlotNames).
    pub connection: u64,
    /// TAKE: word of a send buffer for the unacknowledged data; 0 for none.
    pub tx_buffer: crate::BufferWord,
    /// TAKE's answer: the slot and its generation. With [`refusal::BUFFER`], `slot` has the number
    /// of unacknowledged bytes.
    pub slot: u32,
    /// TAKE's answer: the generation of the slot.
    pub generation: u32,
    /// REGISTER: name of the program, padded with NUL.
    pub name: [u8; 32],
    /// LISTEN: options of the listener's connections.
    pub options: crate::OpenOptions,
    /// NUMBERS' answer: the figures of the connection.
    pub numbers: FlowNumbers,
    /// RESERVE: the local address of a connection within the host (loopback); zeros for one that
    /// leaves over the interface.
    pub local_addr: [u8; 16],
    /// LISTEN: 1 if connections within the host (loopback) are wanted, too. REGISTERED:
    /// the default for programs that did not choose.
    pub within_host: u32,
    /// Zero.
    pub reserved: u32,
}

/// The service's figures of a connection for TCP_INFO and TCP_CONGESTION. Counters start with the
/// connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowNumbers {
    /// Bytes that the peer acknowledged.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Payload bytes sent, with each retransmission.
    pub bytes_sent: u64,
    /// Pacing rate in bytes per second, as used or as it would be; all ones for no bound.
    pub pacing_rate: u64,
    /// SO_MAX_PACING_RATE; all ones without the option.
    pub pacing_rate_max: u64,
    /// Payload bytes retransmitted.
    pub retrans_bytes: u64,
    /// Delivery rate in bytes per second; 0 if it is not measured.
    pub delivery_rate: u64,
    /// Microseconds in which data was in flight or waited for the peer's window.
    pub busy_us: u64,
    /// Microseconds in which the peer's window limited the connection.
    pub rwnd_limited_us: u64,
    /// Smoothed round-trip time in microseconds; 0 before the first sample.
    pub srtt_us: u32,
    /// Variation of the round-trip time in microseconds.
    pub rttvar_us: u32,
    /// Least round-trip time in microseconds.
    pub rtt_min_us: u32,
    /// Retransmission timeout in microseconds, with its backoff.
    pub rto_us: u32,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes; `u32::MAX` before the first loss.
    pub ssthresh: u32,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Payload bytes of the largest recent segment from the peer.
    pub rcv_mss: u32,
    /// Bytes sent and not acknowledged (FlightSize).
    pub flight_size: u32,
    /// Bytes in flight that the peer has SACKed.
    pub sacked: u32,
    /// Bytes in flight that are marked lost.
    pub lost: u32,
    /// Segments retransmitted.
    pub retrans: u32,
    /// Bytes in flight that were retransmitted.
    pub retrans_out: u32,
    /// The largest reordering distance seen, in segments.
    pub reordering: u32,
    /// Number of reordering events.
    pub reorder_seen: u32,
    /// Duplicates that the peer reported by DSACK.
    pub dsacks: u32,
    /// Segments received.
    pub segs_in: u32,
    /// Segments received with payload.
    pub data_segs_in: u32,
    /// Segments sent.
    pub segs_out: u32,
    /// Segments sent with payload, with each retransmission.
    pub data_segs_out: u32,
    /// Segments acknowledged or SACKed, the SYN included.
    pub delivered: u32,
    /// Segments acknowledged or SACKed by ACKs with ECE.
    pub delivered_ce: u32,
    /// Segments received out of order.
    pub ooo_segments: u32,
    /// Milliseconds since payload was sent.
    pub last_data_sent_ms: u32,
    /// Milliseconds since payload arrived in order.
    pub last_data_recv_ms: u32,
    /// Milliseconds since an ACK arrived.
    pub last_ack_recv_ms: u32,
    /// Unanswered probes of a closed window.
    pub probes: u32,
    /// Send window in bytes.
    pub snd_wnd: u32,
    /// Receive window in bytes.
    pub rcv_wnd: u32,
    /// Bytes written and not sent.
    pub unsent: u32,
    /// One of [`congestion`](crate::congestion).
    pub congestion: u32,
    /// Bits of [`flow_features`].
    pub features: u32,
    /// Shift of the send window, plus 256 times the shift of the receive window.
    pub wscales: u32,
    /// Consecutive timeouts without an answer.
    pub backoff: u32,
    /// Congestion state of the sender: Open 0, Disorder 1, Cwr 2, Recovery 3, Loss 4.
    pub ca_state: u32,
    /// Figures of the congestion control besides its window, zero for an algorithm without any.
    /// DCTCP: alpha in units of 1/1024; bytes marked and bytes acknowledged in the current window.
    /// BBR: bytes per second, 0; least round-trip time in microseconds, all ones before the first
    /// sample; gains of pacing and window in units of 1/256.
    pub details: [u32; 6],
    /// Zero.
    pub reserved: u32,
}

/// Bits of [`FlowNumbers::features`].
pub mod flow_features {
    /// RFC 7323 timestamps.
    pub const TIMESTAMPS: u32 = 1 << 0;
    /// Selective acknowledgments.
    pub const SACK: u32 = 1 << 1;
    /// ECN.
    pub const ECN: u32 = 1 << 2;
    /// The SYN carried data, and all of it was accepted (RFC 7413).
    pub const SYN_DATA: u32 = 1 << 3;
    /// The program, not the path, limited `delivery_rate`.
    pub const APP_LIMITED: u32 = 1 << 4;
}

/// Kinds of [`Message`].
pub mod message {
    /// Program: registers. Answer: REGISTERED, with the descriptors of the three memories of the
    /// program region (control, received, sent), the service page, and for each core the doorbell
    /// eventfd to ring when it sleeps, in this order. The program maps the memories and then seals
    /// the first and the last one (F_SEAL_FUTURE_WRITE), before its first CONTEXT.
    pub const REGISTER: u32 = 1;
    /// Answer to REGISTER.
    pub const REGISTERED: u32 = 2;
    /// Program: adds context `context`, with the descriptor of its doorbell eventfd. Answer:
    /// CONTEXT.
    pub const CONTEXT: u32 = 3;
    /// Program: passes a listening kernel socket whose port the service should serve. Answer:
    /// LISTEN. Another program that holds the same socket (after fork) gets the same listener.
    pub const LISTEN: u32 = 4;
    /// Program: closed its descriptor of the listener. Answer: UNLISTEN, when the port is as free
    /// as it is in the kernel.
    pub const UNLISTEN: u32 = 5;
    /// Program: passes a bound kernel socket that reserves its port for connections of the program.
    /// Answer: RESERVE.
    pub const RESERVE: u32 = 6;
    /// Program: reports for `tidelane ss` the reason for which a socket is not accelerated. No
    /// answer. A program that is not admitted may send the message too.
    pub const NOTE: u32 = 7;
    /// Anybody: asks if both sides have the same version. Answer: PROBE. Sent before REGISTER, or
    /// instead of it.
    pub const PROBE: u32 = 8;
    /// Program or inheriting child, before fork: the next child will hold the same connections.
    /// Answer: INHERIT, with the child's registration socket, over which the child may REGISTER. A
    /// `listener` in the answer that is not 0 belongs to the kernel from now on, for the reason
    /// [`FORKS`](super::not_accelerated::FORKS); the program answers with UNLISTEN.
    pub const INHERIT: u32 = 9;
    /// Program: takes `connection`, which the program holds and another process has, to its context
    /// `context`. Answer: TAKE.
    pub const TAKE: u32 = 10;
    /// Program or inheriting child: no longer holds `connection`, for which it has no slot. No
    /// answer.
    pub const DISOWN: u32 = 11;
    /// Program: asks for the figures of its connection in `slot` with `generation`. Answer:
    /// NUMBERS.
    pub const NUMBERS: u32 = 12;
}

/// Values of [`Message::refusal`].
pub mod refusal {
    /// The two sides were built from different versions.
    pub const ABI_VERSION: u32 = 1;
    /// The message is invalid.
    pub const MALFORMED: u32 = 2;
    /// A limit was reached: programs, contexts or listeners. [`Message::reason`](super::Message) is
    /// the value of [`not_accelerated::limit`](super::not_accelerated::limit).
    pub const LIMIT: u32 = 3;
    /// The descriptor is not a kernel socket that fits the request.
    pub const NOT_ENTITLED: u32 = 4;
    /// The address is not on an accelerated interface.
    pub const NOT_ACCELERATED: u32 = 5;
    /// The 3-tuple belongs to another program.
    pub const IN_USE: u32 = 6;
    /// TAKE: the process that has the connection is moving its bytes; the program asks again.
    pub const BUSY: u32 = 7;
    /// TAKE: the send buffer is too small.
    pub const BUFFER: u32 = 8;
    /// LISTEN: the kernel has the connections of this listener, for the reason
    /// [`FORKS`](super::not_accelerated::FORKS).
    pub const FORKS: u32 = 9;
    /// REGISTER, PROBE: programs of this network namespace are not admitted. As for USER and
    /// CGROUP, the program may still send NOTE.
    pub const NAMESPACE: u32 = 16;
    /// REGISTER, PROBE: this user is not admitted.
    pub const USER: u32 = 17;
    /// REGISTER, PROBE: the program's cgroup has BPF programs that its connections would bypass.
    pub const CGROUP: u32 = 18;
}

/// Reasons for which a socket is not accelerated; `tidelane ss` prints the text of the same name.
pub mod not_accelerated {
    /// The socket has no connection yet.
    pub const UNCONNECTED: u32 = 0;
    /// The destination is not behind an accelerated interface.
    pub const ROUTE: u32 = 1;
    /// The socket is bound to an address that is not on an accelerated interface (loopback).
    pub const LOCAL_ADDRESS: u32 = 3;
    /// The connection came over a kernel path (loopback client of a shared listener).
    pub const KERNEL_PEER: u32 = 4;
    /// An option that is not implemented was set before connect or listen.
    pub const OPTION: u32 = 5;
    /// The service refused because of a limit. The bits from [`REASON_BITS`] up name the limit by a
    /// number that only the service knows, or are zero.
    pub const LIMIT: u32 = 6;
    /// The program inherited the connection over fork without the knowledge of the service.
    pub const FORKED: u32 = 7;
    /// The service is gone.
    pub const SERVICE_GONE: u32 = 8;
    /// The user of `tidelane run` leaves the socket to the kernel.
    pub const CHOSEN: u32 = 9;
    /// The program hands accepted connections to other programs.
    pub const HANDED_OVER: u32 = 10;
    /// The program forks for each connection, and its children live for a short time.
    pub const FORKS: u32 = 11;
    /// The service does not admit programs of this network namespace.
    pub const NAMESPACE: u32 = super::refusal::NAMESPACE;
    /// The service does not admit this user.
    pub const USER: u32 = super::refusal::USER;
    /// The program's cgroup has BPF programs that its connections would bypass.
    pub const CGROUP: u32 = super::refusal::CGROUP;
    /// Number of bits of a reason without the number of a limit.
    pub const REASON_BITS: u32 = 8;

    /// Returns a reason without the number of a limit.
    pub const fn kind(reason: u32) -> u32 {
        reason & ((1 << REASON_BITS) - 1)
    }

    /// Returns the reason [`LIMIT`] for the limit with this number.
    pub const fn limit(of: u32) -> u32 {
        of << REASON_BITS | LIMIT
    }
}

const _: () = assert!(core::mem::size_of::<Message>() == 424);
