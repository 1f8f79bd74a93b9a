//! The control thread's next step with a session (a connected program), after the control thread
//! has read or handled messages of the session.

use std::io;

use tidelane_time::Instant;

/// The next step of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// The session continues, and another message may already wait.
    More,
    /// The session's turn (a limited number of messages in a row) is over. The session continues
    /// when its socket has a message, which may already wait.
    Continue,
    /// The session is read again at this time, because its user has exceeded the message rate.
    Pause(Instant),
    /// The session is read again after a thread has checked the descriptors of the last message.
    Wait,
    /// The session is over.
    End,
}

impl NextStep {
    /// Returns the step after an answer. `answered` is the result of the send, which fails if the
    /// peer is gone, or if unread answers fill the socket's buffer.
    pub(super) fn after(answered: &io::Result<()>) -> Self {
        match answered {
            Ok(()) => Self::More,
            Err(_) => Self::End,
        }
    }
}
