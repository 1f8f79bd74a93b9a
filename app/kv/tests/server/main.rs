//! Tests of the server over loopback. Some clients leave their answers unread, send incomplete
//! commands, or disconnect. The server must still serve the other clients.

mod process;
mod turns;

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use process::{Process, ask, ask_until, send_beside, send_without_wait};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Stores a value of `len` bytes under the key `big`. Returns the answer to `get big`.
fn store_big(server: &Process, len: usize) -> Vec<u8> {
    let value: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    let head = format!("set big 0 0 {len}\r\n");
    let set = [head.as_bytes(), &value, b"\r\n"].concat();
    assert_eq!(ask(&mut server.connect(), &set, 8), b"STORED\r\n");
    let head = format!("VALUE big 0 {len}\r\n");
    [head.as_bytes(), &value, b"\r\nEND\r\n"].concat()
}

/// Raises the limit of open descriptors of this process to the hard limit. New child processes
/// inherit the limit. Returns the resulting limit.
fn raise_descriptor_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the system refuses the change, the old limit remains.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[test]
fn a_client_that_does_not_read_waits_and_gets_every_byte() {
    let server = Process::start("");
    let answer = store_big(&server, 500_000);
    let mut blocked = server.connect();
    let count = 200;
    let sender = send_beside(&blocked, b"get big\r\n".repeat(count));
    // The server owes the client 100 MB of answers, and must still serve other clients.
    server.check_service();
    let written = server.stat("bytes_written");
    assert!(written < 50_000_000, "{written} bytes before a read");
    for number in 0..count {
        let mut got = vec![0; answer.len()];
        blocked.read_exact(&mut got).expect("an answer");
        assert!(got == answer, "answer {number}");
    }
    sender.join().expect("the sender ends");
    assert_eq!(ask(&mut blocked, b"mn\r\n", 4), b"MN\r\n");
    assert_eq!(server.stat("evicted_connections"), 0);
    // 2 MiB suffice for one copy of the large value, but not for one copy for each answer.
    server.check_memory(2);
}

#[test]
fn a_client_that_sends_and_does_not_read_is_paused() {
    let server = Process::start("");
    let answer = store_big(&server, 100_000);
    let mut blocked = server.connect();
    // The socket buffers cannot hold all commands, so the sender waits for the server.
    let count = 4_000_000;
    let sender = send_beside(&blocked, b"get none\r\n".repeat(count));
    server.check_service();
    assert!(
        server.stat("cmd_get") < count as u64,
        "the client is not paused"
    );
    let mut buffer = vec![0; 1 << 16];
    let mut left = count * 5;
    while left > 0 {
        let len = left.min(buffer.len());
        blocked.read_exact(&mut buffer[..len]).expect("answers");
        let mut at = (count * 5 - left) % 5;
        for byte in &buffer[..len] {
            assert_eq!(*byte, b"END\r\n"[at]);
            at = (at + 1) % 5;
        }
        left -= len;
    }
    sender.join().expect("the sender ends");
    let got = ask(&mut blocked, b"get big\r\n", answer.len());
    assert!(got == answer);
    server.check_memory(2);
}

#[test]
fn clients_that_hold_all_buffers_are_reset_and_others_are_served() {
    // Half of the buffers are for received data. The other half is too small for the answers to all
    // clients.
    let server = Process::start("--buffers 1024 --connections 200");
    let answer = store_big(&server, 1_000_000);
    let clients: Vec<TcpStream> = (0..150)
        .map(|_| {
            let client = server.connect();
            send_without_wait(&client, &b"get big\r\n".repeat(20));
            client
        })
        .collect();
    server.check_service();
    let mut reader = server.connect();
    let got = ask(&mut reader, b"get big\r\n", answer.len());
    assert!(got == answer);
    // The server resets blocked clients because other clients need their buffers.
    server.await_stat_where("evicted_connections", |count| count > 0);
    drop(clients);
    server.await_stat("curr_connections", 2);
    server.check_service();
}

#[test]
fn thousands_of_connections_stop_in_the_middle() {
    let limit = raise_descriptor_limit();
    let count = usize::try_from(limit / 2).map_or(3000, |half| half.min(3000)) - 100;
    assert!(count > 300, "the limit of descriptors is {limit}");
    let server = Process::start("--buffers 32768 --connections 4000");
    let starts: [&[u8]; 6] = [
        b"set k 0 0 1000000\r\nabc",
        b"get a b",
        b"ms k 10 ",
        b"",
        b"gets none\r\nmg none v",
        b"\0\xff\x80",
    ];
    let clients: Vec<TcpStream> = (0..count)
        .map(|at| {
            let mut client = server.connect();
            client
                .write_all(starts[at % starts.len()])
                .expect("a start");
            client
        })
        .collect();
    server.check_service();
    server.await_stat("curr_connections", count as u64 + 1);
    // The pool has 128 MiB, which is 64 MiB more than `check_memory` expects.
    server.check_memory(2 + 64);
    // Half of the clients close their connection. The other half resets it.
    for (at, client) in clients.iter().enumerate() {
        if at % 2 == 0 {
            client.shutdown(Shutdown::Both).expect("a shutdown");
        } else {
            let linger = Some(Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(client, linger).expect("an option");
        }
    }
    drop(clients);
    server.await_stat("curr_connections", 1);
    server.check_service();
}

#[test]
fn unfinished_values_do_not_lock_others_out() {
    let server = Process::start("--memory 8");
    let clients: Vec<TcpStream> = (0..40)
        .map(|_| {
            let client = server.connect();
            let start = [b"set k 0 0 1000000\r\n".as_slice(), &[b'v'; 900_000]].concat();
            send_beside(&client, start).join().expect("the sender ends");
            client
        })
        .collect();
    server.check_service();
    let answer = store_big(&server, 900_000);
    let got = ask(&mut server.connect(), b"get big\r\n", answer.len());
    assert!(got == answer);
    server.await_stat_where("evicted_connections", |count| count > 0);
    server.check_memory(8);
    drop(clients);
    server.await_stat("curr_connections", 1);
}

#[test]
fn answers_before_quit_and_before_the_end_of_the_client_arrive() {
    let server = Process::start("");
    let answer = store_big(&server, 1_000_000);
    for is_quit in [true, false] {
        let mut client = server.connect();
        client.write_all(&b"get big\r\n".repeat(10)).expect("sent");
        match is_quit {
            true => client.write_all(b"quit\r\nget big\r\n").expect("sent"),
            false => client.shutdown(Shutdown::Write).expect("a shutdown"),
        }
        let mut got = Vec::new();
        client.read_to_end(&mut got).expect("answers and an end");
        assert!(got == answer.repeat(10), "{} bytes", got.len());
    }
    server.await_stat("curr_connections", 1);
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let server = Process::start("--connections 5");
    let mut clients: Vec<TcpStream> = (0..5).map(|_| server.connect()).collect();
    for client in &mut clients {
        assert_eq!(ask(client, b"mn\r\n", 4), b"MN\r\n");
    }
    let mut text = String::new();
    server.connect().read_to_string(&mut text).expect("an end");
    assert_eq!(text, "ERROR Too many open connections\r\n");
    let stats = ask_until(&mut clients[0], b"stats\r\n", "END\r\n");
    assert!(stats.contains("STAT rejected_connections 1\r\n"), "{stats}");
    assert!(stats.contains("STAT curr_connections 5\r\n"), "{stats}");
    drop(clients);
    server.await_stat("curr_connections", 1);
}

#[test]
fn many_clients_have_their_own_answers() {
    let server = Process::start("");
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let mut client = server.connect();
            std::thread::spawn(move || {
                for round in 0..500usize {
                    let value = format!("{thread}-{round} ").repeat(1 + round % 200);
                    let len = value.len();
                    let script = format!(
                        "set k{thread} {round} 0 {len}\r\n{value}\r\n\
                         get k{thread}\r\nmg k{thread} v f\r\n"
                    );
                    let answer = format!(
                        "STORED\r\nVALUE k{thread} {round} {len}\r\n{value}\r\nEND\r\n\
                         VA {len} f{round}\r\n{value}\r\n"
                    );
                    let got = ask(&mut client, script.as_bytes(), answer.len());
                    assert_eq!(got, answer.as_bytes());
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("the client has its answers");
    }
}
