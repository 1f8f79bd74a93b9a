//! The kernel's TCP as a stack under test, in real time, behind a tun device.
//!
//! Each script runs in a new network namespace. The thread that creates the [`Kernel`] enters the
//! namespace and starts two threads there: the reader thread reads the device, and the caller
//! thread makes the program's calls, which may block. Because the namespace has no name and no
//! mount, it ends with its threads and their descriptors, even after a failure.

use std::{
    collections::HashSet,
    fs, io,
    net::{IpAddr, Ipv6Addr},
    os::fd::{AsRawFd, OwnedFd},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    call_result::CallResult,
    calls::{Call, Fd},
    ip::Version,
    stack::{Micros, Returned, Sent, Stack},
};

mod sys;

/// Name of the tun device.
const DEVICE: &str = "tun0";
/// Largest packet in bytes.
const PACKET_MAX: usize = 65_536;
/// File with the IPv6 routes of the thread's network namespace. Each line is a route, with the
/// flags in the ninth word.
const ROUTES: &str = "/proc/thread-self/net/ipv6_route";
/// Flag of a route to an address of this host (`linux/ipv6_route.h`).
const RTF_LOCAL: u32 = 0x8000_0000;
/// Time limit for an IPv6 address to become usable, in milliseconds.
const ADDRESS_WAIT_MS: u32 = 10_000;
/// Interval at which the reader thread checks for the end of the run, in milliseconds.
const READER_POLL_MS: i32 = 20;
/// Lateness in microseconds that is not a fault of the stack: a tick of the kernel's timers (at
/// most 10 ms), and scheduling.
const LATENESS_ALLOWED: Micros = 12_000;
/// Sysctls of every run. If another stack under test supports one of these sysctls, the sysctl has
/// the same value on that stack.
const SETTINGS: [(&str, &str); 12] = [
    ("tcp_timestamps", "1"),
    ("tcp_sack", "1"),
    ("tcp_rmem", "4096 540000 15728640"),
    ("tcp_wmem", "4096 262144 4194304"),
    ("tcp_syn_retries", "5"),
    ("tcp_synack_retries", "5"),
    ("tcp_retries2", "15"),
    ("tcp_fin_timeout", "60"),
    ("tcp_ecn", "0"),
    ("tcp_no_metrics_save", "1"),
    ("tcp_syncookies", "0"),
    ("tcp_fastopen", "1"),
];

/// Sysctls that kernels before 6.5 do not have, each with the value that describes the behaviour of
/// these kernels.
const SETTINGS_LACKING: [(&str, &str); 1] = [("tcp_syn_linear_timeouts", "0")];

/// Name of the sysctl for the congestion control. [`Kernel`] does not set the sysctl, but applies
/// its value to each new socket as the option TCP_CONGESTION.
const CONGESTION: &str = "tcp_congestion_control";
/// Default congestion control.
const CONGESTION_DEFAULT: &str = "cubic";

/// The open sockets of the program, which the end of the run closes.
type OpenSockets = Arc<Mutex<HashSet<Fd>>>;

/// The kernel as a stack under test. Dropping the value ends the threads and closes the sockets.
#[derive(Debug)]
pub struct Kernel {
    version: Version,
    /// Start of the script.
    start: Instant,
    /// The tun device.
    device: Arc<OwnedFd>,
    /// True at the end of the run. The reader thread ends when the flag is true.
    over: Arc<AtomicBool>,
    /// Packets that the reader thread has read from the device, each with its time of arrival.
    packets: Receiver<(Instant, Vec<u8>)>,
    /// Calls for the caller thread. `None` at the end of the run.
    calls: Option<Sender<Call>>,
    /// Answers of the caller thread, each with its time of return.
    results: Receiver<(Instant, CallResult)>,
    open: OpenSockets,
    /// Name of the congestion control of new sockets.
    congestion: Arc<Mutex<String>>,
    threads: Vec<JoinHandle<()>>,
}

/// Returns the reason why the kernel cannot be tested on this machine, or `None` if a test is
/// possible.
pub fn unavailable() -> Option<String> {
    if !sys::is_root() {
        return Some("needs root, for a network namespace and a tun device".to_owned());
    }
    if fs::metadata("/dev/net/tun").is_err() {
        return Some("needs /dev/net/tun".to_owned());
    }
    let ip = Command::new("ip").arg("-V").stdout(Stdio::null()).status();
    ip.is_err().then(|| "needs ip, of iproute2".to_owned())
}

/// Runs `ip` with these arguments.
fn ip(arguments: &str) -> io::Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("ip {arguments}: {}", text.trim())))
}

/// Sets a sysctl below `net.ipv4` in the thread's network namespace.
fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/ipv4/{name}"), value)
}

/// Configures the device with one address and the default route. Switches off the IPv6 packets that
/// the kernel would send unasked, such as router solicitations.
fn set_up_device(version: Version) -> io::Result<()> {
    ip("link set dev lo up")?;
    let setting = |name: &str, value: &str| {
        let path = format!("/proc/sys/net/ipv6/conf/{DEVICE}/{name}");
        // The file does not exist in a kernel without IPv6.
        let _ = fs::write(path, value);
    };
    let local = match version.is_v6() {
        true => {
            // Assign no link-local address, and send no router solicitations.
            setting("addr_gen_mode", "1");
            setting("accept_ra", "0");
            format!("-6 address add {}/48 dev {DEVICE} nodad", version.local())
        }
        false => {
            setting("disable_ipv6", "1");
            format!(
                "address add {}/16 dev {DEVICE}",
                version.local().to_canonical()
            )
        }
    };
    ip(&local)?;
    ip(&format!("link set dev {DEVICE} mtu {} up", version.mtu()))?;
    if let (true, IpAddr::V6(local)) = (version.is_v6(), version.local()) {
        wait_for_address(local)?;
    }
    let family = if version.is_v6() { "-6" } else { "-4" };
    ip(&format!("{family} route add default dev {DEVICE}"))
}

/// Waits until the kernel has activated a new IPv6 address.
fn wait_for_address(address: Ipv6Addr) -> io::Result<()> {
    let wanted: String = address.octets().map(|byte| format!("{byte:02x}")).concat();
    let in_force = |line: &str| {
        let mut words = line.split_whitespace();
        let is_local = |flags| u32::from_str_radix(flags, 16).is_ok_and(|f| f & RTF_LOCAL != 0);
        words.next() == Some(&wanted) && words.nth(7).is_some_and(is_local)
    };
    for _ in 0..ADDRESS_WAIT_MS {
        if fs::read_to_string(ROUTES)?.lines().any(in_force) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Err(io::Error::other(format!(
        "{address} does not become usable"
    )))
}

impl Kernel {
    /// Returns a kernel for a script that runs over `version`. Moves the calling thread, and the
    /// threads that it starts later, to a new network namespace.
    pub fn new(version: Version) -> io::Result<Self> {
        sys::new_network_namespace()?;
        sys::take_precedence();
        let device = Arc::new(sys::open_tun(DEVICE)?);
        for (name, value) in SETTINGS {
            set_sysctl(name, value).map_err(|e| io::Error::other(format!("{name}: {e}")))?;
        }
        set_up_device(version)?;
        let over = Arc::new(AtomicBool::new(false));
        let open = OpenSockets::default();
        let congestion = Arc::new(Mutex::new(CONGESTION_DEFAULT.to_owned()));
        let (packet_in, packets) = mpsc::channel();
        let (calls, call_out) = mpsc::channel();
        let (answer_in, results) = mpsc::channel();
        let reader = {
            let (device, over) = (device.clone(), over.clone());
            thread::spawn(move || read_device(&device, &over, &packet_in))
        };
        let caller = {
            let (open, congestion) = (open.clone(), congestion.clone());
            let caller = Caller {
                version,
                open,
                congestion,
            };
            thread::spawn(move || caller.make_calls(&call_out, &answer_in))
        };
        Ok(Self {
            version,
            start: Instant::now(),
            device,
            over,
            packets,
            calls: Some(calls),
            results,
            open,
            congestion,
            threads: vec![reader, caller],
        })
    }

    fn micros(&self, at: Instant) -> Micros {
        at.saturating_duration_since(self.start).as_micros() as Micros
    }

    /// Returns the time from the present until `at`, or zero if `at` has passed.
    fn until(&self, at: Micros) -> Duration {
        let at = self.start + Duration::from_micros(at);
        at.saturating_duration_since(Instant::now())
    }
}

/// Runs the reader thread: reads packets from the device until the run is over.
fn read_device(device: &OwnedFd, over: &AtomicBool, to: &Sender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; PACKET_MAX];
    while !over.load(Ordering::Relaxed) {
        if !sys::wait_readable(device.as_raw_fd(), READER_POLL_MS) {
            continue;
        }
        let now = Instant::now();
        match sys::read(device.as_raw_fd(), &mut buffer) {
            Ok(len) if to.send((now, buffer[..len].to_vec())).is_ok() => {}
            _ => return,
        }
    }
}

/// The state of the caller thread, which makes the program's calls.
struct Caller {
    version: Version,
    open: OpenSockets,
    congestion: Arc<Mutex<String>>,
}

impl Caller {
    /// Runs the caller thread: makes each call and sends its result, until the run is over.
    fn make_calls(&self, calls: &Receiver<Call>, to: &Sender<(Instant, CallResult)>) {
        while let Ok(call) = calls.recv() {
            let call_result = sys::call(&call, self.version);
            self.track_socket(&call, &call_result);
            if to.send((Instant::now(), call_result)).is_err() {
                return;
            }
        }
    }

    /// Records opened and closed sockets, and sets the congestion control of a new socket.
    fn track_socket(&self, call: &Call, call_result: &CallResult) {
        if let (Call::Socket { .. }, Ok(fd)) = (call, call_result.result) {
            let name = self.congestion.lock();
            sys::set_congestion(fd as Fd, &name.unwrap_or_else(PoisonError::into_inner));
        }
        let mut sockets = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match (call, call_result.result) {
            (Call::Socket { .. } | Call::Accept { .. }, Ok(fd)) => {
                sockets.insert(fd as Fd);
            }
            (Call::Close { fd }, Ok(_)) => {
                sockets.remove(fd);
            }
            _ => {}
        }
    }
}

impl Stack for Kernel {
    fn now(&self) -> Micros {
        self.micros(Instant::now())
    }

    fn lateness_allowed(&self) -> Micros {
        LATENESS_ALLOWED
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if name == CONGESTION {
            // In a network namespace, the sysctl accepts only algorithms that the host permits to
            // all users. The socket option accepts any algorithm from root.
            let mut congestion = self
                .congestion
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            value.clone_into(&mut congestion);
            return Ok(());
        }
        match set_sysctl(name, value) {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && SETTINGS_LACKING.contains(&(name, value)) =>
            {
                Ok(())
            }
            result => result.map_err(|error| error.to_string()),
        }
    }

    fn sleep_until(&mut self, at: Micros) {
        thread::sleep(self.until(at));
    }

    fn start(&mut self, call: Call) {
        if let Some(calls) = &self.calls {
            // Sending fails only if the caller thread has ended. The runner then gets no result,
            // and the script fails.
            let _ = calls.send(call);
        }
    }

    fn returned(&mut self, by: Micros) -> Option<Returned> {
        let (at, call_result) = self.results.recv_timeout(self.until(by)).ok()?;
        let at = self.micros(at);
        Some(Returned { at, call_result })
    }

    fn inject(&mut self, packet: &[u8]) {
        // If the device refuses the packet, an event that depends on the packet fails.
        let _ = sys::write(self.device.as_raw_fd(), packet);
    }

    fn next_packet(&mut self, by: Micros) -> Option<Sent> {
        loop {
            let (at, bytes) = self.packets.recv_timeout(self.until(by)).ok()?;
            let at = self.micros(at);
            // Skip packets that are not TCP to the remote host.
            if crate::wire::Packet::parse(self.version, &bytes).is_some() {
                return Some(Sent { at, bytes });
            }
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.calls = None;
        let sockets = |open: &OpenSockets| -> Vec<Fd> {
            let open = open.lock().unwrap_or_else(PoisonError::into_inner);
            open.iter().copied().collect()
        };
        // `shutdown` ends a call that is blocked on the socket.
        sockets(&self.open).into_iter().for_each(sys::shutdown);
        for thread in self.threads.drain(..) {
            // Ignore the error of a thread that panicked, because the thread has printed its
            // message.
            let _ = thread.join();
        }
        sockets(&self.open).into_iter().for_each(sys::close);
    }
}
