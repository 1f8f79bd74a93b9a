//! Parses the segments and ICMP errors of a script.

use super::{ParseError, Parsed, cursor::Cursor};
use crate::ast::{EcnSpec, IcmpSpec, PacketSpec, TcpOption, TcpSpec};

/// The control bits by their letters. The letter of ACK is `.`.
const FLAGS: [(char, u8); 8] = [
    ('F', 1),
    ('S', 2),
    ('R', 4),
    ('P', 8),
    ('.', 16),
    ('U', 32),
    ('E', 64),
    ('W', 128),
];

/// An ICMP error: the two words of its name, its type and code in ICMP, and its type and code in
/// ICMPv6. The second word may be empty. `None` means that the protocol does not have the error.
type IcmpKind = (
    &'static str,
    &'static str,
    Option<(u8, u8)>,
    Option<(u8, u8)>,
);

/// The ICMP errors that scripts can inject.
const ICMP_KINDS: [IcmpKind; 20] = [
    ("unreachable", "net_unreachable", Some((3, 0)), None),
    ("unreachable", "host_unreachable", Some((3, 1)), None),
    ("unreachable", "protocol_unreachable", Some((3, 2)), None),
    (
        "unreachable",
        "port_unreachable",
        Some((3, 3)),
        Some((1, 4)),
    ),
    ("unreachable", "frag_needed", Some((3, 4)), None),
    ("unreachable", "source_route_failed", Some((3, 5)), None),
    ("unreachable", "net_unknown", Some((3, 6)), None),
    ("unreachable", "host_unknown", Some((3, 7)), None),
    ("unreachable", "net_prohibited", Some((3, 9)), None),
    ("unreachable", "host_prohibited", Some((3, 10)), None),
    ("unreachable", "packet_filtered", Some((3, 13)), None),
    ("unreachable", "noroute", None, Some((1, 0))),
    ("unreachable", "adm_prohibited", None, Some((1, 1))),
    ("unreachable", "not_neighbour", None, Some((1, 2))),
    ("unreachable", "addr_unreachable", None, Some((1, 3))),
    ("source_quench", "", Some((4, 0)), None),
    ("packet_too_big", "", None, Some((2, 0))),
    ("time_exceeded", "exc_ttl", Some((11, 0)), Some((3, 0))),
    ("time_exceeded", "exc_fragtime", Some((11, 1)), Some((3, 1))),
    ("parameter_problem", "", Some((12, 0)), Some((4, 0))),
];

/// Parses the packet that follows `<` or `>`. `inbound` is true after `<`, which precedes a packet
/// that the script injects.
pub fn packet(cursor: &mut Cursor<'_>, inbound: bool) -> Parsed<PacketSpec> {
    let ecn = ecn(cursor, inbound)?;
    if cursor.is_next_word("icmp") {
        if !inbound {
            return cursor.error("a segment: ICMP errors only arrive");
        }
        return icmp(cursor).map(PacketSpec::Icmp);
    }
    let ports = ports(cursor)?;
    let flags = flags(cursor)?;
    let (seq, len) = range(cursor)?;
    let mut tcp = TcpSpec {
        ecn,
        ports,
        flags,
        seq,
        len,
        ack: None,
        win: None,
        urgent: 0,
        options: Some(Vec::new()),
    };
    if cursor.eat_word("ack") {
        tcp.ack = Some(cursor.need_u32("an acknowledgment number")?);
    }
    if cursor.eat_word("win") {
        tcp.win = Some(cursor.need_u16("a window")?);
    }
    if cursor.eat_word("urg") {
        tcp.urgent = cursor.need_u16("an urgent pointer")?;
    }
    if cursor.eat("<") {
        tcp.options = options(cursor, inbound)?;
    }
    Ok(PacketSpec::Tcp(tcp))
}

/// Parses an ECN field in brackets or parentheses, such as `[ect0]`. Returns `None` if the packet
/// starts with neither a bracket nor a parenthesis.
fn ecn(cursor: &mut Cursor<'_>, inbound: bool) -> Parsed<Option<EcnSpec>> {
    let close = match cursor.peek() {
        Some('[') => "]",
        Some('(') => ")",
        _ => return Ok(None),
    };
    cursor.take(1);
    let words = [
        ("noecn", EcnSpec::Bits(0)),
        ("ect1", EcnSpec::Bits(1)),
        ("ect0", EcnSpec::Bits(2)),
        ("ce", EcnSpec::Bits(3)),
        ("ect01", EcnSpec::Capable),
    ];
    for (word, spec) in words {
        if inbound && spec == EcnSpec::Capable && cursor.is_next_word(word) {
            return cursor.error("noecn, ect0, ect1 or ce for a packet that arrives");
        }
        if cursor.eat_word(word) {
            cursor.need(close)?;
            return Ok(Some(spec));
        }
    }
    cursor.error("noecn, ect0, ect1, ect01 or ce")
}

/// Parses the source and the destination port of a packet that starts with a digit. An example is
/// `5000 > 8080`. Returns `None` if the packet does not start with a digit.
fn ports(cursor: &mut Cursor<'_>) -> Parsed<Option<(u16, u16)>> {
    if !cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
        return Ok(None);
    }
    let from = cursor.need_u16("a source port")?;
    cursor.need(">")?;
    let to = cursor.need_u16("a destination port")?;
    Ok(Some((from, to)))
}

/// Parses the control bits, such as `S.`, or `-` for none.
fn flags(cursor: &mut Cursor<'_>) -> Parsed<u8> {
    if cursor.eat("-") {
        return Ok(0);
    }
    let what = "flags (S F R P . U E W, or - for none)";
    let at = cursor.position();
    let letters = cursor.take_while(|c| c.is_ascii_alphabetic() || c == '.');
    if letters.is_empty() {
        return cursor.error(what);
    }
    let mut bits = 0;
    for letter in letters.chars() {
        let Some((_, bit)) = FLAGS.iter().find(|(known, _)| *known == letter) else {
            return Err(ParseError {
                at,
                message: format!("expected {what}, found {letters}"),
            });
        };
        bits |= bit;
    }
    cursor.skip_blanks();
    Ok(bits)
}

/// Parses a range of sequence numbers with its length, such as `1:1001(1000)`. Returns the start
/// and the length.
fn range(cursor: &mut Cursor<'_>) -> Parsed<(u32, u32)> {
    let at = cursor.position();
    let start = cursor.need_u32("a range of sequence numbers, start:end(length)")?;
    cursor.need(":")?;
    let end = cursor.need_u32("the end of the range")?;
    cursor.need("(")?;
    let len = cursor.need_u32("the length of the payload")?;
    cursor.need(")")?;
    if end != start.wrapping_add(len) {
        return Err(ParseError {
            at,
            message: format!("{start}:{end} is not {len} bytes long"),
        });
    }
    Ok((start, len))
}

/// Parses the TCP options after `<`. Returns `None` for `<...>`, which accepts any options.
fn options(cursor: &mut Cursor<'_>, inbound: bool) -> Parsed<Option<Vec<TcpOption>>> {
    if cursor.is_next("...") {
        if inbound {
            return cursor.error("options: <...> is for packets that the stack sends");
        }
        cursor.eat("...");
        cursor.need(">")?;
        return Ok(None);
    }
    let mut list = Vec::new();
    loop {
        list.push(option(cursor)?);
        if cursor.eat(">") {
            return Ok(Some(list));
        }
        if !cursor.eat(",") {
            return cursor.error("\",\" or \">\" after an option");
        }
    }
}

/// Parses one TCP option.
fn option(cursor: &mut Cursor<'_>) -> Parsed<TcpOption> {
    let at = cursor.position();
    let word = cursor.need_word("an option (mss, wscale, sackOK, sack, TS, nop, eol, FO)")?;
    Ok(match word {
        "nop" => TcpOption::Nop,
        "eol" => TcpOption::Eol,
        "mss" => TcpOption::Mss(cursor.need_u16("a segment size")?),
        "wscale" => TcpOption::WindowScale(cursor.need_number("a shift", 255)? as u8),
        "sackOK" => TcpOption::SackPermitted,
        "sack" => TcpOption::Sack(sack_blocks(cursor)?),
        "TS" => {
            cursor.need("val")?;
            let value = cursor.need_u32("TSval")?;
            cursor.need("ecr")?;
            TcpOption::Timestamps(value, cursor.need_u32("TSecr")?)
        }
        "FO" => TcpOption::FastOpen(hex(cursor)?),
        // `kind` introduces an option that has no name. packetdrill lacks this notation.
        "kind" => {
            let kind = cursor.need_number("the number of an option", 255)? as u8;
            TcpOption::Other(kind, hex(cursor)?)
        }
        _ => {
            return Err(ParseError {
                at,
                message: format!("expected an option, found {word}"),
            });
        }
    })
}

/// Parses one or more SACK blocks, such as `1:2 3:4`.
fn sack_blocks(cursor: &mut Cursor<'_>) -> Parsed<Vec<(u32, u32)>> {
    let mut blocks = Vec::new();
    while blocks.is_empty() || cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
        let left = cursor.need_u32("the left edge of a SACK block")?;
        cursor.need(":")?;
        blocks.push((left, cursor.need_u32("the right edge of a SACK block")?));
    }
    Ok(blocks)
}

/// Parses bytes in hexadecimal notation, two digits a byte. If no digit follows, returns an empty
/// list.
fn hex(cursor: &mut Cursor<'_>) -> Parsed<Vec<u8>> {
    let at = cursor.position();
    let digits = cursor.take_while(|c| c.is_ascii_hexdigit());
    let byte = |pair: usize| {
        let pair = digits.get(pair..pair + 2)?;
        u8::from_str_radix(pair, 16).ok()
    };
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    cursor.skip_blanks();
    bytes.ok_or(ParseError {
        at,
        message: "expected an even number of hexadecimal digits".to_owned(),
    })
}

/// Parses an ICMP error: its name, an optional MTU, and the range of the quoted segment.
fn icmp(cursor: &mut Cursor<'_>) -> Parsed<IcmpSpec> {
    cursor.eat("icmp");
    let Some((kind, ..)) = ICMP_KINDS.iter().find(|known| cursor.is_next_word(known.0)) else {
        return cursor.error("unreachable, packet_too_big, time_exceeded or another ICMP error");
    };
    cursor.eat(kind);
    let codes = || ICMP_KINDS.iter().filter(|known| known.0 == *kind);
    let found = codes().find(|known| known.1.is_empty() || cursor.is_next_word(known.1));
    let Some((_, code, v4, v6)) = found else {
        let names: Vec<_> = codes().map(|known| known.1).collect();
        return cursor.error(&format!("one of {}", names.join(", ")));
    };
    cursor.eat(code);
    let mtu = match cursor.eat_word("mtu") {
        true => Some(cursor.need_u16("an MTU")?),
        false => None,
    };
    cursor.need("[")?;
    let about = range(cursor)?;
    cursor.need("]")?;
    Ok(IcmpSpec {
        v4: *v4,
        v6: *v6,
        mtu,
        about,
    })
}
