//! Figures of a run without a violation. Their sums over a swarm (a run of many seeds) show which
//! events the swarm has covered.

use std::{collections::BTreeMap, fmt};

use tidelane_netem::LinkCounters;
use tidelane_time::Instant;

use crate::{family::Family, ledger::Entry, world::fair_share::Spans};

/// Figures of one run, or their sums over several runs. Times are summed, too.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Digest of the run. Equal runs have equal digests. In a sum of reports, the XOR of the
    /// digests of the runs.
    pub digest: u64,
    /// Number of events handled.
    pub events: u64,
    /// Number of frames delivered.
    pub frames: u64,
    /// Payload bytes read and verified.
    pub bytes: u64,
    /// Number of connections that transferred all planned data.
    pub complete: u64,
    /// Number of complete connections over IPv6.
    pub over_ipv6: u64,
    /// Number of connections that did not transfer all planned data. Each of these connections
    /// ended early as planned, was refused, or has a recorded reason.
    pub broken: u64,
    /// Number of processes that were killed, or that handed over to a new version of their program.
    pub deaths: u64,
    /// Number of restarts of services and of direct hosts (which run TCP within their programs).
    pub restarts: u64,
    /// Number of segments checked against the wire rules.
    pub checked_segments: u64,
    /// Number of steps of a host after which its senders were checked against the rules of
    /// congestion control.
    pub checked_windows: u64,
    /// Number of searches through the memory of a program for bytes of other users' connections.
    pub memory_searches: u64,
    /// Sums of the counters of all links.
    pub links: LinkCounters,
    /// Number of ICMP errors of routers for packets longer than the path MTU.
    pub too_big: u64,
    /// Number of bursts of random writes to shared memory.
    pub fuzz_bursts: u64,
    /// Number of times that a host went to sleep without a timer.
    pub sleeps: u64,
    /// Virtual time of the check that found all connections over and all well-behaved programs
    /// idle.
    pub busy: Instant,
    /// Virtual time of the check that found no state left on the hosts.
    pub end: Instant,
    /// Start and end of each connection whose duration is compared with a run without hostile
    /// programs. Empty in a sum of reports.
    pub(crate) spans: Spans,
    /// Sums of the counters of all hosts.
    pub counters: BTreeMap<String, u64>,
}

impl Report {
    /// Counts a connection as complete or broken.
    pub(crate) fn count(&mut self, entry: &Entry) {
        if entry.is_complete() {
            self.complete += 1;
            self.over_ipv6 += u64::from(entry.plan.family == Family::V6);
        } else {
            self.broken += 1;
        }
    }

    /// Adds the counters of a host.
    pub(crate) fn add_counters(&mut self, counters: Vec<(String, u64)>) {
        for (name, value) in counters {
            *self.counters.entry(name).or_default() += value;
        }
    }

    /// Adds the figures of another run.
    pub fn add(&mut self, other: &Self) {
        self.digest ^= other.digest;
        self.events += other.events;
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.complete += other.complete;
        self.over_ipv6 += other.over_ipv6;
        self.broken += other.broken;
        self.too_big += other.too_big;
        self.deaths += other.deaths;
        self.fuzz_bursts += other.fuzz_bursts;
        self.restarts += other.restarts;
        self.checked_segments += other.checked_segments;
        self.checked_windows += other.checked_windows;
        self.memory_searches += other.memory_searches;
        self.links.add(&other.links);
        self.sleeps += other.sleeps;
        self.busy = Instant(self.busy.0 + other.busy.0);
        self.end = Instant(self.end.0 + other.end.0);
        for (name, value) in &other.counters {
            *self.counters.entry(name.clone()).or_default() += value;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} connections complete ({} over IPv6), {} broken off; {} bytes, {} frames, \
             {} events in {:.1} s of traffic and {:.1} s in all; {} deaths, {} restarts, \
             {} fuzz_bursts; {} segments \
             and {} windows checked, {} searches through memory; links: {} lost, {} overflowed, \
             {} duplicated, {} corrupted, {} held back, {} marked, {} too big; digest {:016x}",
            self.complete,
            self.over_ipv6,
            self.broken,
            self.bytes,
            self.frames,
            self.events,
            self.busy.as_nanos() as f64 / 1e9,
            self.end.as_nanos() as f64 / 1e9,
            self.deaths,
            self.restarts,
            self.fuzz_bursts,
            self.checked_segments,
            self.checked_windows,
            self.memory_searches,
            self.links.lost,
            self.links.overflowed,
            self.links.duplicated,
            self.links.corrupted,
            self.links.reordered,
            self.links.marked,
            self.too_big,
            self.digest,
        )
    }
}
