//! Two network namespaces joined by a veth pair: the wire that every test and bench uses.
//!
//! ```text
//!   server namespace            client namespace
//!   eth1 10.77.0.1/24 --veth--  eth1 10.77.0.2/24
//!        fd77::1/64                  fd77::2/64
//! ```
//!
//! With [`WireOptions::middle`] a third namespace lies between the two, with `left` and `right`,
//! so that something can be done to the frames on their way. Two NICs of this machine can take the
//! place of the veth pair at the server: [`nics`].

use std::{
    cell::RefCell,
    fs, io,
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime},
};

use crate::{
    Outcome, Stop, command, command_with,
    guardian::Guardian,
    nics,
    program::{Program, Running},
    service::Service,
    tools::{self, require_root, require_tools},
};

/// Address of the server's end.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Address of the client's end.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The server's address over IPv6.
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
/// The client's address over IPv6.
pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
/// Interface at both ends.
pub const INTERFACE: &str = "eth1";
/// Interfaces of the middle namespace.
pub const MIDDLE: (&str, &str) = ("left", "right");
/// With a bottleneck: a pair of interfaces within the middle namespace. Frames go from `right`
/// through `inner` and `outer`, over a bridge, to `left`.
pub const BOTTLENECK: (&str, &str) = ("inner", "outer");
/// The MTU of Ethernet, which interfaces have unless told otherwise.
const MTU: u32 = 1500;
/// Bytes that wait before a bottleneck: more are dropped.
const BOTTLENECK_QUEUE: &str = "1500000";

/// One of the namespaces of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where the service and the servers run.
    Server,
    /// Where the clients run.
    Client,
    /// Between the two, if there is one.
    Middle,
}

/// What a wire is to be; the default is a plain pair as the kernel makes it.
#[derive(Clone, Debug, Default)]
pub struct WireOptions {
    /// Put a namespace between the two ends.
    pub middle: bool,
    /// With a middle: it passes no more than so many Mbit/s towards the server. What is done to
    /// the frames must be done between `right` and `inner` ([`BOTTLENECK`]).
    pub bottleneck: Option<u32>,
    /// The client's interface sends no more than so many Mbit/s.
    pub line: Option<u32>,
    /// Congestion control of the kernel at both ends, such as `cubic`.
    pub congestion: Option<String>,
    /// Queues of each interface, if not one for each core of a service. The kernel lets one
    /// become more later.
    pub queues: Option<u64>,
    /// The MTU of both ends, if not Ethernet's. Skips where the driver has none that large.
    pub mtu: Option<u32>,
}

/// The namespaces, and everything that runs in them. Dropping it removes all of it.
#[derive(Debug)]
pub struct Wire {
    id: String,
    scratch: PathBuf,
    services: RefCell<u32>,
    /// Last: it ends what the fields above may still use.
    guardian: RefCell<Guardian>,
}

/// Fast-path cores of services that are not told otherwise: TIDELANE_CORES, or one.
fn cores() -> u64 {
    tools::env_number("TIDELANE_CORES", 1).max(1)
}

/// A namespace and the name of an interface there.
type End<'a> = (&'a str, &'a str);

static WIRES: AtomicU32 = AtomicU32::new(0);

impl Wire {
    /// A plain wire. Skips without the privilege or the tools that it needs.
    pub fn new() -> Result<Self, Stop> {
        Self::with(&WireOptions::default())
    }

    /// A wire with options.
    pub fn with(options: &WireOptions) -> Result<Self, Stop> {
        let wire = Self::bare()?;
        wire.make_namespaces(options)?;
        if let Some(congestion) = &options.congestion {
            wire.set_congestion(congestion)?;
        }
        Ok(wire)
    }

    /// One end of a wire whose other end is on another machine: the NIC with this link address.
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
        nics::wait_for_carrier(&space)?;
        Ok(wire)
    }

    /// A wire without namespaces.
    fn bare() -> Result<Self, Stop> {
        require_root()?;
        require_tools(&["ip", "taskset", "ss"])?;
        // The number alone repeats in another pid namespace of the same machine; time does not.
        let stamp = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .subsec_nanos();
        let count = WIRES.fetch_add(1, Ordering::Relaxed);
        let id = format!("td{}n{count}x{:03x}", std::process::id(), stamp & 0xfff);
        let mut guardian = Guardian::new()?;
        let scratch = std::env::temp_dir().join(&id);
        guardian.name("dir", &scratch.to_string_lossy())?;
        fs::create_dir_all(&scratch)?;
        Ok(Self {
            id,
            scratch,
            services: RefCell::new(0),
            guardian: RefCell::new(guardian),
        })
    }

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
        nics::wait_for_carrier(&server)?;
        nics::wait_for_carrier(&client)
    }

    /// A bridge between `left` and `outer`, and a token bucket towards the server.
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

    /// A token bucket for what an interface sends.
    fn add_bucket(&self, space: &str, interface: &str, mbit: u32) -> Result<(), Stop> {
        let rate = format!("{mbit}mbit");
        let bucket = ["rate", &rate, "burst", "65536", "limit", BOTTLENECK_QUEUE];
        let tc = [
            "tc", "-n", space, "qdisc", "add", "dev", interface, "root", "tbf",
        ];
        self.setup(&[&tc[..], &bucket].concat())
    }

    /// Sets the MTU of an end. A NIC may have another one from an earlier wire.
    fn set_mtu(space: &str, mtu: Option<u32>) -> Outcome {
        let text = mtu.unwrap_or(MTU).to_string();
        let set = ["ip", "-n", space, "link", "set", INTERFACE, "mtu", &text];
        command(&set).map(drop).map_err(|failed| match mtu {
            Some(mtu) => Stop::Skip(format!("no MTU of {mtu} on {INTERFACE} here")),
            None => failed,
        })
    }

    /// Gives the interface of an end its addresses. Nobody else can have them: duplicates are not
    /// looked for, which takes seconds in which neighbours cannot be found.
    fn set_up_end(&self, space: &str, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<(), Stop> {
        let (v4, v6) = (format!("{v4}/24"), format!("{v6}/64"));
        let add = ["ip", "-n", space, "address", "add", "dev", INTERFACE];
        self.setup(&[&add[..], &[&v4]].concat())?;
        let no_detection = format!("net.ipv6.conf.{INTERFACE}.accept_dad=0");
        self.setup(&["ip", "netns", "exec", space, "sysctl", "-qw", &no_detection])?;
        self.setup(&[&add[..], &[&v6, "nodad"]].concat())?;
        self.setup(&["ip", "-n", space, "link", "set", INTERFACE, "up"])
    }

    /// Adds a pair of interfaces without addresses to a namespace: what is sent into one of them
    /// is taken by nobody. Gives its name.
    pub fn add_dead_end(&self, side: Side) -> Result<&'static str, Stop> {
        let space = self.namespace(side);
        let (near, far) = ("dead0", "dead1");
        self.add_veth(&WireOptions::default(), (&space, near), (&space, far))?;
        for end in [near, far] {
            self.setup(&["ip", "-n", &space, "link", "set", end, "up"])?;
        }
        Ok(near)
    }

    fn add_namespace(&self, name: &str) -> Result<(), Stop> {
        self.guardian.borrow_mut().name("netns", name)?;
        self.setup(&["ip", "netns", "add", name])?;
        self.setup(&["ip", "-n", name, "link", "set", "lo", "up"])?;
        Ok(())
    }

    /// Runs a command that makes something; the guardian does not clean up before its end.
    fn setup(&self, arguments: &[&str]) -> Result<(), Stop> {
        let hold = self.guardian.borrow().hold()?;
        command_with(arguments, hold).map(drop)
    }

    /// The link at the server's end: the NICs that are named in the environment, or a veth pair.
    fn add_link(&self, options: &WireOptions, one: End<'_>, other: End<'_>) -> Result<(), Stop> {
        let Some(names) = nics::names()? else {
            return self.add_veth(options, one, other);
        };
        let mut ends = names.iter().zip([one, other]);
        ends.try_for_each(|(name, end)| self.add_nic(name, end))?;
        // Without a wish a NIC has what its driver gave it.
        let wished = options.queues.or(Some(cores()).filter(|count| *count > 1));
        wished.map_or(Ok(()), |count| nics::set_queues([one, other], count))
    }

    /// Takes a NIC of this machine to an end.
    fn add_nic(&self, name: &str, (space, interface): End<'_>) -> Result<(), Stop> {
        let address = fs::read_to_string(format!("/sys/class/net/{name}/address"))?;
        self.guardian.borrow_mut().name("nic", address.trim())?;
        self.setup(&["ip", "link", "set", "dev", name, "down"])?;
        self.setup(&[
            "ip", "link", "set", "dev", name, "netns", space, "name", interface,
        ])
    }

    fn add_veth(&self, options: &WireOptions, one: End<'_>, other: End<'_>) -> Result<(), Stop> {
        let count = options.queues.unwrap_or_else(cores).to_string();
        let all = ["numrxqueues", &count, "numtxqueues", &count];
        let queues = if count == "1" { &[][..] } else { &all };
        // From within: Linux 6.1 wants the name to be free where the command runs, too.
        let near = ["ip", "-n", one.0, "link", "add", one.1];
        let far = ["type", "veth", "peer", "name", other.1, "netns", other.0];
        self.setup(&[&near[..], queues, &far, queues].concat())
    }

    /// Name of a namespace.
    pub fn namespace(&self, side: Side) -> String {
        let letter = match side {
            Side::Server => 's',
            Side::Client => 'c',
            Side::Middle => 'm',
        };
        format!("{}{letter}", self.id)
    }

    /// Directory for files of this run; removed with the wire. World-readable.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Sets a sysctl of one namespace.
    pub fn sysctl(&self, side: Side, name: &str, value: &str) -> Result<(), Stop> {
        let assignment = format!("{name}={value}");
        let space = self.namespace(side);
        command(&["ip", "netns", "exec", &space, "sysctl", "-qw", &assignment]).map(drop)
    }

    /// Chooses the kernel's congestion control in both end namespaces.
    ///
    /// A namespace may only choose an algorithm that the host's list of allowed ones has. The list
    /// is changed under a lock for the moment of choosing, and put back.
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

    /// A service on the server's interface, started and ready.
    pub fn service(&self) -> Result<Service, Stop> {
        self.service_with(Side::Server, &[])
    }

    /// `tidelane up` after the death of a service of the server's side, under its name: its
    /// programs find the new one.
    pub fn service_again(&self, dead: &Service) -> Result<Service, Stop> {
        Service::up(self, (Side::Server, INTERFACE), dead.name(), &[], None)
    }

    /// As [`service_again`](Self::service_again), at the client's side.
    pub fn client_service_again(&self, dead: &Service) -> Result<Service, Stop> {
        Service::up(self, (Side::Client, INTERFACE), dead.name(), &[], None)
    }

    /// A service on one side, all of it on the CPUs of `cores`, with more options for
    /// `tidelane up`.
    pub fn service_on(&self, side: Side, cores: &str, options: &[&str]) -> Result<Service, Stop> {
        let options = [&["--cores", cores], options].concat();
        self.start_service((side, INTERFACE), &options, Some(cores))
    }

    /// Names a thing that the guardian removes at the end, before it is made.
    pub fn guard(&self, kind: &str, name: &str) -> Result<(), Stop> {
        Ok(self.guardian.borrow_mut().name(kind, name)?)
    }

    /// A service on the server's side with this configuration file, and more options for
    /// `tidelane up`. Other services of a wire admit everybody.
    pub fn configured_service(&self, config: &str, options: &[&str]) -> Result<Service, Stop> {
        let path = self
            .scratch
            .join(format!("config-{}.toml", self.services.borrow()));
        fs::write(&path, config)?;
        let path = path.to_string_lossy();
        self.service_with(Side::Server, &[&["--config", &path], options].concat())
    }

    /// A service on one side, with more options for `tidelane up`.
    pub fn service_with(&self, side: Side, options: &[&str]) -> Result<Service, Stop> {
        self.start_service((side, INTERFACE), options, None)
    }

    /// A service on another interface of the server's side.
    pub fn service_of(&self, interface: &str, options: &[&str]) -> Result<Service, Stop> {
        self.start_service((Side::Server, interface), options, None)
    }

    /// A service on the server's side, in a PID namespace of its own.
    pub fn service_in_pid_namespace(&self) -> Result<Service, Stop> {
        Service::up_in_pid_namespace(self, Side::Server, &self.name_service()?)
    }

    /// A service on the server's side, without a configuration, on a host with these groups.
    pub fn service_with_groups(&self, groups: &str) -> Result<Service, Stop> {
        let path = self.scratch.join("group");
        fs::write(&path, groups)?;
        Service::up_with_groups(self, Side::Server, &self.name_service()?, &path)
    }

    /// A name for one more service. The guardian removes the service's files.
    fn name_service(&self) -> Result<String, Stop> {
        let name = {
            let mut services = self.services.borrow_mut();
            *services += 1;
            format!("{}-{services}", self.id)
        };
        self.guardian.borrow_mut().name("run", &name)?;
        Ok(name)
    }

    fn start_service(
        &self,
        end: (Side, &str),
        options: &[&str],
        cpus: Option<&str>,
    ) -> Result<Service, Stop> {
        let name = self.name_service()?;
        let all = format!("0-{}", cores() - 1);
        let as_told = cores() == 1 || options.contains(&"--cores");
        let added = if as_told { &[][..] } else { &["--cores", &all] };
        let service = Service::up(self, end, &name, &[options, added].concat(), cpus)?;
        if nics::are_named() && end.1 == INTERFACE {
            // Drivers set their rings up for the service, and some look for the link again.
            nics::wait_for_carrier(&self.namespace(end.0))?;
        }
        Ok(service)
    }

    /// A program of one side.
    pub fn program(&self, side: Side, name: &str) -> Program {
        Program::new(self, side, name)
    }

    /// A load tool of the server's side.
    pub fn load_tool(&self, side: Side, tool: &str) -> Result<Program, Stop> {
        let path = tools::binary("tidelane-load")?;
        Ok(self.program(side, &path.to_string_lossy()).arg(tool))
    }

    /// Whether something listens on `port` in the kernel of one side.
    pub fn listens(&self, side: Side, port: u16) -> Result<bool, Stop> {
        let space = self.namespace(side);
        let filter = format!("sport = :{port}");
        let arguments = ["ip", "netns", "exec", &space, "ss", "-Hltn", &filter];
        Ok(!command(&arguments)?.trim().is_empty())
    }

    /// Starts a server of the server's side, on `service` if there is one, and waits until it
    /// listens on `port` there. Fails with its output if it ends instead.
    pub fn start_server(
        &self,
        program: Program,
        service: Option<&Service>,
        port: u16,
    ) -> Result<Running, Stop> {
        let mut server = program.on(service).spawn()?;
        tools::wait_until(
            Duration::from_secs(10),
            &format!("port {port} to listen"),
            || {
                server.check_alive()?;
                self.listens(Side::Server, port)
            },
        )?;
        let Some(service) = service else {
            return Ok(server);
        };
        let what = format!("an accelerated listener on port {port}");
        let accelerated = tools::wait_until(Duration::from_secs(10), &what, || {
            server.check_alive()?;
            service.has_listener(port)
        });
        match accelerated {
            Ok(()) => Ok(server),
            Err(Stop::Fail(text)) => Err(Stop::Fail(format!(
                "{text}; there are {:#?}",
                service.sockets()?
            ))),
            Err(other) => Err(other),
        }
    }

    /// Established kernel connections of one side that have `port` at either end.
    pub fn kernel_connections(&self, side: Side, port: u16) -> Result<usize, Stop> {
        let space = self.namespace(side);
        let filter = format!("( sport = :{port} or dport = :{port} )");
        let arguments = [
            "ip",
            "netns",
            "exec",
            &space,
            "ss",
            "-Htn",
            "state",
            "established",
            &filter,
        ];
        Ok(command(&arguments)?.lines().count())
    }
}

/// Writes `len` bytes that do not repeat in short cycles to `path`; the same bytes for one seed.
pub fn write_random_file(path: &Path, len: u64, seed: u64) -> io::Result<()> {
    use std::io::Write;
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut left = len;
    while left > 0 {
        // Marsaglia's xorshift64*: fast, and no two blocks of a file are equal.
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
