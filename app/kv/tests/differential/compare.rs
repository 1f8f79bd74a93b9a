//! The comparison of the answers of memcached and of the server under test (`tidelane-kv`).
//!
//! The answers must be equal in all bytes, including the CAS numbers. The exceptions are:
//!
//! * The version in the answer to `version`.
//! * Numbers of seconds in answers to meta commands (`t`, `l`, `exp=`, `la=`). The numbers may
//!   differ by at most [`SECONDS_MAX`], because the servers start at different times and their
//!   seconds do not begin together.
//! * The slab class (`cls=`) in the answer to `me`.

/// Largest permitted difference in seconds.
const SECONDS_MAX: u32 = 5;

/// Panics unless the answers of memcached and of the server are the same, apart from the permitted
/// differences.
pub fn assert_same(script: &[u8], (memcached, server): &(Vec<u8>, Vec<u8>)) {
    let is_same = is_same(memcached, server);
    assert!(
        is_same,
        "script:\n{}\nmemcached:\n{}\nthe server:\n{}",
        shown(script),
        shown(memcached),
        shown(server)
    );
}

/// Returns bytes in a readable form. Omits the middle of a long text.
fn shown(bytes: &[u8]) -> String {
    let text = bytes
        .escape_ascii()
        .to_string()
        .replace("\\r\\n", "\\r\\n\n");
    match text.char_indices().nth(6000) {
        Some((at, _)) => format!("{} ... {}", &text[..at], &text[text.len() - 500..]),
        None => text,
    }
}

fn is_same(memcached: &[u8], server: &[u8]) -> bool {
    if memcached == server {
        return true;
    }
    let mut left = memcached.split(|byte| *byte == b'\n');
    let mut right = server.split(|byte| *byte == b'\n');
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (Some(left), Some(right)) if is_same_line(left, right) => {}
            _ => return false,
        }
    }
}

fn is_same_line(memcached: &[u8], server: &[u8]) -> bool {
    if memcached == server
        || (memcached.starts_with(b"VERSION ") && server.starts_with(b"VERSION "))
    {
        return true;
    }
    let codes: [&[u8]; 3] = [b"HD ", b"VA ", b"ME "];
    if !codes.iter().any(|code| memcached.starts_with(code)) {
        return false;
    }
    let left: Vec<&[u8]> = memcached.split(|byte| *byte == b' ').collect();
    let right: Vec<&[u8]> = server.split(|byte| *byte == b' ').collect();
    let is_me = memcached.starts_with(b"ME ");
    left.len() == right.len()
        && left
            .iter()
            .zip(&right)
            .all(|(left, right)| is_same_word(is_me, left, right))
}

fn is_same_word(is_me: bool, memcached: &[u8], server: &[u8]) -> bool {
    if memcached == server {
        return true;
    }
    let names: &[&[u8]] = match is_me {
        true => &[b"exp=", b"la=", b"cls="],
        false => &[b"t", b"l"],
    };
    names.iter().any(|name| {
        let left = memcached.strip_prefix(*name).and_then(number);
        let right = server.strip_prefix(*name).and_then(number);
        let (Some(left), Some(right)) = (left, right) else {
            return false;
        };
        let difference = left.wrapping_sub(right);
        *name == b"cls=" || difference.min(difference.wrapping_neg()) <= SECONDS_MAX
    })
}

/// Parses a number modulo 2^32.
fn number(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?.trim_end();
    text.parse::<i64>().ok().map(|number| number as u32)
}

#[test]
fn only_the_listed_differences_are_permitted() {
    let same = [
        ("HD t100 c5\r\n", "HD t98 c5\r\n"),
        ("HD t4294967235\r\n", "HD t4294967231\r\n"),
        ("VERSION 1\r\nEND\r\n", "VERSION 2\r\nEND\r\n"),
        (
            "ME k exp=-9 la=1 cls=4 size=60\r\n",
            "ME k exp=-8 la=0 cls=0 size=60\r\n",
        ),
    ];
    for (left, right) in same {
        assert!(is_same(left.as_bytes(), right.as_bytes()), "{left} {right}");
    }
    let different = [
        ("HD t100\r\n", "HD t90\r\n"),
        ("HD t-1\r\n", "HD t100\r\n"),
        ("HD c5\r\n", "HD c6\r\n"),
        ("HD\r\n", "HD\r\nHD\r\n"),
        ("VALUE a 0 1 5\r\n", "VALUE a 0 1 6\r\n"),
        ("ME k size=60\r\n", "ME k size=61\r\n"),
        ("STORED\r\n", "STORED\n"),
        ("t1\r\n", "t2\r\n"),
    ];
    for (left, right) in different {
        assert!(
            !is_same(left.as_bytes(), right.as_bytes()),
            "{left} {right}"
        );
    }
}
