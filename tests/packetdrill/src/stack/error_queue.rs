//! The error queue of a socket (MSG_ERRQUEUE), and control messages.
//!
//! The error queue reports the progress of writes: time stamps of sent and acknowledged bytes
//! (SO_TIMESTAMPING), and completions of zero-copy writes (MSG_ZEROCOPY).

use std::collections::VecDeque;

use tidelane_engine::{FlowId, Instant};

use crate::{
    clock::wall_us,
    errno::{CallResult, Errno},
    stack::{Fd, Stack},
};

// Bits of SO_TIMESTAMPING (`SOF_TIMESTAMPING_*`): TX_SOFTWARE, OPT_ID, TX_SCHED, TX_ACK and
// OPT_TSONLY.
const STAMP_SENT: i32 = 1 << 1;
const STAMP_BY_ID: i32 = 1 << 7;
const STAMP_SCHEDULED: i32 = 1 << 8;
const STAMP_ACKNOWLEDGED: i32 = 1 << 9;
const STAMP_ONLY: i32 = 1 << 11;

// Values of `ee_origin` in `struct sock_extended_err`.
const ORIGIN_TIMESTAMPING: u8 = 4;
const ORIGIN_ZEROCOPY: u8 = 5;
/// `ee_code` of a zero-copy write whose bytes the stack has copied nevertheless.
const ZEROCOPY_COPIED: u8 = 1;

// Values of `ee_info` for time stamps (`SCM_TSTAMP_*`).
const STAMP_KIND_SENT: u32 = 0;
const STAMP_KIND_SCHEDULED: u32 = 1;
const STAMP_KIND_ACKNOWLEDGED: u32 = 2;

/// One entry of an error queue: a time stamp, or the completion of zero-copy writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorQueueEntry {
    /// Time of the event. `None` for the completion of zero-copy writes.
    at: Option<Instant>,
    /// True if the entry carries the sent bytes. Scripts read entries without a buffer, so that
    /// `recvmsg` sets MSG_TRUNC.
    bytes: bool,
    /// `ee_info`: the kind of time stamp, or the number of the first completed write.
    info: u32,
    /// `ee_data`: the key of the time stamp, or the number of the last completed write.
    data: u32,
}

/// A write that the error queue has yet to report on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tracked {
    /// A write with time stamps. `wanted` has the `STAMP_*` bits that are not reported yet. `key`
    /// becomes `ee_data`. With SOF_TIMESTAMPING_OPT_ID, `key` is the number of the write's last
    /// byte. Otherwise `key` is 0.
    Stamp { key: u32, wanted: i32 },
    /// A zero-copy write, with its number.
    ZeroCopy(u32),
}

/// The error queue of a socket, and the writes that the queue has yet to report on.
#[derive(Clone, Debug, Default)]
pub struct ErrorQueue {
    queue: VecDeque<ErrorQueueEntry>,
    /// Writes that the queue has yet to report on, each with the stream position of its end.
    tracked: Vec<(u32, Tracked)>,
    /// Number of the next zero-copy write.
    zero_copies: u32,
    /// Value of SO_TIMESTAMPING.
    stamping: i32,
    /// Stream position of the byte that has number 0 in time stamps.
    stamp_base: u32,
}

/// A control message (`struct cmsghdr` with its data).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Control {
    /// `cmsg_level`.
    pub level: i32,
    /// `cmsg_type`.
    pub kind: i32,
    /// Bytes after the header.
    pub data: Vec<u8>,
}

impl ErrorQueue {
    /// Returns true if the error queue is empty.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Sets SO_TIMESTAMPING to `value`. If `value` turns SOF_TIMESTAMPING_OPT_ID on, the byte at
    /// stream position `base` gets number 0.
    pub fn set_stamping(&mut self, value: i32, base: u32) {
        if value & STAMP_BY_ID != 0 && self.stamping & STAMP_BY_ID == 0 {
            self.stamp_base = base;
        }
        self.stamping = value;
    }

    /// Records a write that ends at stream position `end`. `zero_copy` is true if the program asked
    /// for a completion.
    pub fn on_written(&mut self, end: u32, zero_copy: bool) {
        let wanted = self.stamping & (STAMP_SENT | STAMP_SCHEDULED | STAMP_ACKNOWLEDGED);
        if wanted != 0 {
            let by_id = self.stamping & STAMP_BY_ID != 0;
            let number = end.wrapping_sub(1).wrapping_sub(self.stamp_base);
            let key = if by_id { number } else { 0 };
            self.tracked.push((end, Tracked::Stamp { key, wanted }));
        }
        if zero_copy {
            self.tracked
                .push((end, Tracked::ZeroCopy(self.zero_copies)));
            self.zero_copies += 1;
        }
    }

    /// Queues the entries that are due at `now`. All bytes before the stream position `sent` are
    /// sent, and all bytes before `acked` are acknowledged. Returns true if an entry was queued or
    /// extended.
    fn resolve(&mut self, now: Instant, sent: u32, acked: u32) -> bool {
        let mut reported = false;
        let bytes = self.stamping & STAMP_ONLY == 0;
        let mut tracked = std::mem::take(&mut self.tracked);
        tracked.retain_mut(|(end, what)| {
            let reached = |position: u32| position.wrapping_sub(*end) as i32 >= 0;
            match what {
                Tracked::ZeroCopy(number) if reached(acked) => {
                    reported = true;
                    self.push_zero_copy_completion(*number);
                    false
                }
                Tracked::ZeroCopy(_) => true,
                Tracked::Stamp { key, wanted } => {
                    let steps = [
                        (STAMP_SCHEDULED, STAMP_KIND_SCHEDULED, sent),
                        (STAMP_SENT, STAMP_KIND_SENT, sent),
                        (STAMP_ACKNOWLEDGED, STAMP_KIND_ACKNOWLEDGED, acked),
                    ];
                    for (bit, info, position) in steps {
                        if *wanted & bit != 0 && reached(position) {
                            *wanted &= !bit;
                            reported = true;
                            let (at, data) = (Some(now), *key);
                            self.queue.push_back(ErrorQueueEntry {
                                at,
                                bytes,
                                info,
                                data,
                            });
                        }
                    }
                    *wanted != 0
                }
            }
        });
        self.tracked = tracked;
        reported
    }

    /// Queues the completion of a zero-copy write. If the newest entry is the completion of the
    /// previous zero-copy write, extends this entry instead.
    fn push_zero_copy_completion(&mut self, number: u32) {
        if let Some(last) = self.queue.back_mut()
            && last.at.is_none()
            && last.data.wrapping_add(1) == number
        {
            last.data = number;
            return;
        }
        self.queue.push_back(ErrorQueueEntry {
            at: None,
            bytes: false,
            info: number,
            data: number,
        });
    }

    /// Queues the completions of all zero-copy writes, and forgets the writes with time stamps. The
    /// stack calls this function at the end of the connection.
    pub fn complete_zero_copies(&mut self) {
        for (_, what) in std::mem::take(&mut self.tracked) {
            if let Tracked::ZeroCopy(number) = what {
                self.push_zero_copy_completion(number);
            }
        }
    }
}

impl ErrorQueueEntry {
    /// Returns the control messages of the entry, for a socket of `domain`.
    fn control(&self, domain: i32) -> Vec<Control> {
        let mut all = Vec::new();
        if let Some(at) = self.at {
            let us = wall_us(at);
            let words = [us / 1_000_000, us % 1_000_000 * 1000, 0, 0, 0, 0];
            all.push(Control {
                level: libc::SOL_SOCKET,
                kind: libc::SCM_TIMESTAMPING,
                data: words.map(u64::to_ne_bytes).concat(),
            });
        }
        let (errno, origin, code) = match self.at {
            Some(_) => (libc::ENOMSG, ORIGIN_TIMESTAMPING, 0),
            None => (0, ORIGIN_ZEROCOPY, ZEROCOPY_COPIED),
        };
        let (level, kind, address_len) = match domain {
            libc::AF_INET6 => (libc::SOL_IPV6, libc::IPV6_RECVERR, 28),
            _ => (libc::SOL_IP, libc::IP_RECVERR, 16),
        };
        let mut data = errno.to_ne_bytes().to_vec();
        data.extend([origin, 0, code, 0]);
        data.extend(self.info.to_ne_bytes());
        data.extend(self.data.to_ne_bytes());
        // The address of the offender (SO_EE_OFFENDER) is empty.
        data.resize(data.len() + address_len, 0);
        all.push(Control { level, kind, data });
        all
    }
}

/// Encodes control messages in C's layout, with the alignment that `CMSG_NXTHDR` expects.
pub fn emit(all: &[Control]) -> Vec<u8> {
    const HEADER_LEN: usize = 16;
    let mut bytes = Vec::new();
    for control in all {
        let len = HEADER_LEN + control.data.len();
        bytes.extend(len.to_ne_bytes());
        bytes.extend(control.level.to_ne_bytes());
        bytes.extend(control.kind.to_ne_bytes());
        bytes.extend(&control.data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

impl Stack {
    /// Implements `recvmsg` with MSG_ERRQUEUE. Removes the first entry, and returns its control
    /// messages and the value of `msg_flags`. Fails with EAGAIN if the queue is empty.
    pub fn recv_error_queue(&mut self, fd: Fd) -> CallResult<(Vec<Control>, i32)> {
        let socket = self.socket_mut(fd)?;
        let entry = socket.error_queue.queue.pop_front().ok_or(Errno::AGAIN)?;
        let truncated = if entry.bytes { libc::MSG_TRUNC } else { 0 };
        let control = entry.control(socket.domain);
        Ok((control, libc::MSG_ERRQUEUE | truncated))
    }

    /// Returns the control message of TCP_INQ, or `None` if the program has not set this option.
    /// `left` is the number of bytes that the program has yet to read. The message contains `left`,
    /// plus one if the peer's FIN has arrived.
    pub fn left_to_read(&self, fd: Fd, left: u32) -> Option<Control> {
        let socket = self.socket(fd).ok()?;
        if !socket.options.is_on(libc::IPPROTO_TCP, libc::TCP_INQ) {
            return None;
        }
        let flow = self.flow_of(fd).ok()?.and_then(|id| self.flows.get(&id));
        let fin = flow.is_some_and(|flow| flow.fin);
        Some(Control {
            level: libc::IPPROTO_TCP,
            kind: libc::TCP_INQ,
            data: (left + u32::from(fin)).to_ne_bytes().to_vec(),
        })
    }

    /// Queues the entries that are due for the flow (connection) `id`. The stack calls this
    /// function after each call of the engine (Tidelane's TCP).
    pub(crate) fn update_error_queue(&mut self, id: FlowId) {
        let now = self.now();
        let Some(flow) = self.flow(id) else {
            return;
        };
        let (sent, acked) = (flow.tx_pos(flow.snd_nxt), flow.tx_acked());
        let owner = self.flows.get(&id).and_then(|flow| flow.owner);
        let Some(fd) = owner else { return };
        if let Ok(socket) = self.socket_mut(fd)
            && socket.error_queue.resolve(now, sent, acked)
        {
            self.mark_pending(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_without_a_copy_are_reported_as_a_range_once_acknowledged() {
        let mut error_queue = ErrorQueue::default();
        error_queue.on_written(100, true);
        error_queue.on_written(200, true);
        assert!(!error_queue.resolve(Instant::ZERO, 200, 99));
        assert!(error_queue.resolve(Instant::ZERO, 200, 200));
        let only = error_queue.queue.pop_front().unwrap();
        assert_eq!((only.info, only.data, only.at), (0, 1, None));
        assert!(error_queue.is_empty());
    }

    #[test]
    fn a_timestamp_is_reported_with_the_last_byte_of_a_write() {
        let mut error_queue = ErrorQueue::default();
        let all = STAMP_SENT | STAMP_SCHEDULED | STAMP_ACKNOWLEDGED | STAMP_BY_ID;
        error_queue.set_stamping(all, 50);
        error_queue.on_written(150, false);
        let at = Instant::from_millis;
        assert!(!error_queue.resolve(at(1), 149, 0));
        assert!(error_queue.resolve(at(2), 150, 0));
        assert!(error_queue.resolve(at(3), 150, 150));
        let seen: Vec<_> = error_queue
            .queue
            .iter()
            .map(|n| (n.at, n.info, n.data))
            .collect();
        let expected = [(2, 1, 99), (2, 0, 99), (3, 2, 99)];
        assert_eq!(
            seen,
            expected.map(|(ms, info, data)| (Some(at(ms)), info, data))
        );
    }

    #[test]
    fn control_messages_are_aligned() {
        let (level, kind, data) = (1, 2, vec![7; 4]);
        let one = Control { level, kind, data };
        let bytes = emit(&[one.clone(), one]);
        assert_eq!(bytes.len(), 48);
        assert_eq!(bytes[..8], 20u64.to_ne_bytes());
        assert_eq!(bytes[24..32], 20u64.to_ne_bytes());
    }
}
