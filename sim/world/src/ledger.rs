//! What both ends of every connection did: the book against which everything is checked.

use std::fmt;

use tidelane_abi::close_cause;
use tidelane_time::{Duration, Instant};

use crate::plan::{ConnectionPlan, Ending, Role};

/// A checker found something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Instant,
    /// The rule, in a few words.
    pub rule: &'static str,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.at.as_nanos() as f64 / 1e9;
        write!(f, "at {seconds:.6} s: {}: {}", self.rule, self.text)
    }
}

impl std::error::Error for Violation {}

/// Where an end is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stage {
    /// Not yet opened, or not yet accepted.
    #[default]
    NotYet,
    /// In use by its program.
    Open,
    /// The program is done with it.
    Ended,
}

/// What one end did.
#[derive(Clone, Debug, Default)]
pub struct EndRecord {
    /// Where it is.
    pub stage: Stage,
    /// Bytes written.
    pub written: u64,
    /// Bytes read and found right.
    pub read: u64,
    /// It has said that no more bytes come.
    pub finished: bool,
    /// It left early, aborted, or died: from then on its peer may see a reset.
    pub broken_at: Option<Instant>,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What was planned.
    pub plan: ConnectionPlan,
    /// Client, server.
    pub ends: [EndRecord; 2],
    /// It may end in ways that were not planned: why.
    pub excuse: Option<&'static str>,
    /// Its client writes random values to its own memory: its bytes may be any.
    pub tainted: bool,
    /// When something moved last.
    pub last_progress: Instant,
}

/// All connections of a run.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    entries: Vec<Entry>,
    /// Bytes read and found right.
    pub bytes: u64,
    /// Strangers may connect (a program that misbehaves).
    pub strangers: bool,
    /// Connections may time out: the wire is that bad.
    pub timeouts: bool,
    /// The service may refuse: a limit is set low.
    pub refusals: bool,
    /// A host's time passes at once: it may give up waiting for a neighbour or a port.
    pub jumps: bool,
    /// A reset always arrives.
    pub perfect_wire: bool,
}

/// How long an end waits for a peer that is gone and whose reset may have been lost.
pub const PATIENCE: Duration = Duration::from_secs(60);

impl Ledger {
    /// A book of `plans`, which are numbered from zero.
    pub fn new(plans: impl IntoIterator<Item = ConnectionPlan>) -> Self {
        let entry = |plan: ConnectionPlan| Entry {
            last_progress: plan.start,
            plan,
            ends: Default::default(),
            excuse: None,
            tainted: false,
        };
        Self {
            entries: plans.into_iter().map(entry).collect(),
            ..Self::default()
        }
    }

    /// All connections.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// A connection.
    pub fn entry(&self, id: u32) -> &Entry {
        &self.entries[id as usize]
    }

    /// Whether there is such a connection.
    pub fn contains(&self, id: u32) -> bool {
        (id as usize) < self.entries.len()
    }

    /// What `role` did.
    pub fn end(&self, id: u32, role: Role) -> &EndRecord {
        &self.entry(id).ends[role.index()]
    }

    fn touch(&mut self, now: Instant, id: u32, role: Role) -> &mut EndRecord {
        let entry = &mut self.entries[id as usize];
        entry.last_progress = now;
        &mut entry.ends[role.index()]
    }

    /// An end is in use.
    pub fn open(&mut self, now: Instant, id: u32, role: Role) -> Result<(), Violation> {
        let tainted = self.entry(id).tainted;
        let end = self.touch(now, id, role);
        if end.stage != Stage::NotYet && !tainted {
            let text = format!("connection {id}: a second {role:?}");
            return Err(violation(now, "one end is one", text));
        }
        end.stage = Stage::Open;
        Ok(())
    }

    /// An end wrote `count` bytes.
    pub fn wrote(&mut self, now: Instant, id: u32, role: Role, count: u64) {
        self.touch(now, id, role).written += count;
    }

    /// An end read `count` more bytes, which are as they should be.
    pub fn read(&mut self, now: Instant, id: u32, role: Role, count: u64) -> Result<(), Violation> {
        self.bytes += count;
        let end = self.touch(now, id, role);
        end.read += count;
        let read = end.read;
        let written = self.end(id, role.peer()).written;
        if read > written && !self.entry(id).tainted {
            let text = format!("connection {id}: {role:?} read {read} of {written} bytes");
            return Err(violation(now, "bytes come from the peer", text));
        }
        Ok(())
    }

    /// An end says that no more bytes come.
    pub fn finish(&mut self, now: Instant, id: u32, role: Role) {
        self.touch(now, id, role).finished = true;
    }

    /// An end leaves early.
    pub fn break_off(&mut self, now: Instant, id: u32, role: Role) {
        let end = self.touch(now, id, role);
        end.broken_at.get_or_insert(now);
    }

    /// An end is done.
    pub fn end_end(&mut self, now: Instant, id: u32, role: Role) {
        let end = self.touch(now, id, role);
        end.stage = Stage::Ended;
        end.finished = true;
    }

    /// A connection may end in unplanned ways from now on.
    pub fn excuse(&mut self, id: u32, why: &'static str) {
        self.entries[id as usize].excuse.get_or_insert(why);
    }

    /// The client of these connections misbehaves.
    pub fn taint(&mut self, client: usize) {
        for entry in self.entries.iter_mut().filter(|e| e.plan.client == client) {
            entry.tainted = true;
            entry.excuse = Some("its client misbehaves");
        }
    }

    /// A program died, which may have been a member of `listener`. If it does not come back, what
    /// it has not opened never will be.
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
                // It may have waited to be accepted there, and its reset may be lost.
                if entry.ends[0].stage == Stage::Open && entry.ends[1].stage == Stage::NotYet {
                    entry.ends[1].broken_at.get_or_insert(now);
                }
            }
        }
    }

    /// The service of the ends that `concerns` names died, with all that it still had to send.
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
                    // What was not accepted yet may still be, by the next service.
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

    /// The server end was in a program that died.
    pub fn server_died(&mut self, now: Instant, id: u32) {
        let end = &mut self.entries[id as usize].ends[1];
        end.stage = Stage::Ended;
        end.broken_at.get_or_insert(now);
    }

    /// Whether the connection may be reset.
    pub fn may_be_reset(&self, id: u32) -> bool {
        let entry = self.entry(id);
        entry.excuse.is_some() || entry.ends.iter().any(|end| end.broken_at.is_some())
    }

    /// Since when `role` may be waiting in vain.
    pub fn waits_in_vain_since(&self, id: u32, role: Role) -> Option<Instant> {
        let peer = self.end(id, role.peer());
        peer.broken_at.filter(|_| peer.stage != Stage::Open)
    }

    /// The connection of `role` ended with `cause`, without an end of file.
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
            close_cause::HOST_UNREACHABLE | close_cause::NO_PORT if self.jumps => {
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

    /// `role` saw the end of file.
    pub fn check_end_of_file(&self, now: Instant, id: u32, role: Role) -> Result<(), Violation> {
        let (own, peer) = (self.end(id, role), self.end(id, role.peer()));
        let entry = self.entry(id);
        // The server of a client that says nothing does not know whose end it is.
        let nameless = entry.plan.total(Role::Client) == 0 && peer.stage == Stage::NotYet;
        if entry.tainted || ((peer.finished || nameless) && own.read == peer.written) {
            return Ok(());
        }
        let text = format!(
            "{role:?} of connection {id} saw the end after {} bytes; peer: {peer:?}",
            own.read
        );
        Err(violation(now, "the end comes after the last byte", text))
    }

    /// Connections that have begun and have not ended, and moved nothing for `limit`.
    pub fn stuck(&self, now: Instant, limit: Duration) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| {
            !entry.is_over() && entry.plan.start <= now && now - entry.last_progress > limit
        })
    }

    /// Gives all connections time: the wire was cut until now.
    pub fn restart_clocks(&mut self, now: Instant) {
        for entry in &mut self.entries {
            entry.last_progress = entry.last_progress.max(now);
        }
    }

    /// Whether all are over.
    pub fn all_over(&self) -> bool {
        self.entries.iter().all(Entry::is_over)
    }
}

impl Entry {
    /// Whether both ends are done, or the server's never was and never will be.
    pub fn is_over(&self) -> bool {
        let [client, server] = &self.ends;
        client.stage == Stage::Ended && server.stage != Stage::Open
    }

    /// Whether everything planned was exchanged.
    pub fn is_complete(&self) -> bool {
        let up = self.plan.total(Role::Client);
        let down = self.plan.total(Role::Server);
        self.ends[0].read == down && self.ends[1].read == up
    }

    /// Whether everything planned had to be exchanged.
    pub fn must_be_complete(&self) -> bool {
        let orderly =
            |end: &crate::plan::EndPlan| matches!(end.ending, Ending::HalfClose | Ending::Close);
        self.excuse.is_none()
            && self.plan.ends.iter().all(orderly)
            && self.ends.iter().all(|end| end.broken_at.is_none())
    }
}

/// A violation in one line.
pub fn violation(at: Instant, rule: &'static str, text: impl Into<String>) -> Violation {
    Violation {
        at,
        rule,
        text: text.into(),
    }
}
