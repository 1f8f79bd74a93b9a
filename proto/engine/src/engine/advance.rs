//! How far programs have read and written: what may be sent, and what window may be told.

use tidelane_flow::{EngineConfig, Env, FlowId, FlowState, Misuse, State, flags};
use tidelane_slowpath::window_most;
use tidelane_time::Instant;

use super::Engine;

/// How far a program has come with a flow: stream positions, and the bytes of its send buffer.
#[derive(Clone, Copy, Debug)]
pub struct Advance {
    /// Bytes read up to.
    pub rx_read: u32,
    /// Bytes written up to.
    pub tx_head: u32,
    /// Bytes that may be written and not acknowledged, below the engine's own limit.
    pub tx_room: u32,
}

/// A program may always write this much ahead, in bytes: some write a whole answer before their
/// peer reads any of it.
const ROOM_AHEAD_LEAST: u32 = 256 << 10;
/// Bytes per microsecond of the shortest round trip seen: what 10 Gbit/s carry.
const ROOM_AHEAD_PER_US: u32 = 1250;
/// Whether the receive window grows is asked once for so many bytes read: a power of two.
const TUNE_STEP: u32 = 1024;

impl Engine {
    /// The program has read and written: [`Engine::rx_advance`] and [`Engine::tx_advance`] in one,
    /// for bytes in a buffer that bounds them, too.
    #[inline(always)]
    pub fn advance(&mut self, id: FlowId, to: &Advance) -> Result<(), Misuse> {
        let flow = self.table.get_mut(id).ok_or(Misuse::NoFlow)?;
        if to.rx_read != flow.rx_read && note_read(flow, &self.config, to.rx_read) != Read::Usual {
            self.read_unusually(id, to.rx_read)?;
        }
        let limit = self.config.tx_limit.min(to.tx_room);
        self.note_written(id, to.tx_head, limit)
    }

    /// How many bytes a program should be able to write ahead of the peer's acknowledgments: twice
    /// what may be in flight, as Linux tunes its send buffers, but not more than a fast path of
    /// this length carries; what lies around longer leaves the cache. A flow's limit stays
    /// `tx_limit`; this one may fall.
    #[inline]
    pub fn room_ahead(&self, id: FlowId, flow: &FlowState) -> u32 {
        if flow.cwnd <= ROOM_AHEAD_LEAST / 2 {
            ROOM_AHEAD_LEAST.min(self.config.tx_limit)
        } else {
            self.room_of_path(id, flow.cwnd.saturating_mul(2))
        }
    }

    #[inline(never)]
    fn room_of_path(&self, id: FlowId, wanted: u32) -> u32 {
        let most = self.config.tx_limit;
        let cold = self.connections.get(id.index()).and_then(Option::as_ref);
        let rtt_us = cold.map_or(u32::MAX, |cold| cold.rtt_min.us());
        let path = rtt_us.saturating_mul(ROOM_AHEAD_PER_US);
        wanted.min(path.saturating_add(ROOM_AHEAD_LEAST)).min(most)
    }

    /// The program has written bytes up to stream position `tx_head`.
    #[inline]
    pub fn tx_advance(
        &mut self,
        now: Instant,
        id: FlowId,
        tx_head: u32,
        env: &mut impl Env,
    ) -> Result<(), Misuse> {
        let _ = (now, env);
        self.note_written(id, tx_head, self.config.tx_limit)
    }

    #[inline(always)]
    fn note_written(&mut self, id: FlowId, tx_head: u32, limit: u32) -> Result<(), Misuse> {
        let flow = self.table.get_mut(id).ok_or(Misuse::NoFlow)?;
        let end = flow.iss.add(1).add(tx_head);
        // Before SYN is acknowledged, SND.UNA is no part of the stream; `may_advance` knows.
        let unacked = end.distance_from(flow.snd_una);
        // Forwards, and so by no more than is unacknowledged then.
        let usual = end.after(flow.tx_end)
            && unacked <= limit
            && flow.state != State::Closed
            && flow.flags & flags::FIN_QUEUED == 0;
        if !usual {
            match may_advance(flow, tx_head, limit) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(misuse) => {
                    self.counters.misuses += 1;
                    return Err(misuse);
                }
            }
        }
        flow.tx_end = end;
        let pending = flow.has(flags::PENDING);
        flow.set(flags::SEND_WANTED | flags::PENDING);
        if !pending {
            self.pend(id);
        }
        Ok(())
    }

    /// The program has read bytes up to stream position `rx_read`.
    #[inline]
    pub fn rx_advance(
        &mut self,
        now: Instant,
        id: FlowId,
        rx_read: u32,
        env: &mut impl Env,
    ) -> Result<(), Misuse> {
        let _ = (now, env);
        let flow = self.table.get_mut(id).ok_or(Misuse::NoFlow)?;
        match note_read(flow, &self.config, rx_read) {
            Read::Usual => Ok(()),
            _ => self.read_unusually(id, rx_read),
        }
    }

    /// The program has read so much that its window is to be looked at, or cannot have.
    #[inline(never)]
    fn read_unusually(&mut self, id: FlowId, rx_read: u32) -> Result<(), Misuse> {
        if self
            .table
            .get(id)
            .is_some_and(|flow| flow.rx_read != rx_read)
        {
            self.counters.misuses += 1;
            return Err(Misuse::RxRead);
        }
        self.look_at_window(id);
        Ok(())
    }

    /// So much was read that the window may grow, or that the peer should know.
    fn look_at_window(&mut self, id: FlowId) {
        let may_grow = |flow: &FlowState| flow.rcv_wnd_limit < self.config.rx_window_max;
        if self.table.get(id).is_some_and(may_grow) {
            self.tune_window(id);
        }
        let Some(flow) = self.table.get_mut(id) else {
            return;
        };
        let opens = flow.note_edge();
        if flow.window_update_due(opens) && flow.state.receives() {
            flow.flags |= flags::ACK_OWED | flags::ACK_NOW;
            self.mark(id);
        }
    }

    /// A window's worth was read since the quota last grew: it grows (receive auto-tuning).
    fn tune_window(&mut self, id: FlowId) {
        let (Some(flow), Some(Some(cold))) =
            (self.table.get_mut(id), self.connections.get_mut(id.index()))
        else {
            return;
        };
        let window = &cold.options.window;
        if window.is_tuned() && flow.rx_read.wrapping_sub(cold.tune_from) >= flow.rcv_wnd_limit {
            cold.tune_from = flow.rx_read;
            let most = window_most(&self.config, flow);
            flow.rcv_wnd_limit = window.quota(flow.rcv_wnd_limit * 2, most);
            flow.note_edge();
        }
    }
}

/// What comes of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// Nothing more.
    Usual,
    /// The window may grow, or the peer should know of it.
    Window,
    /// It cannot be, and nothing was noted.
    Misuse,
}

/// Notes how far the program has read.
#[inline(always)]
fn note_read(flow: &mut FlowState, config: &EngineConfig, rx_read: u32) -> Read {
    let before = flow.rx_read;
    if rx_read.wrapping_sub(before) > flow.rx_head().wrapping_sub(before) {
        return Read::Misuse;
    }
    flow.rx_read = rx_read;
    // The bits that differ say whether a multiple of the step lies between.
    let tunes = before ^ rx_read >= TUNE_STEP && flow.rcv_wnd_limit < config.rx_window_max;
    if tunes {
        return Read::Window;
    }
    let opens = flow.note_edge();
    if flow.window_update_due(opens) {
        Read::Window
    } else {
        Read::Usual
    }
}

/// Whether a program may have written up to `tx_head`; false if there is nothing new, or nobody to
/// send it to.
#[inline(never)]
fn may_advance(flow: &FlowState, tx_head: u32, limit: u32) -> Result<bool, Misuse> {
    let more = tx_head.wrapping_sub(flow.tx_head());
    if more > limit || tx_head.wrapping_sub(flow.tx_acked()) > limit {
        return Err(Misuse::TxHead);
    }
    if more == 0 {
        return Ok(false);
    }
    if flow.has(flags::FIN_QUEUED) {
        return Err(Misuse::TxAfterShutdown);
    }
    Ok(flow.state != State::Closed)
}
