//! The cleanup of a wire (a test network), which also works if the test process is killed.
//!
//! `Drop` does not run after SIGKILL, Ctrl-C or an abort. The guardian is therefore a separate
//! process: a shell in its own process group, which runs `cleanup.sh`. The test process writes the
//! name of each resource to the shell's standard input before it makes the resource. The pipe
//! closes when the test process drops the [`Guardian`] or ends. The shell then removes all named
//! resources.

use std::{
    io::{self, Write},
    os::fd::AsFd,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
};

/// The guardian process, as the test process sees it. `drop` starts the cleanup and waits for its
/// end.
#[derive(Debug)]
pub struct Guardian {
    /// The write end of the shell's standard input. `None` once the cleanup has started.
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

    /// Registers a resource, which the caller makes afterwards. `kind` is a word of `cleanup.sh`:
    /// `netns`, `dir`, `run`, `cgroup` or `nic`.
    pub fn register(&mut self, kind: &str, name: &str) -> io::Result<()> {
        match &mut self.input {
            Some(input) => writeln!(input, "{kind} {name}"),
            None => Ok(()),
        }
    }

    /// Returns a duplicate of the pipe's write end, to be the standard input of a command that
    /// makes a registered resource. The command keeps the pipe open, so that the cleanup starts
    /// after the end of the command.
    pub fn pipe_duplicate(&self) -> io::Result<Stdio> {
        match &self.input {
            Some(input) => Ok(input.as_fd().try_clone_to_owned()?.into()),
            None => Ok(Stdio::null()),
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.input.take());
        // `drop` cannot report an error, and the caller could do nothing about it.
        let _ = self.shell.wait();
    }
}
