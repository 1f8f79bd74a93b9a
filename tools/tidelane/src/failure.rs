//! The failure of a command: a line for the user and an exit status.

use std::{fmt::Display, io};

/// Exit status of a failure without a specific status.
const STATUS: u8 = 1;

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// The line for the user, without the program's name.
    pub text: String,
    /// The exit status.
    pub status: u8,
}

impl Failure {
    /// Returns a failure with exit status 1. Only the first line of `text` that is not blank is
    /// kept.
    pub fn new(text: impl Display) -> Self {
        Self::with_status(text, STATUS)
    }

    /// Returns a failure with the exit status `status`. Only the first line of `text` that is not
    /// blank is kept.
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

/// Converts an error to a [`Failure`] that names the failed operation.
pub trait Context<T> {
    /// Converts the error. The text is `what`, which names the operation, and the error's text.
    fn context(self, what: impl Display) -> Result<T, Failure>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(format!("{what}: {error}")))
    }
}
