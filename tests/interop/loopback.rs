//! `tidelane run --loopback`: if both programs of a connection run with this option, the service
//! also carries a connection over a loopback address, or over another address of the host.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. An
//! accelerated program runs under `tidelane run`: the service (`tidelaned`) carries its TCP
//! connections instead of the kernel.

use std::{path::PathBuf, time::Duration};

use rustix::process::Signal;
use serde_json::Value;
use tidelane_tests::{
    Nginx, Outcome, Program, Running, Service, Side, Stop, Wire, command, command_in, ensure,
    nginx::NginxOptions,
    tools::{self, require_tools, wait_until},
    wire::{INTERFACE, SERVER},
};

use crate::{
    servers::check_redis_csv,
    support::{SHORT, check_load, check_not_in_kernel, check_same},
};

/// Address of the server's host on an interface that is not served.
const OTHER: &str = "10.99.0.1";
/// Number of connections of `loopback table` (the program `loopback.c` with the argument `table`)
/// that are accelerated with `--loopback` but not without this option. The program's nine listeners
/// get 6, 1, 3, 9, 12, 3, 6, 0 and 2 of these connections. One more is the connection that the
/// program resets.
const CARRIED: u64 = 43;

/// Compiles `loopback.c`. Returns the path of the compiled program.
fn program(wire: &Wire) -> Result<PathBuf, Stop> {
    let binary = wire.scratch().join("loopback-program");
    let source = tools::source_root().join("tests/interop/loopback.c");
    tools::compile(&binary, &[source])?;
    Ok(binary)
}

/// Starts an accelerated echo server on port 7000. `options` are options of the server, and `run`
/// are options of `tidelane run`.
fn server(wire: &Wire, service: &Service, options: &str, run: &str) -> Result<Running, Stop> {
    let server = wire.load_tool(Side::Server, "echo-server")?;
    let server = server.args("--port 7000").args(options).run_options(run);
    wire.start_server(server, Some(service), 7000)
}

/// Returns an echo client in the namespace of `side` that connects to port 7000 at `address`.
fn client(wire: &Wire, side: Side, address: &str) -> Result<Program, Stop> {
    let client = wire.load_tool(side, "echo-client")?.arg("--connect");
    Ok(client.arg(format!("{address}:7000")))
}

/// Returns two numbers: the accelerated connections that programs opened, and the accelerated
/// connections that programs accepted.
fn opens(service: &Service) -> Result<[u64; 2], Stop> {
    let counters = service.counters()?;
    Ok(["active_opens", "passive_opens"].map(|name| counters[name].as_u64().unwrap_or(0)))
}

/// redis-benchmark and redis communicate over 127.0.0.1 and over ::1. All connections are
/// accelerated.
pub fn redis_on_localhost() -> Outcome {
    require_tools(&["redis-server", "redis-benchmark"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = wire.program(Side::Server, "redis-server");
    let server = server.args("--port 6379 --bind 127.0.0.1 ::1 --appendonly no --save");
    let server = server.arg("").run_options("--loopback");
    let server = wire.start_server(server, Some(&service), 6379)?;
    for host in ["127.0.0.1", "::1"] {
        let before = opens(&service)?;
        let benchmark = wire.program(Side::Server, "redis-benchmark").arg("-h");
        let benchmark = benchmark
            .arg(host)
            .args("-t set,get -n 60000 -c 50 --csv -P 4")
            .accelerated(&service)
            .run_options("--loopback --strict");
        let finished = benchmark.run(Duration::from_secs(40))?;
        check_redis_csv(&finished.stdout)?;
        let after = opens(&service)?;
        let opened = [after[0] - before[0], after[1] - before[1]];
        ensure!(opened.iter().all(|n| *n >= 100), "{host}: {opened:?}");
    }
    check_not_in_kernel(&wire, 6379)?;
    ensure!(
        !service.sockets_of(server.pid())?.is_empty(),
        "the service has no socket of redis"
    );
    Ok(())
}

/// curl gets a file from nginx over 127.0.0.1 and over 127.0.0.2.
pub fn nginx_and_curl() -> Outcome {
    require_tools(&["curl", "nginx"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let options = NginxOptions {
        run_options: "--loopback".to_owned(),
        ..NginxOptions::default()
    };
    let nginx = Nginx::start(&wire, Some(&service), &options)?;
    let got = wire.scratch().join("got");
    for host in ["127.0.0.1", "127.0.0.2"] {
        let curl = wire.program(Side::Server, "curl");
        let curl = curl.args("-sS --fail --max-time 20 -o").arg(got.display());
        let curl = curl.arg(format!("http://{host}/1m"));
        let curl = curl
            .accelerated(&service)
            .run_options("--loopback --strict");
        curl.run(SHORT)?;
        check_same(&nginx.file("1m"), &got)?;
    }
    let counters = service.counters()?;
    ensure!(counters["passive_opens"] == 2, "{counters}");
    Ok(())
}

/// `loopback table` connects between many kinds of addresses. The program runs once with
/// `--loopback` and once without. In both runs, the connects have the same results as on the
/// kernel, and getsockname and getpeername return the same addresses. With the option, [`CARRIED`]
/// more connections are accelerated.
pub fn all_addresses_as_on_the_kernel() -> Outcome {
    let wire = Wire::new()?;
    let space = wire.namespace(Side::Server);
    for line in [
        "link add other type veth peer name beyond".to_owned(),
        "link set other up".to_owned(),
        "link set beyond up".to_owned(),
        format!("address add {OTHER}/24 dev other"),
    ] {
        let all: Vec<&str> = ["ip", "-n", &space]
            .into_iter()
            .chain(line.split(' '))
            .collect();
        command(&all)?;
    }
    let binary = program(&wire)?;
    let table = || {
        let table = wire.program(Side::Server, &binary.to_string_lossy());
        table.arg("table").arg(SERVER).arg(OTHER)
    };
    let kernel = table().run(SHORT)?.stdout;
    ensure!(
        kernel.contains("to itself:"),
        "the table ends early: {kernel}"
    );
    let service = wire.service()?;
    let plain = table().accelerated(&service).run(SHORT)?.stdout;
    ensure!(plain == kernel, "without the option:\n{plain}\n{kernel}");
    let before = opens(&service)?;
    let carried = table().accelerated(&service).run_options("--loopback");
    let carried = carried.run(SHORT)?.stdout;
    let differs = |(a, b): &(&str, &str)| a != b;
    let line = carried.lines().zip(kernel.lines()).find(differs);
    ensure!(carried == kernel, "first difference: {line:?}");
    let after = opens(&service)?;
    let opened = [after[0] - before[0], after[1] - before[1]];
    let own = before[0];
    ensure!(
        opened == [CARRIED + own; 2],
        "{opened:?} connections were the service's; {before:?} without the option"
    );
    Ok(())
}

/// The kernel has a loopback connection in three cases: one of the two programs runs without
/// Tidelane, without `--loopback`, or with another option that leaves the socket to the kernel.
pub fn mixed_ends_are_the_kernels() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    for (server_options, client_options) in [
        (Some("--loopback"), None),
        (None, Some("--loopback")),
        (Some(""), Some("--loopback")),
        (Some("--loopback"), Some("")),
        (Some("--loopback --kernel-port 7000"), Some("--loopback")),
        (Some("--loopback"), Some("--loopback --no-connect")),
    ] {
        let what = format!("{server_options:?} {client_options:?}");
        let tool = wire.load_tool(Side::Server, "echo-server")?;
        let mut running = tool.args("--port 7000");
        if let Some(options) = server_options {
            running = running.accelerated(&service).run_options(options);
        }
        let running = wire.start_server(running, None, 7000)?;
        let mut ask = client(&wire, Side::Server, "127.0.0.1")?.args("--connections 4");
        if let Some(options) = client_options {
            ask = ask.accelerated(&service).run_options(options);
        }
        let ask = ask.args("--seconds 1").spawn()?;
        wait_until(SHORT, &what, || {
            Ok(wire.kernel_connections(Side::Server, 7000)? == 8)
        })?;
        check_load(&ask.wait(SHORT)?.success()?.json()?)?;
        running.signal_and_wait(Signal::TERM, SHORT)?;
        wait_until(SHORT, "the port", || Ok(!wire.listens(Side::Server, 7000)?))?;
    }
    let found = opens(&service)?;
    ensure!(found == [0, 0], "the service had connections: {found:?}");
    Ok(())
}

/// Programs in different network namespaces cannot connect to each other over loopback, even if the
/// service admits both namespaces. A program that moves to another namespace cannot connect over
/// loopback to the programs in its old namespace.
pub fn namespaces_do_not_connect_over_loopback() -> Outcome {
    let wire = Wire::new()?;
    let config = "[access]\nnamespaces = ['*']\nusers = ['*']\n";
    let service = wire.configured_service(config, &[])?;
    let _server = server(&wire, &service, "", "--loopback")?;
    let ask = |side| -> Result<Program, Stop> {
        let ask = client(&wire, side, "127.0.0.1")?.args("--seconds 0.3 --warmup 0");
        Ok(ask.accelerated(&service).run_options("--loopback"))
    };
    check_load(&ask(Side::Server)?.run(SHORT)?.json()?)?;
    let here = opens(&service)?;
    ensure!(here[1] > 0, "the service had no connection");
    // The service also admits the programs in the client's namespace.
    let line = ask(Side::Client)?.finish(SHORT)?;
    ensure!(line.stdout.contains("refused"), "the other side: {line}");
    ensure!(
        opens(&service)? == here,
        "programs of two namespaces connected"
    );
    // A listener in the client's namespace is not reachable from the server's namespace.
    let tool = wire.load_tool(Side::Client, "echo-server")?;
    let tool = tool.args("--port 7001 --address 127.0.0.1");
    let there = tool
        .accelerated(&service)
        .run_options("--loopback")
        .spawn()?;
    wait_until(SHORT, "the listener there", || {
        wire.listens(Side::Client, 7001)
    })?;
    let ask = wire.load_tool(Side::Server, "echo-client")?;
    let ask = ask.args("--connect 127.0.0.1:7001 --seconds 0.3 --warmup 0");
    let line = ask.accelerated(&service).run_options("--loopback");
    let line = line.finish(SHORT)?;
    ensure!(line.stdout.contains("refused"), "a listener there: {line}");
    drop(there);
    let leaving = wire.program(Side::Server, &program(&wire)?.to_string_lossy());
    let leaving = leaving.args("leave 7000").accelerated(&service);
    let seen = leaving.run_options("--loopback").run(SHORT)?.stdout;
    ensure!(seen.contains("elsewhere: Connection refused"), "{seen}");
    Ok(())
}

/// Frames on the wire that are to or from a loopback address reach no listener and no connection.
pub fn no_frame_with_a_loopback_address_is_accepted() -> Outcome {
    let wire = Wire::new()?;
    // Give the served interface a loopback address, too.
    let space = wire.namespace(Side::Server);
    let arguments = ["address", "add", "127.7.7.7/8", "dev", INTERFACE];
    let all: Vec<&str> = ["ip", "-n", &space].into_iter().chain(arguments).collect();
    command(&all)?;
    let service = wire.service()?;
    let _server = server(&wire, &service, "", "--loopback")?;
    let load = client(&wire, Side::Server, "127.0.0.1")?.args("--connections 4 --seconds 8");
    let load = load.accelerated(&service);
    let load = load.run_options("--loopback --strict").spawn()?;
    let file = format!("/sys/class/net/{INTERFACE}/address");
    let mac = command_in(&space, &["cat", &file])?;
    let attacker = tools::binary("tidelane-attacker")?;
    for (from, to) in [
        ("10.77.0.2", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "10.77.0.1"),
        ("10.77.0.2", "127.7.7.7"),
        ("fd77::2", "::1"),
        ("::1", "::1"),
    ] {
        let attack = wire.program(Side::Client, &attacker.to_string_lossy());
        let attack = attack.args("frames --seconds 0.4 --interface");
        let attack = attack.arg(INTERFACE).arg("--from").arg(from);
        let attack = attack
            .arg("--to")
            .arg(to)
            .args("--port 7000 --from-port 20001");
        let attack = attack.arg("--to-mac").arg(mac.trim());
        let received = attack.run(SHORT)?.success()?.json()?;
        let nothing = ["syn_acks", "resets", "segments"].map(|name| received[name] == 0);
        ensure!(nothing == [true; 3], "{from} to {to}: {received}");
    }
    check_load(&load.wait(SHORT)?.success()?.json()?)?;
    let [active, passive] = opens(&service)?;
    ensure!(
        active == passive && active >= 4,
        "{active} opened, {passive} accepted"
    );
    Ok(())
}

/// When a server is killed, its clients on loopback are reset. When the service is killed, the
/// clients are reset, too, and the server continues. The kernel then has the new connections, until
/// a new service runs.
pub fn deaths_reset_the_other_end() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let busy = |service: &Service| -> Result<Running, Stop> {
        let load = client(&wire, Side::Server, "127.0.0.1")?;
        let load = load
            .args("--connections 4 --seconds 60")
            .accelerated(service);
        let load = load.run_options("--loopback").spawn()?;
        wait_until(SHORT, "connections", || {
            let own = service.sockets_of(load.pid())?;
            let carried = |s: &&Value| s["accelerated"] == true && s["state"] == "ESTABLISHED";
            Ok(own.iter().filter(carried).count() == 4)
        })?;
        Ok(load)
    };
    let first = server(&wire, &service, "--address 127.0.0.1", "--loopback")?;
    let load = busy(&service)?;
    first.signal_and_wait(Signal::KILL, SHORT)?;
    wait_until(SHORT, "a client without connections", || {
        let own = service.sockets_of(load.pid())?;
        Ok(own.iter().all(|socket| socket["state"] != "ESTABLISHED"))
    })?;
    // The client reads the resets, and tries to connect again.
    std::thread::sleep(Duration::from_millis(300));
    let line = load.signal_and_wait(Signal::TERM, SHORT)?.json()?;
    let error = line["first_error"].as_str().unwrap_or_default();
    ensure!(error.contains("reset"), "a dead server: {line}");
    let mut second = server(&wire, &service, "--address 127.0.0.1", "--loopback")?;
    let load = busy(&service)?;
    service.kill()?;
    wait_until(SHORT, "the client to come back", || {
        Ok(wire.kernel_connections(Side::Server, 7000)? >= 2 * 4)
    })?;
    let line = load.signal_and_wait(Signal::TERM, SHORT)?.json()?;
    let error = line["first_error"].as_str().unwrap_or_default();
    ensure!(error.contains("reset"), "a dead service: {line}");
    ensure!(second.alive(), "the server died with its service");
    let service = wire.service_again(&service)?;
    wait_until(SHORT, "the listener", || service.has_listener(7000))?;
    let load = busy(&service)?;
    check_not_in_kernel(&wire, 7000)?;
    load.signal_and_wait(Signal::TERM, SHORT)?;
    Ok(())
}

/// The rules of the configuration apply to accelerated connections over loopback.
pub fn rules_hold() -> Outcome {
    let wire = Wire::new()?;
    let config = "[[rule]]\naction = \"refuse\"\ndirection = \"in\"\npeer = [\"127.0.0.0/8\"]\n";
    let service = wire.configured_service(config, &[])?;
    let _server = server(&wire, &service, "", "--loopback")?;
    let ask = || -> Result<Program, Stop> {
        let ask = client(&wire, Side::Server, "127.0.0.1")?.args("--seconds 0.3 --warmup 0");
        Ok(ask.accelerated(&service).run_options("--loopback"))
    };
    let line = ask()?.finish(SHORT)?;
    ensure!(line.stdout.contains("refused"), "a rule: {line}");
    if let Err(error) = service.reload("")? {
        return Err(Stop::Fail(error));
    }
    check_load(&ask()?.run(SHORT)?.json()?)
}

/// The setting `loopback` of the configuration is the default for programs that run with neither
/// `--loopback` nor `--no-loopback`. These options override the setting, for the server and for the
/// client.
pub fn by_configuration() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.configured_service("loopback = true\n", &[])?;
    let carried = |at_server: &str, at_client: &str| -> Result<bool, Stop> {
        let _server = server(&wire, &service, "", at_server)?;
        let before = opens(&service)?;
        let client = client(&wire, Side::Server, "127.0.0.1")?;
        let client = client.args("--connections 3 --seconds 0.3 --warmup 0");
        let client = client.accelerated(&service).run_options(at_client);
        check_load(&client.run(SHORT)?.json()?)?;
        let after = opens(&service)?;
        Ok([after[0] - before[0], after[1] - before[1]] == [3, 3])
    };
    ensure!(carried("", "")?, "not by the configuration");
    ensure!(carried("--loopback", "")?, "not with a redundant option");
    ensure!(
        !carried("--no-loopback", "")?,
        "despite the server's option"
    );
    ensure!(
        !carried("", "--no-loopback")?,
        "despite the client's option"
    );
    if let Err(error) = service.reload("")? {
        return Err(Stop::Fail(error));
    }
    ensure!(!carried("", "")?, "despite the new configuration");
    ensure!(carried("--loopback", "--loopback")?, "not by options alone");
    Ok(())
}
