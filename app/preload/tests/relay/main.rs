//! Tests of the preload library `libtidelane.so`, without privileges and without Tidelane's TCP.
//!
//! A fake service, the relay, carries each connection of a program over a kernel socket. A case is
//! a test in the C program of `tests/posix`. Each case runs twice: without the library on the
//! kernel's sockets, and with the library. Both runs must print the same text and end with the same
//! exit status.
//!
//! The relay is a process of its own, because a child of this process has copies of all descriptors
//! of this process until its `exec`. A copy of a listener would keep the port in use.
//!
//! POSIX_CASES="a b" in the environment runs only the cases `a` and `b`.

mod connection;
mod service;

use std::{
    io::{BufRead, BufReader, Lines},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};

/// Longest duration of one run of a case.
const CASE_MAX: Duration = Duration::from_secs(90);

/// Number of cases that run at the same time. The number may exceed the number of CPUs, because a
/// case mostly waits.
const CASES_AT_A_TIME: usize = 4;

/// The directory for the files of this run. Dropping the value removes the directory.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("tidelane-relay-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The line that the process of the relay prints when programs can register.
const SERVING: &str = "the relay is serving";
/// Start of the line in which the process of the relay prints the number of connections that it has
/// carried.
const CONNECTIONS: &str = "connections: ";

/// The process of the relay. Dropping the value kills the process.
struct Relay {
    child: KillOnDrop,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Relay {
    /// Starts the relay, and waits until programs can connect to the relay's Unix socket at `path`.
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "serve"])
            .env("TIDELANE_RELAY", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let serving = lines.any(|line| line.unwrap() == SERVING);
        assert!(serving, "the relay has ended");
        let child = KillOnDrop(child);
        Self { child, lines }
    }

    /// Ends the relay. Returns the number of connections that the relay has carried.
    fn stop(mut self) -> u32 {
        drop(self.child.0.stdin.take());
        let number = self.lines.find_map(|line| {
            let line = line.unwrap();
            line.strip_prefix(CONNECTIONS).map(str::to_owned)
        });
        number.expect("the number of connections").parse().unwrap()
    }
}

/// A child process. Dropping the value kills the process.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compiles the sources of `tests/posix` for whose names `wanted` returns true. `binary` is the
/// path of the resulting program.
fn compile(binary: &Path, wanted: impl Fn(&str) -> bool) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/posix");
    let names = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    let sources = names.filter(|name| name.ends_with(".c") && wanted(name));
    let status = Command::new("cc")
        .args(["-O1", "-g", "-w", "-pthread", "-o"])
        .arg(binary)
        .args(sources.map(|source| dir.join(source)))
        .status()
        .expect("a C compiler; apt-get install gcc");
    assert!(status.success());
}

/// Builds the library and returns its path. Cargo does not build the library for tests, because no
/// test links the library.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "tidelane-preload",
        "--target-dir",
    ]);
    cargo.arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success());
    profile.join("libtidelane.so")
}

/// Starts the program `peer`, with which a case exchanges data. Each case has its own peer, so that
/// cases do not affect each other. `socket` is the path of the peer's Unix socket.
fn peer(programs: &Scratch, socket: &Path) -> KillOnDrop {
    let _ = std::fs::remove_file(socket);
    let peer = Command::new(programs.path("peer"))
        .arg(socket)
        .arg("127.0.0.1")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    while !socket.exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
    KillOnDrop(peer)
}

/// Runs a case with a peer of its own, and with the variables `environment`. Returns the output and
/// the exit status of the case as text.
fn run(case: &str, programs: &Scratch, environment: &[(&str, String)]) -> String {
    let socket = programs.path(&format!("{case}.sock"));
    let _peer = peer(programs, &socket);
    let child = Command::new(programs.path("posix"))
        .arg(case)
        .env("POSIX_PEER", &socket)
        .env("POSIX_OWN_ADDRESS", "127.0.0.1")
        .env("POSIX_PEER_ADDRESS", "127.0.0.1")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    text(&finish(child))
}

/// Waits until the child has ended. If the child still runs after [`CASE_MAX`], kills its whole
/// process group, because a process that the child has forked may hold the pipes open.
fn finish(mut child: Child) -> Output {
    let begin = Instant::now();
    let group = Pid::from_child(&child);
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > CASE_MAX {
            kill_process_group(group, Signal::KILL).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

/// Returns the standard output, the standard error and the exit status as one text.
fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    format!("{out}{err}{}", output.status)
}

/// Prefixes of the names of cases that need the real service. The relay cannot pass connections to
/// forked children, and has no urgent data and no SO_REUSEPORT groups.
const SERVICE_ONLY_FAMILIES: [&str; 3] = ["fork_", "urgent_", "group_"];

/// Further cases that need the real service. Two of the cases fork. The others need features that
/// the relay lacks, because the relay has no TCP of its own: TCP counters, pacing, payload in the
/// SYN, TIME-WAIT, windows that depend on socket options, deferred accept, or a RST after a FIN.
const SERVICE_ONLY: [&str; 14] = [
    "handler_forks",
    "streams",
    "fast_open_deferred",
    "fast_open_unwritten",
    "fast_open_sendto",
    "fast_open_accepted",
    "paced",
    "info_numbers",
    "receive_buffer",
    "receive_low_large",
    "unsent_low",
    "deferred_accept",
    "bound_in_time_wait",
    "reset_after_end",
];

/// Returns the names of the cases to run.
fn cases(programs: &Scratch) -> Vec<String> {
    if let Ok(wanted) = std::env::var("POSIX_CASES") {
        return wanted.split_whitespace().map(str::to_owned).collect();
    }
    let list = Command::new(programs.path("posix"))
        .arg("--list")
        .output()
        .unwrap();
    String::from_utf8_lossy(&list.stdout)
        .lines()
        .filter(|case| {
            SERVICE_ONLY_FAMILIES
                .iter()
                .all(|family| !case.starts_with(family))
        })
        .filter(|case| !SERVICE_ONLY.contains(case))
        .map(str::to_owned)
        .collect()
}

#[test]
fn programs_see_the_same_as_on_the_kernel() {
    let scratch = Scratch::new();
    compile(&scratch.path("posix"), |name| name != "peer.c");
    compile(&scratch.path("peer"), |name| name == "peer.c");
    let relay = Relay::start(&scratch.path("control.sock"));
    let accelerated = [
        ("LD_PRELOAD", library().display().to_string()),
        (
            "TIDELANE_SOCKET",
            scratch.path("control.sock").display().to_string(),
        ),
        ("TIDELANE_STRICT", "1".to_owned()),
        ("POSIX_PORT_SHIFT", service::PORT_SHIFT.to_string()),
    ];
    let cases = Mutex::new(cases(&scratch).into_iter());
    let next = || cases.lock().unwrap().next();
    let different = Mutex::new(Vec::new());
    let work = || {
        while let Some(case) = next() {
            let expected = run(&case, &scratch, &[]);
            let seen = run(&case, &scratch, &accelerated);
            if expected != seen {
                let lines = difference(&expected, &seen);
                different
                    .lock()
                    .unwrap()
                    .push(format!("--- {case}\n{lines}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..CASES_AT_A_TIME {
            scope.spawn(work);
        }
    });
    let different = different.into_inner().unwrap();
    assert!(different.is_empty(), "different:\n{}", different.concat());
    assert!(relay.stop() > 0, "the library did not use the service");
}

/// Returns a few lines of each text, from the first line that differs.
fn difference(expected: &str, seen: &str) -> String {
    const SHOWN: usize = 5;
    let same = expected
        .lines()
        .zip(seen.lines())
        .take_while(|(a, b)| a == b)
        .count();
    let part = |text: &str, mark: char| -> String {
        let lines = text.lines().skip(same).take(SHOWN);
        lines.map(|line| format!("{mark} {line}\n")).collect()
    };
    format!(
        "  (after {same} equal lines)\n{}{}",
        part(expected, '-'),
        part(seen, '+')
    )
}

/// Tests nothing, but runs the relay until the end of standard input. The environment variable
/// TIDELANE_RELAY has the path of the relay's Unix socket.
#[test]
#[ignore = "the test of the cases starts this function as a process"]
fn serve() {
    let path = std::env::var_os("TIDELANE_RELAY").expect("TIDELANE_RELAY: a socket's path");
    service::start(Path::new(&path));
    // The harness has printed the name of the test, and no end of line.
    println!("\n{SERVING}");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    println!("{CONNECTIONS}{}", service::connections());
}
