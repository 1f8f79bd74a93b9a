//! The sender: its state, and what happens to it.

mod ack;
mod output;
mod recover;
mod timers;
mod undo;

use crate::{
    board::Board,
    cubic::Cubic,
    packet::{Ack, Data},
    rack::Rack,
    rtt::Rtt,
    ticks::Ticks,
};

/// Segments of the first window (RFC 6928).
const INITIAL_WINDOW: u64 = 10;

/// What does not change.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Ticks of the timers per second: 250 on Debian, 1000 elsewhere.
    pub hz: u64,
    /// Payload bytes of a segment.
    pub mss: u64,
    /// The peer's window in segments.
    pub window: u64,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Segments sent.
    pub out_segs: u64,
    /// Segments sent again.
    pub retrans_segs: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Timeouts that F-RTO took back.
    pub spurious_timeouts: u64,
    /// Fast recoveries.
    pub fast_retrans: u64,
    /// Tail loss probes.
    pub loss_probes: u64,
    /// Reductions taken back.
    pub undone: u64,
    /// Duplicates that were reported.
    pub dsack_recv: u64,
}

/// Phases, in Linux' order: what comes later repairs losses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Open,
    Disorder,
    Cwr,
    Recovery,
    Loss,
}

/// What the one timer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timer {
    Timeout,
    Probe,
    Reordering,
}

/// RFC 6937 §3, in segments.
#[derive(Clone, Copy, Debug, Default)]
struct Reduction {
    prior_cwnd: u64,
    delivered: u64,
    out: u64,
}

/// What a reduction changed, to be taken back.
#[derive(Clone, Copy, Debug, Default)]
struct Undo {
    /// SND.UNA when it began; `None`: there is nothing to take back.
    marker: Option<u64>,
    /// Sent again and not reported as duplicates; `None`: nothing was sent again yet.
    repairs: Option<u64>,
    /// Window and threshold before; without them, only the marks are.
    prior: Option<(u64, u64)>,
    /// The clock, in milliseconds, when the first repair was sent.
    first: Option<u64>,
}

/// One end that sends without end.
#[derive(Debug)]
pub struct Sender {
    settings: Settings,
    ticks: Ticks,
    now: u64,
    board: Board,
    cubic: Cubic,
    rtt: Rtt,
    rack: Rack,
    phase: Phase,
    /// Repair ends when all before this is acknowledged.
    high_seq: u64,
    reduction: Reduction,
    undo: Undo,
    frto: bool,
    /// Behind an outstanding probe, and whether that sent something again.
    probe: Option<(u64, bool)>,
    /// The next timeout, backoff included.
    rto: u64,
    timeouts: u32,
    timer: Option<(Timer, u64)>,
    /// The acknowledgment at hand has set it for reordering.
    reordering_armed: bool,
    /// Segments that are known to have arrived.
    delivered: u64,
    /// What the acknowledgment at hand echoes.
    tsecr: u64,
    cwnd_limited: bool,
    /// When something was last sent.
    written: u64,
    queue: Vec<Data>,
    counters: Counters,
}

impl Sender {
    /// A connection that the handshake has just opened, with its sample of the round trip.
    pub fn new(settings: Settings, now: u64, rtt: u64) -> Self {
        let ticks = Ticks::new(settings.hz);
        let mut sender = Self {
            settings,
            ticks,
            now,
            board: Board::default(),
            cubic: Cubic::new(INITIAL_WINDOW, ticks),
            rtt: Rtt::new(),
            rack: Rack::new(),
            phase: Phase::Open,
            high_seq: 0,
            reduction: Reduction::default(),
            undo: Undo::default(),
            frto: false,
            probe: None,
            rto: 0,
            timeouts: 0,
            timer: None,
            reordering_armed: false,
            delivered: 0,
            tsecr: 0,
            cwnd_limited: false,
            written: now,
            queue: Vec::new(),
            counters: Counters::default(),
        };
        sender.take_round_trip(rtt);
        sender.rtt.note_min(rtt);
        sender.write();
        sender
    }

    /// An acknowledgment arrives.
    pub fn on_ack(&mut self, now: u64, ack: &Ack) {
        self.now = now;
        if ack.ack <= self.board.nxt() {
            self.process(ack);
            self.write();
        }
    }

    /// Does what is due.
    pub fn on_time(&mut self, now: u64) {
        self.now = now;
        let due = self.timer.filter(|(_, at)| *at <= now);
        if let Some((timer, _)) = due {
            self.timer = None;
            match timer {
                Timer::Timeout => self.on_timeout(),
                Timer::Probe => self.send_probe(),
                Timer::Reordering => self.on_reordering_timer(),
            }
        }
    }

    /// When [`Sender::on_time`] is due.
    pub fn deadline(&self) -> Option<u64> {
        self.timer.map(|(_, at)| at)
    }

    /// Takes what is to be sent now, in order.
    pub fn take(&mut self) -> Vec<Data> {
        std::mem::take(&mut self.queue)
    }

    /// The congestion window in segments.
    pub const fn cwnd(&self) -> u64 {
        self.cubic.cwnd
    }

    /// What happened so far.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The smoothed round trip in microseconds.
    pub const fn srtt(&self) -> f64 {
        self.rtt.srtt
    }

    const fn is_reducing(&self) -> bool {
        matches!(self.phase, Phase::Cwr | Phase::Recovery)
    }
}

#[cfg(test)]
mod tests;
