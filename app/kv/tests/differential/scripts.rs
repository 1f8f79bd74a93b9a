//! Scripts for the commands, flags, errors and limits of memcached's protocol. A script is a
//! sequence of bytes that a client sends to memcached and to `tidelane-kv`. The answers of both
//! servers must be equal, apart from the differences that `compare.rs` lists. In the text files, a
//! line of dashes separates two scripts.

/// Returns scripts that end after a complete command, and leave the connection open.
pub fn complete() -> Vec<Vec<u8>> {
    let files = [
        include_str!("scripts/classic.txt"),
        include_str!("scripts/errors.txt"),
        include_str!("scripts/meta.txt"),
        include_str!("scripts/meta_errors.txt"),
    ];
    let mut scripts: Vec<Vec<u8>> = files
        .iter()
        .flat_map(|file| file.split("----\n"))
        .map(|script| script.replace('\n', "\r\n").into_bytes())
        .collect();
    scripts.extend(limits());
    scripts.extend(ends_of_lines());
    scripts
}

/// Returns scripts after which the server closes the connection.
pub fn closing() -> Vec<Vec<u8>> {
    let mut scripts: Vec<Vec<u8>> = [
        "quit\r\n",
        "set a 0 0 1\r\n1\r\nget a\r\nquit\r\nget a\r\n",
        "quit noreply please\r\n",
        "POST /form HTTP/1.1\r\n",
        "GET / HTTP/1.0\r\n",
        "mx HTTP/1.1\r\nquit\r\n",
        "get HTTP/1.1\r\nset HTTP/1.1\r\ntrace HTTP/1.1\r\nquit\r\n",
    ]
    .iter()
    .map(|script| script.as_bytes().to_vec())
    .collect();
    scripts.push([b'x'; 4096].to_vec());
    scripts.push([b"set ".as_slice(), &[b'k'; 4096]].concat());
    scripts.push([&[b' '; 200], b"get ".as_slice(), &[b'k'; 4096]].concat());
    scripts.push(vec![0; 8192]);
    scripts
}

/// Returns scripts at the limits of keys, values and lines.
fn limits() -> Vec<Vec<u8>> {
    let mut scripts = Vec::new();
    for len in [1, 72, 73, 197, 249, 250, 251, 300, 1500] {
        let key = "k".repeat(len);
        // A `get` of a key of more than 250 bytes makes memcached drop earlier answers that are
        // not yet sent. Each `get` is therefore a script of its own. The servers keep the items of
        // earlier scripts.
        scripts.push(format!("set {key} 0 0 3\r\nabc\r\n").into_bytes());
        for command in ["get", "get a", "gets", "gat 0", "get  "] {
            scripts.push(format!("{command} {key} b\r\n").into_bytes());
        }
        scripts.push(
            format!(
                "mg {key} v k\r\nms {key} 2 k\r\nhi\r\ntouch {key} 0\r\nincr {key} 1\r\n\
                 delete {key}\r\nmd {key}\r\nma {key} N0 v k\r\nme {key}\r\ndelete {key}\r\n\
                 add {key} 0 0 1 noreply\r\nx\r\ncas {key} 0 0 1 1\r\nx\r\n\
                 append {key} 0 0 1\r\n1\r\n"
            )
            .into_bytes(),
        );
    }
    // memcached limits an item to 1 MiB. An item consists of the value, the key (here one byte),
    // and an overhead of 59 bytes.
    let largest = (1 << 20) - 59 - 1;
    for len in [
        1023,
        1024,
        16 * 1024,
        524_000,
        600_000,
        largest,
        largest + 1,
        1 << 20,
        3 << 20,
    ] {
        let value = "v".repeat(len);
        let mut script = format!("set a 0 0 1\r\n1\r\nset a 0 0 {len}\r\n{value}\r\nget a\r\n");
        script += &format!("ms a {len} c\r\n{value}\r\nmg a v s\r\nincr a 1\r\nma a\r\n");
        script += &format!("add a 0 0 {len}\r\n{value}\r\nset a 5 0 {len} noreply\r\n{value}\r\n");
        script += "append a 0 0 1\r\n1\r\nprepend a 0 0 2\r\n12\r\nget a\r\ndelete a\r\n";
        scripts.push(script.into_bytes());
    }
    // A value that contains each of the 256 possible bytes.
    let bytes: Vec<u8> = (0..=255).collect();
    scripts.push([b"set b 0 0 256\r\n", &bytes[..], b"\r\nget b\r\nmg b v\r\n"].concat());
    // Lines with many keys.
    let keys = "a b none ".repeat(5000);
    scripts.push(format!("set a 0 0 1\r\n1\r\nget {keys}\r\ngets {keys}\r\n").into_bytes());
    let keys = "a b none ".repeat(200);
    scripts.push(format!("gat 0 {keys}\r\n").into_bytes());
    scripts
}

/// Returns scripts with unusual line ends, and with NUL bytes.
fn ends_of_lines() -> Vec<Vec<u8>> {
    [
        &b"set a 0 0 1\n1\r\nget a\n"[..],
        b"set a 0 0 3\r\r\nabcset b 0 0 1\r\n1\r\nget a b\r\n",
        b"set a 0 0 1\r\r\n1\r\nget a\r\r\n",
        b"\r\nversion\r\n\n\r\r\n",
        b"set a 0 0 1\r\n1\n\nget a\r\n",
        b"get a\0 b\r\nget \0\r\n\0\r\nversion\0 x\r\n",
        b"set a\0b 0 0 1\r\n1\r\nmg a\0 v\r\nget b a\0b\r\n",
        b"set a 0 0 2\r\n\r\n\r\nget a\r\nset a 0 0 4\r\nEND\n\r\nget a\r\n",
    ]
    .iter()
    .map(|script| script.to_vec())
    .collect()
}
