//! Messages over the registration socket.

/// A registration message, both directions. File descriptors travel beside it (SCM_RIGHTS).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// [`MESSAGE_MAGIC`](crate::MESSAGE_MAGIC).
    pub magic: u64,
    /// [`ABI_VERSION`](crate::ABI_VERSION) of the sender.
    pub abi_version: u32,
    /// One of [`message`].
    pub kind: u32,
    /// Answers: 0, or why not ([`refusal`]).
    pub refusal: u32,
    /// CONTEXT, LISTEN: the context's number.
    pub context: u32,
    /// LISTEN: the program's number for the listener. UNLISTEN, LISTEN's answer: the service's.
    pub cookie: u64,
    /// LISTEN: the service's number for the listener.
    pub listener: u32,
    /// LISTEN: backlog.
    pub backlog: u32,
    /// REGISTERED: bytes of the program region.
    pub region_len: u64,
    /// NOTE: a kernel socket's inode number; the reason it is not accelerated follows.
    pub inode: u64,
    /// NOTE: one of [`not_accelerated`]. So is that of an answer with [`refusal::LIMIT`].
    pub reason: u32,
    /// RESERVE: the port that was reserved, host byte order.
    pub port: u32,
    /// TAKE, DISOWN: [`SlotNames::connection`](crate::SlotNames).
    pub connection: u64,
    /// TAKE: word of a send buffer for what is not acknowledged, 0 for none.
    pub tx_buffer: crate::BufferWord,
    /// TAKE's answer: the slot and its generation; with [`refusal::BUFFER`] the bytes that are not
    /// acknowledged, in `slot`.
    pub slot: u32,
    /// See `slot`.
    pub generation: u32,
    /// REGISTER: the program's name, NUL-padded.
    pub name: [u8; 32],
    /// LISTEN: options of its connections.
    pub options: crate::OpenOptions,
    /// NUMBERS' answer.
    pub numbers: FlowNumbers,
}

/// What the service knows of a connection, for TCP_INFO and TCP_CONGESTION. All since the start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowNumbers {
    /// Bytes that the peer acknowledged.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Smoothed round-trip time in microseconds, 0 before the first sample.
    pub srtt_us: u32,
    /// Its variation.
    pub rttvar_us: u32,
    /// Least round-trip time.
    pub rtt_min_us: u32,
    /// Retransmission timeout with its backoff.
    pub rto_us: u32,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes, `u32::MAX` before the first loss.
    pub ssthresh: u32,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Payload bytes of the largest recent segment of the peer.
    pub rcv_mss: u32,
    /// Bytes sent and not acknowledged.
    pub flight_size: u32,
    /// Those of them that the peer reported as arrived.
    pub sacked: u32,
    /// Those of them that are taken for lost.
    pub lost: u32,
    /// Segments retransmitted.
    pub retrans: u32,
    /// The peer's window in bytes.
    pub snd_wnd: u32,
    /// Our window in bytes.
    pub rcv_wnd: u32,
    /// Bytes written and not sent.
    pub unsent: u32,
    /// One of [`congestion`](crate::congestion).
    pub congestion: u32,
    /// Bits of [`flow_features`].
    pub features: u32,
    /// Shift of the peer's window, and of ours times 256.
    pub wscales: u32,
    /// Timeouts in a row without an answer.
    pub backoff: u32,
    /// The sender's phase: Open 0, Disorder 1, Cwr 2, Recovery 3, Loss 4.
    pub ca_state: u32,
    /// What the congestion control knows beyond its window; zeros for one that has no such thing.
    /// DCTCP: alpha in units of 1/1024; bytes marked, and acknowledged, of the present window.
    /// BBR: bytes per second, 0; least round-trip time in microseconds, all ones before there is
    /// one; gains of pacing and window in units of 1/256.
    pub details: [u32; 6],
}

/// Bits of [`FlowNumbers::features`].
pub mod flow_features {
    /// RFC 7323 timestamps.
    pub const TIMESTAMPS: u32 = 1 << 0;
    /// Selective acknowledgments.
    pub const SACK: u32 = 1 << 1;
    /// ECN.
    pub const ECN: u32 = 1 << 2;
    /// SYN carried text, and all of it was taken (RFC 7413).
    pub const SYN_DATA: u32 = 1 << 3;
}

/// Kinds of [`Message`].
pub mod message {
    /// Program: I am here. Answer: REGISTERED, with the three memories of the program region
    /// (control, received, sent), the service page and for each core the doorbell eventfd to ring
    /// when it sleeps (descriptors, in this order). The program maps the memories and then seals
    /// the first and the last one (F_SEAL_FUTURE_WRITE): before its first CONTEXT.
    pub const REGISTER: u32 = 1;
    /// Answer to REGISTER.
    pub const REGISTERED: u32 = 2;
    /// Program: context `context` exists; its doorbell eventfd comes along. Answer: CONTEXT.
    pub const CONTEXT: u32 = 3;
    /// Program: this kernel socket listens (it comes along); take its port. Answer: LISTEN.
    /// A second program that holds the same socket (after fork) gets the same listener.
    pub const LISTEN: u32 = 4;
    /// Program: I closed my descriptor of the listener. Answer: UNLISTEN, when the port is as free
    /// as it is in the kernel.
    pub const UNLISTEN: u32 = 5;
    /// Program: this bound kernel socket (it comes along) reserves its port for my connections.
    /// Answer: RESERVE.
    pub const RESERVE: u32 = 6;
    /// Program: this socket is not accelerated, and why. For `tidelane ss`. No answer. A program
    /// that is not admitted may send it, too.
    pub const NOTE: u32 = 7;
    /// Anybody: do we have the same version? Answer: PROBE. Before REGISTER, or instead of it.
    pub const PROBE: u32 = 8;
    /// Program or heir, before fork: the child will hold what I hold. Answer: INHERIT, with the
    /// child's registration socket, over which it may REGISTER. `listener` in the answer, if it is
    /// not 0: the kernel has the connections of this listener from now on, for the reason
    /// [`FORKS`](super::not_accelerated::FORKS); the program is to UNLISTEN it.
    pub const INHERIT: u32 = 9;
    /// Program: `connection`, which I hold and another process has, shall come to my context
    /// `context`. Answer: TAKE.
    pub const TAKE: u32 = 10;
    /// Program or heir: I do not hold `connection` any more, and have no slot for it. No answer.
    pub const DISOWN: u32 = 11;
    /// Program: what are the numbers of my connection in `slot` of `generation`? Answer: NUMBERS.
    pub const NUMBERS: u32 = 12;
}

/// Values of [`Message::refusal`].
pub mod refusal {
    /// The two sides were built from different versions.
    pub const ABI_VERSION: u32 = 1;
    /// The message makes no sense.
    pub const MALFORMED: u32 = 2;
    /// A bound was reached: programs, contexts, listeners. [`Message::reason`](super::Message) is
    /// what [`not_accelerated::limit`](super::not_accelerated::limit) gives.
    pub const LIMIT: u32 = 3;
    /// The descriptor is not a kernel socket that fits the request.
    pub const NOT_ENTITLED: u32 = 4;
    /// The address is not on an accelerated interface.
    pub const NOT_ACCELERATED: u32 = 5;
    /// The 3-tuple belongs to someone else.
    pub const IN_USE: u32 = 6;
    /// TAKE: the process that has the connection is moving its bytes: ask again.
    pub const BUSY: u32 = 7;
    /// TAKE: the send buffer is too small.
    pub const BUFFER: u32 = 8;
    /// LISTEN: the kernel has the connections of this listener, for the reason
    /// [`FORKS`](super::not_accelerated::FORKS).
    pub const FORKS: u32 = 9;
    /// REGISTER, PROBE: programs of this network namespace are not admitted. As with the next two,
    /// the program may go on to send NOTE.
    pub const NAMESPACE: u32 = 16;
    /// REGISTER, PROBE: this user is not admitted.
    pub const USER: u32 = 17;
    /// REGISTER, PROBE: the program's cgroup has BPF programs that its connections would bypass.
    pub const CGROUP: u32 = 18;
}

/// Why a socket is not accelerated; `tidelane ss` prints the text of the same name.
pub mod not_accelerated {
    /// No connection yet.
    pub const UNCONNECTED: u32 = 0;
    /// The destination is not behind an accelerated interface.
    pub const ROUTE: u32 = 1;
    /// The address it is bound to is not on an accelerated interface (loopback).
    pub const LOCAL_ADDRESS: u32 = 3;
    /// The connection came over a kernel path (loopback client of a shared listener).
    pub const KERNEL_PEER: u32 = 4;
    /// An option that is not implemented was set before connect or listen.
    pub const OPTION: u32 = 5;
    /// The service refused: limit. The bits from [`REASON_BITS`] up say of what, by a number that
    /// only the service knows; zero if it does not say.
    pub const LIMIT: u32 = 6;
    /// The program inherited the connection over fork, and the service did not know of that.
    pub const FORKED: u32 = 7;
    /// The service is gone.
    pub const SERVICE_GONE: u32 = 8;
    /// The user of `tidelane run` leaves it to the kernel.
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
    /// Bits of a reason without what LIMIT adds.
    pub const REASON_BITS: u32 = 8;

    /// The reason without what LIMIT adds.
    pub const fn kind(reason: u32) -> u32 {
        reason & ((1 << REASON_BITS) - 1)
    }

    /// [`LIMIT`], of what has this number.
    pub const fn limit(of: u32) -> u32 {
        of << REASON_BITS | LIMIT
    }
}

const _: () = assert!(core::mem::size_of::<Message>() == 280);
