//! The result of a system call.

/// The result of a system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallResult {
    /// Return value, or the error number (errno).
    pub result: Result<i64, i32>,
    /// Output of the call: received bytes, the value of an option, the number that `ioctl` writes,
    /// or the events of `poll`.
    pub output: Vec<u8>,
}

impl CallResult {
    /// Returns a result without output.
    pub fn of(result: Result<i64, i32>) -> Self {
        Self {
            result,
            output: Vec::new(),
        }
    }
}
