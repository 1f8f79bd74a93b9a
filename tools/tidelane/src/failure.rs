//! How a command fails: one line and an exit status.

use std::{fmt::Display, io};

/// Exit status of a failure that has none of its own.
const STATUS: u8 = 1;

/// One line for the user, and the exit status.
#[derive(Debug)]
pub struct Failure {
    /// The line, without the program's name.
    pub text: String,
    /// The exit status.
    pub status: u8,
}

impl Failure {
    /// A failure with the usual status. Only the first line of `text` is kept.
    pub fn new(text: impl Display) -> Self {
        Self::with_status(text, STATUS)
    }

    /// A failure with a status of its own.
    pub fn with_status(text: impl Display, status: u8) -> Self {
        let text = text.to_string();
        let line = text
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        Self {
            text: line.trim().to_owned(),
            status,
        }
    }
}

/// Says what failed in front of an error.
pub trait Context<T> {
    /// `what` in front of the error's text.
    fn context(self, what: impl Display) -> Result<T, Failure>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format!("{what}: {error}")))
    }
}
