//! The choice between a zero-copy send (the kernel reads the program's buffers) and a send that
//! copies.
//!
//! A zero-copy send pins the pages of its buffers and needs a second completion, so zero-copy sends
//! can save time only for long payloads. The first completion is the answer, with the number of
//! bytes sent. The second completion is the notification that the kernel has read the buffers. If
//! the packets reach a receiver on the same host, the kernel copies the payload nevertheless, and
//! the notification reports the copy.

use crate::{
    options::{KernelOptions, ZeroCopy},
    piece::Piece,
};

/// Flag in the result of a notification: the kernel has copied payload of the zero-copy send, or
/// has sent no byte.
const IORING_NOTIF_USAGE_ZC_COPIED: u32 = 1 << 31;

/// Returns true if `errno` refuses a zero-copy send that may succeed with a copy: the kernel lacks
/// IORING_SEND_ZC_REPORT_USAGE (EINVAL), the socket or the memory cannot be used, or the user has
/// pinned too many pages (RLIMIT_MEMLOCK).
pub fn is_refusal(errno: i32) -> bool {
    matches!(
        errno,
        libc::EINVAL
            | libc::EOPNOTSUPP
            | libc::ENOMEM
            | libc::ENOBUFS
            | libc::EFAULT
            | libc::EMSGSIZE
    )
}

/// Decides which sends of a context (the sockets of one thread) are zero-copy sends. The decision
/// depends on the options and on the kernel's abilities.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Smallest length in bytes of a zero-copy send. `None` if all sends copy.
    min: Option<usize>,
    /// True if a report of a copy ends the zero-copy sends of a connection.
    learns: bool,
    /// Largest number of buffers of one connection that the kernel may read at a time.
    held_max: usize,
}

impl Policy {
    /// Returns the policy of the options. `is_supported` is true if the kernel has zero-copy sends.
    /// Otherwise all sends copy.
    pub fn new(options: &KernelOptions, is_supported: bool) -> Self {
        let (min, learns) = match options.zero_copy {
            ZeroCopy::Never => (None, true),
            ZeroCopy::WhereItPays { min } => (Some(min as usize), true),
            ZeroCopy::Always { min } => (Some(min as usize), false),
        };
        Self {
            min: min.filter(|_| is_supported),
            learns,
            held_max: options.send_queue_max.div_ceil(2),
        }
    }

    /// Makes all later sends of the context copy.
    pub fn stop(&mut self) {
        self.min = None;
    }
}

/// State of the zero-copy sends of one connection: how many buffers the kernel still reads, and
/// whether the connection has gone back to sends that copy.
#[derive(Debug, Default)]
pub struct Lending {
    /// Number of buffers that the kernel reads until their notifications arrive.
    held: usize,
    /// True once the kernel has refused a zero-copy send, or has reported a copy and the policy
    /// learns. All later sends then copy.
    is_over: bool,
}

impl Lending {
    /// Returns the number of buffers that the kernel reads until their notifications arrive.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns true if `pieces` are to be sent without a copy.
    pub fn is_due(&self, policy: &Policy, pieces: &[Piece]) -> bool {
        let Some(min) = policy.min.filter(|_| !self.is_over) else {
            return false;
        };
        let len: usize = pieces.iter().map(|piece| piece.payload().len()).sum();
        len >= min && self.held + pieces.len() <= policy.held_max
    }

    /// Processes the answer to a zero-copy send. The kernel reads `held` buffers of the send until
    /// the notification arrives.
    pub fn on_answer(&mut self, held: usize) {
        self.held += held;
    }

    /// Processes the refusal of a zero-copy send.
    pub fn on_refusal(&mut self) {
        self.is_over = true;
    }

    /// Processes the notification of a zero-copy send. The kernel has read `held` buffers. `result`
    /// is the result of the notification.
    pub fn on_notification(&mut self, policy: &Policy, held: usize, result: i32) {
        assert!(held <= self.held, "a notification follows its answer");
        self.held -= held;
        // The kernel also reports a copy if the send has sent no byte.
        let is_copied = held > 0 && result as u32 & IORING_NOTIF_USAGE_ZC_COPIED != 0;
        self.is_over |= is_copied && policy.learns;
    }
}

#[cfg(test)]
mod tests {
    use tidelane_rings::Pool;

    use super::*;

    const COPIED: i32 = IORING_NOTIF_USAGE_ZC_COPIED as i32;

    fn policy(zero_copy: ZeroCopy) -> Policy {
        let options = KernelOptions {
            send_queue_max: 5,
            zero_copy,
            ..KernelOptions::default()
        };
        Policy::new(&options, true)
    }

    /// Returns `count` pieces of ten bytes each.
    fn pieces(count: usize) -> Vec<Piece> {
        let pool = Pool::new(8, 10).expect("there is memory");
        let piece = |_| {
            let mut buffer = pool.allocate().expect("free");
            buffer.append(&[1; 10]);
            Piece::Whole(buffer)
        };
        (0..count).map(piece).collect()
    }

    #[test]
    fn long_sends_within_the_limit_use_zero_copy() {
        let mut policy = policy(ZeroCopy::WhereItPays { min: 20 });
        let mut lending = Lending::default();
        let due = [1, 2, 3, 4].map(|count| lending.is_due(&policy, &pieces(count)));
        assert_eq!(due, [false, true, true, false]);
        lending.on_answer(2);
        assert!(
            !lending.is_due(&policy, &pieces(2)),
            "the kernel reads two, of at most three"
        );
        lending.on_notification(&policy, 2, 0);
        assert!(lending.is_due(&policy, &pieces(2)));
        policy.stop();
        assert!(!lending.is_due(&policy, &pieces(2)));
        let options = KernelOptions {
            zero_copy: ZeroCopy::Always { min: 1 },
            ..KernelOptions::default()
        };
        let unsupported = Policy::new(&options, false);
        assert!(!lending.is_due(&unsupported, &pieces(2)));
    }

    #[test]
    fn a_copied_byte_or_a_refusal_ends_the_zero_copy_sends() {
        for (zero_copy, learns) in [
            (ZeroCopy::WhereItPays { min: 1 }, true),
            (ZeroCopy::Always { min: 1 }, false),
        ] {
            let policy = policy(zero_copy);
            let mut lending = Lending::default();
            // If a send has sent no byte, the kernel reports a copy. The report has no effect.
            lending.on_answer(0);
            lending.on_notification(&policy, 0, COPIED);
            assert!(lending.is_due(&policy, &pieces(1)));
            lending.on_answer(1);
            lending.on_notification(&policy, 1, COPIED);
            assert_eq!(lending.is_due(&policy, &pieces(1)), !learns);
            lending.on_refusal();
            assert!(!lending.is_due(&policy, &pieces(1)));
        }
    }
}
