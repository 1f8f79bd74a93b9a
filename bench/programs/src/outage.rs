//! Checks with an outage of the Tidelane service: the service is killed and started again while
//! server and client run.
//!
//! ```text
//!   client at work --- kill -9 --- check over the kernel --- up --- check, accelerated again
//! ```
//!
//! `up` is `tidelane up`, the command that starts the service. A connection is accelerated if the
//! service carries it instead of the kernel.

use std::{fs, path::PathBuf, thread, time::Duration};

use tidelane_tests::{Running, Service, Side, Stop, ensure, fail, tools::wait_until};

use crate::{
    check::{self, CheckSetup, Checked},
    stack_detector::StackDetector,
    testbed::Testbed,
};

/// Time for which a load runs before the service is killed. If a check runs instead of a load, the
/// service is killed after a third of this time, because a check is shorter.
const TIME_BEFORE_KILL: Duration = Duration::from_millis(300);
/// Time limit for the load client to end after the service was killed. [`CheckShell::end`] waits
/// for the check's own time limit and, in addition, for at most this time.
const END_MAX: Duration = Duration::from_secs(20);
/// Time limit for a killed service to end. Also the time limit for the new service to learn of the
/// server's listener.
const AGAIN_MAX: Duration = Duration::from_secs(20);

/// Exit status of the command `timeout` for a client that exceeded its time limit.
const TIMED_OUT_STATUS: &str = "124";
/// Message for a client that did not end in time after the service was killed. The probable cause
/// is that nothing reset the client's connection.
const NO_RESET: &str = "the client hangs: it was at work when the service died, and got no reset";

/// Kills the server's service while a load runs, checks the server without a service, starts the
/// service again, and checks the server with the new service. The clients are on the kernel.
/// Returns the result of the last check. Fails if the load client hangs, or if the first check
/// fails.
pub fn of_server(testbed: &mut Testbed<'_>) -> Result<Checked, Stop> {
    let client = start_load(testbed)?;
    thread::sleep(TIME_BEFORE_KILL);
    kill_server(testbed)?;
    let ended = wait_for_end(client);
    let during = check::transfer(testbed, &testbed.output(), None);
    during.map_err(|stop| named("without a service", stop))?;
    restart_service(testbed)?;
    let how = CheckSetup {
        client: None,
        lossy: false,
    };
    let after = check::run(testbed, how).map_err(|stop| named("with the new service", stop))?;
    ended.map(|()| after)
}

/// Kills the client's service, and the server's service if there is one, and starts them again.
/// Returns the result of the check with the new services.
///
/// One shell, started on the client's service, runs the checks before, during and after the outage.
/// The shell outlives the service. The programs that the shell starts during the outage are on the
/// kernel.
pub fn of_clients(testbed: &mut Testbed<'_>, service: Service) -> Result<Checked, Stop> {
    let mut shell = CheckShell::new(testbed, &service)?;
    shell.check(testbed).map_err(|stop| named("before", stop))?;
    shell.start()?;
    thread::sleep(TIME_BEFORE_KILL / 3);
    service.kill()?;
    kill_server(testbed)?;
    let timed_out = shell.end(testbed)? == TIMED_OUT_STATUS;
    shell
        .check(testbed)
        .map_err(|stop| named("without a service", stop))?;
    let service = testbed.wire.client_service_again(&service)?;
    restart_service(testbed)?;
    let detector = StackDetector::new(testbed, Some(&service))?;
    shell
        .check(testbed)
        .map_err(|stop| named("with the new service", stop))?;
    ensure!(!timed_out, "{NO_RESET}");
    Ok(Checked {
        carried: detector.detect()?,
        message: None,
    })
}

/// Adds `when`, the phase of the outage, to the text of a failure.
fn named(when: &str, stop: Stop) -> Stop {
    let (Stop::Skip(text) | Stop::Fail(text)) = stop;
    Stop::Fail(format!("{when}: {text}"))
}

/// Starts a load client on the kernel. The client is at work when the service is killed.
fn start_load(testbed: &Testbed<'_>) -> Result<Running, Stop> {
    let text = testbed.fill(&testbed.entry.load().client);
    let text = check::into_file(&text, &testbed.output());
    testbed.shell(Side::Client, &text).spawn()
}

/// Waits for the end of `client`, which was running when the service was killed. The client may
/// fail, but must not hang.
fn wait_for_end(mut client: Running) -> Result<(), Stop> {
    let ended = client.ends_within(END_MAX)?;
    ensure!(
        ended,
        "the client hangs: it was at work when the service died, and got no reset"
    );
    Ok(())
}

/// Kills the server's service, if there is one, and waits for its end.
fn kill_server(testbed: &mut Testbed<'_>) -> Result<(), Stop> {
    let Some(service) = &testbed.service else {
        return Ok(());
    };
    // Ask the service again whether it has the listener. If the server forks for each connection,
    // the service may have left the listener to the kernel meanwhile.
    testbed.had_listener &= service.has_listener(testbed.entry.port)?;
    service.kill()?;
    wait_until(AGAIN_MAX, "the service's end", || Ok(!service.alive()))
}

/// Starts the server's service again, if there was one. If the killed service knew the server's
/// listener, waits until the new service knows the listener.
fn restart_service(testbed: &mut Testbed<'_>) -> Result<(), Stop> {
    testbed.service_again()?;
    let (true, Some(service)) = (testbed.had_listener, &testbed.service) else {
        return Ok(());
    };
    let port = testbed.entry.port;
    wait_until(AGAIN_MAX, "the listener in the new service", || {
        service.has_listener(port)
    })
}

/// A shell that runs the script `check_shell.sh` on the client's service. The script runs the check
/// on request.
struct CheckShell {
    shell: Running,
    /// Folder of the files by which this process and the shell communicate.
    home: PathBuf,
    /// Number of checks that were started so far. The names of the files of a check end with the
    /// check's number, from 1.
    round: u32,
}

impl CheckShell {
    /// Starts the shell.
    fn new(testbed: &Testbed<'_>, service: &Service) -> Result<Self, Stop> {
        let home = testbed.output().with_extension("shell");
        fs::create_dir_all(&home)?;
        fs::write(
            home.join("check.sh"),
            testbed.fill(&testbed.entry.check.client),
        )?;
        let script = include_str!("check_shell.sh");
        let program = testbed
            .shell(Side::Client, script)
            .arg("shell")
            .arg(home.display())
            .arg(testbed.entry.check.seconds);
        let shell = program.accelerated(service).spawn()?;
        Ok(Self {
            shell,
            home,
            round: 0,
        })
    }

    /// Makes the shell start the next check.
    fn start(&mut self) -> Result<(), Stop> {
        self.round += 1;
        Ok(fs::write(self.home.join(format!("go.{}", self.round)), "")?)
    }

    /// Waits for the end of the started check, and returns the exit status of the check's command.
    fn end(&mut self, testbed: &Testbed<'_>) -> Result<String, Stop> {
        let done = self.home.join(format!("done.{}", self.round));
        let limit = Duration::from_secs(testbed.entry.check.seconds) + END_MAX;
        wait_until(limit, "the client to end", || {
            // A shell that has ended is an error only if the check is not done, because the shell
            // ends after its last check.
            if !done.exists() {
                self.shell.check_alive()?;
            }
            Ok(done.exists())
        })?;
        Ok(fs::read_to_string(done)?.trim().to_owned())
    }

    /// Runs the next check, and compares its output with the expected file.
    fn check(&mut self, testbed: &Testbed<'_>) -> Result<(), Stop> {
        self.start()?;
        let status = self.end(testbed)?;
        if status == TIMED_OUT_STATUS {
            fail!(
                "the client hangs: no end within {} s",
                testbed.entry.check.seconds
            );
        }
        if status != "0" {
            let errors = fs::read_to_string(self.home.join(format!("err.{}", self.round)))?;
            fail!(
                "the client failed: {}",
                tidelane_programs::last_lines(&errors)
            );
        }
        let output = self.home.join(format!("out.{}", self.round));
        check::compare(&testbed.file(&testbed.entry.check.expected_file), &output)?;
        testbed.server.borrow_mut().check_alive()
    }
}
