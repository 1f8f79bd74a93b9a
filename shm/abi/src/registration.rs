//! Messages between a program and the service (process `tidelaned`) over the registration socket, a
//! SOCK_SEQPACKET unix socket. A program registers, adds contexts (one for each of its threads),
//! and makes the requests that need a descriptor. The crate's documentation describes the memory
//! that program and service share: the program region, with a slot (a record) for each connection.
//! A core is a polling thread of the service.

/// A registration message in either direction. File descriptors are passed as ancillary data
/// (SCM_RIGHTS). The doc of each field names the kinds of messages that use the field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// [`MESSAGE_MAGIC`](crate::MESSAGE_MAGIC).
    pub magic: u64,
    /// [`ABI_VERSION`](crate::ABI_VERSION) of the sender.
    pub abi_version: u32,
    /// One of [`message`].
    pub kind: u32,
    /// Answers: 0, or the reason of a refusal from [`refusal`].
    pub refusal: u32,
    /// CONTEXT, TAKE_CONNECTION: number of the context.
    pub context: u32,
    /// LISTEN and its answer: the program's own number for the listener.
    pub cookie: u64,
    /// UNLISTEN, and the answers to LISTEN and INHERIT: the service's number for the listener.
    pub listener: u32,
    /// LISTEN: largest number of connections in the accept queue.
    pub backlog: u32,
    /// REGISTERED: length of the program region in bytes.
    pub region_len: u64,
    /// REPORT_NOT_ACCELERATED: inode number of the kernel socket that is not accelerated.
    pub inode: u64,
    /// REPORT_NOT_ACCELERATED: one of [`not_accelerated`]. Answers with [`refusal::LIMIT`]: the
    /// value of [`not_accelerated::limit`] for the limit that is reached, or 0.
    pub reason: u32,
    /// RELEASE_TUPLE, and the answers to RESERVE and CLAIM_TUPLE: the port, in host byte order.
    pub port: u32,
    /// TAKE_CONNECTION, RELEASE_CONNECTION: identity of the connection, from
    /// [`ConnectionIds::connection`](crate::ConnectionIds).
    pub connection: u64,
    /// TAKE_CONNECTION: send buffer in the program's memory, as a word that encodes offset and
    /// size. The service copies the connection's unacknowledged data into the buffer. 0 for no
    /// buffer.
    pub tx_buffer: crate::BufferWord,
    /// TCP_INFO, and the answer to TAKE_CONNECTION: number of the slot. In an answer with
    /// [`refusal::BUFFER_TOO_SMALL`], the number of unacknowledged bytes.
    pub slot: u32,
    /// TCP_INFO, and the answer to TAKE_CONNECTION: generation of the slot. The generation counts
    /// the uses and the releases of the slot.
    pub generation: u32,
    /// REGISTER, OPEN_PORT: name of the program, padded with NUL.
    pub name: [u8; 32],
    /// LISTEN: options of the listener's connections.
    pub options: crate::OpenOptions,
    /// Answer to TCP_INFO: the figures of the connection.
    pub tcp_info: TcpInfo,
    /// RESERVE: local address of a connection within the host. Zeros for a connection over the
    /// interface. RELEASE_TUPLE and the answer to CLAIM_TUPLE: local address of the 3-tuple.
    pub local_addr: [u8; 16],
    /// LISTEN: 1 if the listener also accepts connections from within the host; otherwise 0.
    /// REGISTERED: the value that the program uses if its user has not chosen a value.
    pub within_host: u32,
    /// Zero.
    pub reserved: u32,
    /// OPEN_PORT, PORT_OPENED, RELEASE_TUPLE: the properties of a mux port (see
    /// [`OPEN_PORT`](message::OPEN_PORT)).
    pub packet_port: crate::port::PacketPort,
}

/// Figures of a connection for the socket options TCP_INFO, TCP_CC_INFO and TCP_CONGESTION. The
/// service fills in all fields. Each count covers the time since the start of the connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Payload bytes sent. Each retransmission counts again.
    pub bytes_sent: u64,
    /// Pacing rate in bytes per second. An unpaced connection reports the rate that pacing would
    /// use. If there is no RTT sample yet, and neither BBR nor SO_MAX_PACING_RATE gives a rate, all
    /// bits are one.
    pub pacing_rate: u64,
    /// SO_MAX_PACING_RATE in bytes per second. All bits are one if the option is not set.
    pub pacing_rate_max: u64,
    /// Payload bytes retransmitted, counted at each retransmission.
    pub retrans_bytes: u64,
    /// Delivery rate in bytes per second. 0 if no rate has been measured.
    pub delivery_rate: u64,
    /// Time in microseconds during which data was in flight or waited for the peer's window.
    pub busy_us: u64,
    /// Time in microseconds during which the peer's window limited the connection.
    pub rwnd_limited_us: u64,
    /// Smoothed round-trip time in microseconds. 0 before the first sample.
    pub srtt_us: u32,
    /// Variation of the round-trip time in microseconds.
    pub rttvar_us: u32,
    /// Smallest round-trip time of the last five minutes in microseconds. `u32::MAX` before the
    /// first sample.
    pub rtt_min_us: u32,
    /// Retransmission timeout in microseconds, including its backoff.
    pub rto_us: u32,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes. `u32::MAX` until a congestion event or an early end of slow
    /// start (HyStart, BBR) sets the threshold.
    pub ssthresh: u32,
    /// Largest number of payload bytes in a segment that this host sends (MSS).
    pub mss: u32,
    /// Largest payload of the segments from the peer, in bytes. An estimate until a segment has a
    /// larger payload than the estimate.
    pub rcv_mss: u32,
    /// Bytes sent and not acknowledged, including SYN and FIN (FlightSize of RFC 5681).
    pub flight_size: u32,
    /// Unacknowledged bytes that the peer has SACKed.
    pub sacked: u32,
    /// Bytes that are marked lost and not retransmitted.
    pub lost: u32,
    /// Number of retransmitted segments.
    pub retrans: u32,
    /// Bytes in flight that were retransmitted.
    pub retrans_out: u32,
    /// The largest number of segments by which a later segment overtook an earlier one; at least 3.
    pub reordering: u32,
    /// Number of reordering events.
    pub reorder_seen: u32,
    /// Number of received DSACK blocks. Each block reports data that arrived twice.
    pub dsacks: u32,
    /// Number of segments received.
    pub segs_in: u32,
    /// Number of segments received with payload.
    pub data_segs_in: u32,
    /// Number of segments sent.
    pub segs_out: u32,
    /// Number of segments sent with payload. Each retransmission counts again.
    pub data_segs_out: u32,
    /// Estimated number of segments that the peer has acknowledged or SACKed, including the SYN.
    pub delivered: u32,
    /// Number of segments that ACKs with the flag ECE have acknowledged or SACKed.
    pub delivered_ce: u32,
    /// Number of segments received out of order.
    pub ooo_segments: u32,
    /// Milliseconds since payload was last sent.
    pub last_data_sent_ms: u32,
    /// Milliseconds since payload last arrived in order.
    pub last_data_recv_ms: u32,
    /// Milliseconds since an ACK last arrived. An ACK that acknowledges no new data may not count.
    pub last_ack_recv_ms: u32,
    /// While the persist timer runs: number of window probes, keepalive probes and retransmission
    /// timeouts without an answer. Otherwise 0.
    pub probes: u32,
    /// Send window in bytes: SND.WND, which the peer has advertised.
    pub snd_wnd: u32,
    /// Receive window in bytes, as last advertised to the peer.
    pub rcv_wnd: u32,
    /// Bytes written and not sent.
    pub unsent: u32,
    /// One of [`congestion`](crate::congestion).
    pub congestion: u32,
    /// Bits of [`tcp_info_features`].
    pub features: u32,
    /// Window shift of the send window, plus 256 times the shift of the receive window.
    pub wscales: u32,
    /// Number of retransmission timeouts since the peer last acknowledged new data.
    pub backoff: u32,
    /// Congestion state of the sender: Open 0, Disorder 1, Cwr 2, Recovery 3, Loss 4.
    pub ca_state: u32,
    /// Figures of the congestion control algorithm, for TCP_CC_INFO. Zero for algorithms without
    /// figures.
    ///
    /// DCTCP: alpha in units of 1/1024, then the number of marked bytes and the number of
    /// acknowledged bytes in the current window. BBR: bandwidth in bytes per second, then 0, then
    /// the smallest round-trip time in microseconds (all bits are one before the first sample),
    /// then the pacing gain and the window gain, each in units of 1/256. The remaining words are 0.
    pub details: [u32; 6],
    /// Longest time in microseconds for which an ACK is delayed. 0 before the first payload has
    /// arrived.
    pub ato_us: u32,
}

/// Bits of [`TcpInfo::features`].
pub mod tcp_info_features {
    /// The connection uses RFC 7323 timestamps.
    pub const TIMESTAMPS: u32 = 1 << 0;
    /// The connection uses selective acknowledgments.
    pub const SACK: u32 = 1 << 1;
    /// The connection uses ECN.
    pub const ECN: u32 = 1 << 2;
    /// Data in a SYN was acknowledged (RFC 7413). In an active open, the peer acknowledged all data
    /// of our SYN. In a passive open, we acknowledged the data of the peer's SYN that fitted into
    /// our receive window.
    pub const SYN_DATA: u32 = 1 << 3;
    /// The program, not the path, limited `delivery_rate`. Also set before the first measured rate.
    pub const APP_LIMITED: u32 = 1 << 4;
}

/// Kinds of [`Message`].
pub mod message {
    /// Sent by a program to register.
    ///
    /// The answer REGISTERED carries these descriptors, in this order: the three memories of the
    /// program region (control, receive buffers, send buffers), the service page (routes and the
    /// state of the cores), and for each core the doorbell eventfd that the program rings while the
    /// core sleeps. The program maps the memories and seals the first and the last memory
    /// (F_SEAL_FUTURE_WRITE) before it sends CONTEXT.
    pub const REGISTER: u32 = 1;
    /// Answer to REGISTER.
    pub const REGISTERED: u32 = 2;
    /// Sent by a program to add context `context`. Carries the descriptor of the context's doorbell
    /// eventfd. The answer is CONTEXT.
    pub const CONTEXT: u32 = 3;
    /// Sent by a program to have the service serve the port of a listening kernel socket. Carries
    /// the descriptor of the socket. The answer is LISTEN. Another program that holds the same
    /// socket after a fork gets the same listener.
    pub const LISTEN: u32 = 4;
    /// Sent by a program that gives up its hold of `listener`: the program has closed the
    /// descriptor of the socket, has shut the socket down, or leaves the listener to the kernel. If
    /// no other program holds the listener, the service releases the port. The answer is UNLISTEN.
    pub const UNLISTEN: u32 = 5;
    /// Sent by a program to reserve a local port for active opens. Carries the descriptor of the
    /// bound kernel socket that holds the port. The answer is RESERVE.
    pub const RESERVE: u32 = 6;
    /// Sent by a program to report why a socket is not accelerated, for `tidelane ss`. There is no
    /// answer. The service also accepts this message from programs that it does not admit.
    pub const REPORT_NOT_ACCELERATED: u32 = 7;
    /// Sent by any process to ask if the service has the process's ABI version and admits the
    /// process. If the versions are equal, the answer is PROBE; otherwise, the answer is REGISTERED
    /// with the refusal ABI_VERSION. The process may send REGISTER afterwards.
    pub const PROBE: u32 = 8;
    /// Sent before a fork by a program, or by a child that inherited connections. The message
    /// announces that the next child will hold the same connections.
    ///
    /// The answer INHERIT carries the child's registration socket, over which the child may send
    /// REGISTER. If `listener` in the answer is not 0, the kernel serves this listener from now on,
    /// for the reason [`FORKS`](super::not_accelerated::FORKS). The program then sends UNLISTEN.
    pub const INHERIT: u32 = 9;
    /// Sent by a program to move `connection` to the program's context `context`. After a fork,
    /// several processes hold a connection, but only the region of one of these processes has the
    /// slot and the data of the connection. The answer is TAKE_CONNECTION.
    pub const TAKE_CONNECTION: u32 = 10;
    /// Sent by a process that has closed `connection`, if the process has no region, or if the
    /// connection has no slot in the process's region. There is no answer.
    pub const RELEASE_CONNECTION: u32 = 11;
    /// Sent by a program to ask for the figures of its connection in `slot` with `generation`. The
    /// answer is TCP_INFO.
    pub const TCP_INFO: u32 = 12;
    /// Sent by a program with a TCP/IP stack of its own to open a mux port: packet rings through
    /// which the program shares the NIC. Carries the descriptor of the program's doorbell eventfd.
    /// A registration socket is used with OPEN_PORT or with REGISTER, not with both.
    ///
    /// The answer PORT_OPENED carries these descriptors, in this order: two memories for each core,
    /// with the rings of the mux port; the service page; and for each core the doorbell eventfd
    /// that the program rings while the core sleeps. The program maps the memories, and seals the
    /// second memory of each core (F_SEAL_FUTURE_WRITE) before it sends CLAIM_TUPLE. The service
    /// closes the mux port when the program closes the registration socket.
    pub const OPEN_PORT: u32 = 13;
    /// Answer to OPEN_PORT.
    pub const PORT_OPENED: u32 = 14;
    /// Sent by a program to claim a 3-tuple: protocol, local address and local port. The program's
    /// mux port then gets the packets of the 3-tuple. Carries the descriptor of a kernel socket
    /// that is bound to the 3-tuple, does not listen, and is not connected. The answer is
    /// CLAIM_TUPLE.
    ///
    /// If the program sends the socket of a claim that another mux port of the same user has, the
    /// claim moves to this mux port. On each core, one of the two mux ports has the claim at all
    /// times during the move.
    pub const CLAIM_TUPLE: u32 = 15;
    /// Sent by a program to end its claim of a 3-tuple. The local address in the message is the
    /// address to which the claim's socket is bound, and may be the wildcard address. The answer is
    /// RELEASE_TUPLE.
    pub const RELEASE_TUPLE: u32 = 16;
    /// Sent by a program whose kernel socket does not listen, although the service may still have a
    /// listener for the socket. This happens after `shutdown`, or if `listen` finds the port in
    /// use. Carries the descriptor of the socket. The service suspends the listener for all
    /// programs that hold the listener, until any program sends LISTEN with the socket. The answer
    /// is SUSPEND_LISTENER.
    pub const SUSPEND_LISTENER: u32 = 17;
}

/// Values of [`Message::refusal`].
pub mod refusal {
    /// Program and service have different versions of the ABI.
    pub const ABI_VERSION: u32 = 1;
    /// The message is invalid.
    pub const MALFORMED: u32 = 2;
    /// A limit is reached (for example the number of programs, contexts or listeners), or the
    /// service has failed to carry out the request. [`Message::reason`](super::Message) is the
    /// value of [`not_accelerated::limit`](super::not_accelerated::limit) for the limit, or 0.
    pub const LIMIT: u32 = 3;
    /// The program has no right to the object of the request: the descriptor is not a suitable
    /// kernel socket, or the program does not hold the connection or the 3-tuple.
    pub const NOT_ENTITLED: u32 = 4;
    /// The address is not on an accelerated interface.
    pub const NOT_ACCELERATED: u32 = 5;
    /// Another program, mux port or kernel socket has the 3-tuple.
    pub const IN_USE: u32 = 6;
    /// TAKE_CONNECTION: the process that has the connection is copying bytes of the connection, or
    /// the service is about to publish the connection's end. The program repeats the request.
    pub const BUSY: u32 = 7;
    /// TAKE_CONNECTION: the send buffer is too small for the unacknowledged data.
    pub const BUFFER_TOO_SMALL: u32 = 8;
    /// LISTEN: the kernel serves this listener, for the reason
    /// [`FORKS`](super::not_accelerated::FORKS).
    pub const FORKS: u32 = 9;
    /// TAKE_CONNECTION: the connection already has its slot in the program's own region.
    pub const AT_HOME: u32 = 10;
    /// REGISTER, PROBE, OPEN_PORT: the service does not admit programs of this network namespace.
    /// After the refusals NAMESPACE, USER and CGROUP, the program may still send
    /// REPORT_NOT_ACCELERATED.
    pub const NAMESPACE: u32 = 16;
    /// REGISTER, PROBE, OPEN_PORT: the service does not admit this user.
    pub const USER: u32 = 17;
    /// REGISTER, PROBE, OPEN_PORT: the program's cgroup has BPF programs, which connections through
    /// the service would bypass.
    pub const CGROUP: u32 = 18;
}

/// Reasons why a socket is not accelerated: the kernel handles it instead of the service. The tool
/// `tidelane ss` prints a text for each reason.
pub mod not_accelerated {
    /// The socket has no connection yet.
    pub const UNCONNECTED: u32 = 0;
    /// The destination is not behind an accelerated interface.
    pub const ROUTE: u32 = 1;
    /// The socket is bound to an address that is not on an accelerated interface, such as loopback.
    pub const LOCAL_ADDRESS: u32 = 3;
    /// The kernel accepted the connection of a listener that the service also serves, for example a
    /// connection over loopback.
    pub const KERNEL_PEER: u32 = 4;
    /// An option that is not implemented was set before connect or listen.
    pub const OPTION: u32 = 5;
    /// A limit is reached. The bits above the lowest [`REASON_BITS`] bits hold the number of the
    /// limit, or zero. Only the service knows the meaning of the number.
    pub const LIMIT: u32 = 6;
    /// The program inherited the connection through a fork that was not announced to the service.
    pub const FORKED: u32 = 7;
    /// The service is gone.
    pub const SERVICE_GONE: u32 = 8;
    /// The user of `tidelane run` chose the kernel for this socket.
    pub const CHOSEN: u32 = 9;
    /// The program passes accepted connections to other programs.
    pub const PASSED_ON: u32 = 10;
    /// The program forks for each connection, and its children live for a short time.
    pub const FORKS: u32 = 11;
    /// The service does not admit programs of this network namespace.
    pub const NAMESPACE: u32 = super::refusal::NAMESPACE;
    /// The service does not admit this user.
    pub const USER: u32 = super::refusal::USER;
    /// The program's cgroup has BPF programs, which connections through the service would bypass.
    pub const CGROUP: u32 = super::refusal::CGROUP;
    /// Number of low bits of a reason that hold one of these constants. The bits above them hold
    /// the number of a limit.
    pub const REASON_BITS: u32 = 8;

    /// Returns the reason without the number of a limit.
    pub const fn kind(reason: u32) -> u32 {
        reason & ((1 << REASON_BITS) - 1)
    }

    /// Returns the reason [`LIMIT`] for the limit with this number.
    pub const fn limit(of: u32) -> u32 {
        of << REASON_BITS | LIMIT
    }
}

const _: () = assert!(core::mem::size_of::<Message>() == 456);
