//! Programs that tests have started, and their results.

use std::{
    fs, io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::{Stop, tools};

/// The result of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Command line, for messages.
    pub line: String,
}

/// A program that was started. `drop` kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Command line, for messages.
    line: String,
    /// File of the standard output.
    stdout_file: PathBuf,
    /// File of the standard error.
    stderr_file: PathBuf,
}

impl Finished {
    /// Returns `self` if the exit status is 0. Otherwise returns a failure with the end of the
    /// program's output.
    pub fn success(self) -> Result<Self, Stop> {
        if self.status.success() {
            return Ok(self);
        }
        Err(Stop::Fail(self.to_string()))
    }

    /// Parses the last line of standard output as JSON.
    pub fn json(&self) -> Result<Value, Stop> {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).map_err(|error| Stop::Fail(format!("{error}: {self}")))
    }

    /// Returns the number of the signal that ended the program, or `None` if no signal ended the
    /// program.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            status,
            stdout,
            stderr,
            line,
        } = self;
        write!(
            f,
            "{line}\n  {status}\n  stdout: {}\n  stderr: {}",
            tail(stdout),
            tail(stderr)
        )
    }
}

/// Returns at most the last 2000 bytes of a text, for a message.
fn tail(text: &str) -> &str {
    let mut from = text.len().saturating_sub(2000);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].trim_end()
}

impl Running {
    /// Wraps a started program. `line` is the program's command line. The program writes its
    /// standard output to `stdout_file`, and its standard error to `stderr_file`.
    pub(crate) fn new(
        child: Child,
        line: String,
        (stdout_file, stderr_file): (PathBuf, PathBuf),
    ) -> Self {
        Self {
            child,
            line,
            stdout_file,
            stderr_file,
        }
    }

    /// Returns the process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the program has not ended.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Fails if the program has ended. The failure contains the end of the program's output.
    pub fn check_alive(&mut self) -> Result<(), Stop> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(Stop::Fail(format!("it ended: {}", self.finished(status)))),
        }
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) -> Result<(), Stop> {
        send_signal(self.pid(), signal)
    }

    /// Waits for the program's end, but not longer than `limit`. Returns true if the program has
    /// ended.
    pub fn ends_within(&mut self, limit: Duration) -> Result<bool, Stop> {
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > limit {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(true)
    }

    /// Kills the program. If the program leads a process group, also kills all other processes of
    /// the group.
    pub fn kill_group(&self) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // The first call fails if the program leads no process group.
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Waits for the program's end. If the program has not ended within `limit` times
    /// [`tools::patience`], kills the program and fails.
    pub fn wait(mut self, limit: Duration) -> Result<Finished, Stop> {
        let limit = limit * tools::patience();
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(self.finished(status));
            }
            if start.elapsed() > limit {
                let _ = self.child.kill();
                let status = self.child.wait()?;
                let finished = self.finished(status);
                return Err(Stop::Fail(format!(
                    "did not end within {limit:?}: {finished}"
                )));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the standard output and the standard error that the program has written so far.
    pub fn output(&self) -> (String, String) {
        let read = |path| {
            fs::read(path)
                .map(|b| String::from_utf8_lossy(&b).into_owned())
                .unwrap_or_default()
        };
        (read(&self.stdout_file), read(&self.stderr_file))
    }

    /// Sends `signal` and waits for the program's end, as [`wait`](Self::wait) does.
    pub fn signal_and_wait(self, signal: Signal, limit: Duration) -> Result<Finished, Stop> {
        self.signal(signal)?;
        self.wait(limit)
    }

    /// Returns the result of the ended program.
    fn finished(&self, status: ExitStatus) -> Finished {
        let (stdout, stderr) = self.output();
        Finished {
            status,
            stdout,
            stderr,
            line: self.line.clone(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Children of the program may survive. The cleanup process (`crate::guardian`) later kills
        // all processes in the namespaces of the wire (the test network).
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to the process `pid`.
pub fn send_signal(pid: u32, signal: Signal) -> Result<(), Stop> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Stop::Fail("no such process id".to_owned()))?;
    kill_process(pid, signal).map_err(|error| Stop::Fail(io::Error::from(error).to_string()))
}
