//! The check of one program: runs the client, and compares the client's output with a file.

use std::{fs, path::Path, time::Duration};

use tidelane_programs::last_lines;
use tidelane_tests::{Service, Side, Stop, command};

use crate::{
    stack_detector::{CarriedBy, StackDetector},
    testbed::Testbed,
};

/// The client's stack and the packet loss during a check.
#[derive(Clone, Copy, Debug)]
pub struct CheckSetup<'a> {
    /// The service that the client runs on. `None` if the client is on the kernel.
    pub client: Option<&'a Service>,
    /// True if packets are lost between the two ends. Packet loss doubles the time limit of the
    /// check.
    pub lossy: bool,
}

/// The result of a check that passed.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The stack that carried the connections.
    pub carried: CarriedBy,
    /// The first message of `tidelane run` or of the preloaded library in the client's standard
    /// error. `None` if there is no message.
    pub message: Option<String>,
}

/// Runs the client once, compares the client's output with the expected file, and determines the
/// stack that carried the connections.
pub fn run(testbed: &Testbed<'_>, how: CheckSetup<'_>) -> Result<Checked, Stop> {
    let output = testbed.output();
    let detector = StackDetector::new(testbed, how.client)?;
    let message = transfer(testbed, &output, Some(how))?;
    Ok(Checked {
        carried: detector.detect()?,
        message,
    })
}

/// Runs the client once, writes the client's output to the file `output`, and compares the output
/// with the expected file. If `how` is `None`, the client runs on the kernel, and the time limit is
/// not doubled. Returns the value of [`Checked::message`].
pub fn transfer(
    testbed: &Testbed<'_>,
    output: &Path,
    how: Option<CheckSetup<'_>>,
) -> Result<Option<String>, Stop> {
    let check = &testbed.entry.check;
    let text = into_file(&testbed.fill(&check.client), output);
    let slower = how.is_some_and(|how| how.lossy);
    let limit = Duration::from_secs(check.seconds) * if slower { 2 } else { 1 };
    let client = how.and_then(|how| how.client);
    let hangs = |_| {
        Stop::Fail(format!(
            "the client hangs: no end within {} s",
            limit.as_secs()
        ))
    };
    let running = testbed.shell(Side::Client, &text).on(client).spawn()?;
    let finished = running.wait(limit).map_err(hangs)?;
    if !finished.status.success() {
        let words = last_lines(&finished.stderr);
        return Err(Stop::Fail(format!("the client failed: {words}")));
    }
    compare(&testbed.file(&check.expected_file), output)?;
    testbed.server.borrow_mut().check_alive()?;
    let mut lines = finished.stderr.lines();
    Ok(lines
        .find(|line| line.starts_with("tidelane"))
        .map(str::to_owned))
}

/// Returns a shell command that runs the shell command `text`, and writes the standard output of
/// `text` to the file `output`.
pub fn into_file(text: &str, output: &Path) -> String {
    format!("{{ {text}\n}} > {}", output.display())
}

/// Fails if the digest of the file `output` differs from the digest of the expected file, `file`.
pub fn compare(file: &Path, output: &Path) -> Result<(), Stop> {
    let (want, got) = (digest(file)?, digest(output)?);
    let len = |path| fs::metadata(path).map(|data| data.len()).unwrap_or(0);
    if want == got {
        return Ok(());
    }
    Err(Stop::Fail(format!(
        "the digest differs: {} bytes came of {}",
        len(output),
        len(file)
    )))
}

/// Returns the SHA-256 digest of a file.
fn digest(path: &Path) -> Result<String, Stop> {
    let line = command(&["sha256sum", &path.display().to_string()])?;
    Ok(line
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned())
}
