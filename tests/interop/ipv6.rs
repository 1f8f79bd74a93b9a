//! Programs that use IPv6, in one test together with IPv4.
//!
//! An accelerated program runs under `tidelane run`: the service (`tidelaned`) carries its TCP
//! connections instead of the kernel.

use std::time::Duration;

use tidelane_tests::{
    Nginx, Outcome, Program, Service, Side, Stop, Wire, ensure,
    nginx::{FILES, NginxOptions},
    tools::{require_tools, wait_until},
    wire::{CLIENT, CLIENT_V6, SERVER, SERVER_V6},
};

use crate::{
    servers::check_redis_csv,
    support::{SHORT, check_load, check_not_in_kernel, check_same, wrk},
};

/// Starts nginx with an IPv4 listener and an IPv6 listener on port 80, and a dual-stack listener on
/// port 81. The response header X-Names has the addresses that nginx sees: the client's address,
/// then nginx's own address.
fn nginx(wire: &Wire, service: Option<&Service>) -> Result<Nginx, Stop> {
    let server = "listen [::]:80 ipv6only=on; listen [::]:81 ipv6only=off; \
                  add_header X-Names $remote_addr/$server_addr;";
    let options = NginxOptions {
        server: server.to_owned(),
        ..NginxOptions::default()
    };
    let nginx = Nginx::start(wire, service, &options)?;
    if let Some(service) = service {
        wait_until(SHORT, "the listener for both versions", || {
            service.has_listener(81)
        })?;
    }
    Ok(nginx)
}

/// Returns a curl that gets `url` and prints the response header.
fn curl(wire: &Wire, side: Side, url: &str) -> Program {
    let curl = wire.program(side, "curl");
    curl.args("-sS --fail -g --max-time 20 --dump-header -")
        .arg(url)
}

/// An accelerated nginx serves clients over IPv4 and IPv6, and sees the right addresses. On a
/// dual-stack listener, nginx sees an IPv4 address in its mapped form (`::ffff:10.77.0.2`).
pub fn nginx_on_both_versions() -> Outcome {
    require_tools(&["curl", "nginx"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let nginx = nginx(&wire, Some(&service))?;
    let names = [
        (format!("{SERVER}:80"), format!("{CLIENT}/{SERVER}")),
        (
            format!("[{SERVER_V6}]:80"),
            format!("{CLIENT_V6}/{SERVER_V6}"),
        ),
        (
            format!("[{SERVER_V6}]:81"),
            format!("{CLIENT_V6}/{SERVER_V6}"),
        ),
        (
            format!("{SERVER}:81"),
            format!("::ffff:{CLIENT}/::ffff:{SERVER}"),
        ),
    ];
    for (at, known_as) in names {
        for (name, _) in FILES {
            let got = wire.scratch().join("got");
            let curl = curl(&wire, Side::Client, &format!("http://{at}/{name}"));
            let headers = curl.arg("-o").arg(got.display()).run(SHORT)?.stdout;
            check_same(&nginx.file(name), &got)?;
            let expected = format!("X-Names: {known_as}\r\n");
            ensure!(
                headers.contains(&expected),
                "from {at}, no {expected} in {headers}"
            );
        }
    }
    let load = wrk(&wire, Side::Client).args("-t 2 -c 32 -d 2s");
    let load = load.arg(format!("http://[{SERVER_V6}]/1m")).spawn()?;
    std::thread::sleep(Duration::from_millis(700));
    check_not_in_kernel(&wire, 80)?;
    let text = load.wait(SHORT)?.success()?.stdout;
    let bad = text.contains("Socket errors") || text.contains("Non-2xx");
    ensure!(!bad && text.contains("Requests/sec"), "{text}");
    Ok(())
}

/// Accelerated clients connect over IPv6 to an nginx on the kernel. The service resolves the
/// neighbour and selects the source address.
pub fn clients_of_a_kernel_server() -> Outcome {
    require_tools(&["curl", "nginx"])?;
    let wire = Wire::new()?;
    let service = wire.service_with(Side::Client, &[])?;
    let nginx = nginx(&wire, None)?;
    for (name, _) in FILES {
        let got = wire.scratch().join("got");
        let url = format!("http://[{SERVER_V6}]/{name}");
        let curl = curl(&wire, Side::Client, &url).arg("-o").arg(got.display());
        let headers = curl.accelerated(&service).strict().run(SHORT)?.stdout;
        check_same(&nginx.file(name), &got)?;
        let expected = format!("X-Names: {CLIENT_V6}/{SERVER_V6}");
        ensure!(headers.contains(&expected), "no {expected} in {headers}");
    }
    // A connect to a closed port is refused. A connect to an unused address fails.
    let refused = curl(&wire, Side::Client, &format!("http://[{SERVER_V6}]:9/"));
    let refused = refused.arg("-v").accelerated(&service).strict();
    let refused = refused.finish(SHORT)?;
    ensure!(refused.stderr.contains("Connection refused"), "{refused}");
    let nobody = curl(&wire, Side::Client, "http://[fd77::99]/").args("--connect-timeout 8");
    let nobody = nobody.accelerated(&service).strict().finish(SHORT)?;
    ensure!(!nobody.status.success(), "{nobody}");
    Ok(())
}

/// Two programs of one service communicate over IPv6 by the local path: the service passes the
/// segments from one program to the other without the NIC.
pub fn local_path() -> Outcome {
    require_tools(&["curl", "nginx", "redis-server", "redis-benchmark"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let nginx = nginx(&wire, Some(&service))?;
    let got = wire.scratch().join("got");
    let url = format!("http://[{SERVER_V6}]/1m");
    let curl = curl(&wire, Side::Server, &url).arg("-o").arg(got.display());
    curl.accelerated(&service).strict().run(SHORT)?;
    check_same(&nginx.file("1m"), &got)?;
    let server = wire.program(Side::Server, "redis-server");
    let server = server.args("--port 6379 --bind :: --protected-mode no --appendonly no");
    let _server = wire.start_server(server.arg("--save").arg(""), Some(&service), 6379)?;
    let benchmark = wire.program(Side::Server, "redis-benchmark").arg("-h");
    let benchmark = benchmark
        .arg(SERVER_V6)
        .args("-t set,get -n 50000 -c 50 --csv -P 4");
    let benchmark = benchmark.accelerated(&service);
    check_redis_csv(&benchmark.run(Duration::from_secs(40))?.stdout)
}

/// The service follows the interface's addresses. A listener is reachable at a new address. After
/// the new address is removed, the listener is reachable at the old address.
pub fn addresses_come_and_go() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let nginx = nginx(&wire, Some(&service))?;
    let load = |address: &str| {
        let tool = wire.load_tool(Side::Client, "http-client")?;
        let tool = tool.arg("--connect").arg(format!("[{address}]:80"));
        let tool = tool.args("--path /64 --connections 4 --seconds 1");
        tool.arg("--body")
            .arg(nginx.file("64").display())
            .run(SHORT)
    };
    check_load(&load(&SERVER_V6.to_string())?.json()?)?;
    let ip = |arguments: &str| {
        let ip = wire.program(Side::Server, "ip");
        ip.args(arguments).run(SHORT)
    };
    ip("address add fd77::77/64 dev eth1 nodad")?;
    check_load(&load("fd77::77")?.json()?)?;
    let running = wire.load_tool(Side::Client, "http-client")?;
    let running = running.args("--connect [fd77::77]:80 --path /64 --connections 4 --seconds 2");
    let running = running
        .arg("--body")
        .arg(nginx.file("64").display())
        .spawn()?;
    std::thread::sleep(Duration::from_millis(500));
    check_not_in_kernel(&wire, 80)?;
    running.wait(SHORT)?.success()?;
    ip("address del fd77::77/64 dev eth1")?;
    check_load(&load(&SERVER_V6.to_string())?.json()?)
}
