//! The sender: its state, and the events that change it.

mod ack;
mod output;
mod recover;
mod timers;
mod undo;

use crate::{
    cubic::Cubic,
    packet::{Ack, Data},
    rack::Rack,
    rtt::Rtt,
    scoreboard::Scoreboard,
    ticks::Ticks,
};

/// Initial window in segments (RFC 6928).
const INITIAL_WINDOW: u64 = 10;

/// Parameters of a sender.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Timer ticks per second (CONFIG_HZ): 250 on Debian, 1000 elsewhere.
    pub hz: u64,
    /// Payload bytes of a segment.
    pub mss: u64,
    /// The peer's window in segments.
    pub window: u64,
}

/// Counters of a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Segments sent.
    pub out_segs: u64,
    /// Segments retransmitted.
    pub retrans_segs: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Timeouts that F-RTO found spurious.
    pub spurious_timeouts: u64,
    /// Fast recoveries.
    pub fast_retrans: u64,
    /// Tail loss probes.
    pub loss_probes: u64,
    /// Reductions that were undone.
    pub undone: u64,
    /// Segments reported by DSACK.
    pub dsack_recv: u64,
}

/// Linux's congestion states, in their order; the states from Recovery on retransmit lost segments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum CaState {
    Open,
    Disorder,
    Cwr,
    Recovery,
    Loss,
}

/// Purpose of the sender's only timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timer {
    Rto,
    LossProbe,
    Reordering,
}

/// State of proportional rate reduction in segments (RFC 6937 §3).
#[derive(Clone, Copy, Debug, Default)]
struct Prr {
    prior_cwnd: u64,
    delivered: u64,
    out: u64,
}

/// State for the undo of a reduction.
#[derive(Clone, Copy, Debug, Default)]
struct Undo {
    /// SND.UNA at the reduction; None if there is nothing to undo.
    marker: Option<u64>,
    /// Retransmissions without a DSACK (`undo_retrans`); None before the first retransmission.
    undo_retrans: Option<u64>,
    /// Window and ssthresh before the reduction; None to undo only the loss marks.
    prior: Option<(u64, u64)>,
    /// Timestamp of the first retransmission in milliseconds (`retrans_stamp`).
    retrans_stamp: Option<u64>,
}

/// An end that has unlimited data to send.
#[derive(Debug)]
pub struct Sender {
    settings: Settings,
    ticks: Ticks,
    now: u64,
    scoreboard: Scoreboard,
    cubic: Cubic,
    rtt: Rtt,
    rack: Rack,
    ca_state: CaState,
    /// SND.NXT at the start of the recovery, which ends when SND.UNA reaches it.
    high_seq: u64,
    prr: Prr,
    undo: Undo,
    frto: bool,
    /// SND.NXT after an outstanding tail loss probe, and true if the probe was a retransmission.
    probe: Option<(u64, bool)>,
    /// Retransmission timeout, backoff included.
    rto: u64,
    timeouts: u32,
    timer: Option<(Timer, u64)>,
    /// True if the ACK in process has set the reordering timer.
    reordering_armed: bool,
    /// Segments known to have arrived.
    delivered: u64,
    /// TSecr of the ACK in process.
    tsecr: u64,
    cwnd_limited: bool,
    /// Time of the last transmission.
    last_sent: u64,
    queue: Vec<Data>,
    counters: Counters,
}

impl Sender {
    /// Creates a sender after a handshake with the round trip `rtt`, and sends the initial window.
    pub fn new(settings: Settings, now: u64, rtt: u64) -> Self {
        let ticks = Ticks::new(settings.hz);
        let mut sender = Self {
            settings,
            ticks,
            now,
            scoreboard: Scoreboard::default(),
            cubic: Cubic::new(INITIAL_WINDOW, ticks),
            rtt: Rtt::new(),
            rack: Rack::new(),
            ca_state: CaState::Open,
            high_seq: 0,
            prr: Prr::default(),
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
            last_sent: now,
            queue: Vec::new(),
            counters: Counters::default(),
        };
        sender.update_rtt(rtt);
        sender.rtt.note_min(rtt);
        sender.write();
        sender
    }

    /// Handles an arriving ACK.
    pub fn on_ack(&mut self, now: u64, ack: &Ack) {
        self.now = now;
        if ack.ack <= self.scoreboard.snd_nxt() {
            self.process(ack);
            self.write();
        }
    }

    /// Handles the timer if it is due.
    pub fn on_timer(&mut self, now: u64) {
        self.now = now;
        let due = self.timer.filter(|(_, at)| *at <= now);
        if let Some((timer, _)) = due {
            self.timer = None;
            match timer {
                Timer::Rto => self.on_timeout(),
                Timer::LossProbe => self.send_loss_probe(),
                Timer::Reordering => self.on_reordering_timer(),
            }
        }
    }

    /// Returns the time at which [`Sender::on_timer`] is due.
    pub fn deadline(&self) -> Option<u64> {
        self.timer.map(|(_, at)| at)
    }

    /// Takes the segments that are to be sent now, in order.
    pub fn take_segments(&mut self) -> Vec<Data> {
        std::mem::take(&mut self.queue)
    }

    /// Returns the congestion window in segments.
    pub const fn cwnd(&self) -> u64 {
        self.cubic.cwnd
    }

    /// Returns the counters.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the smoothed round-trip time in microseconds.
    pub const fn srtt(&self) -> f64 {
        self.rtt.srtt
    }

    const fn is_reducing(&self) -> bool {
        matches!(self.ca_state, CaState::Cwr | CaState::Recovery)
    }
}

#[cfg(test)]
mod tests;
