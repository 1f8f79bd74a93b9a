//! Read and write positions of applications, and the limits that follow from them: receive window
//! and send buffer.

use tidelane_flow::{EngineConfig, FlowId, FlowState, Misuse, State, flags};
use tidelane_slowpath::{Connection, Reads, window_max};

use super::Engine;

/// Positions of an application in the two streams of a flow (a connection), and the capacity of the
/// send buffer. A position is the number of bytes since the start of the stream, modulo 2^32.
#[derive(Clone, Copy, Debug)]
pub struct Advance {
    /// Stream position up to which the application has read.
    pub rx_read: u32,
    /// Stream position up to which the application has written.
    pub tx_head: u32,
    /// Capacity of the send buffer in bytes. The limit `tx_limit` of the configuration may be
    /// lower.
    pub tx_room: u32,
}

/// Least result of [`Engine::autotuned_send_buffer`] in bytes, if `tx_limit` is not lower. Some
/// applications write a whole response before the peer reads the first byte of the response, and
/// would block forever if the buffer were smaller.
const SEND_BUFFER_MIN: u32 = 256 << 10;
/// Number of bytes by which the largest result of [`Engine::autotuned_send_buffer`] grows per
/// microsecond of the minimum RTT: 10 Gbit/s.
const SEND_BUFFER_PER_US: u32 = 1250;
/// Number of bytes that the application reads between two checks for receive-buffer autotuning. The
/// value must be a power of two.
const AUTOTUNE_STEP: u32 = 1024;

impl Engine {
    /// Applies the read position of an application ([`Engine::rx_advance`]) and then the write
    /// position ([`Engine::tx_advance`]). The capacity `to.tx_room` of the send buffer is a further
    /// limit of the write position.
    #[inline(always)]
    pub fn advance(&mut self, id: FlowId, to: &Advance) -> Result<(), Misuse> {
        let flow = self.table.get_mut(id).ok_or(Misuse::NoFlow)?;
        if to.rx_read != flow.rx_read && note_read(flow, &self.config, to.rx_read) != Read::NoChange
        {
            self.slow_read(id, to.rx_read)?;
        }
        let limit = self.config.tx_limit.min(to.tx_room);
        self.note_written(id, to.tx_head, limit)
    }

    /// Returns the number of bytes that an application should be able to write ahead of SND.UNA:
    /// twice the congestion window, as in Linux, but at least `SEND_BUFFER_MIN`. The result is at
    /// most `SEND_BUFFER_MIN` plus the bandwidth-delay product at 10 Gbit/s, because more data
    /// would leave the CPU cache before its transmission. The result never exceeds `tx_limit`. The
    /// result may shrink between two calls. The engine does not enforce the result.
    #[inline]
    pub fn autotuned_send_buffer(&self, id: FlowId, flow: &FlowState) -> u32 {
        if flow.cwnd <= SEND_BUFFER_MIN / 2 {
            SEND_BUFFER_MIN.min(self.config.tx_limit)
        } else {
            self.send_buffer_for_path(id, flow.cwnd.saturating_mul(2))
        }
    }

    /// Returns the smallest of three numbers of bytes: `wanted`, `tx_limit`, and the sum of
    /// `SEND_BUFFER_MIN` and the bandwidth-delay product at 10 Gbit/s.
    #[inline(never)]
    fn send_buffer_for_path(&self, id: FlowId, wanted: u32) -> u32 {
        let most = self.config.tx_limit;
        let cold = self.connections.get(id.index()).and_then(Option::as_ref);
        let rtt_us = cold.map_or(u32::MAX, |cold| cold.rtt_min.us());
        let path = rtt_us.saturating_mul(SEND_BUFFER_PER_US);
        wanted.min(path.saturating_add(SEND_BUFFER_MIN)).min(most)
    }

    /// Applies the position up to which the application has written.
    #[inline]
    pub fn tx_advance(&mut self, id: FlowId, tx_head: u32) -> Result<(), Misuse> {
        self.note_written(id, tx_head, self.config.tx_limit)
    }

    /// Records that the application has written the bytes before `tx_head`, if the position is
    /// valid. `limit` is the largest number of bytes from SND.UNA to `tx_head`.
    #[inline(always)]
    fn note_written(&mut self, id: FlowId, tx_head: u32, limit: u32) -> Result<(), Misuse> {
        let flow = self.table.get_mut(id).ok_or(Misuse::NoFlow)?;
        let end = flow.iss.add(1).add(tx_head);
        // Until the SYN is acknowledged, SND.UNA is ISS, and `unacked` counts the SYN as a byte.
        // `may_advance` does not count the SYN.
        let unacked = end.distance_from(flow.snd_una);
        // `tx_end` is not before SND.UNA, so an advance of the position is at most `unacked` bytes.
        let valid = end.after(flow.tx_end)
            && unacked <= limit
            && flow.state != State::Closed
            && flow.flags & flags::FIN_QUEUED == 0;
        if !valid {
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
            self.push_pending(id);
        }
        Ok(())
    }

    /// Applies the position `rx_read` up to which the application has read.
    #[inline]
    pub fn rx_advance(&mut self, id: FlowId, rx_read: u32) -> Result<(), Misuse> {
        let flow = self.table.get_mut(id).ok_or(Misuse::NoFlow)?;
        match note_read(flow, &self.config, rx_read) {
            Read::NoChange => Ok(()),
            _ => self.slow_read(id, rx_read),
        }
    }

    /// Handles a read that may change the receive window, or an invalid read position.
    #[inline(never)]
    fn slow_read(&mut self, id: FlowId, rx_read: u32) -> Result<(), Misuse> {
        // `note_read` has stored `rx_read` in the flow only if the position is valid.
        if self
            .table
            .get(id)
            .is_some_and(|flow| flow.rx_read != rx_read)
        {
            self.counters.misuses += 1;
            return Err(Misuse::RxRead);
        }
        self.update_receive_window(id);
        Ok(())
    }

    /// Counts the read bytes in 64 bits, autotunes the receive window, and schedules an ACK with
    /// the new window (a window update) if one is due.
    fn update_receive_window(&mut self, id: FlowId) {
        let Some(flow) = self.table.get_mut(id) else {
            return;
        };
        if let Some(Some(cold)) = self.connections.get_mut(id.index()) {
            cold.reads.update(flow.rx_read);
            autotune_window(flow, cold, &self.config);
        }
        let opens = flow.update_window_edge_moves();
        if flow.window_update_due(opens) && flow.state.receives() {
            flow.flags |= flags::ACK_OWED | flags::ACK_NOW;
            self.set_pending(id);
        }
    }
}

/// Doubles `rcv_wnd_limit`, the largest receive window that the flow may offer, if the application
/// has read this number of bytes since the previous doubling (receive-buffer autotuning). A window
/// that the application set stays as it is.
fn autotune_window(flow: &mut FlowState, cold: &mut Connection, config: &EngineConfig) {
    let window = &cold.options.window;
    if flow.rcv_wnd_limit < config.rx_window_max
        && window.is_tuned()
        && flow.rx_read.wrapping_sub(cold.reads.autotune_from) >= flow.rcv_wnd_limit
    {
        cold.reads.autotune_from = flow.rx_read;
        let most = window_max(config, flow);
        flow.rcv_wnd_limit = window.size(flow.rcv_wnd_limit * 2, most);
        flow.update_window_edge_moves();
    }
}

/// Consequence of a new read position for the receive window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// The receive window stays as it is.
    NoChange,
    /// The receive window may grow, a window update is due, or [`Reads`] has to be updated.
    WindowMayChange,
    /// The position is invalid, and was not applied.
    Misuse,
}

/// Sets the position up to which the application has read, if the position is valid.
#[inline(always)]
fn note_read(flow: &mut FlowState, config: &EngineConfig, rx_read: u32) -> Read {
    let before = flow.rx_read;
    if rx_read.wrapping_sub(before) > flow.rx_head().wrapping_sub(before) {
        return Read::Misuse;
    }
    flow.rx_read = rx_read;
    // The XOR is at least AUTOTUNE_STEP if and only if the read crossed a multiple of
    // AUTOTUNE_STEP.
    let crossed = before ^ rx_read;
    if crossed >= AUTOTUNE_STEP
        && (flow.rcv_wnd_limit < config.rx_window_max || crossed >= Reads::STEP)
    {
        return Read::WindowMayChange;
    }
    let opens = flow.update_window_edge_moves();
    if flow.window_update_due(opens) {
        Read::WindowMayChange
    } else {
        Read::NoChange
    }
}

/// Returns an error if `tx_head` is before the present write position, or if `tx_head` is more than
/// `limit` bytes after the acknowledged bytes. Also returns an error if `tx_head` is after the
/// present position although a FIN is queued. Otherwise returns true if `tx_head` is after the
/// present position and the flow is not in CLOSED.
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
