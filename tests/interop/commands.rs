//! The `tidelane` command: what it says, and how it exits, when it is used badly or well.

use std::time::Duration;

use tidelane_tests::{
    Finished, Outcome, Program, Side, Stop, Wire, ensure, service::run_dir, tools,
};

use crate::support::{SHORT, check_load, echo_client, echo_server};

fn tidelane(wire: &Wire, line: &str) -> Result<Program, Stop> {
    let path = tools::binary("tidelane")?;
    Ok(wire
        .program(Side::Server, &path.to_string_lossy())
        .args(line))
}

/// Demands a non-zero exit and exactly one line on standard error, with `words` in it.
fn check_refusal(finished: &Finished, words: &str) -> Outcome {
    ensure!(!finished.status.success(), "it succeeded: {finished}");
    ensure!(
        finished.stderr.lines().count() == 1,
        "not one line: {finished}"
    );
    ensure!(
        finished.stderr.contains(words),
        "no {words:?} in: {finished}"
    );
    Ok(())
}

/// No interface, not root, already running.
pub fn up_says_what_is_wrong() -> Outcome {
    let wire = Wire::new()?;
    let finished = tidelane(&wire, "up nosuch0 --name never")?.finish(SHORT)?;
    check_refusal(&finished, "no interface nosuch0")?;

    let path = tools::binary("tidelane")?;
    let line = format!(
        "--reuid 65534 --clear-groups {} up eth1 --name never",
        path.display()
    );
    let unprivileged = wire
        .program(Side::Server, "setpriv")
        .args(&line)
        .finish(SHORT)?;
    // A source tree that others may not enter makes this a failure to start, not a refusal.
    if !unprivileged.stderr.starts_with("setpriv") {
        check_refusal(&unprivileged, "root")?;
    }

    let service = wire.service()?;
    let again = format!("up eth1 --name {}", service.name());
    check_refusal(&tidelane(&wire, &again)?.finish(SHORT)?, "already running")?;
    ensure!(
        service.alive(),
        "the refused second service ended the first"
    );
    Ok(())
}

/// Each command that needs a service says that there is none.
pub fn without_a_service() -> Outcome {
    let wire = Wire::new()?;
    for line in ["ss", "stat", "down", "run"] {
        let rest = if line == "run" { "-- true" } else { "" };
        let line = format!("{line} --name td-no-such-service {rest}");
        let finished = tidelane(&wire, &line)?.finish(SHORT)?;
        check_refusal(&finished, "not running")?;
    }
    Ok(())
}

/// A service comes up, goes down, comes up again; `run` of a missing program exits with 127.
pub fn up_down_up() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let name = service.name().to_owned();
    let run = format!("run --name {name} -- no-such-program-anywhere");
    let finished = tidelane(&wire, &run)?.finish(SHORT)?;
    check_refusal(&finished, "no-such-program-anywhere")?;
    ensure!(
        finished.status.code() == Some(127),
        "exit status is not 127: {finished}"
    );
    let run = tidelane(&wire, &format!("run --name {name} -- sh -c"))?.arg("exit 7");
    ensure!(
        run.finish(SHORT)?.status.code() == Some(7),
        "the program's status was lost"
    );

    service.down()?;
    tools::wait_until(Duration::from_secs(5), "the service to end", || {
        Ok(!service.alive())
    })?;
    ensure!(!run_dir(&name).exists(), "the run directory is left");
    let again = wire.service()?;
    ensure!(again.alive(), "the second service is not there");
    Ok(())
}

/// `ss` and `stat` show the program, its connections and the counters.
pub fn ss_names_the_sockets() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = echo_server(&wire, Some(&service), 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?.args("--connections 3 --seconds 3");
    let client = client.spawn()?;
    tools::wait_until(SHORT, "three connections", || {
        let sockets = service.sockets_of(server.pid())?;
        Ok(sockets
            .iter()
            .filter(|socket| socket["state"] == "ESTABLISHED")
            .count()
            == 3)
    })?;
    let line = format!("ss --name {}", service.name());
    let text = tidelane(&wire, &line)?.run(SHORT)?.stdout;
    ensure!(
        text.contains("10.77.0.1:7000"),
        "no local address in\n{text}"
    );
    ensure!(
        text.matches("ESTAB").count() == 3,
        "not three connections in\n{text}"
    );
    ensure!(text.contains("tidelane-load"), "no program in\n{text}");
    ensure!(text.contains("cwnd:"), "no TCP information in\n{text}");
    check_load(&client.wait(SHORT)?.success()?.json()?)?;
    let line = format!("stat --name {}", service.name());
    let text = tidelane(&wire, &line)?.run(SHORT)?.stdout;
    ensure!(text.lines().count() > 3, "no counters in\n{text}");
    Ok(())
}

/// With `--strict` a connection that would be the kernel's fails; without it, it is the kernel's.
pub fn strict_refuses_a_fall_back() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, None, 7000)?;
    let loopback = |wire: &Wire| -> Result<Program, Stop> {
        let tool = wire.load_tool(Side::Server, "echo-client")?;
        Ok(tool
            .args("--connect 127.0.0.1:7000 --seconds 0.3 --warmup 0.1")
            .accelerated(&service))
    };
    check_load(&loopback(&wire)?.run(SHORT)?.json()?)?;
    let strict = loopback(&wire)?.strict().finish(SHORT)?;
    ensure!(!strict.status.success(), "it fell back: {strict}");
    Ok(())
}
