//! Tests of `cargo xtask spec`, on a small tree of source files in memory.

use super::*;

const SPEC: &str = r#"
title = "A protocol"

[[requirement]]
id = "MUST-1"
level = "MUST"
text = "met"
code = ["proto/a.rs:send"]
test = ["proto/tests/t.rs:it_sends", "rfc9999/send.pkt"]

[[requirement]]
id = "2-a"
level = "SHOULD"
text = "done, not shown"
code = ["proto/a.rs:LIMIT"]

[[requirement]]
id = "2-b"
level = "MUST"
text = "half done"
code = ["proto/a.rs:Thing"]
test = ["proto/tests/t.rs:it_sends"]
lacks = "the other half"

[[requirement]]
id = "3"
level = "MAY"
text = "not done"

[[requirement]]
id = "3-a"
level = "SHOULD"
text = "not done, either"

[[requirement]]
id = "4"
level = "SHOULD"
text = "harmful"
exception = "it harms"
"#;

fn file(path: &str, text: &str) -> SourceFile {
    let (path, text) = (path.to_owned(), text.to_owned());
    SourceFile { path, text }
}

fn tree_files() -> Vec<SourceFile> {
    let code = "pub const LIMIT: u8 = 1;\nstruct Thing;\n\
        impl Thing { pub(crate) const fn send() {} }\n// fn gone() {}\n";
    let tests = "#[test]\n/// Doc.\n#[allow(x)]\nfn it_sends() {}\nfn helper() {}\n\
        // #[test]\nfn off() {}\n";
    vec![
        file("proto/a.rs", code),
        file("proto/tests/t.rs", tests),
        file("ebpf/a.c", "int demux(void) { return 0; } /* gone */"),
        file(
            "tests/conformance/scripts/rfc9999/send.pkt",
            "// RFC 9999\n",
        ),
        file(
            "tests/conformance/scripts/rfc9999/lacks.pkt",
            "// RFC 9999\n// engine: lacks: it all.\n",
        ),
        file("tests/interop/loss.rs", "fn bulk() {}\nfn helper() {}"),
        file("tests/interop/main.rs", "cases![loss::bulk 60]"),
    ]
}

/// Returns the messages about a requirement that cites `code` and `test`.
fn wrong(code: &str, test: &str) -> Vec<String> {
    let text = format!(
        "title = \"x\"\n[[requirement]]\nid = \"1\"\nlevel = \"MUST\"\ntext = \"x\"\n\
         code = [\"{code}\"]\ntest = [\"{test}\"]\n"
    );
    let spec = Spec::parse("specs/rfc9999.toml", &text).expect("a specification");
    Tree::new(&tree_files()).check(&spec)
}

#[test]
fn each_requirement_has_its_status() {
    let spec = Spec::parse("specs/rfc9999.toml", SPEC).expect("a specification");
    assert_eq!((spec.rfc, spec.title.as_str()), (9999, "A protocol"));
    let statuses: Vec<Status> = spec.requirements.iter().map(|r| r.status()).collect();
    let expected = [
        Status::Met,
        Status::Untested,
        Status::Partial,
        Status::Unused,
        Status::Missing,
        Status::Excepted,
    ];
    assert_eq!(statuses, expected);
    // Met, excepted, unused, missing, missing MUSTs, missing SHOULDs, untested.
    assert_eq!(counts(&spec), [1, 1, 1, 3, 1, 2, 1]);
    assert_eq!(Tree::new(&tree_files()).check(&spec), [""; 0]);
}

#[test]
fn a_broken_file_is_refused_with_the_reason() {
    let parse = |text: &str| Spec::parse("specs/rfc9999.toml", text).map(|_| ());
    let one = |more: &str| {
        let head = "title = \"x\"\n[[requirement]]\nid = \"1\"\nlevel = \"MUST\"\ntext = \"x\"\n";
        parse(&format!("{head}{more}"))
    };
    assert_eq!(one(""), Ok(()));
    for (more, why) in [
        ("exception = \" \"", "empty reason"),
        ("exception = \"a\"\ncode = [\"b:c\"]", "is an exception"),
        ("test = [\"b.pkt\"]", "cites a test and no code"),
        ("codes = []", "unknown field"),
        (
            "[[requirement]]\nid = \"1\"\nlevel = \"MAY\"\ntext = \"y\"",
            "twice",
        ),
        (
            "[[requirement]]\nid = \"2\"\nlevel = \"MIGHT\"\ntext = \"y\"",
            "MIGHT",
        ),
    ] {
        let error = one(more).expect_err(more);
        assert!(error.contains(why), "{error}");
    }
    assert!(Spec::parse("specs/tcp.toml", SPEC).is_err());
}

#[test]
fn a_citation_of_nothing_is_found() {
    let good = ("proto/a.rs:send", "proto/tests/t.rs:it_sends");
    assert_eq!(wrong(good.0, good.1), [""; 0]);
    assert_eq!(
        wrong("ebpf/a.c:demux", "tests/interop/loss.rs:bulk"),
        [""; 0]
    );
    for (code, why) in [
        ("proto/b.rs:send", "no such file"),
        ("proto/a.rs:sends", "no such symbol"),
        ("proto/a.rs:gone", "no such symbol"),
        ("ebpf/a.c:gone", "no such symbol"),
        ("proto/a.rs", "not of the form path:symbol"),
    ] {
        assert_eq!(wrong(code, good.1), [format!("RFC 9999 1: {code}: {why}")]);
    }
    for (test, why) in [
        ("proto/tests/t.rs:helper", "no such test"),
        ("proto/tests/t.rs:off", "no such test"),
        ("tests/interop/loss.rs:helper", "no such test"),
        ("rfc9999/other.pkt", "no such script"),
        ("rfc9999/lacks.pkt", "the engine does not pass this script"),
    ] {
        assert_eq!(wrong(good.0, test), [format!("RFC 9999 1: {test}: {why}")]);
    }
}

#[test]
fn an_unknown_requirement_of_rfc_9293_is_reported() {
    let text = SPEC.replace("9999", "9293");
    let specs = [Spec::parse("specs/rfc9293.toml", &text).expect("a specification")];
    let files = [
        file("proto/a.rs", "// RFC 9293 MUST-1, (MUST-100)"),
        file("app/a.rs", "// MUST-101"),
    ];
    // The check reads only code below `proto` and packet scripts, so MUST-101 is not reported.
    let found = Tree::new(&files).check_ids(&specs);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("MUST-100"));
}

#[test]
fn more_missing_than_in_the_ratchet_is_a_complaint() {
    let specs = [Spec::parse("specs/rfc9999.toml", SPEC).expect("a specification")];
    assert_eq!(grown(&parse_ratchet("# head\n9999 3\n"), &specs), [""; 0]);
    assert_eq!(grown(&parse_ratchet("9999 2\n"), &specs).len(), 1);
    assert_eq!(grown(&parse_ratchet(""), &specs).len(), 1);
}
