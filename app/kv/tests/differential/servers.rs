//! The processes of memcached and of the server under test.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// Time limit for an answer. If a server takes longer, the tests assume that the server hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Command that the client sends after a script, unless the script ends the connection. The answer
/// to this command marks the end of the script's answers.
const LAST_COMMAND: &[u8] = b"mg ~end k\r\n";
/// Answer of both servers to [`LAST_COMMAND`].
const LAST_ANSWER: &[u8] = b"EN k~end\r\n";
/// Limit of the attempts to connect to a new memcached.
const CONNECT_TRIES: u32 = 500;

/// Prints that a test is skipped because a tool is missing.
pub fn skip(tool: &str, package: &str) {
    eprintln!("SKIPPED: no {tool} here; apt-get install {package}");
}

/// Searches for a tool in the directories of PATH, `/usr/bin`, `/usr/sbin` and `/sbin`.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/bin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// A server process, and a connection to it.
pub struct Server {
    child: Child,
    address: SocketAddr,
    stream: TcpStream,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts the server under test.
    pub fn start_kv() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidelane-kv"))
            .args(["--listen", "127.0.0.1:0"])
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
        let address: SocketAddr = address.expect("an address");
        let stream = connect(address).expect("the server accepts");
        Self {
            child,
            address,
            stream,
        }
    }

    /// Starts memcached at a free port with additional options. Returns `None` if memcached is not
    /// installed.
    fn start_memcached(options: &[&str]) -> Option<Self> {
        let tool = find_tool("memcached")?;
        // Another process may take the free port before memcached binds it.
        for _ in 0..10 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            let address = listener.local_addr().expect("an address");
            drop(listener);
            let mut child = Command::new(&tool)
                .args(["-l", "127.0.0.1", "-U", "0", "-t", "1", "-u", "nobody"])
                .args(["-p", &address.port().to_string()])
                .args(options)
                .stderr(Stdio::null())
                .spawn()
                .expect("memcached starts");
            for _ in 0..CONNECT_TRIES {
                if child.try_wait().ok().flatten().is_some() {
                    break;
                }
                if let Some(stream) = connect(address).filter(speaks_memcached) {
                    return Some(Self {
                        child,
                        address,
                        stream,
                    });
                }
                thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("memcached does not serve");
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sends a script that ends after a complete command. Returns the answers.
    pub fn exchange(&mut self, script: &[u8]) -> Vec<u8> {
        self.exchange_in_pieces(script, usize::MAX)
    }

    /// Sends a script that makes the server close the connection. Returns all answers, followed by
    /// "(closed)".
    pub fn exchange_until_close(&mut self, script: &[u8]) -> Vec<u8> {
        self.send_and_read(script, script.len(), None)
    }

    /// Sends a script in pieces of `len` bytes. Returns the answers.
    pub fn exchange_in_pieces(&mut self, script: &[u8], len: usize) -> Vec<u8> {
        let whole = [script, LAST_COMMAND].concat();
        self.send_and_read(&whole, len.min(whole.len()), Some(LAST_ANSWER))
    }

    /// Sends a script in pieces of `len` bytes. Returns the answers up to and including `last`. If
    /// `last` is `None`, or if the server closes the connection before `last`, returns all answers
    /// followed by "(closed)", and connects again.
    fn send_and_read(&mut self, script: &[u8], len: usize, last: Option<&[u8]>) -> Vec<u8> {
        let mut writer = self.stream.try_clone().expect("a second handle");
        let whole = script.to_vec();
        // A second thread sends, so that client and server cannot block each other with full
        // buffers.
        let sender = thread::spawn(move || {
            for piece in whole.chunks(len) {
                // After the server has closed the connection, the rest of the script is not sent.
                if writer.write_all(piece).is_err() {
                    break;
                }
            }
        });
        let mut answers = Vec::new();
        let mut buffer = [0; 65536];
        while last.is_none_or(|last| !answers.ends_with(last)) {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    answers.extend_from_slice(b"(closed)");
                    break;
                }
                Ok(count) => answers.extend_from_slice(&buffer[..count]),
                // If a server closes a connection that has unread input, the kernel resets the
                // connection.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    answers.extend_from_slice(b"(closed)");
                    break;
                }
                Err(error) => panic!(
                    "no answer to {:?} after {:?}: {error}",
                    String::from_utf8_lossy(script),
                    String::from_utf8_lossy(&answers),
                ),
            }
        }
        if answers.ends_with(b"(closed)") {
            self.stream = connect(self.address).expect("the server still accepts");
        }
        sender.join().expect("the sender ends");
        answers
    }
}

/// Returns true if the peer of the connection answers as memcached does. The peer may instead be a
/// concurrent test, which listens on a free port for a moment to find the number of the port. The
/// connection to that test is reset, and the function returns false.
fn speaks_memcached(mut stream: &TcpStream) -> bool {
    let mut answer = [0; 8];
    stream.write_all(b"version\r\n").is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && answer == *b"VERSION "
        && BufReader::with_capacity(1, stream)
            .skip_until(b'\n')
            .is_ok()
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_nodelay(true).expect("an option");
    let limit = Some(ANSWER_LIMIT);
    stream.set_read_timeout(limit).expect("a limit");
    stream.set_write_timeout(limit).expect("a limit");
    Some(stream)
}

/// memcached and the server under test.
pub struct Pair {
    pub memcached: Server,
    pub server: Server,
}

impl Pair {
    /// Starts both servers. Returns `None`, and prints that the test is skipped, if memcached is
    /// not installed.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts both servers. memcached gets the additional options.
    pub fn start_with(options: &[&str]) -> Option<Self> {
        let Some(memcached) = Server::start_memcached(options) else {
            skip("memcached", "memcached");
            return None;
        };
        Some(Self {
            memcached,
            server: Server::start_kv(),
        })
    }

    /// Sends a script to both servers. Returns the answers of memcached and of the server under
    /// test.
    pub fn exchange(&mut self, script: &[u8]) -> (Vec<u8>, Vec<u8>) {
        (
            self.memcached.exchange(script),
            self.server.exchange(script),
        )
    }
}
