//! Tests of the parser: one event of each kind, whole scripts, and the messages of syntax errors.

use super::*;
use crate::{
    ast::{CallSpec, EcnSpec, Expr, IcmpSpec, PacketSpec, Position, TcpOption, TcpSpec},
    release::Release,
};

/// Returns the only event of the script `text`.
fn only(text: &str) -> Event {
    let script = parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    assert_eq!(script.events.len(), 1, "{text}");
    script.events.into_iter().next().unwrap()
}

/// Returns the segment in the only event of the script `text`.
fn tcp(text: &str) -> TcpSpec {
    match only(text).action {
        Action::Inject(PacketSpec::Tcp(tcp)) | Action::Expect(PacketSpec::Tcp(tcp)) => tcp,
        other => panic!("{other:?}"),
    }
}

/// Returns the call in the only event of the script `text`.
fn call(text: &str) -> CallSpec {
    match only(text).action {
        Action::Call(call) => call,
        other => panic!("{other:?}"),
    }
}

/// Returns the line, the column and the message of the syntax error in `text`.
fn complaint(text: &str) -> (u32, u32, String) {
    let error = parse(text).expect_err(text);
    (error.at.line, error.at.column, error.message)
}

#[test]
fn times_of_all_kinds() {
    for (text, time) in [
        ("0 > . 1:1(0) ack 1", Time::Absolute(0)),
        ("1.5 > . 1:1(0) ack 1", Time::Absolute(1_500_000)),
        ("+.1 > . 1:1(0) ack 1", Time::Relative(100_000)),
        ("+0.000001 > . 1:1(0) ack 1", Time::Relative(1)),
        ("0~0.2 > . 1:1(0) ack 1", Time::AbsoluteRange(0, 200_000)),
        ("+0~+.2 > . 1:1(0) ack 1", Time::RelativeRange(0, 200_000)),
        ("* > . 1:1(0) ack 1", Time::Any),
    ] {
        assert_eq!(only(text).time, time, "{text}");
    }
}

#[test]
fn a_segment_with_everything() {
    let text = "+0 > [ect01] 8080 > 5000 PEW. 1:1001(1000) ack 5 win 257 urg 7 \
                <mss 1460,sackOK,TS val 100 ecr 200,nop,wscale 8,sack 1:2 3:4,FO 0aff,kind 28 01>";
    let expected = TcpSpec {
        ecn: Some(EcnSpec::Capable),
        ports: Some((8080, 5000)),
        flags: 8 | 64 | 128 | 16,
        seq: 1,
        len: 1000,
        ack: Some(5),
        win: Some(257),
        urgent: 7,
        options: Some(vec![
            TcpOption::Mss(1460),
            TcpOption::SackPermitted,
            TcpOption::Timestamps(100, 200),
            TcpOption::Nop,
            TcpOption::WindowScale(8),
            TcpOption::Sack(vec![(1, 2), (3, 4)]),
            TcpOption::FastOpen(vec![10, 255]),
            TcpOption::Other(28, vec![1]),
        ]),
    };
    assert_eq!(tcp(text), expected);
}

#[test]
fn segments_of_few_words() {
    assert_eq!(tcp("+0 < S 0:0(0) win 100").flags, 2);
    assert_eq!(tcp("+0 < S. 0:0(0) ack 1 win 100").flags, 18);
    assert_eq!(tcp("+0 < - 0:0(0) win 100").flags, 0);
    assert_eq!(tcp("+0 < R 1:1(0)").win, None);
    assert_eq!(tcp("+0 > . 1:1(0) ack 1 <...>").options, None);
    assert_eq!(tcp("+0 > . 1:1(0) ack 1").options, Some(Vec::new()));
    let wrapped = tcp("+0 < . 4294967295:9(10) ack 1 win 1");
    assert_eq!((wrapped.seq, wrapped.len), (u32::MAX, 10));
}

#[test]
fn icmp_errors() {
    let event = only("+0 < icmp unreachable frag_needed mtu 1200 [1:1461(1460)]");
    let expected = IcmpSpec {
        v4: Some((3, 4)),
        v6: None,
        mtu: Some(1200),
        about: (1, 1460),
    };
    assert_eq!(event.action, Action::Inject(PacketSpec::Icmp(expected)));
    for (text, v4, v6) in [
        ("unreachable port_unreachable", Some((3, 3)), Some((1, 4))),
        ("unreachable noroute", None, Some((1, 0))),
        ("packet_too_big mtu 1300", None, Some((2, 0))),
        ("time_exceeded exc_ttl", Some((11, 0)), Some((3, 0))),
    ] {
        let event = only(&format!("+0 < icmp {text} [1:1461(1460)]"));
        let Action::Inject(PacketSpec::Icmp(spec)) = event.action else {
            panic!("{text}");
        };
        assert_eq!((spec.v4, spec.v6), (v4, v6), "{text}");
    }
}

#[test]
fn calls_with_results_and_errors() {
    let plain = call("+0 socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP) = 3");
    assert_eq!((plain.name.as_str(), plain.until), ("socket", None));
    let bits = ["SOCK_STREAM", "SOCK_NONBLOCK"].map(|word| Expr::Word(word.to_owned()));
    assert_eq!(plain.arguments[..2], [Expr::Any, Expr::Or(bits.to_vec())]);
    assert_eq!(plain.result, Expr::Number(3));
    let failed = call("+0 read(4, ..., 1) = -1 EAGAIN (Resource temporarily unavailable)");
    assert_eq!(
        (failed.result, failed.errno.as_deref()),
        (Expr::Number(-1), Some("EAGAIN"))
    );
    assert_eq!(
        call("0.3...0.5 connect(3, ..., ...) = 0").until,
        Some(500_000)
    );
    assert_eq!(call("+0...0.2 read(4, ..., 1) = 1").until, Some(200_000));
    let poll = call("+0 poll([{fd=4, events=POLLIN, revents=0}], 1, 0) = 0");
    let Expr::List(entries) = &poll.arguments[0] else {
        panic!("{poll:?}");
    };
    assert!(matches!(&entries[0], Expr::Struct(fields) if fields.len() == 3));
    let linger = call("+0 setsockopt(4, SOL_SOCKET, SO_LINGER, {onoff=1, linger=0}, 8) = 0");
    assert!(matches!(&linger.arguments[3], Expr::Struct(_)));
}

#[test]
fn a_script_with_head_settings_and_remarks() {
    let text = "// RFC 9293 §3.1\n\
                // kernel: differs: it counts\n\
                //   in jiffies\n\
                --tolerance_usecs=5000 /* a\n comment */\n\
                `sysctl -q net.ipv4.tcp_sack=0\n sysctl -w net.ipv4.tcp_rmem=\"1 2 3\"`\n\
                +0 `sysctl net.ipv4.tcp_ecn=1`\n\
                +0 %{ assert tcpi_snd_cwnd == 10, tcpi_snd_cwnd\n\
                assert tcpi_state == TCP_ESTABLISHED # true\n}%\n";
    let script = parse(text).unwrap();
    assert_eq!(script.remarks.len(), 1);
    assert_eq!(script.remarks[0].reason, "it counts in jiffies");
    assert!(!script.remarks[0].lacks);
    assert_eq!(
        script.options,
        [("tolerance_usecs".to_owned(), "5000".to_owned())]
    );
    let settings = |pairs: &[(&str, &str)]| {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Action::Settings(pairs.iter().map(own).collect())
    };
    let expected = settings(&[("tcp_sack", "0"), ("tcp_rmem", "1 2 3")]);
    assert_eq!(script.events[0].action, expected);
    assert_eq!(script.events[1].action, settings(&[("tcp_ecn", "1")]));
    let Action::Assert(assertions) = &script.events[2].action else {
        panic!("not assertions");
    };
    assert_eq!(assertions[0].text, "(tcpi_snd_cwnd == 10)");
    assert_eq!(
        assertions[1].at,
        Position {
            line: 10,
            column: 8
        }
    );
}

#[test]
fn a_remark_may_be_limited_to_some_releases() {
    // The last two comments are no remarks: a remark on the engine must have the word `lacks` and
    // no range of releases.
    let text = "// RFC 9293\n// kernel-ipv6 < 6.10: differs: it waits\n\
                // kernel >= 6.2 < 6.5: lacks: a setting\n\
                // engine: differs: no remark, as the next\n// engine < 6.1: lacks: nothing\n";
    let remarks = parse(text).unwrap().remarks;
    let shown: Vec<_> = remarks
        .iter()
        .map(|remark| (remark.stack.as_str(), remark.lacks, remark.reason.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            ("kernel-ipv6", false, "it waits"),
            ("kernel", true, "a setting")
        ]
    );
    let has = |major, minor| {
        let release = Some(Release(major, minor, 0));
        [0, 1].map(|index: usize| remarks[index].releases.has(release))
    };
    assert_eq!(has(6, 1), [true, false]);
    assert_eq!(has(6, 4), [true, true]);
    assert_eq!(has(6, 12), [false, false]);
}

/// Texts with a syntax error, each with the line, the column and the message of the error.
const WRONG: &[(&str, u32, u32, &str)] = &[
    (
        "+0 < S 0:0(0) win 70000",
        1,
        19,
        "a window is out of range: at most 65535",
    ),
    (
        "+0 < X 0:0(0)",
        1,
        6,
        "expected flags (S F R P . U E W, or - for none), found X",
    ),
    ("\n +0 > . 1:2(0) ack 1", 2, 9, "1:2 is not 0 bytes long"),
    (
        "+0 > . 1:1(0) ack",
        1,
        18,
        "expected an acknowledgment number, found the end of the script",
    ),
    (
        "+0 < . 1:1(0) ack 1 <...>",
        1,
        22,
        "expected options: <...> is for packets that the stack sends, found .",
    ),
    (
        "+0 > . 1:1(0) <mss 1 wscale 2>",
        1,
        22,
        "expected \",\" or \">\" after an option, found wscale",
    ),
    (
        "+0 > . 1:1(0) <colour 1>",
        1,
        16,
        "expected an option, found colour",
    ),
    (
        "+0 close(3 = 0",
        1,
        12,
        "expected \",\" or \")\" after an argument, found =",
    ),
    (
        "+0 close(3)",
        1,
        12,
        "expected \"=\", found the end of the script",
    ),
    (
        "+0~+.1 close(3) = 0",
        1,
        8,
        "only a packet that the stack sends can have a range of times or *",
    ),
    (
        ".3~.1 > . 1:1(0) ack 1",
        1,
        4,
        "the range of times is backwards",
    ),
    (
        "+0 `rm -rf /`",
        1,
        5,
        "expected \"sysctl\" or a closing `, found rm",
    ),
    ("+0 %{ print 1 }%", 1, 7, "expected \"assert\", found print"),
    ("+0 %{assert 1", 1, 6, "expected a closing }%, found assert"),
    (
        "close(3) = 0",
        1,
        1,
        "expected an event: a time (1.5, +0, *), then a call, <, >, ` or %{, found close",
    ),
    (
        "+0 > icmp unreachable",
        1,
        6,
        "expected a segment: ICMP errors only arrive, found icmp",
    ),
];

#[test]
fn parse_errors_have_a_line_and_a_column() {
    for (text, line, column, message) in WRONG {
        let (l, c, m) = complaint(text);
        assert_eq!((l, c), (*line, *column), "{text}: {m}");
        assert_eq!(m, *message, "{text}");
    }
}
