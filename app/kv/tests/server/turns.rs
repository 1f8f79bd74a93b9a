//! The limit of the work for one client in one cycle (one call of [`Server::cycle`]).

use std::{io::Write, net::TcpStream, time::Duration};

use tidelane_kernel::{KernelContext, KernelOptions};
use tidelane_kv::{ConnectionCounts, Kv, MEMORY_MIN, Server, Session};
use tidelane_rings::{Context, ListenOptions};

/// Time since the Unix epoch during the test.
const NOW: Duration = Duration::from_secs(1_700_000_000);
/// Largest permitted number of commands that the server executes for a client in one cycle: the
/// client's budget of 1024 units of work per cycle, and a margin.
const TURN_MAX: u64 = 1100;

/// Returns the number of keys that the clients have looked up.
fn reads(server: &mut Server) -> u64 {
    let (mut session, mut answers) = (Session::default(), Vec::new());
    session.feed(server.kv(), NOW.as_secs(), b"stats\r\n", &mut answers, 10);
    let text = String::from_utf8(answers).expect("statistics are text");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("STAT cmd_get "));
    line.expect("a count").parse().expect("a number")
}

#[test]
fn a_client_with_many_commands_gets_one_turn_in_each_cycle() {
    let mut context = match KernelContext::open(&KernelOptions::default()) {
        Ok(context) => context,
        Err(error) => return eprintln!("SKIPPED: no io_uring here: {error}"),
    };
    let mut kv = Kv::new(NOW.as_secs(), MEMORY_MIN, [7; 16]);
    kv.connections = ConnectionCounts {
        limit: 10,
        ..ConnectionCounts::default()
    };
    let local = "127.0.0.1:0".parse().expect("an address");
    let listener = context
        .listen(local, &ListenOptions::default())
        .expect("a listener");
    let socket = context.socket(listener).expect("a socket");
    let address = rustix::net::getsockname(socket).expect("an address");
    let mut server = Server::new(kv, &context);
    let address: std::net::SocketAddr = address.try_into().expect("an address");
    let mut client = TcpStream::connect(address).expect("a connection");
    // The socket buffers hold all commands. No command has an answer.
    let count = 20_000;
    client
        .write_all(&b"mg a q\r\n".repeat(count))
        .expect("sent");
    let (mut before, mut cycles) = (0, 0);
    while before < count as u64 {
        let cycle = server.cycle(&mut context, Duration::from_secs(10), || NOW);
        cycle.expect("the context works");
        let after = reads(&mut server);
        assert!(after - before <= TURN_MAX, "{} commands", after - before);
        before = after;
        cycles += 1;
        assert!(cycles < 1000, "the client is not served");
    }
    assert_eq!(before, count as u64);
}
