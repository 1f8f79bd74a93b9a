//! The network namespace in which a thread runs its inputs against a Tidelane service.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tidelane_attacker::sockets::Bound;

/// Address of the service, on the loopback interface of the namespace.
pub const SERVICE: [u8; 4] = [10, 77, 0, 1];
/// Port of the listener in another network namespace ([`TestNamespace::foreign`]).
const FOREIGN_PORT: u16 = 7001;

/// The network namespace of a thread, which all inputs of the thread share. The namespace and its
/// descriptors live as long as the process, because a thread that ends must not close descriptors
/// while another thread counts them.
pub struct TestNamespace {
    /// A listener in another network namespace.
    pub foreign: OwnedFd,
}

thread_local! {
    static NAMESPACE: Option<&'static TestNamespace> = TestNamespace::make();
}

impl TestNamespace {
    /// Runs `work` in the thread's namespace, which the thread's first call creates. Does nothing
    /// if the process does not run as root, except that the thread's first call prints a message.
    /// Only one thread runs at a time, because descriptors are counted for the whole process.
    pub fn with(work: impl FnOnce(&TestNamespace)) {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        NAMESPACE.with(|namespace| {
            if let Some(namespace) = namespace {
                work(namespace);
            }
        });
    }

    fn make() -> Option<&'static TestNamespace> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: needs root for a network namespace (sudo -E cargo test)");
            return None;
        }
        let foreign = thread::spawn(|| {
            enter_new_namespace();
            let bound = bound(&format!("0.0.0.0:{FOREIGN_PORT}"));
            bound.listening(8).expect("a port of a new namespace")
        });
        let foreign = foreign.join().expect("the thread ends");
        enter_new_namespace();
        let [a, b, c, d] = SERVICE;
        ip(&format!("address add {a}.{b}.{c}.{d}/24 dev lo"));
        Some(Box::leak(Box::new(TestNamespace { foreign })))
    }
}

/// Returns the description of a socket that is bound to `address`, without options.
pub fn bound(address: &str) -> Bound {
    Bound {
        bind: address.parse().expect("an address"),
        device: None,
        reuse_address: false,
        reuse_port: false,
    }
}

/// Moves the calling thread to a new network namespace. The namespace ends when the thread has
/// ended and the thread's last socket is closed.
fn enter_new_namespace() {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tlfuzz{}-{count}", std::process::id());
    ip(&format!("netns add {name}"));
    let file = File::open(format!("/run/netns/{name}")).expect("the namespace has a file");
    let kind = Some(LinkNameSpaceType::Network);
    let entered = move_into_link_name_space(file.as_fd(), kind);
    ip(&format!("netns delete {name}"));
    entered.expect("root may enter a namespace");
    ip("link set lo up");
}

fn ip(words: &str) {
    let done = Command::new("ip").args(words.split_whitespace()).status();
    let done = done.expect("ip is installed (apt-get install iproute2)");
    assert!(done.success(), "ip {words}");
}
