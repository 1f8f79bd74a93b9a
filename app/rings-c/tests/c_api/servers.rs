//! Runs the C examples over loopback: the servers with clients that use the standard library of
//! Rust, and the clients with the echo server.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use crate::programs;

/// Time limit of a read from a server.
const LIMIT: Duration = Duration::from_secs(60);
/// Name of the environment variable with the address of the server. Only if the variable is set,
/// [`client_process`] connects to the server.
const CLIENT_OF: &str = "TIDELANE_RINGS_CLIENT_OF";

/// The process of an example server. Dropping the value kills the process.
struct Server {
    child: Child,
    /// Standard output of the process, after the line with the port.
    output: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Server {
    /// Starts an example server at a port of the kernel's choice. `test` is a part of the file name
    /// of the compiled program, so that each test has a file of its own. If the system forbids
    /// io_uring, prints a message and returns `None`.
    fn start(name: &str, test: &str) -> Option<Self> {
        Self::start_on(name, test, None)
    }

    /// Starts an example as [`Self::start`] does, with `back_end` as a further argument.
    fn start_on(name: &str, test: &str, back_end: Option<&str>) -> Option<Self> {
        programs::allow_many_descriptors();
        let source = format!("examples/{name}.c");
        let library = programs::library("a");
        let program = programs::compile(&format!("{name}-{test}"), &source, &library);
        let mut child = Command::new(program)
            .args(["127.0.0.1", "0"])
            .args(back_end)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        let Some(port) = line.trim().strip_prefix("ready ") else {
            let mut errors = String::new();
            let mut stderr = child.stderr.take().expect("a pipe");
            stderr.read_to_string(&mut errors).expect("text");
            let _ = child.wait();
            let is_forbidden = ["not permitted", "not implemented"];
            assert!(
                is_forbidden.iter().any(|error| errors.contains(error)),
                "{errors}"
            );
            eprintln!("skipped: {errors}");
            return None;
        };
        let port = port.parse().expect("a port");
        Some(Self {
            child,
            output,
            address: ([127, 0, 0, 1], port).into(),
        })
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a server");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        stream
    }

    /// Ends the server by SIGTERM. Returns the names and numbers that the server prints at its end.
    fn end(mut self) -> Report {
        // SAFETY: nobody has waited for the child, so its process number names no other process.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("text");
        assert!(self.child.wait().expect("a child").success(), "{text}");
        report_of(&text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs an example, which must fail with these arguments. Returns its standard error.
fn failure(name: &str, arguments: &[&str]) -> String {
    let source = format!("examples/{name}.c");
    let program = format!("{name}-{}", arguments.len());
    let program = programs::compile(&program, &source, &programs::library("a"));
    let output = Command::new(program).args(arguments).output();
    let output = output.expect("the server starts");
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

/// An argument selects the back end. If the back end cannot be opened, the program prints the
/// reason. Wrong arguments make the program print its usage.
#[test]
fn servers_choose_the_back_end_by_an_argument() {
    let address = ["127.0.0.1", "7999"];
    for name in ["ring_echo", "ring_http"] {
        let Some(server) = Server::start_on(name, "named", Some("io-uring")) else {
            return;
        };
        server
            .connect()
            .write_all(b"GET /1 HTTP/1.1\r\n\r\n")
            .expect("open");
        assert_eq!(number(&server.end(), "present"), 0);
        for (back_end, reason) in [
            ("direct:no-such-if", "no interface no-such-if"),
            ("direct:no-such-if:1", "no interface no-such-if"),
            ("kernel", "usage: "),
        ] {
            let text = failure(name, &[address[0], address[1], back_end]);
            assert!(text.contains(reason), "{back_end}: {text}");
        }
        assert!(failure(name, &address[..1]).contains("direct:INTERFACE"));
    }
}

/// Runs the client `ring_client` with these arguments: the number of connections, and the number of
/// messages on each. Returns the numbers that the client prints, and its standard error.
fn run_client(test: &str, address: SocketAddr, arguments: [&str; 2]) -> (Report, String) {
    let source = "examples/ring_client.c";
    let library = programs::library("a");
    let program = programs::compile(&format!("ring_client-{test}"), source, &library);
    let output = Command::new(program)
        .args([address.ip().to_string(), address.port().to_string()])
        .args(arguments)
        .output()
        .expect("the client starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let report = report_of(&text);
    let has_failed = number(&report, "failed") > 0;
    assert_eq!(output.status.success(), !has_failed, "{text}");
    (report, String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn the_client_compares_the_echo_of_many_connections() {
    let Some(server) = Server::start("ring_echo", "client") else {
        return;
    };
    for (connections, messages) in [("1", "1"), ("300", "50"), ("10", "0")] {
        let (report, errors) = run_client("echo", server.address, [connections, messages]);
        let finished = connections.parse().expect("a number");
        assert_eq!(number(&report, "finished"), finished, "{errors}");
        assert_eq!(number(&report, "failed"), 0, "{errors}");
    }
    let address = server.address;
    let report = server.end();
    assert_eq!(number(&report, "accepted"), 311);
    assert_eq!(number(&report, "present"), 0);
    // The server has ended.
    let (report, errors) = run_client("refused", address, ["3", "1"]);
    assert_eq!(
        (number(&report, "finished"), number(&report, "failed")),
        (0, 3)
    );
    assert_eq!(errors.matches("Connection refused").count(), 3, "{errors}");
}

/// Runs the client `ring_datagrams`, which sends `datagrams` datagrams and compares their echoes.
/// If the client fails, returns its standard error.
fn run_datagrams(test: &str, address: SocketAddr, datagrams: u32) -> Result<(), String> {
    let library = programs::library("a");
    let name = format!("ring_datagrams-{test}");
    let program = programs::compile(&name, "examples/ring_datagrams.c", &library);
    let output = Command::new(program)
        .args([address.ip().to_string(), address.port().to_string()])
        .arg(datagrams.to_string())
        .output()
        .expect("the client starts");
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).expect("text"));
    }
    let report = report_of(&String::from_utf8(output.stdout).expect("text"));
    assert_eq!(number(&report, "echoes"), u64::from(datagrams));
    Ok(())
}

/// The echo server returns datagrams while it also serves a connection. The client detects a wrong
/// echo, and an echo from another sender.
#[test]
fn datagrams_are_echoed() {
    let Some(server) = Server::start("ring_echo", "datagrams") else {
        return;
    };
    let mut connection = server.connect();
    connection.write_all(b"beside").expect("open");
    assert_eq!(run_datagrams("echo", server.address, 3000), Ok(()));
    let mut beside = [0; 6];
    connection.read_exact(&mut beside).expect("an echo");
    assert_eq!(&beside, b"beside");
    drop(connection);
    assert_eq!(number(&server.end(), "held"), 0);
    for is_other_sender in [false, true] {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("bound");
        let server = thread::spawn(move || {
            let mut payload = [0; 2048];
            let (len, client) = socket.recv_from(&mut payload).expect("a datagram");
            let other = UdpSocket::bind("127.0.0.1:0").expect("a port");
            let (from, payload) = match is_other_sender {
                true => (&other, &payload[..len]),
                false => (&socket, &payload[..len + 1]),
            };
            from.send_to(payload, client).expect("sent");
        });
        let error = run_datagrams("wrong", address, 1).expect_err("a wrong echo");
        assert!(error.contains("not the echo"), "{error}");
        server.join().expect("one datagram");
    }
}

/// The client detects a server that answers with wrong bytes or closes the connection too early.
#[test]
fn the_client_finds_wrong_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let server = thread::spawn(move || {
        for wrong in [b"wrong".to_vec(), Vec::new()] {
            let mut stream = listener.accept().expect("a client").0;
            let mut message = [0; 1000];
            stream.read_exact(&mut message).expect("a message");
            stream.write_all(&wrong).expect("open");
        }
    });
    for _ in 0..2 {
        let (report, _) = run_client("wrong", address, ["1", "5"]);
        assert_eq!(number(&report, "failed"), 1);
    }
    server.join().expect("both clients have connected");
}

/// Pairs of a name and a number, as a program has printed them.
type Report = Vec<(String, u64)>;

/// Returns the pairs of a name and a number in a text.
fn report_of(text: &str) -> Report {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.chunks(2);
    pairs
        .map(|pair| (pair[0].to_owned(), pair[1].parse().expect("a number")))
        .collect()
}

/// Returns the number with this name.
fn number(report: &[(String, u64)], name: &str) -> u64 {
    let found = report.iter().find(|(key, _)| key == name);
    found.unwrap_or_else(|| panic!("{name} in {report:?}")).1
}

/// Returns `len` bytes of test data, which depend on `seed`.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) * 31 % 251) as u8).collect()
}

/// Sends data and reads the echo at the same time.
fn echo(stream: TcpStream, len: usize, seed: usize) {
    let mut reader = stream.try_clone().expect("a socket");
    let writer = thread::spawn(move || {
        let mut stream = stream;
        stream.write_all(&pattern(len, seed)).expect("open");
        stream.shutdown(Shutdown::Write).expect("open");
    });
    let mut got = Vec::new();
    reader.read_to_end(&mut got).expect("the echo");
    assert!(got == pattern(len, seed), "{} of {len} bytes", got.len());
    writer.join().expect("the writer succeeds");
}

#[test]
fn the_echo_server_returns_each_byte_of_many_connections() {
    let Some(server) = Server::start("ring_echo", "many") else {
        return;
    };
    // 400 connections at the same time, with 3000 bytes for each in a round.
    let mut streams: Vec<TcpStream> = (0..400).map(|_| server.connect()).collect();
    for round in 0..5 {
        for (at, stream) in streams.iter_mut().enumerate() {
            stream.write_all(&pattern(3000, at + round)).expect("open");
        }
        for (at, stream) in streams.iter_mut().enumerate() {
            let mut got = vec![0; 3000];
            stream.read_exact(&mut got).expect("the echo");
            assert!(got == pattern(3000, at + round), "connection {at}");
        }
    }
    // 4 further connections with bulk data.
    let bulk: Vec<_> = (0..4)
        .map(|seed| {
            let stream = server.connect();
            thread::spawn(move || echo(stream, 20_000_000, seed))
        })
        .collect();
    for client in bulk {
        client.join().expect("the client succeeds");
    }
    for stream in &mut streams {
        stream.shutdown(Shutdown::Write).expect("open");
        assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0);
    }
    let report = server.end();
    assert_eq!(number(&report, "accepted"), 404);
    assert_eq!(
        (number(&report, "present"), number(&report, "held")),
        (0, 0)
    );
}

/// Clients that send and do not read become blocked. Meanwhile, another client gets its echo.
#[test]
fn blocked_receivers_of_the_echo_server_hurt_themselves_only() {
    for count in [1, 200] {
        let Some(server) = Server::start("ring_echo", &format!("blocked-{count}")) else {
            return;
        };
        let mut blocked: Vec<TcpStream> = (0..count).map(|_| server.connect()).collect();
        for stream in &blocked {
            stream.set_nonblocking(true).expect("a socket");
        }
        let mut other = server.connect();
        let mut idle = 0;
        // The clients are blocked when none of them could write in 50 rounds.
        while idle < 50 {
            idle += 1;
            for stream in &mut blocked {
                match stream.write(&[7; 65_536]) {
                    Ok(1..) => idle = 0,
                    Ok(0) => panic!("nothing was written"),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            other.write_all(b"ping").expect("open");
            let mut got = [0; 4];
            other.read_exact(&mut got).expect("the echo");
            assert_eq!(&got, b"ping");
            thread::sleep(Duration::from_millis(2));
        }
        // A blocked client that begins to read gets an echo of more than 64 KiB, and then the end.
        let mut first = blocked.swap_remove(0);
        first.set_nonblocking(false).expect("a socket");
        first.shutdown(Shutdown::Write).expect("open");
        let mut got = Vec::new();
        first.read_to_end(&mut got).expect("the echo");
        assert!(got.len() > 65_536 && got.iter().all(|byte| *byte == 7));
        drop((blocked, other));
        let report = server.end();
        assert_eq!(number(&report, "held"), 0);
        assert_eq!(number(&report, "present"), 0);
    }
}

/// The client process that [`kill_a_client`] starts. Opens 50 connections, and sends requests until
/// the process is killed.
#[test]
#[ignore = "a part of the kill tests, which start it"]
fn client_process() {
    let Ok(address) = std::env::var(CLIENT_OF) else {
        return;
    };
    let mut streams: Vec<TcpStream> = (0..50)
        .map(|_| TcpStream::connect(&address).expect("a server"))
        .collect();
    println!("connected");
    loop {
        for stream in &mut streams {
            stream
                .write_all(b"GET /20000 HTTP/1.1\r\n\r\n")
                .expect("open");
        }
        for stream in &mut streams {
            let _ = stream.read(&mut [0; 1000]).expect("open");
        }
    }
}

/// Starts a process that opens 50 connections, and kills the process while it sends requests.
fn kill_a_client(address: SocketAddr) {
    let mut client = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "servers::client_process", "--ignored"])
        .arg("--nocapture")
        .env(CLIENT_OF, address.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the test starts");
    let mut output = BufReader::new(client.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("connected") {
        line.clear();
        assert!(output.read_line(&mut line).expect("text") > 0, "no client");
    }
    thread::sleep(Duration::from_millis(200));
    client.kill().expect("a child");
    client.wait().expect("a child");
}

#[test]
fn servers_survive_the_kill_of_a_client() {
    for name in ["ring_echo", "ring_http"] {
        let Some(server) = Server::start(name, "kill") else {
            return;
        };
        let mut other = server.connect();
        for _ in 0..3 {
            kill_a_client(server.address);
            let request = b"GET /5 HTTP/1.1\r\n\r\n";
            other.write_all(request).expect("open");
            let expected: &[u8] = match name {
                "ring_echo" => request,
                _ => b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
            };
            let mut got = vec![0; expected.len()];
            other.read_exact(&mut got).expect("the answer");
            assert_eq!(got, expected);
        }
        drop(other);
        let report = server.end();
        assert_eq!(number(&report, "accepted"), 151, "{name}");
        assert_eq!(number(&report, "present"), 0, "{name}");
        assert_eq!(number(&report, "held"), 0, "{name}");
    }
}

/// Returns the answer of the HTTP server with a body of `len` bytes.
fn answer(len: usize) -> Vec<u8> {
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").into_bytes();
    answer.extend((0..len).map(|at| b'a' + (at % 26) as u8));
    answer
}

#[test]
fn the_http_server_answers_each_request() {
    let Some(server) = Server::start("ring_http", "many") else {
        return;
    };
    let mut streams: Vec<TcpStream> = (0..200).map(|_| server.connect()).collect();
    let mut requests = 0;
    for round in 0..5 {
        // A request in one piece, a request in two pieces, or two requests in one piece.
        for (at, stream) in streams.iter_mut().enumerate() {
            let len = (at * 37 + round) % 9000;
            let request = format!("GET /{len} HTTP/1.1\r\nHost: x\r\n\r\n");
            match at % 3 {
                0 => stream.write_all(request.as_bytes()),
                1 => stream.write_all(&request.as_bytes()[..10]),
                _ => stream.write_all(request.repeat(2).as_bytes()),
            }
            .expect("open");
        }
        for (at, stream) in streams.iter_mut().enumerate() {
            let len = (at * 37 + round) % 9000;
            let request = format!("GET /{len} HTTP/1.1\r\nHost: x\r\n\r\n");
            if at % 3 == 1 {
                stream.write_all(&request.as_bytes()[10..]).expect("open");
            }
            let expected = answer(len).repeat(1 + usize::from(at % 3 == 2));
            requests += 1 + u64::from(at % 3 == 2);
            let mut got = vec![0; expected.len()];
            stream.read_exact(&mut got).expect("the answer");
            assert!(got == expected, "connection {at}");
        }
    }
    drop(streams);
    // Four requests: one for the largest body, one for a longer body and one for a bad path (both
    // get status 404), and one with `Connection: close`.
    let mut stream = server.connect();
    for path in ["1048576", "1048577", "x", "7"] {
        let end = if path == "7" {
            "Connection: close\r\n"
        } else {
            ""
        };
        let request = format!("GET /{path} HTTP/1.1\r\n{end}\r\n");
        stream.write_all(request.as_bytes()).expect("open");
        requests += 1;
    }
    let missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    let mut expected = [
        answer(1_048_576),
        missing.to_vec(),
        missing.to_vec(),
        answer(7),
    ];
    let last = String::from_utf8(expected[3].clone()).expect("text");
    let last = last.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    expected[3] = last.into_bytes();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).expect("the answers");
    assert!(got == expected.concat(), "{} bytes", got.len());
    // A request without an end: the server closes the connection.
    let mut stream = server.connect();
    let _ = stream.write_all(&[b'x'; 10_000]);
    assert!(stream.read(&mut [0; 1]).map_or(true, |len| len == 0));
    let report = server.end();
    assert_eq!(number(&report, "requests"), requests);
    assert_eq!(number(&report, "accepted"), 202);
    assert_eq!(
        (number(&report, "present"), number(&report, "held")),
        (0, 0)
    );
}

/// Blocked clients request more data than all buffers can hold, and read nothing. These clients get
/// only their share of the buffers, so that another client still gets its answers. When the blocked
/// clients close their connections, the server keeps no connection and no buffer of them.
#[test]
fn blocked_receivers_of_the_http_server_do_not_stop_it() {
    let Some(server) = Server::start("ring_http", "blocked") else {
        return;
    };
    let request = b"GET /1048576 HTTP/1.1\r\n\r\n".repeat(16);
    let mut blocked: Vec<TcpStream> = (0..500).map(|_| server.connect()).collect();
    for stream in &mut blocked {
        let _ = stream.write_all(&request);
    }
    let mut other = server.connect();
    for len in [1, 100, 100_000] {
        let request = format!("GET /{len} HTTP/1.1\r\n\r\n");
        other.write_all(request.as_bytes()).expect("open");
        let mut got = vec![0; answer(len).len()];
        other.read_exact(&mut got).expect("the answer");
        assert!(got == answer(len));
    }
    drop(blocked);
    drop(other);
    let report = server.end();
    assert_eq!(
        (number(&report, "present"), number(&report, "held")),
        (0, 0)
    );
}
