//! The planned behaviour of one connection, which the scenario draws at random before the run.

use std::fmt;

use tidelane_netem::Rng;
use tidelane_time::{Duration, Instant};

use crate::{family::Family, pattern::HEADER_LEN};

/// An end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The end that opens the connection.
    Client,
    /// The end that accepts the connection.
    Server,
}

impl Role {
    /// Returns the other end.
    pub const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    /// Returns the index of this end in an array with an element per end.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// How an end leaves the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The end writes all data, closes its sending direction, reads to the end of file, and closes.
    HalfClose,
    /// The end writes all data, reads all expected data, and closes.
    Close,
    /// The end closes after it has read and written this many bytes in total, even with data in
    /// flight.
    CloseEarly(u64),
    /// The end aborts after it has read and written this many bytes in total.
    Abort(u64),
}

/// Planned behaviour of one end.
#[derive(Clone, Copy, Debug)]
pub struct EndPlan {
    /// How the end leaves the connection.
    pub ending: Ending,
    /// Largest number of bytes of one write.
    pub write_chunk: u32,
    /// Largest number of bytes of one read.
    pub read_chunk: u32,
    /// Number of bytes that the end reads before its first pause, and between two pauses.
    pub pause_after: u64,
    /// Duration of a pause, in which the end does not read.
    pub pause: Duration,
    /// Number of pauses, if the end reads enough bytes for all of them.
    pub pauses: u32,
    /// True if the end sets TCP_NODELAY.
    pub nodelay: bool,
}

/// A request and its reply.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Number of bytes from the client.
    pub up: u32,
    /// Number of bytes from the server.
    pub down: u32,
}

/// Planned behaviour of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionPlan {
    /// Number of the connection in the run.
    pub id: u32,
    /// Index of the program that opens the connection.
    pub client: usize,
    /// Index of the listener that accepts the connection.
    pub listener: usize,
    /// IP version.
    pub family: Family,
    /// Time of the active open.
    pub start: Instant,
    /// Requests and replies. The first request begins with the header that names the connection.
    pub rounds: Vec<Round>,
    /// True if the client waits for each reply.
    pub client_waits: bool,
    /// True if the server waits for each request.
    pub server_waits: bool,
    /// Behaviour of the client and the server.
    pub ends: [EndPlan; 2],
}

impl ConnectionPlan {
    /// Returns the number of bytes that `role` sends if no end closes early.
    pub fn total(&self, role: Role) -> u64 {
        self.rounds.iter().map(|round| round.sent_by(role)).sum()
    }

    /// Returns the total number of bytes that `role` may have sent after it has read `read` bytes.
    pub fn allowed(&self, role: Role, read: u64) -> u64 {
        let waits = match role {
            Role::Client => self.client_waits,
            Role::Server => self.server_waits,
        };
        if !waits {
            return self.total(role);
        }
        let (mut allowed, mut needed) = (0, 0);
        for round in &self.rounds {
            if role == Role::Server {
                needed += round.sent_by(Role::Client);
            }
            if read < needed {
                break;
            }
            allowed += round.sent_by(role);
            if role == Role::Client {
                needed += round.sent_by(Role::Server);
            }
        }
        allowed
    }

    /// Returns the behaviour of an end.
    pub fn end(&self, role: Role) -> &EndPlan {
        &self.ends[role.index()]
    }
}

impl Round {
    fn sent_by(&self, role: Role) -> u64 {
        match role {
            Role::Client => u64::from(self.up),
            Role::Server => u64::from(self.down),
        }
    }
}

/// Kinds of traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Traffic {
    /// One small exchange.
    Short,
    /// Many small requests and replies.
    Echo,
    /// A transfer of less than 1 MiB in one or both directions.
    Bulk,
    /// A connection without payload.
    Empty,
}

/// Exclusive limit of the bytes of a bulk connection per direction, without the header.
const BULK_MAX: u64 = 1 << 20;

impl ConnectionPlan {
    /// Draws a connection of kind `traffic`, over IPv4 and with an active open at time zero. The
    /// caller may change the IP version and the time.
    pub fn new(rng: &mut Rng, traffic: Traffic, id: u32, client: usize, listener: usize) -> Self {
        let rounds = rounds_of(rng, traffic);
        let mut plan = Self {
            id,
            client,
            listener,
            family: Family::V4,
            start: Instant::ZERO,
            client_waits: traffic != Traffic::Bulk && rng.chance_ppm(700_000),
            server_waits: traffic != Traffic::Bulk || rng.chance_ppm(500_000),
            rounds,
            ends: [steady_end(), steady_end()],
        };
        let moved = plan.total(Role::Client) + plan.total(Role::Server);
        plan.ends = [new_end(rng, moved), new_end(rng, moved)];
        plan
    }
}

fn rounds_of(rng: &mut Rng, traffic: Traffic) -> Vec<Round> {
    let header = HEADER_LEN as u32;
    match traffic {
        Traffic::Empty => Vec::new(),
        Traffic::Short => vec![Round {
            up: header + rng.below(2000) as u32,
            down: rng.below(4000) as u32,
        }],
        Traffic::Echo => {
            let bits = rng.below(14);
            let size = |rng: &mut Rng| 1 + rng.below(1 << bits) as u32;
            (0..rng.between(1, 40))
                .map(|_| Round {
                    up: header + size(rng),
                    down: size(rng),
                })
                .collect()
        }
        Traffic::Bulk => {
            let size = |rng: &mut Rng| {
                let bits = rng.between(10, 20);
                rng.below((1 << bits).min(BULK_MAX)) as u32
            };
            let (up, down) = (size(rng), size(rng));
            let ways = rng.below(3);
            vec![Round {
                up: if ways == 1 { header } else { header + up },
                down: if ways == 0 { 0 } else { down },
            }]
        }
    }
}

/// Returns the plan of an end that reads and writes without pauses and then closes.
pub(crate) fn steady_end() -> EndPlan {
    EndPlan {
        ending: Ending::HalfClose,
        write_chunk: u32::MAX,
        read_chunk: u32::MAX,
        pause_after: u64::MAX,
        pause: Duration::ZERO,
        pauses: 0,
        nodelay: false,
    }
}

/// Draws the plan of an end. `moved` is the number of bytes that both ends together send.
fn new_end(rng: &mut Rng, moved: u64) -> EndPlan {
    let chunk = |rng: &mut Rng| {
        let bits = rng.between(4, 17);
        HEADER_LEN as u32 + rng.below(1 << bits) as u32
    };
    let early = HEADER_LEN + rng.below(moved.max(1));
    let ending = match rng.below(20) {
        0..9 => Ending::HalfClose,
        9..17 => Ending::Close,
        17 => Ending::CloseEarly(early),
        18 => Ending::Abort(early),
        _ => Ending::Abort(0),
    };
    let pause_max = 1 << rng.between(8, 23);
    let pauses = if rng.chance_ppm(250_000) {
        rng.between(1, 4) as u32
    } else {
        0
    };
    EndPlan {
        ending,
        write_chunk: chunk(rng),
        read_chunk: chunk(rng),
        pause_after: 1 + rng.below(moved.max(1)),
        pause: Duration::from_micros(1 + rng.below(pause_max)),
        pauses,
        nodelay: rng.chance_ppm(500_000),
    }
}

impl fmt::Display for ConnectionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "connection {}: {:?}, program {} -> listener {} at {:.6} s, {} rounds, {} up, \
             {} down{}{}",
            self.id,
            self.family,
            self.client,
            self.listener,
            self.start.as_nanos() as f64 / 1e9,
            self.rounds.len(),
            self.total(Role::Client),
            self.total(Role::Server),
            if self.client_waits {
                ", client waits"
            } else {
                ""
            },
            if self.server_waits {
                ", server waits"
            } else {
                ""
            },
        )?;
        for (name, end) in ["client", "server"].iter().zip(&self.ends) {
            write!(f, "; {name} {:?}", end.ending)?;
            if end.pauses > 0 {
                write!(
                    f,
                    ", {} pauses of {} us, each after {} bytes",
                    end.pauses,
                    end.pause.as_micros(),
                    end.pause_after
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rounds: &[(u32, u32)], client_waits: bool, server_waits: bool) -> ConnectionPlan {
        let mut rng = Rng::new(1);
        let mut plan = ConnectionPlan::new(&mut rng, Traffic::Empty, 0, 0, 0);
        plan.rounds = rounds
            .iter()
            .map(|&(up, down)| Round { up, down })
            .collect();
        plan.client_waits = client_waits;
        plan.server_waits = server_waits;
        plan
    }

    #[test]
    fn a_client_that_waits_sends_one_request_per_reply() {
        let plan = plan(&[(20, 5), (30, 6)], true, true);
        assert_eq!(plan.allowed(Role::Client, 0), 20);
        assert_eq!(plan.allowed(Role::Client, 4), 20);
        assert_eq!(plan.allowed(Role::Client, 5), 50);
        assert_eq!(plan.allowed(Role::Server, 19), 0);
        assert_eq!(plan.allowed(Role::Server, 20), 5);
        assert_eq!(plan.allowed(Role::Server, 50), 11);
    }

    #[test]
    fn an_end_that_does_not_wait_may_send_everything() {
        let plan = plan(&[(20, 5), (30, 6)], false, false);
        assert_eq!(plan.allowed(Role::Client, 0), 50);
        assert_eq!(plan.allowed(Role::Server, 0), 11);
    }
}
