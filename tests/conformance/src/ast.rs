//! The syntax tree of a script. Times are in microseconds, and words are unchanged.

use crate::release::Range;

/// A position in a script. Line and column count from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// Number of the line.
    pub line: u32,
    /// Number of the column.
    pub column: u32,
}

/// A whole script.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Script {
    /// Remarks on a stack in comments: `// kernel: differs: ...`.
    pub remarks: Vec<Remark>,
    /// `--name=value` lines.
    pub options: Vec<(String, String)>,
    /// Events in order.
    pub events: Vec<Event>,
}

/// A remark that excuses the failure of a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// The stack: `kernel` or `engine` for all IP versions, `kernel-ipv6` and the like for one.
    pub stack: String,
    /// Kernel releases that the remark is about.
    pub releases: Range,
    /// True if the stack lacks a feature, false if it only differs.
    pub lacks: bool,
    /// The different behaviour and its reason, or the lacking feature.
    pub reason: String,
}

/// A timed event of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Position in the script.
    pub at: Position,
    /// Time of the event.
    pub time: Time,
    /// Action of the event.
    pub action: Action,
}

/// Time of an event, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// After the start of the script.
    Absolute(u64),
    /// After the event before.
    Relative(u64),
    /// Between two times after the start.
    AbsoluteRange(u64, u64),
    /// Between two times after the event before.
    RelativeRange(u64, u64),
    /// At any time.
    Any,
}

/// The action of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// The program makes a call.
    Call(CallSpec),
    /// A packet arrives.
    Inject(PacketSpec),
    /// A packet leaves.
    Expect(PacketSpec),
    /// Sysctls are set: name below `net.ipv4`, value.
    Settings(Vec<(String, String)>),
    /// Conditions on `tcp_info` hold.
    Assert(Vec<Assertion>),
}

/// A system call and its result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallSpec {
    /// Time of return of a blocking call, relative to the same base as the event's time.
    pub until: Option<u64>,
    /// Name of the call.
    pub name: String,
    /// Arguments in order.
    pub arguments: Vec<Expr>,
    /// Expected return value.
    pub result: Expr,
    /// Expected error, by name, for a result of -1.
    pub errno: Option<String>,
}

/// An argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expr {
    /// `...`: any value.
    Any,
    /// A number.
    Number(i64),
    /// A constant of C.
    Word(String),
    /// Bits joined by `|`.
    Or(Vec<Expr>),
    /// `"text"`
    Text(String),
    /// `[a, b]`
    List(Vec<Expr>),
    /// `{name=value, ...}`
    Struct(Vec<(String, Expr)>),
}

/// A packet. Fields that the script leaves open are optional.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PacketSpec {
    /// A segment.
    Tcp(TcpSpec),
    /// An ICMP error about a segment that the stack sent.
    Icmp(IcmpSpec),
}

/// The ECN field of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EcnSpec {
    /// Exactly these two bits.
    Bits(u8),
    /// ECT(0) or ECT(1).
    Capable,
}

/// A segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpSpec {
    /// ECN field in brackets, such as `[ect0]`.
    pub ecn: Option<EcnSpec>,
    /// Source and destination port, if the script names them.
    pub ports: Option<(u16, u16)>,
    /// The eight control bits as on the wire.
    pub flags: u8,
    /// Sequence number, relative to ISS for segments of the stack.
    pub seq: u32,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Acknowledgment number, relative to the stack's ISS for arriving segments.
    pub ack: Option<u32>,
    /// Window field. `None` for any.
    pub win: Option<u16>,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options in order. `None` for any.
    pub options: Option<Vec<TcpOption>>,
}

/// An option of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcpOption {
    /// Padding.
    Nop,
    /// End of the list.
    Eol,
    /// Maximum segment size.
    Mss(u16),
    /// Window scale.
    WindowScale(u8),
    /// SACK permitted.
    SackPermitted,
    /// SACK blocks: left and right edges.
    Sack(Vec<(u32, u32)>),
    /// TSval and TSecr.
    Timestamps(u32, u32),
    /// A Fast Open cookie, or the request for one (RFC 7413).
    FastOpen(Vec<u8>),
    /// Another option, by kind and data.
    Other(u8, Vec<u8>),
}

/// An ICMP error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IcmpSpec {
    /// Type and code in ICMP, if it has this error.
    pub v4: Option<(u8, u8)>,
    /// Type and code in ICMPv6, if it has this error.
    pub v6: Option<(u8, u8)>,
    /// MTU of "fragmentation needed" or "packet too big".
    pub mtu: Option<u16>,
    /// Sequence number and length of the quoted segment.
    pub about: (u32, u32),
}

/// `assert condition, message`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assertion {
    /// Position in the script.
    pub at: Position,
    /// Text of the assertion.
    pub text: String,
    /// Term that must not be zero.
    pub condition: Term,
    /// Term to show in the message.
    pub shown: Option<Term>,
}

/// A term over the fields of `tcp_info`. True is 1, false is 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Term {
    /// A number.
    Number(i64),
    /// A field or a constant.
    Name(String),
    /// `not a` or `-a`
    Unary(Op, Box<Term>),
    /// `a op b`
    Binary(Op, Box<Term>, Box<Term>),
}

/// An operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Op {
    Or,
    And,
    Not,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    BitAnd,
    BitOr,
    Plus,
    Minus,
    Times,
    Divide,
    Modulo,
}
