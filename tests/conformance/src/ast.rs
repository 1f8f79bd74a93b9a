//! A script as the parser leaves it: times in microseconds, words as they were written.

use crate::release::Range;

/// A place in a script, both counted from one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// A whole script.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Script {
    /// What a comment says of a stack: `// kernel: differs: ...`.
    pub remarks: Vec<Remark>,
    /// `--name=value` lines.
    pub options: Vec<(String, String)>,
    /// What happens, in order.
    pub events: Vec<Event>,
}

/// What a script knows of how a stack fares with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// The stack, `kernel` or `engine`: over whatever; `kernel-ipv6` and the like: over that.
    pub stack: String,
    /// The releases of the kernel that it is about.
    pub releases: Range,
    /// The stack lacks something, and does not only differ.
    pub lacks: bool,
    /// What it does instead, and why that is right, or what it lacks.
    pub reason: String,
}

/// Something that happens at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Where it is written.
    pub at: Position,
    /// When.
    pub time: Time,
    /// What.
    pub action: Action,
}

/// When an event happens, in microseconds.
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
    /// Whenever it does.
    Any,
}

/// What happens.
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
    /// For a call that blocks: when it returns, counted from where the event's time is counted.
    pub until: Option<u64>,
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<Expr>,
    /// What it returns.
    pub result: Expr,
    /// The name of the error, for a result of -1.
    pub errno: Option<String>,
}

/// An argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expr {
    /// `...`: does not matter.
    Any,
    /// A number.
    Number(i64),
    /// A constant of C.
    Word(String),
    /// Bits, joined by `|`.
    Or(Vec<Expr>),
    /// `"text"`
    Text(String),
    /// `[a, b]`
    List(Vec<Expr>),
    /// `{name=value, ...}`
    Struct(Vec<(String, Expr)>),
}

/// A packet, as far as the script says what it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PacketSpec {
    /// A segment.
    Tcp(TcpSpec),
    /// An ICMP error about a segment that the stack sent.
    Icmp(IcmpSpec),
}

/// The ECN field that a packet has or should have.
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
    /// `[ect0]` and the like.
    pub ecn: Option<EcnSpec>,
    /// Source and destination, where the script names them.
    pub ports: Option<(u16, u16)>,
    /// The eight control bits as on the wire.
    pub flags: u8,
    /// First sequence number, relative to the initial one for what the stack sends.
    pub seq: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Acknowledgment number; relative to the stack's initial one for what arrives.
    pub ack: Option<u32>,
    /// The window field; any if the script is silent.
    pub win: Option<u16>,
    /// The urgent pointer.
    pub urgent: u16,
    /// Options in order; none: any.
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
    /// Any other: kind and data.
    Other(u8, Vec<u8>),
}

/// An ICMP error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IcmpSpec {
    /// Type and code in IPv4's ICMP, if it has the error.
    pub v4: Option<(u8, u8)>,
    /// The same in ICMPv6.
    pub v6: Option<(u8, u8)>,
    /// The MTU that "fragmentation needed" or "packet too big" names.
    pub mtu: Option<u16>,
    /// Sequence number and length of the segment that it is about.
    pub about: (u32, u32),
}

/// `assert condition, message`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assertion {
    /// Where it is written.
    pub at: Position,
    /// As it is written.
    pub text: String,
    /// What must not be zero.
    pub condition: Term,
    /// What to show if it is.
    pub shown: Option<Term>,
}

/// A term over the fields of `tcp_info`; truth is 1 and 0.
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
