//! Unmodified clients on Tidelane, with servers on the kernel's stack.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair. The
//! service (`tidelaned`) runs in the client's namespace and carries the TCP connections of
//! accelerated programs. With `strict`, a call of a program fails if the call would otherwise use
//! the kernel's stack.

use std::time::{Duration, Instant};

use tidelane_tests::{
    Nginx, Outcome, Side, Wire, ensure,
    nginx::{FILES, NginxOptions},
    tools::require_tools,
    wire::SERVER,
};

use crate::{
    servers::check_redis_csv,
    support::{SHORT, check_load, check_same, echo_client, echo_server, wrk},
};

/// curl gets each file of nginx, one by one, and each file is unchanged. Then curl gets all files
/// over parallel connections, and the largest file is unchanged.
pub fn curl_from_a_kernel_server() -> Outcome {
    require_tools(&["curl", "nginx"])?;
    let wire = Wire::new()?;
    let service = wire.service_with(Side::Client, &[])?;
    let nginx = Nginx::start(&wire, None, &NginxOptions::default())?;
    for (name, _) in FILES {
        let got = wire.scratch().join(format!("got-{name}"));
        let curl = wire
            .program(Side::Client, "curl")
            .args("-sS --fail --max-time 20");
        let curl = curl
            .arg(format!("http://{SERVER}/{name}"))
            .arg("-o")
            .arg(got.display());
        curl.accelerated(&service).strict().run(SHORT)?;
        check_same(&nginx.file(name), &got)?;
    }
    let all = format!("http://{SERVER}/{{64,1k,1m}}");
    let curl = wire
        .program(Side::Client, "curl")
        .args("-sS --fail --parallel --max-time 20");
    let curl = curl
        .arg(all)
        .arg("-o")
        .arg(wire.scratch().join("all-#1").display());
    curl.accelerated(&service).run(SHORT)?;
    check_same(&nginx.file("1m"), &wire.scratch().join("all-1m"))
}

/// wrk reports no error, and the kernel has no connection of wrk. wrk calls FIONREAD after each
/// read that fills its buffer.
pub fn wrk_against_a_kernel_server() -> Outcome {
    require_tools(&["wrk", "nginx"])?;
    let wire = Wire::new()?;
    let service = wire.service_with(Side::Client, &[])?;
    let _nginx = Nginx::start(&wire, None, &NginxOptions::default())?;
    for path in ["64", "1m"] {
        let load = wrk(&wire, Side::Client).args("-t 2 -c 32 -d 2s");
        let load = load
            .arg(format!("http://{SERVER}/{path}"))
            .accelerated(&service)
            .strict();
        let running = load.spawn()?;
        std::thread::sleep(Duration::from_secs(1));
        let count = wire.kernel_connections(Side::Client, 80)?;
        ensure!(
            count == 0,
            "{count} of the client's connections are the kernel's"
        );
        let finished = running.wait(SHORT)?.success()?;
        let text = &finished.stdout;
        let bad = text.contains("Socket errors") || text.contains("Non-2xx");
        ensure!(!bad && text.contains("Requests/sec"), "{finished}");
    }
    Ok(())
}

/// redis-benchmark gets all answers. Its library hiredis uses non-blocking connects.
pub fn redis_benchmark_against_a_kernel_server() -> Outcome {
    require_tools(&["redis-server", "redis-benchmark"])?;
    let wire = Wire::new()?;
    let service = wire.service_with(Side::Client, &[])?;
    let server = wire.program(Side::Server, "redis-server");
    let server = server.args("--port 6379 --bind 0.0.0.0 --protected-mode no --appendonly no");
    let _server = wire.start_server(server.arg("--save").arg(""), None, 6379)?;
    let benchmark = wire
        .program(Side::Client, "redis-benchmark")
        .arg("-h")
        .arg(SERVER);
    let benchmark = benchmark
        .args("-t set,get -n 100000 -c 50 --csv -P 4")
        .accelerated(&service);
    check_redis_csv(&benchmark.run(Duration::from_secs(40))?.stdout)
}

/// Echo clients verify every byte: on one connection, on 600 connections, on four connections with
/// large messages, and on 5000 short connections.
pub fn echo_client_against_a_kernel_server() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service_with(Side::Client, &[])?;
    let _server = echo_server(&wire, None, 7000)?;
    for load in [
        "--connections 1",
        "--connections 600",
        "--connections 4 --bytes 300000",
    ] {
        let client = echo_client(&wire, Side::Client, 7000)?
            .args(load)
            .args("--seconds 1");
        check_load(&client.accelerated(&service).strict().run(SHORT)?.json()?)?;
    }
    let short = wire.load_tool(Side::Client, "short-client")?;
    let short = short.arg("--connect").arg(format!("{SERVER}:7000"));
    let short = short
        .args("--connections 16 --total 5000 --seconds 15")
        .accelerated(&service);
    check_load(&short.run(SHORT)?.json()?)
}

/// A connect to a closed port fails with ECONNREFUSED. A connect to an unused address of the subnet
/// fails with EHOSTUNREACH.
pub fn refused_and_unreachable() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service_with(Side::Client, &[])?;
    let connect = |to: &str| -> Result<(String, Duration), tidelane_tests::Stop> {
        let tool = wire
            .load_tool(Side::Client, "echo-client")?
            .arg("--connect")
            .arg(to);
        let tool = tool.args("--seconds 5 --warmup 0").accelerated(&service);
        let start = Instant::now();
        let line = tool.finish(SHORT)?.json()?;
        let error = line["first_error"].as_str().unwrap_or_default().to_owned();
        Ok((error, start.elapsed()))
    };
    let (error, _) = connect(&format!("{SERVER}:9"))?;
    ensure!(error.contains("refused"), "a closed port gave {error:?}");
    let (error, _) = connect("10.77.0.77:9")?;
    ensure!(
        error.contains("No route to host"),
        "an absent address gave {error:?}"
    );
    Ok(())
}
