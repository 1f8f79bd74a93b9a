//! A veth pair between the network namespace of the test and another network namespace.

use std::{
    fs::File,
    net::TcpListener,
    os::fd::{AsFd, OwnedFd},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use rustix::{
    net::{AddressFamily, SocketType, netdevice, socket},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::xdp_unsafe::attach_pass;

/// A veth pair whose far end is in a network namespace of its own. Dropping the value removes the
/// pair and the namespace.
pub struct VethPair {
    /// Name of the near device. The other namespace has the same name.
    name: String,
    /// Number of the pair, which selects the addresses of its ends.
    number: u32,
}

/// Splits `words` at its spaces, and runs `ip` with these arguments. Returns true if the command
/// succeeds.
fn ip(words: &str) -> bool {
    let status = Command::new("ip").args(words.split_whitespace()).status();
    status.is_ok_and(|status| status.success())
}

impl VethPair {
    /// Creates a pair. If the process cannot create a namespace, prints a message and returns
    /// `None`.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let number = (std::process::id() * 8 + count) % (1 << 14);
        let name = format!("tlz{number}");
        if !rustix::process::geteuid().is_root() || !ip(&format!("netns add {name}")) {
            eprintln!("SKIPPED: needs root and `ip` for network namespaces");
            return None;
        }
        let pair = Self { name, number };
        let (near, far) = (pair.address(1), pair.address(2));
        let name = &pair.name;
        for words in [
            format!("link add {name} type veth peer name far netns {name}"),
            format!("addr add {near}/30 dev {name}"),
            format!("link set {name} up"),
            format!("-n {name} addr add {far}/30 dev far"),
            format!("-n {name} link set far up"),
        ] {
            assert!(ip(&words), "ip {words}");
        }
        Some(pair)
    }

    /// Returns the address of the near end (1) or of the far end (2).
    fn address(&self, end: u32) -> String {
        let net = self.number * 4;
        format!("198.18.{}.{}", net >> 8, (net & 0xff) + end)
    }

    /// Runs `work` on a thread in the namespace of the far end.
    fn at_far_end<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.name);
        thread::scope(|scope| {
            let worker = scope.spawn(move || {
                let file = File::open(path).expect("the namespace has a file");
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(file.as_fd(), kind).expect("root may enter");
                work()
            });
            worker.join().expect("no panic")
        })
    }

    /// Opens a listener at the far end.
    pub fn listen(&self) -> TcpListener {
        let far = self.address(2);
        self.at_far_end(|| TcpListener::bind((far.as_str(), 0)).expect("a free port"))
    }

    /// Attaches to the far end an XDP program that passes every packet. Dropping the result
    /// detaches the program.
    pub fn attach(&self) -> OwnedFd {
        self.at_far_end(|| {
            let any = socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
            let index = netdevice::name_to_index(&any, "far").expect("the far end");
            attach_pass(index).expect("root may attach a program")
        })
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.name));
    }
}
