//! Assigns the samples of a profile to layers of the stack. A sample in the kernel has a call
//! chain. The table `KERNEL` lists some kernel functions with their layers. The innermost listed
//! function of the chain decides the layer of the sample. A copy, a lock or an allocation therefore
//! counts for the layer that called it.
//!
//! Programs have no frame pointers, and therefore no call chains. A sample in a program belongs to
//! the layer of its function's crate.
//!
//! A veth delivers a packet on the CPU of the packet's sender. On the server's CPU, each sample
//! within the reception of packets therefore belongs to the client's reception ([`Layer::PeerRx`]).
//! On another CPU, only samples within the reception of packets are work for the server. All other
//! samples there are left out.

use std::collections::BTreeMap;

/// A layer of the stack. The layers before `PeerRx` are in the order in which a request and its
/// answer pass them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// The receiving driver, with the XDP program and AF_XDP.
    DriverRx,
    /// Reception by Ethernet and IP.
    IpRx,
    /// Reception by the kernel's TCP.
    TcpRx,
    /// Waking the server or the service.
    Wakeup,
    /// `epoll_wait`, `io_uring_enter` or `poll`: looking for events, and going to sleep.
    Wait,
    /// Reading from a socket or another descriptor.
    Read,
    /// AF_XDP rings, in the program or in the service.
    PacketRings,
    /// The Tidelane service, with its TCP.
    Service,
    /// The ring API in the program. Includes the TCP of the direct back end, which runs in the
    /// program. A profile cannot tell the two apart, because the compiler inlines TCP into the
    /// functions of the ring API.
    RingApi,
    /// The HTTP server, and each function of a program that belongs to no other layer.
    Application,
    /// Writing to a socket, or to an eventfd that wakes the service or the program (doorbell).
    Write,
    /// Transmission by the kernel's TCP.
    TcpTx,
    /// Transmission by IP and Ethernet.
    IpTx,
    /// The sending driver, with AF_XDP.
    DriverTx,
    /// The reception by the client, which a veth does on the CPU of the server.
    PeerRx,
    /// Other work of the kernel on the CPU of the server, such as system call entry, scheduler and
    /// timers.
    Other,
}

impl Layer {
    /// All layers in their order.
    pub const ALL: [Self; 16] = [
        Self::DriverRx,
        Self::IpRx,
        Self::TcpRx,
        Self::Wakeup,
        Self::Wait,
        Self::Read,
        Self::PacketRings,
        Self::Service,
        Self::RingApi,
        Self::Application,
        Self::Write,
        Self::TcpTx,
        Self::IpTx,
        Self::DriverTx,
        Self::PeerRx,
        Self::Other,
    ];

    /// Returns the name in the results.
    pub fn name(self) -> &'static str {
        match self {
            Self::DriverRx => "driver_rx",
            Self::IpRx => "ip_rx",
            Self::TcpRx => "tcp_rx",
            Self::Wakeup => "wakeup",
            Self::Wait => "wait",
            Self::Read => "read",
            Self::PacketRings => "packet_rings",
            Self::Service => "service",
            Self::RingApi => "ring_api",
            Self::Application => "application",
            Self::Write => "write",
            Self::TcpTx => "tcp_tx",
            Self::IpTx => "ip_tx",
            Self::DriverTx => "driver_tx",
            Self::PeerRx => "peer_rx",
            Self::Other => "other",
        }
    }
}

/// Prefixes of the names of kernel functions, with their layers. The first entry that matches a
/// name decides.
const KERNEL: &[(&str, Layer)] = &[
    ("veth_xmit", Layer::DriverTx),
    ("dev_hard_start_xmit", Layer::DriverTx),
    ("xsk_sendmsg", Layer::DriverTx),
    ("__xsk_sendmsg", Layer::DriverTx),
    ("__xsk_generic_xmit", Layer::DriverTx),
    ("veth_", Layer::DriverRx),
    ("bpf_prog_", Layer::DriverRx),
    ("xdp_do_", Layer::DriverRx),
    ("xsk_", Layer::DriverRx),
    ("__xsk_", Layer::DriverRx),
    ("napi_gro_receive", Layer::DriverRx),
    ("gro_receive_skb", Layer::DriverRx),
    ("sock_def_readable", Layer::Wakeup),
    ("ep_poll_callback", Layer::Wakeup),
    ("io_poll_wake", Layer::Wakeup),
    ("tcp_data_ready", Layer::Wakeup),
    ("tcp_write_xmit", Layer::TcpTx),
    ("__tcp_transmit_skb", Layer::TcpTx),
    ("__tcp_push_pending_frames", Layer::TcpTx),
    ("tcp_push", Layer::TcpTx),
    ("tcp_v4_rcv", Layer::TcpRx),
    ("tcp_v4_do_rcv", Layer::TcpRx),
    ("__ip_queue_xmit", Layer::IpTx),
    ("ip_queue_xmit", Layer::IpTx),
    ("ip_output", Layer::IpTx),
    ("ip_local_out", Layer::IpTx),
    ("__dev_queue_xmit", Layer::IpTx),
    ("ip_rcv", Layer::IpRx),
    ("ip_local_deliver", Layer::IpRx),
    ("ip_sublist_rcv", Layer::IpRx),
    ("ip_list_rcv", Layer::IpRx),
    ("__netif_receive_skb", Layer::IpRx),
    ("netif_receive_skb", Layer::IpRx),
    ("tcp_recvmsg", Layer::Read),
    ("sock_read_iter", Layer::Read),
    ("ksys_read", Layer::Read),
    ("io_recv", Layer::Read),
    ("tcp_sendmsg", Layer::Write),
    ("sock_write_iter", Layer::Write),
    ("ksys_write", Layer::Write),
    ("io_send", Layer::Write),
    ("ep_poll", Layer::Wait),
    ("do_epoll_", Layer::Wait),
    ("__do_sys_epoll", Layer::Wait),
    ("do_sys_poll", Layer::Wait),
    ("__do_sys_ppoll", Layer::Wait),
    ("__x64_sys_ppoll", Layer::Wait),
    ("io_", Layer::Wait),
    ("__io_", Layer::Wait),
    ("__do_sys_io_uring", Layer::Wait),
    ("tctx_task_work", Layer::Wait),
];

/// Prefixes of the names of crates, with their layers. The first entry that matches a name decides.
/// In the process of the service, all crates but the crates of the packet rings count for
/// [`Layer::Service`].
const CRATES: &[(&str, Layer)] = &[
    ("tidelane_af_xdp", Layer::PacketRings),
    ("tidelane_packet", Layer::PacketRings),
    ("tidelane_", Layer::RingApi),
    ("io_uring", Layer::RingApi),
];

/// Kernel functions in which the reception of packets starts (NAPI).
const RECEPTION: [&str; 3] = ["net_rx_action", "napi_busy_loop", "__napi_busy_loop"];
/// Prefixes of the names of the programs that measure. Their samples on the CPU of the server are
/// left out.
const OBSERVERS: [&str; 3] = ["perf", "sleep", "xtask"];

/// A function of a call chain.
struct Frame<'a> {
    name: &'a str,
    /// File of the program or library, or a name in brackets for the kernel, a kernel module or the
    /// vDSO.
    object: &'a str,
}

impl<'a> Frame<'a> {
    /// Parses a line `ADDRESS NAME (OBJECT)`.
    fn read(line: &'a str) -> Option<Self> {
        let (_, rest) = line.trim().split_once(' ')?;
        let (name, object) = rest.rsplit_once(" (")?;
        Some(Self {
            name,
            object: object.trim_end_matches(')'),
        })
    }

    fn is_kernel(&self) -> bool {
        self.object.starts_with('[') && self.object != "[vdso]"
    }

    fn kernel_layer(&self) -> Option<Layer> {
        let mut known = KERNEL.iter();
        known.find_map(|(start, layer)| self.name.starts_with(start).then_some(*layer))
    }

    /// Returns the layer of a function of a program.
    fn user_layer(&self) -> Layer {
        let name = self.name.trim_start_matches(['<', '&', '[', '(']);
        let mut known = CRATES.iter();
        let of_crate = known.find_map(|(start, layer)| name.starts_with(start).then_some(*layer));
        match of_crate {
            Some(Layer::PacketRings) => Layer::PacketRings,
            _ if self.object.ends_with("/tidelaned") => Layer::Service,
            of_crate => of_crate.unwrap_or(Layer::Application),
        }
    }
}

/// Returns the number of samples of each layer in the output of
/// `perf script -F comm,cpu,ip,sym,dso`.
pub fn count(text: &str, server_cpu: u32) -> BTreeMap<Layer, u64> {
    let mut counts = BTreeMap::new();
    for sample in text.split("\n\n") {
        if let Some(layer) = layer_of(sample, server_cpu) {
            *counts.entry(layer).or_default() += 1;
        }
    }
    counts
}

/// Returns the layer of a sample. Returns `None` if the sample is not work for the server, or if
/// the text names no function. The text of a sample is a line with the program and the CPU,
/// followed by a line for each function of the call chain, innermost function first.
fn layer_of(sample: &str, server_cpu: u32) -> Option<Layer> {
    let mut lines = sample.trim_start().lines();
    let (program, cpu) = lines.next()?.trim_end().rsplit_once('[')?;
    let cpu: u32 = cpu.trim_end_matches(']').parse().ok()?;
    let frames: Vec<Frame> = lines.filter_map(Frame::read).collect();
    let first = frames.first()?;
    if frames.iter().any(|frame| frame.name.contains("do_idle")) {
        return None;
    }
    let is_reception = |frame: &Frame| RECEPTION.contains(&frame.name);
    let reception = frames.iter().position(is_reception);
    if cpu != server_cpu {
        let inner = frames.get(..reception?)?;
        let layer = inner.iter().find_map(Frame::kernel_layer);
        return Some(layer.unwrap_or(Layer::DriverRx));
    }
    if OBSERVERS.iter().any(|name| program.starts_with(name)) {
        return None;
    }
    if reception.is_some() {
        return Some(Layer::PeerRx);
    }
    if !first.is_kernel() {
        return Some(first.user_layer());
    }
    let layer = frames.iter().find_map(Frame::kernel_layer);
    Some(layer.unwrap_or(Layer::Other))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sample with the given chain of the kernel's functions.
    fn kernel_chain(program: &str, cpu: u32, names: &[&str]) -> String {
        let frame = |name: &&str| format!("\tffffffff81bb296f {name} ([kernel.kallsyms])\n");
        let frames: String = names.iter().map(frame).collect();
        format!("{program}    [{cpu:03}] \n{frames}")
    }

    #[test]
    fn the_innermost_known_function_decides() {
        let write = ["memcpy", "tcp_sendmsg_locked", "tcp_sendmsg", "ksys_write"];
        let push = [
            "kmem_cache_alloc",
            "__tcp_transmit_skb",
            "tcp_write_xmit",
            "tcp_sendmsg",
        ];
        let driver = [
            "spin_lock",
            "veth_xmit",
            "__dev_queue_xmit",
            "ip_output",
            "tcp_write_xmit",
        ];
        let entry = ["entry_SYSCALL_64"];
        for (chain, layer) in [
            (&write[..], Layer::Write),
            (&push, Layer::TcpTx),
            (&driver, Layer::DriverTx),
            (&entry, Layer::Other),
        ] {
            let sample = kernel_chain("ring-http", 1, chain);
            assert_eq!(layer_of(&sample, 1), Some(layer), "{chain:?}");
        }
    }

    #[test]
    fn the_reception_of_the_server_is_on_the_cpu_of_the_client() {
        let chain = [
            "tcp_ack",
            "tcp_v4_rcv",
            "ip_rcv",
            "net_rx_action",
            "tcp_sendmsg",
        ];
        let sample = kernel_chain("tidelane-load", 0, &chain);
        assert_eq!(layer_of(&sample, 1), Some(Layer::TcpRx));
        let sample = kernel_chain("ring-http", 1, &chain);
        assert_eq!(layer_of(&sample, 1), Some(Layer::PeerRx));
        let sample = kernel_chain("tidelane-load", 0, &["tcp_sendmsg", "ksys_write"]);
        assert_eq!(layer_of(&sample, 1), None);
        let sample = kernel_chain("swapper", 1, &["default_idle", "do_idle"]);
        assert_eq!(layer_of(&sample, 1), None);
        let sample = kernel_chain("perf", 1, &["ksys_write"]);
        assert_eq!(layer_of(&sample, 1), None);
    }

    #[test]
    fn functions_of_programs_belong_to_their_crate() {
        let engine = "<tidelane_engine::engine::Engine>::input::<tidelane_direct::io::Io>";
        for (function, layer) in [
            (format!("{engine} (/x/ring-http)"), Layer::RingApi),
            (format!("{engine} (/x/tidelaned)"), Layer::Service),
            (
                "tidelane_af_xdp::rx_unsafe::RxQueue::burst (/x/tidelaned)".to_owned(),
                Layer::PacketRings,
            ),
            (
                "ring_http::server::serve (/x/ring-http)".to_owned(),
                Layer::Application,
            ),
            (
                "<&tidelane_rings::ready::ReadyList>::len (/x/y)".to_owned(),
                Layer::RingApi,
            ),
            ("tidelaned::main (/x/tidelaned)".to_owned(), Layer::Service),
        ] {
            let sample = format!("ring-http 77 [001] \n\t  5aa {function}\n\t 6 main (/x)\n");
            assert_eq!(layer_of(&sample, 1), Some(layer), "{function}");
        }
        let text = format!(
            "{}\n{}\n",
            kernel_chain("a b", 1, &["veth_xmit"]),
            kernel_chain("a b", 1, &["ep_poll"])
        );
        let expected = BTreeMap::from([(Layer::DriverTx, 1), (Layer::Wait, 1)]);
        assert_eq!(count(&text, 1), expected);
    }
}
