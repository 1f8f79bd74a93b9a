//! The syntax tree of a packetdrill script: a script of socket calls and packets that tests a TCP
//! stack. Module `parse` creates the tree from the text, and module `run` executes the tree. Times
//! are in microseconds. The tree has the names, not the values, of constants and of the fields of
//! `tcp_info`.

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
    /// Remarks from comments such as `// kernel: differs: ...`, and from the table of exceptions
    /// (`embedded-lacks.txt`).
    pub remarks: Vec<Remark>,
    /// Name and value of each line `--name=value`.
    pub options: Vec<(String, String)>,
    /// Events in the order of the script.
    pub events: Vec<Event>,
}

/// A remark that explains why the script fails on a stack. A run that fails on this stack then does
/// not count as a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    /// The stack: `kernel`, `engine` or `embedded` for all IP versions. A suffix restricts the
    /// remark to one version, such as `kernel-ipv6`.
    pub stack: String,
    /// Kernel releases on which the script fails.
    pub releases: Range,
    /// True if the stack lacks a feature. False if its behaviour differs.
    pub lacks: bool,
    /// The different behaviour and its reason, or the missing feature.
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

/// The time of an event, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// This time after the start of the script.
    Absolute(u64),
    /// This time after the previous event.
    Relative(u64),
    /// Between these two times after the start of the script.
    AbsoluteRange(u64, u64),
    /// Between these two times after the previous event.
    RelativeRange(u64, u64),
    /// At any time.
    Any,
}

/// The action of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// The program makes a system call.
    Call(CallSpec),
    /// The stack receives a packet.
    Inject(PacketSpec),
    /// The stack must send a packet.
    Expect(PacketSpec),
    /// The script sets sysctls. An entry has the name below `net.ipv4`, and the value.
    Settings(Vec<(String, String)>),
    /// The script asserts conditions on `tcp_info`.
    Assert(Vec<Assertion>),
}

/// A system call and its expected result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallSpec {
    /// Expected time of return of a blocking call, in microseconds. The time counts from the start
    /// of the script if the event has an absolute time, and otherwise from the previous event.
    /// `None` if the call must not block.
    pub until: Option<u64>,
    /// Name of the call.
    pub name: String,
    /// Arguments in order.
    pub arguments: Vec<Expr>,
    /// Expected return value.
    pub result: Expr,
    /// Name of the expected error, if the expected return value is -1.
    pub errno: Option<String>,
}

/// An argument or result of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expr {
    /// `...`: any value.
    Any,
    /// A number.
    Number(i64),
    /// The name of a constant, such as `SOCK_STREAM`.
    Word(String),
    /// Numbers or constants joined by `|`.
    Or(Vec<Expr>),
    /// A string: `"text"`.
    Text(String),
    /// A list: `[a, b]`.
    List(Vec<Expr>),
    /// A structure with named fields: `{name=value, ...}`.
    Struct(Vec<(String, Expr)>),
}

/// A packet to inject or to expect. If the ECN field, the window or the options of an expected
/// packet are `None`, the runner does not compare them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PacketSpec {
    /// A TCP segment.
    Tcp(TcpSpec),
    /// An ICMP error about a segment that the stack sent.
    Icmp(IcmpSpec),
}

/// The ECN field of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EcnSpec {
    /// This value of the two bits.
    Bits(u8),
    /// Either ECT(0) or ECT(1). Only for an expected packet.
    Capable,
}

/// A TCP segment to inject or to expect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpSpec {
    /// ECN field. The script has it in brackets, such as `[ect0]`.
    pub ecn: Option<EcnSpec>,
    /// Source and destination port. `None` for the current connection, which module `flows`
    /// determines.
    pub ports: Option<(u16, u16)>,
    /// The eight control bits as on the wire.
    pub flags: u8,
    /// Sequence number. In an expected segment, the number is relative to the stack's ISS.
    pub seq: u32,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Acknowledgment number. In an injected segment, the number is relative to the stack's ISS.
    /// `None` for a segment without ACK, whose acknowledgment number is 0.
    pub ack: Option<u32>,
    /// Window field. In an expected segment, `None` accepts any window. In an injected segment,
    /// `None` stands for 0.
    pub win: Option<u16>,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options in their order. `None` accepts any options.
    pub options: Option<Vec<TcpOption>>,
}

/// A TCP option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TcpOption {
    /// No-operation, for padding.
    Nop,
    /// End of the option list.
    Eol,
    /// Maximum segment size.
    Mss(u16),
    /// Window scale.
    WindowScale(u8),
    /// SACK permitted.
    SackPermitted,
    /// SACK blocks, each with its left and right edge.
    Sack(Vec<(u32, u32)>),
    /// TSval and TSecr.
    Timestamps(u32, u32),
    /// A Fast Open cookie (RFC 7413). An empty cookie is a cookie request.
    FastOpen(Vec<u8>),
    /// Any other option: kind and data.
    Other(u8, Vec<u8>),
}

/// An ICMP or ICMPv6 error to inject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IcmpSpec {
    /// Type and code in ICMP. `None` if ICMP does not have this error.
    pub v4: Option<(u8, u8)>,
    /// Type and code in ICMPv6. `None` if ICMPv6 does not have this error.
    pub v6: Option<(u8, u8)>,
    /// MTU of "fragmentation needed" or "packet too big", in bytes.
    pub mtu: Option<u16>,
    /// The quoted segment: its sequence number, relative to the stack's ISS, and the length of its
    /// payload in bytes.
    pub about: (u32, u32),
}

/// A condition on `tcp_info`: `assert condition, term`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assertion {
    /// Position in the script.
    pub at: Position,
    /// Text of the condition, for the message.
    pub text: String,
    /// The condition holds if the value of this term is not zero.
    pub condition: Term,
    /// Term whose value the message shows if the condition does not hold.
    pub shown: Option<Term>,
}

/// An integer term over the fields of `tcp_info`. A comparison has the value 1 or 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Term {
    /// A number.
    Number(i64),
    /// The name of a field or constant.
    Name(String),
    /// An operator with one operand.
    Unary(UnaryOp, Box<Term>),
    /// An operator with two operands: `a op b`.
    Binary(BinaryOp, Box<Term>, Box<Term>),
}

/// An operator with one operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnaryOp {
    /// `not a`.
    Not,
    /// `-a`.
    Negate,
}

/// An operator with two operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum BinaryOp {
    Or,
    And,
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
