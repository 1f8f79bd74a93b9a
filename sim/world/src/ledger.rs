//! Record of both ends of every connection. All rules about streams are checked against this
//! record.

use std::fmt;

use tidelane_abi::close_cause;
use tidelane_time::{Duration, Instant};

use crate::plan::{ConnectionPlan, Ending, Role};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Virtual time of the observation.
    pub at: Instant,
    /// Name of the rule, in a few words.
    pub rule: &'static str,
    /// The observation that contradicts the rule.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.at.as_nanos() as f64 / 1e9;
        write!(f, "at {seconds:.6} s: {}: {}", self.rule, self.text)
    }
}

impl std::error::Error for Violation {}

/// Life cycle of one end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stage {
    /// Not yet opened (client), or not yet identified (server): the header at the start of the
    /// client's stream tells the server's program which planned connection has arrived.
    #[default]
    NotYet,
    /// In use by its program.
    Open,
    /// Closed by its program, or over because its program or service has died.
    Ended,
}

/// Record of one end of a connection.
#[derive(Clone, Debug, Default)]
pub struct EndRecord {
    /// Current stage.
    pub stage: Stage,
    /// Payload bytes written.
    pub written: u64,
    /// Payload bytes read and verified.
    pub read: u64,
    /// True if the end has shut down for writing, or if its program has closed the end.
    pub finished: bool,
    /// Time from which the peer may receive a RST, because this end closed early or aborted, lost
    /// its program or its service, or saw the connection break off. `None` without such a reason.
    pub broken_at: Option<Instant>,
}

/// Record of one connection.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Planned behaviour of both ends.
    pub plan: ConnectionPlan,
    /// Records of the client and the server.
    pub ends: [EndRecord; 2],
    /// Reason why the connection may end contrary to its plan. `None` without a reason.
    pub excuse: Option<&'static str>,
    /// True if the client writes random values to its own memory. Wrong bytes on the connection are
    /// then no violation.
    pub client_is_hostile: bool,
    /// Time of the last progress of either end.
    pub last_progress: Instant,
}

/// Records of all connections of a run, and the run's exceptions from the rules.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: Vec<Entry>,
    /// Payload bytes read and verified, over all connections.
    pub bytes: u64,
    /// True if unplanned connections may appear, because a program is hostile.
    pub unplanned_clients: bool,
    /// True if connections may time out, because links are bad or memory is short.
    pub timeouts: bool,
    /// True if the service may refuse a connection, because a backlog or a host's number of local
    /// TCP ports is low.
    pub refusals: bool,
    /// True if a host's clock may jump, or if a host may pause. The wait for a neighbour's link
    /// address, or for a local TCP port, may then time out early.
    pub clock_jumps: bool,
    /// True if nothing in the run loses frames, so that every RST arrives.
    pub lossless: bool,
}

/// Time for which an end waits for a peer that is gone and whose RST may have been lost.
pub const GONE_PEER_TIMEOUT: Duration = Duration::from_secs(60);

impl Ledger {
    /// Creates the records of `plans`, whose connection numbers must be 0, 1, 2 and so on.
    pub fn new(plans: impl IntoIterator<Item = ConnectionPlan>) -> Self {
        let entry = |plan: ConnectionPlan| Entry {
            last_progress: plan.start,
            plan,
            ends: Default::default(),
            excuse: None,
            client_is_hostile: false,
        };
        Self {
            entries: plans.into_iter().map(entry).collect(),
            ..Self::default()
        }
    }

    /// Returns the records of all connections.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the record of connection `id`.
    pub fn entry(&self, id: u32) -> &Entry {
        &self.entries[id as usize]
    }

    /// Returns true if connection `id` is planned.
    pub fn contains(&self, id: u32) -> bool {
        (id as usize) < self.entries.len()
    }

    /// Returns the record of the end of connection `id` in `role`.
    pub fn end(&self, id: u32, role: Role) -> &EndRecord {
        &self.entry(id).ends[role.index()]
    }

    fn touch(&mut self, now: Instant, id: u32, role: Role) -> &mut EndRecord {
        let entry = &mut self.entries[id as usize];
        entry.last_progress = now;
        &mut entry.ends[role.index()]
    }

    /// Records that an end is in use. Returns an error if the end was in use before. The connection
    /// of a hostile client is not checked.
    pub fn open(&mut self, now: Instant, id: u32, role: Role) -> Result<(), Violation> {
        let client_is_hostile = self.entry(id).client_is_hostile;
        let end = self.touch(now, id, role);
        if end.stage != Stage::NotYet && !client_is_hostile {
            let text = format!("connection {id}: a second {role:?}");
            return Err(violation(now, "an end opens only once", text));
        }
        end.stage = Stage::Open;
        Ok(())
    }

    /// Records that an end wrote `count` bytes.
    pub fn wrote(&mut self, now: Instant, id: u32, role: Role, count: u64) {
        self.touch(now, id, role).written += count;
    }

    /// Records that an end read `count` more bytes and verified them. Returns an error if the end
    /// has read more bytes than its peer has written. The connection of a hostile client is not
    /// checked.
    pub fn read(&mut self, now: Instant, id: u32, role: Role, count: u64) -> Result<(), Violation> {
        self.bytes += count;
        let end = self.touch(now, id, role);
        end.read += count;
        let read = end.read;
        let written = self.end(id, role.peer()).written;
        if read > written && !self.entry(id).client_is_hostile {
            let text = format!("connection {id}: {role:?} read {read} of {written} bytes");
            return Err(violation(now, "bytes come from the peer", text));
        }
        Ok(())
    }

    /// Records that an end shut down for writing.
    pub fn finish(&mut self, now: Instant, id: u32, role: Role) {
        self.touch(now, id, role).finished = true;
    }

    /// Records that the peer of an end may receive a RST from now on, for example because the end
    /// closed before its plan was complete.
    pub fn mark_broken(&mut self, now: Instant, id: u32, role: Role) {
        let end = self.touch(now, id, role);
        end.broken_at.get_or_insert(now);
    }

    /// Records that a program closed its end.
    pub fn close_end(&mut self, now: Instant, id: u32, role: Role) {
        let end = self.touch(now, id, role);
        end.stage = Stage::Ended;
        end.finished = true;
    }

    /// Permits connection `id` to end contrary to its plan from now on. `why` is the reason.
    pub fn excuse(&mut self, id: u32, why: &'static str) {
        self.entries[id as usize].excuse.get_or_insert(why);
    }

    /// Marks all connections that the program `client` opens as connections of a hostile client.
    pub fn mark_client_hostile(&mut self, client: usize) {
        for entry in self.entries.iter_mut().filter(|e| e.plan.client == client) {
            entry.client_is_hostile = true;
            entry.excuse = Some("its client misbehaves");
        }
    }

    /// Records the death of program `client`. `listener` is the program's listener, if any. If
    /// `comes_back` is false, the program does not start again, and its unopened connections are
    /// over.
    pub fn program_died(
        &mut self,
        now: Instant,
        client: usize,
        listener: Option<usize>,
        comes_back: bool,
    ) {
        for entry in &mut self.entries {
            let as_client = entry.plan.client == client;
            let lost = match entry.ends[0].stage {
                Stage::NotYet => !comes_back,
                Stage::Open => true,
                Stage::Ended => false,
            };
            if as_client && lost {
                entry.ends[0].stage = Stage::Ended;
                entry.ends[0].broken_at.get_or_insert(now);
                entry.excuse.get_or_insert("its client died");
            }
            if listener == Some(entry.plan.listener) && entry.ends[1].stage != Stage::Ended {
                entry.excuse.get_or_insert("a program of its listener died");
                // The connection may have been in the program's accept queue. The RST to the client
                // may then be lost.
                if entry.ends[0].stage == Stage::Open && entry.ends[1].stage == Stage::NotYet {
                    entry.ends[1].broken_at.get_or_insert(now);
                }
            }
        }
    }

    /// Records the death of a service, whose unsent data is lost. `concerns` selects the ends that
    /// the service carried.
    pub fn service_died(&mut self, now: Instant, concerns: impl Fn(&ConnectionPlan, Role) -> bool) {
        for entry in &mut self.entries {
            for role in [Role::Client, Role::Server] {
                if !concerns(&entry.plan, role) {
                    continue;
                }
                entry.excuse.get_or_insert("a service died");
                let begun = entry.ends[0].stage != Stage::NotYet;
                if role == Role::Server && begun {
                    let end = &mut entry.ends[1];
                    // If the server has not yet accepted the connection, the next service may still
                    // accept it.
                    if end.stage == Stage::Open {
                        end.stage = Stage::Ended;
                    }
                    end.broken_at.get_or_insert(now);
                }
                if role == Role::Client && entry.ends[0].stage == Stage::Ended {
                    entry.ends[0].broken_at.get_or_insert(now);
                }
            }
        }
    }

    /// Records the death of a program that has its own stack. The stack's unsent data is lost.
    /// `concerns` selects the ends that the program served. The records of connections that are not
    /// yet opened do not change.
    pub fn stack_died(&mut self, now: Instant, concerns: impl Fn(&ConnectionPlan, Role) -> bool) {
        let begun = |entry: &Entry| entry.ends[0].stage != Stage::NotYet;
        let begun: Vec<bool> = self.entries.iter().map(begun).collect();
        let is_begun = |plan: &ConnectionPlan| begun.get(plan.id as usize) == Some(&true);
        self.service_died(now, |plan, role| is_begun(plan) && concerns(plan, role));
    }

    /// Records the death of the program at the server's end of connection `id`.
    pub fn server_died(&mut self, now: Instant, id: u32) {
        let end = &mut self.entries[id as usize].ends[1];
        end.stage = Stage::Ended;
        end.broken_at.get_or_insert(now);
    }

    /// Returns true if connection `id` may be reset.
    pub fn may_be_reset(&self, id: u32) -> bool {
        let entry = self.entry(id);
        entry.excuse.is_some() || entry.ends.iter().any(|end| end.broken_at.is_some())
    }

    /// Returns the time since which the peer of the end in `role` has been gone, so that the end
    /// waits in vain. Returns `None` if the peer is open, or if no RST of the peer is expected.
    pub fn peer_gone_since(&self, id: u32, role: Role) -> Option<Instant> {
        let peer = self.end(id, role.peer());
        peer.broken_at.filter(|_| peer.stage != Stage::Open)
    }

    /// Checks a connection that has ended before both ends finished. `cause` is the close cause
    /// that the end in `role` has seen. Returns an error if nothing permits this cause. If an
    /// exception of the run (`timeouts`, `refusals` or `clock_jumps`) permits the cause, excuses
    /// the connection.
    pub fn check_cause(
        &mut self,
        now: Instant,
        id: u32,
        role: Role,
        cause: u32,
    ) -> Result<(), Violation> {
        if self.may_be_reset(id) {
            return Ok(());
        }
        let excuse = match cause {
            close_cause::TIMED_OUT if self.timeouts || self.refusals => Some("timed out"),
            close_cause::HOST_UNREACHABLE | close_cause::NO_PORT if self.clock_jumps => {
                Some("the clock jumped")
            }
            close_cause::ABORTED | close_cause::NO_PORT if self.refusals => Some("refused"),
            close_cause::RESET | close_cause::REFUSED if self.refusals => Some("refused"),
            _ => None,
        };
        if let Some(excuse) = excuse {
            self.excuse(id, excuse);
            return Ok(());
        }
        let entry = self.entry(id);
        let text = format!(
            "{role:?} of connection {id} ended with cause {cause}; {:?}",
            entry.ends
        );
        Err(violation(now, "nothing ends without a reason", text))
    }

    /// Checks an end of file at the end in `role`: the peer must have finished, and the end must
    /// have read all bytes of the peer. A connection of a hostile client is not checked.
    pub fn check_end_of_file(&self, now: Instant, id: u32, role: Role) -> Result<(), Violation> {
        let (own, peer) = (self.end(id, role), self.end(id, role.peer()));
        let entry = self.entry(id);
        // A client that sends no bytes does not identify its connection, so the server's record
        // stays empty.
        let nameless = entry.plan.total(Role::Client) == 0 && peer.stage == Stage::NotYet;
        if entry.client_is_hostile || ((peer.finished || nameless) && own.read == peer.written) {
            return Ok(());
        }
        let text = format!(
            "{role:?} of connection {id} saw the end after {} bytes; peer: {peer:?}",
            own.read
        );
        Err(violation(now, "the end comes after the last byte", text))
    }

    /// Returns the connections that were planned to start by `now`, are not over, and have made no
    /// progress for longer than `limit`.
    pub fn stuck(&self, now: Instant, limit: Duration) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| {
            !entry.is_over() && entry.plan.start <= now && now - entry.last_progress > limit
        })
    }

    /// Counts `now` as the last progress of every connection, so that an outage of the links before
    /// `now` does not make a connection [`stuck`](Self::stuck).
    pub fn restart_clocks(&mut self, now: Instant) {
        for entry in &mut self.entries {
            entry.last_progress = entry.last_progress.max(now);
        }
    }

    /// Returns true if all connections are over.
    pub fn all_over(&self) -> bool {
        self.entries.iter().all(Entry::is_over)
    }
}

impl Entry {
    /// Returns true if the client has ended, and the server is not open: the server has ended, or
    /// has never identified the connection.
    pub fn is_over(&self) -> bool {
        let [client, server] = &self.ends;
        client.stage == Stage::Ended && server.stage != Stage::Open
    }

    /// Returns true if both ends have read all planned bytes.
    pub fn is_complete(&self) -> bool {
        let up = self.plan.total(Role::Client);
        let down = self.plan.total(Role::Server);
        self.ends[0].read == down && self.ends[1].read == up
    }

    /// Returns true if both ends must have read all planned bytes at the end of the run: no plan
    /// has an early close or an abort, the connection has no excuse, and no end has a time
    /// `broken_at`.
    pub fn must_be_complete(&self) -> bool {
        let orderly =
            |end: &crate::plan::EndPlan| matches!(end.ending, Ending::HalfClose | Ending::Close);
        self.excuse.is_none()
            && self.plan.ends.iter().all(orderly)
            && self.ends.iter().all(|end| end.broken_at.is_none())
    }
}

/// Creates a violation of `rule`.
pub fn violation(at: Instant, rule: &'static str, text: impl Into<String>) -> Violation {
    Violation {
        at,
        rule,
        text: text.into(),
    }
}
