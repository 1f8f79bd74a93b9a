//! Network namespaces of a test, joined by veth pairs and removed on drop.
#![allow(dead_code)] // Several test binaries include this file; each uses a part.

use std::{
    fs::File,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use rustix::{
    net::{AddressFamily, SocketType, netdevice, socket},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

/// Returns true if the process is root and `ip` is installed, so that the test can create
/// namespaces. Otherwise prints a message that the test is skipped.
pub fn privileged(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {test}: needs root for network namespaces (sudo -E cargo test)");
        return false;
    }
    let ip = Command::new("ip").arg("-V").output();
    if !ip.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED {test}: needs `ip` (apt-get install iproute2)");
        return false;
    }
    true
}

fn run_command(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program)
        .args(args)
        .output()
        .expect("the program is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {}: {errors}",
        args.join(" ")
    );
    output
}

/// A network namespace.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    /// Creates a namespace whose name contains `role`.
    pub fn new(role: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tl{}-{count}-{role}", std::process::id());
        run_command("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs `ip` with these arguments in the namespace. Returns the text that `ip` prints.
    pub fn ip(&self, words: &str) -> String {
        let mut args = vec!["-n", &self.name];
        args.extend(words.split_whitespace());
        String::from_utf8(run_command("ip", &args).stdout).expect("ip prints text")
    }

    /// Runs a command in the namespace.
    pub fn command(&self, words: &str) -> Output {
        let mut args = vec!["netns", "exec", &self.name];
        args.extend(words.split_whitespace());
        run_command("ip", &args)
    }

    /// Runs `work` on a new thread in the namespace. Sockets that `work` opens stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.name);
        thread::scope(|scope| {
            let worker = scope.spawn(move || {
                let file = File::open(path).expect("the namespace has a file");
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind)
                    .expect("root may enter a namespace");
                work()
            });
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Returns the index of an interface.
    pub fn index(&self, interface: &str) -> u32 {
        self.run(|| {
            let any = socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
            netdevice::name_to_index(&any, interface).expect("the interface is there")
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

/// Two namespaces joined by a veth pair. Each end has the name `veth0`. The address is 10.77.0.1 in
/// the host's namespace and 10.77.0.2 in the peer's namespace.
pub struct Pair {
    pub host: Namespace,
    pub peer: Namespace,
}

impl Pair {
    /// Creates a pair with an MTU of 1500 bytes.
    pub fn new() -> Self {
        Self::with_mtu(1500)
    }

    /// Creates a pair with this MTU in bytes.
    pub fn with_mtu(mtu: u32) -> Self {
        let pair = Self {
            host: Namespace::new("host"),
            peer: Namespace::new("peer"),
        };
        let peer = &pair.peer.name;
        pair.host.ip(&format!(
            "link add veth0 mtu {mtu} type veth peer name veth0 mtu {mtu} netns {peer}"
        ));
        pair.host.ip("addr add 10.77.0.1/24 dev veth0");
        pair.peer.ip("addr add 10.77.0.2/24 dev veth0");
        pair.host.ip("link set veth0 up");
        pair.peer.ip("link set veth0 up");
        pair
    }
}
