//! Cleanup that also works if the owner is killed.
//!
//! `Drop` does not run after SIGKILL, Ctrl-C or an abort. The guardian is a shell in a process
//! group of its own. The owner holds the other end of the shell's standard input, and names each
//! resource there before it makes it. The input ends with the owner in every case, and the guardian
//! then removes all named resources.

use std::{
    io::{self, Write},
    os::fd::AsFd,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
};

/// The process that cleans up. `drop` cleans up at once and waits for the end.
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

    /// Names a resource before it is made. `kind` is `netns`, `dir`, `run` or `cgroup`.
    pub fn name(&mut self, kind: &str, name: &str) -> io::Result<()> {
        match &mut self.input {
            Some(input) => writeln!(input, "{kind} {name}"),
            None => Ok(()),
        }
    }

    /// Returns a standard input for a command that makes a named resource. The guardian waits while
    /// the command runs, so that the resource cannot appear after the cleanup.
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
        // The owner can do nothing about a failed guardian.
        let _ = self.shell.wait();
    }
}
