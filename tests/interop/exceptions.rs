//! An accelerated program runs under `tidelane run`: the service (`tidelaned`), not the kernel,
//! carries the program's TCP connections.
//!
//! Some sockets of accelerated programs stay with the kernel: because the user chose so, because
//! the program hands its connections to other programs, or because the program forks for each
//! connection. The cases of this module test these exceptions.

use std::{fs, time::Duration};

use serde_json::Value;
use tidelane_tests::{
    Outcome, Program, Running, Service, Side, Stop, Wire, ensure,
    tools::{self, require_tools, wait_until},
    wire::SERVER,
};

use crate::support::{SHORT, check_load, echo_client};

/// Waits until `tidelane ss` shows that the kernel has the listener on `port`, with a reason that
/// contains `reason`.
fn await_left(service: &Service, port: u16, reason: &str) -> Outcome {
    wait_until(SHORT, &format!("port {port} to be the kernel's"), || {
        is_left(service, port, reason)
    })
}

/// Returns true if `tidelane ss` shows that the kernel has the listener on `port`, with a reason
/// that contains `reason`.
fn is_left(service: &Service, port: u16, reason: &str) -> Result<bool, Stop> {
    let end = format!(":{port}");
    let of_port = |socket: &Value| socket["local"].as_str().is_some_and(|l| l.ends_with(&end));
    let sockets = service.sockets()?;
    let mut listeners = sockets.iter().filter(|socket| of_port(socket));
    Ok(listeners.any(|socket| {
        let said = socket["reason"].as_str().unwrap_or_default();
        socket["accelerated"] == false && said.contains(reason)
    }))
}

/// Starts a server under `tidelane run`, and waits until the server listens on `port`. The listener
/// may stay with the kernel.
fn start(wire: &Wire, service: &Service, program: Program, port: u16) -> Result<Running, Stop> {
    let mut server = program.accelerated(service).spawn()?;
    wait_until(SHORT, &format!("port {port} to listen"), || {
        server.check_alive()?;
        wire.listens(Side::Server, port)
    })?;
    Ok(server)
}

/// `tidelane run --kernel-port` leaves a listener to the kernel, and `--no-listen` does so even
/// with `--strict`. `tidelane ss` shows the reason. A listener on a port outside of the range of
/// `--kernel-port` is accelerated.
pub fn listeners_by_choice() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let echo = |port: u16| -> Result<Program, Stop> {
        let tool = wire.load_tool(Side::Server, "echo-server")?;
        Ok(tool.arg("--port").arg(port))
    };
    for (port, options) in [
        (7001, "--strict --no-listen"),
        (7002, "--kernel-port 7000-7002"),
    ] {
        let _server = start(&wire, &service, echo(port)?.run_options(options), port)?;
        await_left(&service, port, "option of tidelane run")?;
        let client = echo_client(&wire, Side::Client, port)?;
        let client = client.args("--connections 4 --seconds 2").spawn()?;
        wait_until(SHORT, "connections of the kernel", || {
            Ok(wire.kernel_connections(Side::Server, port)? == 4)
        })?;
        check_load(&client.wait(SHORT)?.success()?.json()?)?;
    }
    let program = echo(7004)?.run_options("--kernel-port 7000-7003 --no-connect");
    let _server = wire.start_server(program, Some(&service), 7004)?;
    Ok(())
}

/// `tidelane run --kernel-address` leaves a listener to the kernel if the listener's address is in
/// the given prefix. A listener with an address outside of the prefix is accelerated.
pub fn an_address_by_choice() -> Outcome {
    require_tools(&["redis-server", "redis-cli"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let redis = |port: u16, prefix: &str| {
        let redis = wire.program(Side::Server, "redis-server").args("--bind");
        let redis = redis
            .arg(SERVER)
            .args("--protected-mode no --port")
            .arg(port);
        let redis = redis.arg("--save").arg("");
        redis.run_options("--kernel-address").run_options(prefix)
    };
    let left = redis(7001, "10.77.0.0/24");
    let _left = start(&wire, &service, left, 7001)?;
    await_left(&service, 7001, "option of tidelane run")?;
    let _served = wire.start_server(redis(7002, "10.78.0.0/24"), Some(&service), 7002)?;
    for port in [7001, 7002] {
        let cli = wire
            .program(Side::Client, "redis-cli")
            .arg("-h")
            .arg(SERVER);
        let answer = cli.arg("-p").arg(port).arg("ping").run(SHORT)?;
        ensure!(answer.stdout == "PONG\n", "{answer}");
    }
    Ok(())
}

/// With `tidelane run --no-connect`, a client's connections stay with the kernel. With
/// `--no-listen`, the connections are accelerated.
pub fn connections_by_choice() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service_with(Side::Client, &[])?;
    let _server = crate::support::echo_server(&wire, None, 7000)?;
    for (options, kernels) in [("--no-connect", 4), ("--no-listen", 0)] {
        let client = echo_client(&wire, Side::Client, 7000)?;
        let client = client.args("--connections 4 --seconds 2");
        let client = client.accelerated(&service).run_options(options).spawn()?;
        wait_until(SHORT, "connections", || {
            Ok(wire.kernel_connections(Side::Server, 7000)? == 4)
        })?;
        let count = wire.kernel_connections(Side::Client, 7000)?;
        ensure!(count == kernels, "{options}: {count} are the kernel's");
        check_load(&client.wait(SHORT)?.success()?.json()?)?;
    }
    Ok(())
}

/// A server executes another program for each connection (`hand_over.c`). After the first
/// connections are lost, the server's listener is left to the kernel.
pub fn a_server_that_hands_over() -> Outcome {
    for how in ["execvp", "execlp", "fexecve", "execveat", "posix_spawn"] {
        loses_its_first("hand_over", "cat", how)
            .map_err(|stop| Stop::Fail(format!("{how}: {stop:?}")))?;
    }
    Ok(())
}

/// A server sends each connection to another process by SCM_RIGHTS (`sends_on.c`). After the first
/// connections are lost, the server's listener is left to the kernel.
pub fn a_server_that_sends_connections_on() -> Outcome {
    for call in ["sendmsg", "sendmmsg"] {
        loses_its_first("sends_on", call, "")?;
    }
    Ok(())
}

/// Runs the server `name`, which hands its connections to other processes. `argument` is the
/// server's second argument, and `how` is the environment variable HAND_OVER.
///
/// An accelerated connection cannot move to another process, so the first one or two connections
/// are lost. The kernel must then have the listener, and all further connections must be served.
fn loses_its_first(name: &str, argument: &str, how: &str) -> Outcome {
    let wire = Wire::new()?;
    let binary = wire.scratch().join(name);
    let source = tools::source_root().join(format!("tests/interop/{name}.c"));
    tools::compile(&binary, &[source])?;
    let service = wire.service()?;
    let server = wire.program(Side::Server, &binary.to_string_lossy());
    let server = server.arg(7000).arg(argument).env("HAND_OVER", how);
    let server = wire.start_server(server, Some(&service), 7000)?;
    let echo = || {
        let line = format!(
            "exec 3<>/dev/tcp/{SERVER}/7000; echo tide >&3; read -t 5 x <&3; \
                            test \"$x\" = tide"
        );
        let client = wire.program(Side::Client, "timeout").args("10 bash -c");
        client.arg(line).finish(SHORT)
    };
    let mut lost = 0;
    while !echo()?.status.success() {
        lost += 1;
        ensure!(lost < 3, "the kernel does not have the third connection");
    }
    ensure!(lost > 0, "the first connection was not accelerated");
    for _ in 0..20 {
        let finished = echo()?;
        ensure!(finished.status.success(), "a later client: {finished}");
    }
    await_left(&service, 7000, "hands connections")?;
    drop(server);
    Ok(())
}

/// Starts a server that forks for each connection, and a client that keeps 20 accelerated
/// connections open for eight seconds.
fn fork_server(wire: &Wire, service: &Service) -> Result<(Running, Running), Stop> {
    let binary = wire.scratch().join("fork_server");
    let source = tools::source_root().join("tests/interop/fork_server.c");
    tools::compile(&binary, &[source])?;
    let server = wire.program(Side::Server, &binary.to_string_lossy());
    let server = wire.start_server(server.arg(7000), Some(service), 7000)?;
    let client = echo_client(wire, Side::Client, 7000)?;
    let client = client.args("--connections 20 --seconds 8").spawn()?;
    wait_until(SHORT, "long connections", || {
        let sockets = service.sockets()?;
        let established = sockets.iter().filter(|s| s["state"] == "ESTABLISHED");
        Ok(established.filter(|s| s["accelerated"] == true).count() == 20)
    })?;
    Ok((server, client))
}

/// Opens at least `total` connections with one request each, `at_once` at a time. Fails unless all
/// are served.
fn short_clients(wire: &Wire, at_once: u32, total: u32) -> Outcome {
    let client = wire.load_tool(Side::Client, "short-client")?;
    let client = client.arg("--connect").arg(format!("{SERVER}:7000"));
    let client = client.arg("--connections").arg(at_once);
    let client = client.args("--seconds 20 --total").arg(total);
    let line = client.run(Duration::from_secs(30))?.json()?;
    ensure!(line["errors"] == 0, "connections failed: {line}");
    let served = line["requests"].as_u64();
    ensure!(served >= Some(u64::from(total)), "not all served: {line}");
    Ok(())
}

/// A server forks for each connection, and the children end soon. The server's listener is left to
/// the kernel. No client fails. The connections that were accelerated before stay accelerated.
pub fn a_server_that_forks_for_each_connection() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let (server, long) = fork_server(&wire, &service)?;
    short_clients(&wire, 8, 300)?;
    // The preload library learns of the service's decision only when the server forks, so more
    // clients must connect.
    wait_until(SHORT, "port 7000 to be the kernel's", || {
        short_clients(&wire, 8, 2)?;
        is_left(&service, 7000, "forks for each connection")
    })?;
    let kernels = wire.kernel_connections(Side::Server, 7000)?;
    ensure!(kernels == 0, "{kernels} long connections are the kernel's");
    let client = echo_client(&wire, Side::Client, 7000)?;
    let client = client.args("--connections 4 --seconds 2").spawn()?;
    wait_until(SHORT, "connections of the kernel, with the reason", || {
        let sockets = service.sockets()?;
        let said = |s: &&Value| {
            let reason = s["reason"].as_str().unwrap_or_default();
            s["state"] == "ESTABLISHED" && reason.contains("forks for each connection")
        };
        Ok(sockets.iter().filter(said).count() == 4)
    })?;
    check_load(&client.wait(SHORT)?.success()?.json()?)?;
    check_load(&long.wait(Duration::from_secs(20))?.success()?.json()?)?;
    drop(server);
    Ok(())
}

/// A server forks for each connection, and most children live long, as PostgreSQL's do. The server
/// stays accelerated.
pub fn a_server_with_long_lived_children() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let (server, long) = fork_server(&wire, &service)?;
    short_clients(&wire, 1, 8)?;
    check_load(&long.wait(Duration::from_secs(20))?.success()?.json()?)?;
    let client = echo_client(&wire, Side::Client, 7000)?;
    let client = client.args("--connections 4 --seconds 2").spawn()?;
    wait_until(SHORT, "accelerated connections", || {
        let sockets = service.sockets()?;
        let established = sockets.iter().filter(|s| s["state"] == "ESTABLISHED");
        Ok(established.filter(|s| s["accelerated"] == true).count() == 4)
    })?;
    check_load(&client.wait(SHORT)?.success()?.json()?)?;
    drop(server);
    Ok(())
}

/// `git daemon` executes `git upload-pack` for each connection. Tidelane knows this program and
/// leaves its listener to the kernel from the start, so that no clone fails.
pub fn git_daemon_is_known() -> Outcome {
    require_tools(&["git"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let base = wire.scratch().join("served");
    let work = base.join("project");
    fs::create_dir_all(&work)?;
    tidelane_tests::wire::write_random_file(&work.join("bytes"), 1 << 20, 7)?;
    let git = |directory: &str| {
        let git = wire.program(Side::Server, "git").arg("-C").arg(directory);
        git.args("-c user.name=test -c user.email=test@localhost -c safe.directory=*")
    };
    let place = work.to_string_lossy().into_owned();
    git(&place).args("init -q").run(SHORT)?;
    git(&place).args("add bytes").run(SHORT)?;
    git(&place).args("commit -q -m bytes").run(SHORT)?;
    let daemon = wire
        .program(Side::Server, "git")
        .args("daemon --export-all --reuseaddr");
    let daemon = daemon.env("GIT_CONFIG_COUNT", "1");
    let daemon = daemon.env("GIT_CONFIG_KEY_0", "safe.directory");
    let daemon = daemon.env("GIT_CONFIG_VALUE_0", "*");
    let daemon = daemon.arg(format!("--base-path={}", base.display()));
    let _daemon = start(&wire, &service, daemon, 9418)?;
    await_left(&service, 9418, "hands connections")?;
    for number in 0..5 {
        let copy = wire.scratch().join(format!("copy-{number}"));
        let clone = wire.program(Side::Client, "git").args("clone -q");
        let clone = clone
            .arg(format!("git://{SERVER}/project"))
            .arg(copy.display());
        clone.run(Duration::from_secs(20))?;
        crate::support::check_same(&work.join("bytes"), &copy.join("bytes"))?;
    }
    Ok(())
}
