//! The answers do not depend on how the commands and the answers are split into pieces.

use crate::{
    commands::{Commands, Random, garbage},
    conversation::{Client, UNLIMITED, store},
};

/// Room in bytes with which a session can execute any command.
const ROOM_MIN: usize = 8192;

/// Returns a script of ten random parts: commands, garbage, long values or long lines.
fn script(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut commands = Commands::new(seed);
    commands.learn(b"HD c2\r\nHD c5\r\nHD c9\r\n");
    let mut script = Vec::new();
    for _ in 0..10 {
        match random.below(6) {
            0 => script.extend_from_slice(&garbage(&mut random)),
            1 => {
                let value = vec![b'a' + random.below(26) as u8; random.below(60_000)];
                let line = format!("set a 0 0 {}\r\n", value.len());
                script.extend_from_slice(line.as_bytes());
                script.extend_from_slice(&value);
                script.extend_from_slice(b"\r\nget a b a none key\r\nmg a v k\r\n");
            }
            2 => {
                let keys = "a none key ".repeat(random.below(300));
                script.extend_from_slice(format!("get {keys}\r\n").as_bytes());
            }
            _ => script.extend_from_slice(&commands.batch(10)),
        }
    }
    script
}

/// Returns the answers to a script that arrives in one piece, with unlimited room for answers.
fn answers_at_once(script: &[u8]) -> Vec<u8> {
    let mut kv = store();
    let mut client = Client::default();
    let answers = client.send(&mut kv, crate::conversation::START, script);
    assert!(!client.is_closed());
    client.end(&mut kv);
    assert!(kv.has_no_leak());
    answers
}

#[test]
fn random_splits_of_commands_and_answers_change_nothing() {
    let mut split = 0;
    for seed in 1..=300 {
        let script = script(seed);
        let expected = answers_at_once(&script);
        let mut random = Random::new(seed ^ 0xabcd);
        let mut kv = store();
        let mut client = Client::default();
        let (mut answers, mut rest) = (Vec::new(), &script[..]);
        while !rest.is_empty() {
            let len = match random.below(3) {
                0 => 1,
                1 => 1 + random.below(20),
                _ => 1 + random.below(5000),
            };
            let (piece, others) = rest.split_at(len.min(rest.len()));
            rest = others;
            split += 1;
            let room = || ROOM_MIN + random.below(4096);
            answers.extend_from_slice(&client.send_with_room(&mut kv, piece, room, 1 + len % 7));
            // Only an incomplete line of at most 2048 bytes stays unconsumed.
            assert!(client.rest() <= 2048, "{} bytes are left", client.rest());
        }
        assert!(answers == expected, "seed {seed}");
        client.end(&mut kv);
        assert!(kv.has_no_leak(), "seed {seed}");
    }
    assert!(split > 10_000, "{split} splits are too few");
}

#[test]
fn every_split_into_two_pieces_changes_nothing() {
    let script =
        b"set key 7 0 10\r\nab\r\ncdef\r\n\r\nget key none  key\r\nms key 2 k c Oxy T9\r\n12\r\n\
        mg key v t s k\r\nincr key 5 noreply\r\nset key 0 0 1\r\nabcd\r\n\r\nget a\0b\r\nversion\n\
        ma key v\r\ndelete key\r\nset a 0 0 2000000\r\n";
    let script = [&script[..], &[b'v'; 100], b"\r\nget "].concat();
    let expected = answers_at_once(&script);
    assert!(expected.len() > 200);
    for at in 0..=script.len() {
        let (first, second) = script.split_at(at);
        let (mut kv, mut client) = (store(), Client::default());
        let mut answers = client.send_with_room(&mut kv, first, || ROOM_MIN, UNLIMITED);
        answers.extend(client.send_with_room(&mut kv, second, || ROOM_MIN, 1));
        assert_eq!(answers, expected, "split at {at}");
        client.end(&mut kv);
        assert!(kv.has_no_leak());
    }
}
