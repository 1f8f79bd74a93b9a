//! Programs that fork while they have accelerated connections. The children inherit the
//! connections, and some children use the connections.
//!
//! An accelerated program runs under `tidelane run`: the service (`tidelaned`), not the kernel,
//! carries the program's TCP connections.

use std::{thread, time::Duration};

use rustix::process::Signal;
use tidelane_tests::{
    Outcome, Service, Side, Stop, Wire, ensure,
    tools::{self, require_tools, wait_until},
    wire::SERVER,
};

use crate::support::{SHORT, check_load, check_not_in_kernel, echo_client, echo_server};

/// Largest growth of the service's resident memory that does not count as a leak, in KiB.
const GROWTH_MAX_KIB: u64 = 8192;

/// Opens `total` connections, eight at a time. Fails unless all connections are served.
fn short_connections(wire: &Wire, port: u16, total: u32) -> Outcome {
    let client = wire
        .load_tool(Side::Client, "short-client")?
        .arg("--connect")
        .arg(format!("{SERVER}:{port}"))
        .args("--connections 8 --seconds 15 --total")
        .arg(total);
    check_load(&client.run(SHORT)?.json()?)
}

/// Waits until the service has no established connection.
fn wait_quiet(service: &Service) -> Outcome {
    wait_until(SHORT, "all connections to be over", || {
        let sockets = service.sockets()?;
        let established = |socket: &&serde_json::Value| socket["state"] == "ESTABLISHED";
        Ok(!sockets.iter().any(|socket| established(&socket)))
    })
}

/// A server forks a child for each connection. The first 12 connections are accelerated, and their
/// bytes are right. The service leaks nothing during 300 short connections.
pub fn a_child_for_each_connection() -> Outcome {
    let wire = Wire::new()?;
    let binary = wire.scratch().join("fork_server");
    let source = tools::source_root().join("tests/interop/fork_server.c");
    tools::compile(&binary, &[source])?;
    let service = wire.service()?;
    let server = wire.program(Side::Server, &binary.to_string_lossy());
    let mut server = wire.start_server(server.arg(7000), Some(&service), 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?
        .args("--connections 12 --bytes 20000 --seconds 2")
        .spawn()?;
    thread::sleep(Duration::from_secs(1));
    check_not_in_kernel(&wire, 7000)?;
    check_load(&client.wait(SHORT)?.success()?.json()?)?;
    short_connections(&wire, 7000, 100)?;
    wait_quiet(&service)?;
    let before = (service.descriptors()?, service.resident_kib()?);
    short_connections(&wire, 7000, 300)?;
    wait_quiet(&service)?;
    server.check_alive()?;
    wait_until(SHORT, "the children's descriptors to be closed", || {
        Ok(service.descriptors()? <= before.0)
    })?;
    let grown = service.resident_kib()?.saturating_sub(before.1);
    ensure!(grown <= GROWTH_MAX_KIB, "the service grew by {grown} KiB");
    Ok(())
}

/// redis forks a child repeatedly under load, to save its data. Each child inherits all connections
/// and uses no connection.
pub fn redis_saves_under_load() -> Outcome {
    require_tools(&["redis-server", "redis-benchmark", "redis-cli"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = wire.program(Side::Server, "redis-server");
    let server = server.args("--port 6379 --bind 0.0.0.0 --protected-mode no --appendonly no");
    let _redis = wire.start_server(server.arg("--save").arg(""), Some(&service), 6379)?;
    let load = wire
        .program(Side::Client, "redis-benchmark")
        .arg("-h")
        .arg(SERVER)
        .args("-t set,get -n 150000 -c 30 --csv")
        .spawn()?;
    let ask = |what: &str| -> Result<String, Stop> {
        let cli = wire.program(Side::Client, "redis-cli").arg("-h");
        Ok(cli.arg(SERVER).args(what).run(SHORT)?.stdout)
    };
    for _ in 0..5 {
        let said = ask("bgsave")?;
        ensure!(said.contains("started"), "bgsave: {said}");
        wait_until(SHORT, "the save to end", || {
            Ok(ask("info persistence")?.contains("rdb_bgsave_in_progress:0"))
        })?;
        let info = ask("info persistence")?;
        ensure!(
            info.contains("rdb_last_bgsave_status:ok"),
            "the save failed: {info}"
        );
    }
    crate::servers::check_redis_csv(&load.wait(Duration::from_secs(40))?.success()?.stdout)
}

/// The children of a killed server continue to serve their connections.
pub fn children_outlive_their_parent() -> Outcome {
    let wire = Wire::new()?;
    let binary = wire.scratch().join("fork_server");
    let source = tools::source_root().join("tests/interop/fork_server.c");
    tools::compile(&binary, &[source])?;
    let service = wire.service()?;
    let server = wire.program(Side::Server, &binary.to_string_lossy());
    let server = wire.start_server(server.arg(7000), Some(&service), 7000)?;
    let client = echo_client(&wire, Side::Client, 7000)?
        .args("--connections 4 --seconds 3")
        .spawn()?;
    // A connection for which the server has not forked when it is killed is reset.
    tools::wait_until(SHORT, "four children with requests", || {
        let served = |s: &&serde_json::Value| s["info"]["bytes_acked"].as_u64() > Some(0);
        Ok(service.sockets()?.iter().filter(served).count() == 4)
    })?;
    server.signal_and_wait(Signal::KILL, SHORT)?;
    check_load(&client.wait(SHORT)?.success()?.json()?)?;
    wait_quiet(&service)
}

/// An accelerated connection cannot be sent to another process, and a child cannot keep it over
/// exec. The preload library reports each attempt. With `--strict`, the attempt also fails. The
/// program itself can use the connection after the attempts.
pub fn passing_on_an_accelerated_connection_is_reported() -> Outcome {
    let wire = Wire::new()?;
    let binary = wire.scratch().join("passes_on");
    let source = tools::source_root().join("tests/interop/passes_on.c");
    tools::compile(&binary, &[source])?;
    let service = wire.service_with(Side::Client, &[])?;
    let _server = echo_server(&wire, None, 7000)?;
    let program = || {
        let program = wire.program(Side::Client, &binary.to_string_lossy());
        program.arg(SERVER).arg(7000)
    };
    let kernel = program().run(SHORT)?;
    let common = "a socket pair's end done\nthe connection";
    let rest = "echo abcd\nchild 0\necho efgh\n";
    ensure!(
        kernel.stdout == format!("{common} done\n{rest}") && kernel.stderr.is_empty(),
        "on the kernel: {kernel}"
    );
    let ours = program().accelerated(&service).run(SHORT)?;
    ensure!(ours.stdout == kernel.stdout, "not strict: {ours}");
    for words in ["cannot be sent to another process", "ends at exec"] {
        ensure!(ours.stderr.contains(words), "no {words:?} in: {ours}");
    }
    let strict = program().accelerated(&service).strict().run(SHORT)?;
    let rest = "echo abcd\nexec EOPNOTSUPP\nchild 9\necho efgh\n";
    ensure!(
        strict.stdout == format!("{common} EOPNOTSUPP\n{rest}"),
        "strict: {strict}"
    );
    Ok(())
}
