//! The model of Linux's sender: its state, and the events that change it.

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

/// Initial congestion window in segments (RFC 6928).
const INITIAL_WINDOW: u64 = 10;

/// Parameters of a sender.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Timer ticks per second (CONFIG_HZ). The kernels of Debian use 250, and many other kernels
    /// use 1000.
    pub hz: u64,
    /// Payload of a segment in bytes.
    pub mss: u64,
    /// The peer's window in segments.
    pub window: u64,
}

/// Counters of a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Segments sent, including retransmissions.
    pub out_segs: u64,
    /// Segments retransmitted.
    pub retrans_segs: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Timeouts that F-RTO found spurious.
    pub spurious_timeouts: u64,
    /// Number of fast recoveries.
    pub fast_retrans: u64,
    /// Number of tail loss probes sent.
    pub loss_probes: u64,
    /// Number of window reductions that were undone.
    pub undone: u64,
    /// Number of segments that DSACKs reported.
    pub dsack_recv: u64,
}

/// Linux's congestion states, in Linux's order. The sender retransmits lost segments in Recovery
/// and Loss.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum CaState {
    /// No segment is SACKed, lost or retransmitted.
    Open,
    /// Segments are SACKed or retransmitted, but no recovery runs.
    Disorder,
    /// Congestion window reduced. The model is in this state only while it handles the ACK of a
    /// tail loss probe that has repaired a loss.
    Cwr,
    /// Fast recovery.
    Recovery,
    /// Recovery after a retransmission timeout.
    Loss,
}

/// Purpose of the sender's only timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Timer {
    /// Retransmission timeout (RFC 6298).
    Rto,
    /// Tail loss probe (RFC 8985 §7).
    LossProbe,
    /// RACK's wait for reordered segments (RFC 8985 §6.2 step 5).
    Reordering,
}

/// State of proportional rate reduction in segments (RFC 6937 §3).
#[derive(Clone, Copy, Debug, Default)]
struct Prr {
    /// Window before the reduction.
    prior_cwnd: u64,
    /// Segments delivered since the start of the reduction (prr_delivered).
    delivered: u64,
    /// Segments sent since the start of the reduction (prr_out).
    out: u64,
}

/// State for the undo of a window reduction.
#[derive(Clone, Copy, Debug, Default)]
struct Undo {
    /// SND.UNA at the reduction. `None` if there is no reduction to undo.
    marker: Option<u64>,
    /// Number of retransmissions that no DSACK has reported (`undo_retrans`). `None` before the
    /// first retransmission.
    undo_retrans: Option<u64>,
    /// Window before the reduction, and ssthresh that an undo restores. `None` if an undo leaves
    /// both unchanged.
    prior: Option<(u64, u64)>,
    /// Timestamp, in milliseconds, of the first retransmission (`retrans_stamp`). `None` if there
    /// was no retransmission.
    retrans_stamp: Option<u64>,
}

/// The sending end of a connection. The program always has data to send. Windows and sequence
/// numbers are in segments. Times are in microseconds unless a field says otherwise.
#[derive(Debug)]
pub struct Sender {
    settings: Settings,
    ticks: Ticks,
    /// Time of the event that the sender handles.
    now: u64,
    scoreboard: Scoreboard,
    cubic: Cubic,
    rtt: Rtt,
    rack: Rack,
    ca_state: CaState,
    /// SND.NXT at the start of Disorder, Recovery or Loss. Recovery and Loss end when SND.UNA
    /// reaches this number. Before F-RTO sends new segments, the number becomes SND.NXT again.
    high_seq: u64,
    prr: Prr,
    undo: Undo,
    /// True while F-RTO (RFC 5682) checks whether the last timeout was spurious.
    frto: bool,
    /// For an outstanding tail loss probe: SND.NXT after the probe, and true if the probe was a
    /// retransmission.
    probe: Option<(u64, bool)>,
    /// Retransmission timeout, including its backoff.
    rto: u64,
    /// Number of consecutive retransmission timeouts.
    timeouts: u32,
    /// Purpose of the timer that runs, and the time at which it is due.
    timer: Option<(Timer, u64)>,
    /// True if the current ACK has set the reordering timer.
    reordering_armed: bool,
    /// Number of segments known to have arrived, including the duplicates that DSACKs reported.
    delivered: u64,
    /// TSecr of the current ACK, in milliseconds.
    tsecr: u64,
    /// True if the congestion window limited the most recent call of `write`, which sends new
    /// segments. A deferred super-frame counts as limited, too.
    cwnd_limited: bool,
    /// Time of the last transmission.
    last_sent: u64,
    /// Sent segments that the caller has not taken yet.
    queue: Vec<Data>,
    counters: Counters,
}

impl Sender {
    /// Creates a sender and sends the initial window. `rtt` is the round-trip time of the
    /// handshake in microseconds.
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

    /// Handles an arriving ACK. Ignores an ACK above SND.NXT.
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

    /// Takes the segments that are ready to be sent, in order.
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
