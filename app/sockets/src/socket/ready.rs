//! The readiness of a socket whose connection the service (the process `tidelaned`) carries. The
//! kernel does not know the state of this connection, so this module computes the events that Linux
//! would report for a kernel socket.

use tidelane_abi::service_flags;
use tidelane_client::Stream;

use super::{Inner, state::State, urgent};

const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// Readiness of a connection that this process cannot use, although other processes may still have
/// the connection after `fork`. All these events are set, so that no call of this process waits for
/// the connection.
const LOST: u32 = ERR | IN | OUT | HUP | RDHUP;

impl Inner {
    /// Returns the events that Linux would report, as EPOLL* bits, which equal the POLL* bits.
    /// While another process has the connection, returns 0. If the service of the connection's
    /// session (registration of this process with the service) has ended meanwhile, returns `LOST`
    /// instead.
    ///
    /// If `wanted` does not contain EPOLLOUT, the result may lack EPOLLOUT, because the computation
    /// of EPOLLOUT reads another cache line.
    // The function is inlined: a call would cost 20 instructions for each socket of a ready list.
    #[inline(always)]
    pub(crate) fn readiness(&mut self, wanted: u32) -> u32 {
        if self.shared && self.is_migrated() {
            return if self.has_lost_service() { LOST } else { 0 };
        }
        const ENDS: u32 = service_flags::CLOSED
            | service_flags::FIN_RECEIVED
            | service_flags::SOFT_ERROR
            | service_flags::URGENT;
        let plain = self.error == 0 && !(self.cause_reported | self.shut_read | self.shut_write);
        if let State::Stream(connection) = &mut self.state
            && plain
            && connection.stream.service_flags() & ENDS == 0
        {
            let stream = &mut connection.stream;
            let enough = has_enough(stream, self.options.rcvlowat);
            let mut bits = if enough { IN } else { 0 };
            if wanted & OUT != 0 && has_room(stream) {
                bits |= OUT;
            }
            return bits;
        }
        self.readiness_slow()
    }

    /// Computes the readiness in every state, including those that the fast path of `readiness`
    /// does not handle.
    #[inline(never)]
    fn readiness_slow(&mut self) -> u32 {
        self.refresh();
        let error = if self.error != 0 { ERR } else { 0 };
        match &mut self.state {
            State::Stream(connection) => {
                let stream = &mut connection.stream;
                let mut bits = error | urgent::readiness(stream);
                if self.cause_reported {
                    return bits | IN | OUT | HUP | RDHUP;
                }
                let ended = self.shut_read || stream.peer_closed();
                if ended {
                    bits |= IN | RDHUP;
                } else {
                    let pollable = stream.pollable();
                    if enough(pollable, stream, self.options.rcvlowat) {
                        bits |= IN;
                    }
                }
                if self.shut_write {
                    bits |= OUT;
                    if ended {
                        bits |= HUP;
                    }
                } else if has_room(stream) {
                    bits |= OUT;
                }
                bits
            }
            State::Connecting(connecting) if connecting.syn_room > 0 => error | OUT,
            State::Connecting(_) => error,
            State::Failed if error != 0 => error | IN | OUT | HUP | RDHUP,
            State::Fresh | State::Failed => OUT | HUP,
            State::Listening(listening) if listening.queue.is_empty() => 0,
            State::Listening(_) => IN,
            State::Inherited(_) => 0,
            State::LostByFork => LOST,
            State::Free | State::Kernel => 0,
        }
    }
}

/// Returns true if a waiting writer should wake up. As in Linux, a third of the send buffer has to
/// be free, and the unsent bytes have to be below half of TCP_NOTSENT_LOWAT.
fn has_room(stream: &mut Stream) -> bool {
    let (unacked, limit) = (stream.unacked(), stream.tx_limit());
    let room = limit.saturating_sub(unacked);
    room > 0 && room >= limit / 3 && stream.is_below_notsent_lowat()
}

/// Returns true if a waiting reader should wake up, because it can read `low` (SO_RCVLOWAT) bytes,
/// or half of the receive window if that is less.
#[inline]
fn has_enough(stream: &mut Stream, low: u32) -> bool {
    enough(stream.readable(), stream, low)
}

/// Does the check of [`has_enough`] for a given number of readable bytes.
#[inline]
fn enough(readable: usize, stream: &Stream, low: u32) -> bool {
    readable >= low as usize || readable > 0 && readable >= stream.rx_window() as usize / 2
}
