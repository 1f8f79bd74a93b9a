//! A server process, and its clients.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// Time limit for an answer. If a server takes longer, the tests assume that the server hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// A server process and its address.
pub struct Process {
    child: Child,
    address: SocketAddr,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts a server with the given command-line options.
    pub fn start(options: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidelane-kv"))
            .args(["--listen", "127.0.0.1:0"])
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("the output is a pipe");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the server says its address");
        let address = line.trim().strip_prefix("ready on ");
        let address = address.expect("the server is ready").parse();
        Self {
            child,
            address: address.expect("an address"),
        }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server accepts");
        stream.set_nodelay(true).expect("an option");
        stream
            .set_read_timeout(Some(ANSWER_LIMIT))
            .expect("a limit");
        stream
    }

    /// Returns the value of the statistic `name`. A new connection requests the statistics, which
    /// include this connection.
    pub fn stat(&self, name: &str) -> u64 {
        let text = ask_until(&mut self.connect(), b"stats\r\n", "END\r\n");
        let start = format!("STAT {name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.expect(name).parse().expect("a number")
    }

    /// Panics if the peak of the resident memory exceeds the sum of 64 MiB (the default number of
    /// buffers), `items_mib` MiB (the items and any further buffers) and 32 MiB (all other memory).
    pub fn check_memory(&self, items_mib: u64) {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the process lives");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|peak| peak.split_whitespace().next());
        let mib = peak.expect("a number").parse::<u64>().expect("a number") >> 10;
        assert!(mib <= 64 + items_mib + 32, "{mib} MiB");
    }

    /// Waits until the statistic `name` is `value`.
    pub fn await_stat(&self, name: &str, value: u64) {
        self.await_stat_where(name, |found| found == value);
    }

    /// Waits until `is_expected` returns true for the statistic `name`.
    pub fn await_stat_where(&self, name: &str, is_expected: impl Fn(u64) -> bool) {
        for _ in 0..3000 {
            if is_expected(self.stat(name)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{name} stays {}", self.stat(name));
    }

    /// Panics unless the server answers the commands of a new client.
    pub fn check_service(&self) {
        let client = &mut self.connect();
        for at in 0..100 {
            let set = format!("set prompt 0 0 {}\r\n{at}\r\n", at.to_string().len());
            assert_eq!(ask(client, set.as_bytes(), 8), b"STORED\r\n");
            let answer = format!("VALUE prompt 0 {}\r\n{at}\r\nEND\r\n", at.to_string().len());
            let got = ask(client, b"get prompt\r\n", answer.len());
            assert_eq!(got, answer.as_bytes());
        }
    }
}

/// Sends a command. Returns an answer of `len` bytes.
pub fn ask(client: &mut TcpStream, command: &[u8], len: usize) -> Vec<u8> {
    client.write_all(command).expect("the command is sent");
    let mut answer = vec![0; len];
    client.read_exact(&mut answer).expect("an answer");
    answer
}

/// Sends a command. Returns the answer, which ends with `end`.
pub fn ask_until(client: &mut TcpStream, command: &[u8], end: &str) -> String {
    client.write_all(command).expect("the command is sent");
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !answer.ends_with(end.as_bytes()) {
        let count = client.read(&mut buffer).expect("an answer");
        assert!(count > 0, "the connection ends after {answer:?}");
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(answer).expect("the answer is text")
}

/// Sends all bytes in a new thread.
pub fn send_beside(client: &TcpStream, bytes: Vec<u8>) -> thread::JoinHandle<()> {
    let mut writer = client.try_clone().expect("a second handle");
    // An error is ignored, because the server may reset the connection.
    thread::spawn(move || drop(writer.write_all(&bytes)))
}

/// Sends as many bytes as the socket takes without blocking. Returns their number.
pub fn send_without_wait(client: &TcpStream, bytes: &[u8]) -> usize {
    client.set_nonblocking(true).expect("an option");
    let mut sent = 0;
    let mut writer = client;
    while sent < bytes.len() {
        match writer.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    client.set_nonblocking(false).expect("an option");
    sent
}
