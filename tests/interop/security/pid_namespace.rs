//! A service (`tidelaned`) in its own PID namespace serves programs outside of this namespace.
//!
//! An accelerated program runs under `tidelane run`: the service carries its TCP connections
//! instead of the kernel.

use std::{fs, thread, time::Duration};

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Side, Stop, Wire, ensure,
    service::run_dir,
    tools::{self, require_tools},
};

use crate::{
    commands::tidelane,
    support::{SHORT, check_load, echo_client, echo_server},
};

/// The service runs in a new PID namespace, as in a container. A program outside the namespace is
/// accelerated, although the service cannot know the program's process id. When the program is
/// killed, the service frees the program's resources.
pub fn a_program_outside_is_served_and_freed() -> Outcome {
    require_tools(&["unshare"])?;
    let wire = Wire::new()?;
    let service = wire.service_in_pid_namespace()?;
    let inside = fs::read_to_string(run_dir(service.name()).join("pid"))?;
    ensure!(
        inside.trim() != service.pid().to_string(),
        "the service is in the namespace of this test: {inside}"
    );
    let before = service.descriptors()?;
    for _ in 0..3 {
        let server = echo_server(&wire, Some(&service), 7000)?;
        let client = echo_client(&wire, Side::Client, 7000)?;
        let client = client
            .args("--connections 4 --warmup 0 --seconds 20")
            .spawn()?;
        tools::wait_until(SHORT, "accelerated connections", || {
            let sockets = service.sockets()?;
            let open = |socket: &&serde_json::Value| socket["state"] == "ESTABLISHED";
            Ok(sockets.iter().filter(open).count() == 4)
        })?;
        let listener = service
            .sockets()?
            .into_iter()
            .find(|s| s["state"] == "LISTEN");
        let listener = listener.ok_or_else(|| Stop::Fail("no listener".to_owned()))?;
        ensure!(
            listener["program"] == "tidelane-load" && listener["pid"] == 0,
            "{listener}"
        );
        let line = format!("ss --name {}", service.name());
        let text = tidelane(&wire, &line)?.run(SHORT)?.stdout;
        ensure!(text.contains("((\"tidelane-load\",pid=?))"), "{text}");
        server.signal_and_wait(Signal::KILL, SHORT)?;
        tools::wait_until(SHORT, "the dead program's sockets to go", || {
            Ok(service.sockets()?.is_empty())
        })?;
        // SIGTERM ends the client even if the client has not read the resets yet, so wait first.
        thread::sleep(Duration::from_millis(200));
        let line = client.signal_and_wait(Signal::TERM, SHORT)?.json()?;
        let error = line["first_error"].as_str().unwrap_or_default();
        ensure!(error.contains("reset"), "the client saw no reset: {line}");
    }
    // A server that is killed when all its connections are closed leaves no descriptors either.
    let server = echo_server(&wire, Some(&service), 7000)?;
    check_load(
        &echo_client(&wire, Side::Client, 7000)?
            .args("--seconds 0.3")
            .run(SHORT)?
            .json()?,
    )?;
    server.signal_and_wait(Signal::KILL, SHORT)?;
    tools::wait_until(SHORT, "descriptors to be closed", || {
        Ok(service.descriptors()? <= before)
    })
}
