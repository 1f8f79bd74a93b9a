//! Malicious input: random bytes, endless lines, and clients that stop in the middle of a value.

use tidelane_kv::MEMORY_MIN;

use crate::{
    commands::Random,
    conversation::{Client, START, expect, store},
};

#[test]
fn random_bytes_do_no_harm() {
    let kv = &mut store();
    let fragments: [&[u8]; 12] = [
        b"get ",
        b"set ",
        b"ms ",
        b"mg ",
        b"ma ",
        b"\r\n",
        b"\n",
        b" 0 0 5\r\n",
        b" b",
        b" 1048576\r\n",
        b"gat ",
        b"cas ",
    ];
    for seed in 1..=2000 {
        let mut random = Random::new(seed);
        let mut client = Client::default();
        while !client.is_closed() && random.below(60) > 0 {
            let mut bytes = Vec::new();
            for _ in 0..random.below(20) {
                match random.below(3) {
                    0 => bytes.extend_from_slice(fragments[random.below(fragments.len())]),
                    1 => bytes.extend((0..random.below(300)).map(|_| random.below(256) as u8)),
                    _ => bytes.extend_from_slice(random.below(1 << 31).to_string().as_bytes()),
                }
            }
            client.send(kv, START, &bytes);
            assert!(client.is_closed() || client.rest() <= 2048);
            assert!(kv.memory_used() <= MEMORY_MIN);
        }
        client.end(kv);
        assert!(kv.has_no_leak(), "seed {seed}");
    }
    expect(
        kv,
        0,
        "set a 0 0 1\nx\nget a\n",
        "STORED\nVALUE a 0 1\nx\nEND\n",
    );
}

#[test]
fn endless_lines_end_the_connection() {
    for start in ["", "set ", "get", "mg ", "gat 0 ", "\0"] {
        let (mut kv, mut client) = (store(), Client::default());
        client.send(&mut kv, START, start.as_bytes());
        let mut sent = 0;
        while !client.is_closed() {
            client.send(&mut kv, START, &[b'x'; 100]);
            sent += 100;
            assert!(sent <= 2200, "{start:?} is not disconnected");
        }
        client.end(&mut kv);
    }
}

/// A `get` may have any number of keys. After a key that is too long, the server skips the rest of
/// the line, and answers with an error.
#[test]
fn an_endless_get_does_not_end_the_connection() {
    let (mut kv, mut client) = (store(), Client::default());
    let mut answers = client.send(&mut kv, START, b"get ");
    for _ in 0..1000 {
        answers.extend(client.send(&mut kv, START, &[b'x'; 1000]));
        assert!(!client.is_closed() && client.rest() <= 2048);
    }
    answers.extend(client.send(&mut kv, START, b"\r\nmn\r\n"));
    let expected = b"CLIENT_ERROR bad command line format\r\nMN\r\n";
    assert_eq!(answers, expected);
    let (mut kv, mut client) = (store(), Client::default());
    client.send(&mut kv, START, b"get ");
    for _ in 0..10_000 {
        assert_eq!(client.send(&mut kv, START, &b"key ".repeat(100)), b"");
        assert!(client.rest() <= 2048);
    }
    assert_eq!(client.send(&mut kv, START, b"\r\n"), b"END\r\n");
}

#[test]
fn an_incomplete_command_holds_only_the_memory_of_received_bytes() {
    let kv = &mut store();
    let empty = kv.memory_used();
    let starts: [&[u8]; 5] = [
        b"set k 0 0 1000000\r\nabc",
        b"ms k 1000000\r\nabc",
        b"get a b c",
        b"set k 0 0 5\r\nabcde",
        b"set k 0 0 2147483645\r\nabc",
    ];
    let mut clients = Vec::new();
    for at in 0..5000 {
        let mut client = Client::default();
        client.send(kv, START, starts[at % starts.len()]);
        clients.push(client);
    }
    let used = kv.memory_used() - empty;
    assert!(used <= 5000 * 128, "{used} bytes");
    expect(
        kv,
        0,
        "set a 0 0 1\nx\nget a\n",
        "STORED\nVALUE a 0 1\nx\nEND\n",
    );
    for client in clients {
        client.end(kv);
    }
    assert!(kv.has_no_leak());
}

/// The server refuses a value if all values that are being received would together hold more than
/// half of the memory.
#[test]
fn values_that_are_being_received_leave_half_of_the_memory() {
    let kv = &mut store();
    let mut clients = Vec::new();
    let mut refused = 0;
    for _ in 0..20 {
        let mut client = Client::default();
        client.send(kv, START, b"set k 0 0 1000000\r\n");
        let answer = client.send(kv, START, &[b'v'; 900_000]);
        refused += u32::from(answer == b"SERVER_ERROR out of memory storing object\r\n");
        clients.push(client);
    }
    assert!(refused > 10, "{refused} are refused");
    assert!(kv.is_pinned_high() && kv.memory_used() <= MEMORY_MIN);
    // A refused client can send commands again after its value.
    let last = clients.last_mut().expect("a client");
    last.send(kv, START, &[b'v'; 100_000]);
    assert_eq!(last.send(kv, START, b"\r\nmn\r\n"), b"MN\r\n");
    // The end of a session frees the memory of the value that the session was receiving.
    for client in clients {
        client.end(kv);
    }
    assert!(!kv.is_pinned_high() && kv.has_no_leak());
    expect(kv, 0, "set a 0 0 1\nx\n", "STORED\n");
}

#[test]
fn a_value_that_is_refused_removes_the_old_one() {
    let kv = &mut store();
    let large = "v".repeat(2 << 20);
    let text = format!(
        "set a 0 0 3\nold\nset a 0 0 {}\n{large}\nget a\n",
        large.len()
    );
    expect(
        kv,
        0,
        &text,
        "STORED\nSERVER_ERROR object too large for cache\nEND\n",
    );
}
