//! [`NapiThread`]: the kernel thread that receives the packets of an interface.
//!
//! Without a NAPI thread, a packet that arrives at a veth is received in a softirq on the sender's
//! CPU. The CPU time of the reception then counts for the sending program. With a NAPI thread, the
//! reception runs on a CPU of the receiver, as the interrupts of a NIC do, and the time counts for
//! the thread.

use std::{collections::BTreeSet, fs, time::Duration};

use crate::{
    Side, Stop, Wire, command, command_in, service::cpu_time_of, tools::require_tools,
    wire::INTERFACE,
};

/// The NAPI thread of one end of a wire. The thread ends with the wire.
#[derive(Debug)]
pub struct NapiThread {
    pid: u32,
}

impl NapiThread {
    /// Starts the NAPI thread of the interface at `side`, one end of a veth pair with one queue.
    /// The thread runs on `cpus`, and preempts all programs there that have no real-time priority,
    /// as a softirq does. Call this function before any process attaches an XDP program to the
    /// interface.
    pub fn start(wire: &Wire, side: Side, cpus: &str) -> Result<Self, Stop> {
        require_tools(&["ethtool", "taskset", "chrt"])?;
        let peer = match side {
            Side::Client => Side::Server,
            _ => Side::Client,
        };
        // Another wire on this machine may start a NAPI thread of an interface with the same name.
        // The lock prevents this until this function returns.
        let lock = fs::File::create("/run/lock/tidelane-napi.lock")?;
        lock.lock()?;
        let before = threads();
        // A veth with GRO has a NAPI instance, but packets of a peer with TSO bypass the instance.
        wire.set_offloads(peer, INTERFACE, "tso off")?;
        wire.set_offloads(side, INTERFACE, "gro on")?;
        let switch = format!("echo 1 > /sys/class/net/{INTERFACE}/threaded");
        command_in(&wire.namespace(side), &["sh", "-c", &switch])?;
        let started: Vec<u32> = threads().difference(&before).copied().collect();
        let &[pid] = &started[..] else {
            return Err(Stop::Fail(format!(
                "{} NAPI threads have started, instead of one",
                started.len()
            )));
        };
        command(&["taskset", "-p", "-c", cpus, &pid.to_string()])?;
        command(&["chrt", "-f", "-p", "1", &pid.to_string()])?;
        Ok(Self { pid })
    }

    /// Returns the CPU time that the thread has used.
    pub fn cpu_time(&self) -> Result<Duration, Stop> {
        cpu_time_of(self.pid)
    }
}

/// Returns the process ids of all NAPI threads of interfaces called [`INTERFACE`].
fn threads() -> BTreeSet<u32> {
    let prefix = format!("napi/{INTERFACE}-");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.starts_with(&prefix))
    })
    .collect()
}
