//! Cleaning up even when the owner cannot: a shell that waits for the end of its input.
//!
//! `Drop` does not run after SIGKILL, Ctrl-C or an abort. The guardian is a process of its own in
//! its own process group; the owner names each thing before it makes it and holds the other end of
//! the guardian's standard input. However the owner ends, the input ends with it, and the guardian
//! removes everything that was named.

use std::{
    io::{self, Write},
    os::fd::AsFd,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
};

/// The process that cleans up; dropping it cleans up now and waits for that.
#[derive(Debug)]
pub struct Guardian {
    input: Option<ChildStdin>,
    shell: Child,
}

impl Guardian {
    /// Starts the guardian.
    pub fn new() -> io::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", include_str!("cleanup.sh")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()?;
        let input = shell.stdin.take();
        Ok(Self { input, shell })
    }

    /// Names a thing that is about to be made: `kind` is `netns`, `dir`, `run`
    /// or `cgroup`.
    pub fn name(&mut self, kind: &str, name: &str) -> io::Result<()> {
        match &mut self.input {
            Some(input) => writeln!(input, "{kind} {name}"),
            None => Ok(()),
        }
    }

    /// A standard input for a command that makes what was named: while the command runs, the
    /// guardian waits, so that nothing comes into being after it has cleaned up.
    pub fn hold(&self) -> io::Result<Stdio> {
        match &self.input {
            Some(input) => Ok(input.as_fd().try_clone_to_owned()?.into()),
            None => Ok(Stdio::null()),
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.input.take());
        // Nothing can be done about a guardian that failed; its work is best effort then.
        let _ = self.shell.wait();
    }
}
