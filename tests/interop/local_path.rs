//! Two programs of one service (`tidelaned`) on the same host. Their connections use the local
//! path: the service passes the segments from one program to the other without the NIC.

use std::time::Duration;

use tidelane_tests::{
    Nginx, Outcome, Side, Wire, ensure, nginx::NginxOptions, tools::require_tools, wire::SERVER,
};

use crate::{
    servers::check_redis_csv,
    support::{SHORT, check_load, check_not_in_kernel, check_same, echo_client, echo_server},
};

/// Echo clients and a client with short connections connect to the echo server at the interface's
/// own address.
pub fn echo() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _server = echo_server(&wire, Some(&service), 7000)?;
    for load in [
        "--connections 1",
        "--connections 64",
        "--connections 2 --bytes 1000000",
    ] {
        let client = echo_client(&wire, Side::Server, 7000)?
            .args(load)
            .args("--seconds 1");
        let client = client.accelerated(&service).strict().spawn()?;
        std::thread::sleep(Duration::from_millis(700));
        check_not_in_kernel(&wire, 7000)?;
        check_load(&client.wait(SHORT)?.success()?.json()?)?;
    }
    let short = wire.load_tool(Side::Server, "short-client")?;
    let short = short.arg("--connect").arg(format!("{SERVER}:7000"));
    let short = short
        .args("--connections 16 --total 5000 --seconds 15")
        .accelerated(&service);
    check_load(&short.run(SHORT)?.json()?)
}

/// curl gets a file from nginx.
pub fn nginx_and_curl() -> Outcome {
    require_tools(&["curl", "nginx"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let nginx = Nginx::start(&wire, Some(&service), &NginxOptions::default())?;
    let got = wire.scratch().join("got");
    let curl = wire
        .program(Side::Server, "curl")
        .args("-sS --fail --max-time 20");
    let curl = curl
        .arg(format!("http://{SERVER}/1m"))
        .arg("-o")
        .arg(got.display());
    curl.accelerated(&service).strict().run(SHORT)?;
    check_same(&nginx.file("1m"), &got)
}

/// redis-benchmark uses redis.
pub fn redis_and_redis_benchmark() -> Outcome {
    require_tools(&["redis-server", "redis-benchmark"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = wire.program(Side::Server, "redis-server");
    let server = server.args("--port 6379 --bind 0.0.0.0 --protected-mode no --appendonly no");
    let server = wire.start_server(server.arg("--save").arg(""), Some(&service), 6379)?;
    let benchmark = wire
        .program(Side::Server, "redis-benchmark")
        .arg("-h")
        .arg(SERVER);
    let benchmark = benchmark
        .args("-t set,get -n 100000 -c 50 --csv -P 4")
        .accelerated(&service);
    check_redis_csv(&benchmark.run(Duration::from_secs(40))?.stdout)?;
    ensure!(
        !service.sockets_of(server.pid())?.is_empty(),
        "the service has no socket of redis"
    );
    Ok(())
}
