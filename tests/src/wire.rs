//! The network of tests and benches: two network namespaces joined by a veth pair.
//!
//! ```text
//!   server namespace            client namespace
//!   eth1 10.77.0.1/24 --veth--  eth1 10.77.0.2/24
//!        fd77::1/64                  fd77::2/64
//! ```
//!
//! A service (`tidelaned`) runs on an interface of one of the namespaces. With
//! [`WireOptions::middle`], a third namespace lies between server and client. Its interface `left`
//! is connected to the server, and its interface `right` is connected to the client. A program in
//! the third namespace can forward the frames and impair them. Two NICs of this machine can replace
//! the veth pair that ends in the server's namespace ([`nics`]).

mod programs;

use std::{
    cell::RefCell,
    fs, io,
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::SystemTime,
};

use crate::{
    Outcome, Stop, command, command_in, command_with,
    guardian::Guardian,
    nics,
    tools::{self, require_root, require_tools},
};

/// IPv4 address of the server's end.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// IPv4 address of the client's end.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// IPv6 address of the server's end.
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// IPv6 address of the client's end.
pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// Name of the interface in the server's and in the client's namespace.
pub const INTERFACE: &str = "eth1";
/// Interfaces of the middle namespace: the interface towards the server, and the interface towards
/// the client.
pub const MIDDLE: (&str, &str) = ("left", "right");
/// The two ends of the veth pair that [`WireOptions::bottleneck`] adds to the middle namespace. A
/// program forwards frames between `right` and `inner`, and a bridge forwards frames between
/// `outer` and `left`.
pub const BOTTLENECK: (&str, &str) = ("inner", "outer");
/// Default MTU of an interface in bytes, which is the MTU of Ethernet.
const MTU: u32 = 1500;
/// Largest number of bytes that wait in the queue of a token bucket.
const BOTTLENECK_QUEUE: &str = "1500000";

/// A network namespace of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The namespace of the server programs. A service also runs in this namespace, unless the
    /// caller chooses another side.
    Server,
    /// The namespace of the client programs.
    Client,
    /// The namespace between server and client ([`WireOptions::middle`]).
    Middle,
}

/// Options of a wire. The default is a plain veth pair.
#[derive(Clone, Debug, Default)]
pub struct WireOptions {
    /// True if there is a third namespace between server and client.
    pub middle: bool,
    /// Rate limit from the middle namespace to the server, in Mbit/s. Has no effect without
    /// `middle`. With a rate limit, a program must forward frames between `right` and `inner`
    /// ([`BOTTLENECK`]).
    pub bottleneck: Option<u32>,
    /// Rate limit of the frames that the client's interface sends, in Mbit/s.
    pub line: Option<u32>,
    /// Congestion control of the kernel in the server's and in the client's namespace, such as
    /// `cubic`.
    pub congestion: Option<String>,
    /// Number of queues of each interface. The default is the number of fast-path cores
    /// (packet-processing threads) of a service. However, if a service has one core, the default of
    /// a NIC is the default of the NIC's driver.
    pub queues: Option<u64>,
    /// MTU in bytes of the server's and of the client's interface. The default is 1500. If a driver
    /// does not support the value, the test is skipped.
    pub mtu: Option<u32>,
}

/// A test network. `drop` ends all programs in its namespaces, and removes the namespaces and the
/// files of the test.
#[derive(Debug)]
pub struct Wire {
    /// Prefix of all names that belong to this wire. No other wire on this machine has this prefix.
    id: String,
    /// Directory for the files of the test.
    scratch: PathBuf,
    /// Number of services started so far, which makes the names of the services unique.
    services: RefCell<u32>,
    /// The process that removes the resources of the wire. The guardian is the last field, so that
    /// the cleanup starts after the other fields are dropped.
    guardian: RefCell<Guardian>,
}

/// Returns the default number of fast-path cores (packet-processing threads) of a service: the
/// environment variable TIDELANE_CORES, or 1 without this variable.
fn cores() -> u64 {
    tools::env_number("TIDELANE_CORES", 1).max(1)
}

/// One end of a link: the name of a namespace, and the name of an interface in it.
type End<'a> = (&'a str, &'a str);

/// Number of wires made by this process, which makes the names of the wires unique.
static WIRES: AtomicU32 = AtomicU32::new(0);

impl Wire {
    /// Makes a wire with the default options. Skips the test if the user is not root, or if a
    /// needed tool is missing.
    pub fn new() -> Result<Self, Stop> {
        Self::with(&WireOptions::default())
    }

    /// Makes a wire with `options`. Skips the test if the user is not root, or if a needed tool is
    /// missing.
    pub fn with(options: &WireOptions) -> Result<Self, Stop> {
        let wire = Self::bare()?;
        wire.make_namespaces(options)?;
        if let Some(congestion) = &options.congestion {
            wire.set_congestion(congestion)?;
        }
        Ok(wire)
    }

    /// Makes the namespace of `side` only, because the other end of the wire is on another machine.
    /// `nic` is the MAC address of this machine's NIC that is connected to the other machine.
    pub(crate) fn near_end(side: Side, nic: &str) -> Result<Self, Stop> {
        let wire = Self::bare()?;
        let space = wire.namespace(side);
        wire.add_namespace(&space)?;
        wire.add_nic(&nics::present(nic)?, (&space, INTERFACE))?;
        let (v4, v6) = match side {
            Side::Server => (SERVER, SERVER_V6),
            _ => (CLIENT, CLIENT_V6),
        };
        wire.set_up_end(&space, v4, v6)?;
        nics::wait_for_carrier(&space, INTERFACE)?;
        Ok(wire)
    }

    /// Returns a wire that has a directory and a guardian (cleanup process), but no namespaces.
    fn bare() -> Result<Self, Stop> {
        require_root()?;
        require_tools(&["ip", "taskset", "ss"])?;
        // A test process in another PID namespace of this machine may have the same process id, so
        // the name also contains a part of the time.
        let stamp = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .subsec_nanos();
        let count = WIRES.fetch_add(1, Ordering::Relaxed);
        let id = format!("td{}n{count}x{:03x}", std::process::id(), stamp & 0xfff);
        let mut guardian = Guardian::new()?;
        let scratch = std::env::temp_dir().join(&id);
        guardian.register("dir", &scratch.to_string_lossy())?;
        fs::create_dir_all(&scratch)?;
        Ok(Self {
            id,
            scratch,
            services: RefCell::new(0),
            guardian: RefCell::new(guardian),
        })
    }

    /// Makes the namespaces, links and addresses of the wire.
    fn make_namespaces(&self, options: &WireOptions) -> Result<(), Stop> {
        let (server, client) = (self.namespace(Side::Server), self.namespace(Side::Client));
        self.add_namespace(&server)?;
        self.add_namespace(&client)?;
        if options.middle {
            let middle = self.namespace(Side::Middle);
            self.add_namespace(&middle)?;
            self.add_link(options, (&server, INTERFACE), (&middle, MIDDLE.0))?;
            self.add_veth(options, (&middle, MIDDLE.1), (&client, INTERFACE))?;
            for interface in [MIDDLE.0, MIDDLE.1] {
                self.setup(&["ip", "-n", &middle, "link", "set", interface, "up"])?;
            }
            if let Some(mbit) = options.bottleneck {
                self.add_bottleneck(options, &middle, mbit)?;
            }
        } else {
            self.add_link(options, (&server, INTERFACE), (&client, INTERFACE))?;
        }
        if let Some(mbit) = options.line {
            self.add_bucket(&client, INTERFACE, mbit)?;
        }
        for end in [&server, &client] {
            Self::set_mtu(end, options.mtu)?;
        }
        self.set_up_end(&server, SERVER, SERVER_V6)?;
        self.set_up_end(&client, CLIENT, CLIENT_V6)?;
        nics::wait_for_carrier(&server, INTERFACE)?;
        nics::wait_for_carrier(&client, INTERFACE)
    }

    /// Adds the interfaces of a bottleneck: a veth pair, a bridge between `outer` and `left`, and a
    /// token bucket on `left`, towards the server.
    fn add_bottleneck(&self, options: &WireOptions, space: &str, mbit: u32) -> Result<(), Stop> {
        let (inner, outer) = BOTTLENECK;
        self.add_veth(options, (space, inner), (space, outer))?;
        let ip = ["ip", "-n", space, "link"];
        self.setup(&[&ip[..], &["add", "bridge", "type", "bridge"]].concat())?;
        for port in [MIDDLE.0, outer] {
            self.setup(&[&ip[..], &["set", port, "master", "bridge"]].concat())?;
        }
        for interface in ["bridge", inner, outer] {
            self.setup(&[&ip[..], &["set", interface, "up"]].concat())?;
        }
        self.add_bucket(space, MIDDLE.0, mbit)
    }

    /// Adds a token bucket (`tc` qdisc `tbf`), which limits the rate at which an interface sends.
    fn add_bucket(&self, space: &str, interface: &str, mbit: u32) -> Result<(), Stop> {
        let rate = format!("{mbit}mbit");
        let bucket = ["rate", &rate, "burst", "65536", "limit", BOTTLENECK_QUEUE];
        let tc = [
            "tc", "-n", space, "qdisc", "add", "dev", interface, "root", "tbf",
        ];
        self.setup(&[&tc[..], &bucket].concat())
    }

    /// Sets the MTU of the interface in the namespace `space`. If `mtu` is `None`, sets the default
    /// MTU, because a NIC keeps the MTU of an earlier wire.
    fn set_mtu(space: &str, mtu: Option<u32>) -> Outcome {
        let text = mtu.unwrap_or(MTU).to_string();
        let set = ["ip", "-n", space, "link", "set", INTERFACE, "mtu", &text];
        command(&set).map(drop).map_err(|failed| match mtu {
            Some(mtu) => Stop::Skip(format!("no MTU of {mtu} on {INTERFACE} here")),
            None => failed,
        })
    }

    /// Sets the addresses of the interface in the namespace `space`, and sets the interface up.
    /// Duplicate address detection is off, because an IPv6 address is unusable for seconds until
    /// the detection ends.
    fn set_up_end(&self, space: &str, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<(), Stop> {
        let (v4, v6) = (format!("{v4}/24"), format!("{v6}/64"));
        let add = ["ip", "-n", space, "address", "add", "dev", INTERFACE];
        self.setup(&[&add[..], &[&v4]].concat())?;
        let no_detection = format!("net.ipv6.conf.{INTERFACE}.accept_dad=0");
        self.setup(&["ip", "netns", "exec", space, "sysctl", "-qw", &no_detection])?;
        self.setup(&[&add[..], &[&v6, "nodad"]].concat())?;
        self.setup(&["ip", "-n", space, "link", "set", INTERFACE, "up"])
    }

    /// Adds a veth pair without addresses to the namespace of `side`. Returns the name of one end.
    /// Frames that are sent on this interface reach no host.
    pub fn add_dead_end(&self, side: Side) -> Result<&'static str, Stop> {
        let space = self.namespace(side);
        let (near, far) = ("dead0", "dead1");
        self.add_veth(&WireOptions::default(), (&space, near), (&space, far))?;
        for end in [near, far] {
            self.setup(&["ip", "-n", &space, "link", "set", end, "up"])?;
        }
        Ok(near)
    }

    /// Makes a network namespace and sets its loopback interface up.
    fn add_namespace(&self, name: &str) -> Result<(), Stop> {
        self.guardian.borrow_mut().register("netns", name)?;
        self.setup(&["ip", "netns", "add", name])?;
        self.setup(&["ip", "-n", name, "link", "set", "lo", "up"])?;
        Ok(())
    }

    /// Runs a command that makes a resource. If this process is killed meanwhile, the guardian
    /// (cleanup process) waits for the end of the command, and then removes the resource.
    fn setup(&self, arguments: &[&str]) -> Result<(), Stop> {
        let pipe = self.guardian.borrow().pipe_duplicate()?;
        command_with(arguments, pipe).map(drop)
    }

    /// Makes the link between `one` and `other`. If the environment names two NICs, the link
    /// consists of these NICs. Otherwise the link is a veth pair.
    fn add_link(&self, options: &WireOptions, one: End<'_>, other: End<'_>) -> Result<(), Stop> {
        let Some(names) = nics::names()? else {
            return self.add_veth(options, one, other);
        };
        let mut ends = names.iter().zip([one, other]);
        ends.try_for_each(|(name, end)| self.add_nic(name, end))?;
        // If `options` give no number of queues and a service has one core, keep the default of the
        // NIC's driver.
        let wished = options.queues.or(Some(cores()).filter(|count| *count > 1));
        wished.map_or(Ok(()), |count| nics::set_queues([one, other], count))
    }

    /// Moves the NIC `name` into the namespace `space`, where it is called `interface`.
    fn add_nic(&self, name: &str, (space, interface): End<'_>) -> Result<(), Stop> {
        let address = fs::read_to_string(format!("/sys/class/net/{name}/address"))?;
        self.guardian.borrow_mut().register("nic", address.trim())?;
        self.setup(&["ip", "link", "set", "dev", name, "down"])?;
        self.setup(&[
            "ip", "link", "set", "dev", name, "netns", space, "name", interface,
        ])
    }

    /// Makes a veth pair with the ends `one` and `other`.
    fn add_veth(&self, options: &WireOptions, one: End<'_>, other: End<'_>) -> Result<(), Stop> {
        let count = options.queues.unwrap_or_else(cores).to_string();
        let all = ["numrxqueues", &count, "numtxqueues", &count];
        let queues = if count == "1" { &[][..] } else { &all };
        // Linux 6.1 refuses the name of a new interface if an interface in the namespace of the
        // command has this name, even if the new interface belongs to another namespace. Therefore
        // run the command in the namespace of `one`.
        let near = ["ip", "-n", one.0, "link", "add", one.1];
        let far = ["type", "veth", "peer", "name", other.1, "netns", other.0];
        self.setup(&[&near[..], queues, &far, queues].concat())
    }

    /// Returns the name of the namespace of `side`.
    pub fn namespace(&self, side: Side) -> String {
        let letter = match side {
            Side::Server => 's',
            Side::Client => 'c',
            Side::Middle => 'm',
        };
        format!("{}{letter}", self.id)
    }

    /// Returns the directory for files of the test. All users may read the directory. When the wire
    /// is dropped, the directory is removed.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Sets the sysctl `name` in the namespace of `side`.
    pub fn sysctl(&self, side: Side, name: &str, value: &str) -> Result<(), Stop> {
        let assignment = format!("{name}={value}");
        let space = self.namespace(side);
        command_in(&space, &["sysctl", "-qw", &assignment]).map(drop)
    }

    /// Sets offloads of an interface in the namespace of `side` with `ethtool -K`. `offloads` has
    /// the arguments after the name of the interface, as in `tso off gso off`.
    pub fn set_offloads(&self, side: Side, interface: &str, offloads: &str) -> Result<(), Stop> {
        let offloads: Vec<&str> = offloads.split_whitespace().collect();
        let ethtool = [&["ethtool", "-K", interface], &offloads[..]].concat();
        command_in(&self.namespace(side), &ethtool).map(drop)
    }

    /// Sets the kernel's congestion control in the server's and in the client's namespace.
    ///
    /// A namespace may choose only an algorithm from the machine's list of allowed algorithms. If
    /// the list lacks the algorithm, the function adds the algorithm and restores the list
    /// afterwards. A lock keeps other tests from changing the list meanwhile.
    fn set_congestion(&self, algorithm: &str) -> Result<(), Stop> {
        const LOCK: &str = "/run/lock/tidelane-congestion.lock";
        const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
        let lock = fs::File::create(LOCK)?;
        lock.lock()?;
        let before = fs::read_to_string(ALLOWED)?;
        let known = before.split_whitespace().any(|name| name == algorithm);
        if !known {
            fs::write(ALLOWED, format!("{} {algorithm}", before.trim()))?;
        }
        let chosen = [Side::Server, Side::Client]
            .into_iter()
            .try_for_each(|side| self.sysctl(side, "net.ipv4.tcp_congestion_control", algorithm));
        if !known {
            fs::write(ALLOWED, before.trim())?;
        }
        chosen
    }

    /// Registers a resource with the guardian (cleanup process), which removes the resource at the
    /// end of the wire. The caller makes the resource after the registration. `kind` is a word of
    /// `cleanup.sh`, such as `cgroup`.
    pub fn register(&self, kind: &str, name: &str) -> Result<(), Stop> {
        Ok(self.guardian.borrow_mut().register(kind, name)?)
    }

    /// Returns true if a kernel socket in the namespace of `side` listens on `port`.
    pub fn listens(&self, side: Side, port: u16) -> Result<bool, Stop> {
        let space = self.namespace(side);
        let filter = format!("sport = :{port}");
        let sockets = command_in(&space, &["ss", "-Hltn", &filter])?;
        Ok(!sockets.trim().is_empty())
    }

    /// Counts the kernel's established TCP sockets in the namespace of `side`. Counts only sockets
    /// with `port` as the local or the peer port.
    pub fn kernel_connections(&self, side: Side, port: u16) -> Result<usize, Stop> {
        let space = self.namespace(side);
        let filter = format!("( sport = :{port} or dport = :{port} )");
        let sockets = command_in(&space, &["ss", "-Htn", "state", "established", &filter])?;
        Ok(sockets.lines().count())
    }
}

/// Writes `len` pseudorandom bytes to the file `path`. Equal seeds give equal bytes.
pub fn write_random_file(path: &Path, len: u64, seed: u64) -> io::Result<()> {
    use std::io::Write;
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut left = len;
    while left > 0 {
        // The generator xorshift64* is fast. Its period is so long that blocks do not repeat.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let word = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
        let take = left.min(8) as usize;
        file.write_all(&word[..take])?;
        left -= take as u64;
    }
    file.flush()
}
