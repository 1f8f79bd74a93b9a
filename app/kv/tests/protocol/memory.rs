//! The memory limit, and the eviction of items.

use tidelane_kv::{MEMORY_MIN, Progress, Session};

use crate::{
    commands::Random,
    conversation::{Client, Limited, START, expect, store},
};

/// Returns the value of the statistic `name`.
fn stat(kv: &mut tidelane_kv::Kv, name: &str) -> u64 {
    let answers = Client::default().send(kv, START, b"stats\r\n");
    let text = String::from_utf8(answers).expect("statistics are text");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.expect(name).parse().expect("a number")
}

#[test]
fn the_least_recently_used_items_give_way() {
    let kv = &mut store();
    let mut client = Client::default();
    let value = "v".repeat(1024);
    client.send(kv, START, b"set kept 0 0 4\r\nkept\r\n");
    let count = 20_000;
    for at in 0..count {
        let set = format!("set key{at} 0 0 1024\r\n{value}\r\n");
        assert_eq!(client.send(kv, START, set.as_bytes()), b"STORED\r\n");
        assert!(kv.memory_used() <= MEMORY_MIN, "{} bytes", kv.memory_used());
        // An item that is read often is not evicted.
        if at % 100 == 0 {
            let answer = client.send(kv, START, b"get kept\r\n");
            assert_eq!(answer, b"VALUE kept 0 4\r\nkept\r\nEND\r\n");
        }
    }
    let is_there: Vec<bool> = (0..count)
        .map(|at| client.send(kv, START, format!("mg key{at} u\r\n").as_bytes()) == b"HD\r\n")
        .collect();
    let oldest = is_there.iter().position(|there| *there).expect("an item");
    assert!(
        is_there[oldest..].iter().all(|there| *there),
        "an item is evicted before an older item"
    );
    let kept = (count - oldest) as u64;
    assert!(kept * 1024 > MEMORY_MIN * 3 / 4, "{kept} items are few");
    assert_eq!(stat(kv, "evictions"), oldest as u64);
    assert_eq!(stat(kv, "curr_items"), kept + 1);
    assert!(kv.has_no_leak());
}

#[test]
fn items_of_all_sizes_keep_their_bytes_within_the_bound() {
    let kv = &mut store();
    let mut client = Client::default();
    let mut random = Random::new(1);
    let mut stored = std::collections::HashMap::new();
    let (mut hits, mut misses) = (0, 0);
    for round in 0..6000usize {
        let key = random.below(300);
        let len = match random.below(20) {
            0 => random.below(1_000_000),
            1..5 => random.below(20_000),
            _ => random.below(500),
        };
        let value: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
        let mut set = format!("set k{key} 0 0 {len}\r\n").into_bytes();
        set.extend_from_slice(&value);
        set.extend_from_slice(b"\r\n");
        assert_eq!(client.send(kv, START, &set), b"STORED\r\n");
        stored.insert(key, value);
        assert!(kv.memory_used() <= MEMORY_MIN);
        let key = random.below(300);
        let answer = client.send(kv, START, format!("get k{key}\r\n").as_bytes());
        if answer == b"END\r\n" {
            misses += 1;
            continue;
        }
        hits += 1;
        let value = &stored[&key];
        let head = format!("VALUE k{key} 0 {}\r\n", value.len());
        assert!(answer == [head.as_bytes(), value, b"\r\nEND\r\n"].concat());
    }
    assert!(hits > 500 && misses > 500, "{hits} hits, {misses} misses");
    assert!(kv.has_no_leak());
}

/// A number that becomes one digit longer may need a second block, for which the store evicts an
/// item. The number is the least recently used item, but the store does not evict the number
/// itself.
#[test]
fn a_growing_number_does_not_evict_itself() {
    let kv = &mut store();
    let mut client = Client::default();
    let mut fillers = 0..;
    let mut fill = |kv: &mut tidelane_kv::Kv, client: &mut Client| {
        let key = format!("filler{}", fillers.next().expect("a number"));
        client.send(kv, START, format!("set {key} 0 0 1\r\nx\r\n").as_bytes());
        key
    };
    while stat(kv, "evictions") == 0 {
        for _ in 0..1000 {
            fill(kv, &mut client);
        }
    }
    // The first block of an item has room for 72 bytes of key and value.
    for len in 66..=72 {
        let number = "n".repeat(len);
        let set = format!("set {number} 0 0 2\r\n99\r\n");
        client.send(kv, START, set.as_bytes());
        let mut newest = String::new();
        for _ in 1..stat(kv, "curr_items") {
            newest = fill(kv, &mut client);
        }
        // The increment stores the longer number as a new item. The first block of the new item is
        // the block of the deleted item.
        let delete = format!("delete {newest}\r\n");
        assert_eq!(client.send(kv, START, delete.as_bytes()), b"DELETED\r\n");
        let incr = format!("incr {number} 1\r\n");
        assert_eq!(client.send(kv, START, incr.as_bytes()), b"100\r\n");
        let get = format!("get {number}\r\n");
        let value = format!("VALUE {number} 0 3\r\n100\r\nEND\r\n");
        assert_eq!(client.send(kv, START, get.as_bytes()), value.as_bytes());
        assert!(kv.has_no_leak(), "a key of {len} bytes");
    }
}

#[test]
fn a_value_that_is_being_sent_keeps_its_bytes() {
    let kv = &mut store();
    let old = "o".repeat(100_000);
    expect(kv, 0, &format!("set a 0 0 100000\n{old}\n"), "STORED\n");
    for change in [
        "set a 0 0 3\nnew\n",
        "delete a\n",
        "flush_all\nget a\n",
        "append a 0 0 1\nx\n",
        "touch a -1\nget a\n",
        "md a I\n",
        "prepend a 0 0 0\n\n",
    ] {
        expect(kv, 0, &format!("set a 0 0 100000\n{old}\n"), "STORED\n");
        let mut session = Session::default();
        let mut bytes = Vec::new();
        let mut input = &b"get a\r\nmn\r\n"[..];
        let mut pieces = 0;
        loop {
            let mut out = Limited {
                bytes: Vec::new(),
                room: 8200,
            };
            let fed = session.feed(kv, START, input, &mut out, 1000);
            input = &input[fed.consumed..];
            bytes.extend_from_slice(&out.bytes);
            pieces += 1;
            if pieces == 3 {
                Client::default().send(kv, START, change.replace('\n', "\r\n").as_bytes());
                // Other items take the free memory.
                for at in 0..100 {
                    expect(
                        kv,
                        0,
                        &format!("set f{at} 0 0 100000\n{}\n", "f".repeat(100_000)),
                        "STORED\n",
                    );
                }
            }
            if fed.progress == Progress::NeedsInput {
                break;
            }
        }
        assert!(pieces > 10);
        let expected = format!("VALUE a 0 100000\r\n{old}\r\nEND\r\nMN\r\n");
        assert!(bytes == expected.as_bytes(), "after {change}");
        session.end(kv);
        assert!(kv.has_no_leak(), "after {change}");
    }
}

#[test]
fn statistics_count_commands_and_items() {
    let kv = &mut store();
    expect(
        kv,
        0,
        "set a 0 0 1\n1\nget a b a\nincr a 1\nincr x 1\ndelete a\ndelete a\ntouch a 0\n",
        "STORED\nVALUE a 0 1\n1\nVALUE a 0 1\n1\nEND\n\
         2\nNOT_FOUND\nDELETED\nNOT_FOUND\nNOT_FOUND\n",
    );
    let expected = [
        ("cmd_get", 3),
        ("get_hits", 2),
        ("get_misses", 1),
        ("cmd_set", 1),
        ("incr_hits", 1),
        ("incr_misses", 1),
        ("delete_hits", 1),
        ("delete_misses", 1),
        ("cmd_touch", 1),
        ("touch_misses", 1),
        ("curr_items", 0),
        ("total_items", 1),
        ("bytes", 0),
        ("limit_maxbytes", MEMORY_MIN),
    ];
    for (name, value) in expected {
        assert_eq!(stat(kv, name), value, "{name}");
    }
    expect(kv, 0, "set a 5 0 1\n1\nstats reset\n", "STORED\nRESET\n");
    assert_eq!((stat(kv, "cmd_set"), stat(kv, "curr_items")), (0, 1));
    // memcached counts 59 bytes of overhead, the client's flags, the key and the value.
    assert_eq!(stat(kv, "bytes"), 59 + 4 + 1 + 1);
}
