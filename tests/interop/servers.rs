//! Unmodified servers on Tidelane, with clients on the kernel's stack.
//!
//! An accelerated program runs under `tidelane run`: the service (`tidelaned`) carries its TCP
//! connections instead of the kernel.

use std::{fs, time::Duration};

use rustix::process::Signal;
use tidelane_tests::{
    Nginx, Outcome, Program, Service, Side, Stop, Wire, ensure,
    nginx::{FILES, NginxOptions},
    running::send_signal,
    tools::{env_number, require_tools, source_root, wait_until},
    wire::{SERVER, write_random_file},
};

use crate::support::{
    SHORT, check_load, check_not_in_kernel, check_same, echo_client, echo_server,
};

/// Echo clients send small, large and pipelined messages over one or many connections, and verify
/// every byte. At the end, no connection of the server is established.
pub fn echo() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = echo_server(&wire, Some(&service), 7000)?;
    for load in [
        "--connections 1",
        "--connections 64",
        "--connections 16 --pipeline 8",
        "--connections 4 --bytes 1",
        "--connections 4 --bytes 100000",
        "--connections 2 --bytes 1000000 --pipeline 2",
    ] {
        let client = echo_client(&wire, Side::Client, 7000)?
            .args(load)
            .args("--seconds 1");
        let client = client.spawn()?;
        std::thread::sleep(Duration::from_millis(700));
        check_not_in_kernel(&wire, 7000)?;
        check_load(&client.wait(SHORT)?.success()?.json()?)?;
    }
    let to = format!("{SERVER}:7000");
    let short = wire
        .load_tool(Side::Client, "short-client")?
        .arg("--connect")
        .arg(to);
    let finished = short
        .args("--connections 16 --total 2000 --seconds 60")
        .run(SHORT * 5)?;
    check_load(&finished.json()?)?;
    wait_until(SHORT, "all connections to be released", || {
        let sockets = service.sockets_of(server.pid())?;
        Ok(sockets
            .iter()
            .all(|socket| socket["state"] != "ESTABLISHED"))
    })
}

/// Starts nginx with the default options on `service`.
pub fn nginx(wire: &Wire, service: &Service) -> Result<Nginx, Stop> {
    Nginx::start(wire, Some(service), &NginxOptions::default())
}

/// Returns the program curl in the client's namespace. curl gets `path` from the server.
pub fn curl(wire: &Wire, path: &str) -> Program {
    let url = format!("http://{SERVER}/{path}");
    wire.program(Side::Client, "curl")
        .args("-sS --fail --max-time 20")
        .arg(url)
}

/// Returns a client that gets the file `name` from nginx repeatedly, and compares each response
/// with the file.
fn http_client(wire: &Wire, nginx: &Nginx, name: &str) -> Result<Program, Stop> {
    let tool = wire.load_tool(Side::Client, "http-client")?;
    let tool = tool
        .arg("--connect")
        .arg(format!("{SERVER}:{}", nginx.port));
    let tool = tool.arg("--path").arg(format!("/{name}"));
    Ok(tool.arg("--body").arg(nginx.file(name).display()))
}

/// Fails unless curl gets each of nginx's files, and each of the files `more`, unchanged.
pub fn check_bodies(wire: &Wire, nginx: &Nginx, more: &[&str]) -> Outcome {
    let names = FILES.iter().map(|(name, _)| name).chain(more);
    for name in names {
        let got = wire.scratch().join(format!("got-{name}"));
        let curl = curl(wire, name).arg("-o").arg(got.display());
        curl.run(Duration::from_secs(25))?;
        check_same(&nginx.file(name), &got)?;
    }
    Ok(())
}

/// curl gets files of several sizes unchanged, and an HTTP error for a missing file.
pub fn nginx_bodies_by_curl() -> Outcome {
    require_tools(&["curl", "nginx"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let nginx = nginx(&wire, &service)?;
    let mib = env_number("TIDELANE_BULK_MIB", 64);
    write_random_file(&nginx.file("bulk"), mib << 20, 99)?;
    check_bodies(&wire, &nginx, &["bulk"])?;
    let missing = curl(&wire, "missing").finish(SHORT)?;
    ensure!(
        missing.status.code() == Some(22),
        "curl did not see 404: {missing}"
    );
    Ok(())
}

/// Clients get files over keep-alive connections, and over a new connection for each request. The
/// clients compare every response.
pub fn nginx_keep_alive_and_close() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let nginx = nginx(&wire, &service)?;
    for (name, _) in FILES {
        for close in [false, true] {
            for connections in [1, 16, 64] {
                let client = http_client(&wire, &nginx, name)?;
                let client = client.arg("--connections").arg(connections);
                let client = client.args("--seconds 1 --warmup 0.2");
                let client = if close { client.arg("--close") } else { client };
                let line = client.run(SHORT)?.json()?;
                check_load(&line)?;
            }
        }
    }
    ensure!(nginx.workers()?.len() == 2, "a worker is gone");
    Ok(())
}

/// wrk gets responses from nginx without an error.
pub fn nginx_under_wrk() -> Outcome {
    require_tools(&["wrk", "nginx"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _nginx = nginx(&wire, &service)?;
    for path in ["64", "1k", "1m"] {
        let url = format!("http://{SERVER}/{path}");
        let wrk = wire
            .program(Side::Client, "wrk")
            .args("-t 1 -c 32 -d 2s --latency")
            .arg(url);
        let finished = wrk.run(SHORT)?;
        let text = &finished.stdout;
        let bad = text.contains("Socket errors") || text.contains("Non-2xx");
        ensure!(!bad && text.contains("Requests/sec"), "{finished}");
    }
    Ok(())
}

/// nginx reloads its configuration under load. New workers replace the old ones, and no connection
/// fails.
pub fn nginx_reload() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let nginx = nginx(&wire, &service)?;
    let before = nginx.workers()?;
    let client = http_client(&wire, &nginx, "1k")?.args("--close --connections 8 --seconds 4");
    let client = client.spawn()?;
    std::thread::sleep(Duration::from_secs(1));
    nginx.master.signal(Signal::HUP)?;
    wait_until(SHORT, "new workers instead of the old", || {
        let workers = nginx.workers()?;
        Ok(workers.len() == 2 && workers.iter().all(|pid| !before.contains(pid)))
    })?;
    check_load(&client.wait(SHORT)?.success()?.json()?)
}

/// nginx replaces a killed worker, and serves all later clients.
pub fn nginx_worker_restart() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let nginx = nginx(&wire, &service)?;
    for _ in 0..5 {
        let workers = nginx.workers()?;
        send_signal(workers[0], Signal::KILL)?;
        wait_until(SHORT, "the worker to be replaced", || {
            let now = nginx.workers()?;
            Ok(now.len() == 2 && !now.contains(&workers[0]))
        })?;
        let client = http_client(&wire, &nginx, "1k")?.args("--close --connections 4");
        check_load(
            &client
                .args("--seconds 0.3 --warmup 0.1")
                .run(SHORT)?
                .json()?,
        )?;
    }
    Ok(())
}

/// Each nginx worker has its own listener (SO_REUSEPORT). The connections are distributed among all
/// workers, also after a new worker has replaced a killed one.
pub fn nginx_with_a_listener_for_each_worker() -> Outcome {
    const CONNECTIONS: usize = 64;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let options = NginxOptions {
        workers: 4,
        reuseport: true,
        ..NginxOptions::default()
    };
    let nginx = Nginx::start(&wire, Some(&service), &options)?;
    wait_until(SHORT, "the workers", || Ok(nginx.workers()?.len() == 4))?;
    for _ in 0..2 {
        let workers = nginx.workers()?;
        let client = http_client(&wire, &nginx, "1k")?.arg("--connections");
        let client = client.arg(CONNECTIONS).args("--seconds 3").spawn()?;
        wait_until(SHORT, "all connections", || {
            let shares = shares(&service, &workers)?;
            Ok(shares.iter().sum::<usize>() == CONNECTIONS)
        })?;
        let shares = shares(&service, &workers)?;
        // A worker gets 16 connections on average, and fewer than 3 with a probability of 2.5e-6.
        ensure!(
            shares.iter().all(|share| *share >= 3),
            "the workers have {shares:?} connections"
        );
        check_not_in_kernel(&wire, 80)?;
        check_load(&client.wait(SHORT)?.success()?.json()?)?;
        send_signal(workers[0], Signal::KILL)?;
        wait_until(SHORT, "the worker to be replaced", || {
            let now = nginx.workers()?;
            Ok(now.len() == 4 && !now.contains(&workers[0]))
        })?;
    }
    Ok(())
}

/// Returns the number of established accelerated connections of each of the processes `pids`.
fn shares(service: &Service, pids: &[u32]) -> Result<Vec<usize>, Stop> {
    let sockets = service.sockets()?;
    let of = |pid: &u32| {
        let own = sockets.iter().filter(|socket| socket["pid"] == *pid);
        own.filter(|socket| socket["accelerated"] == true && socket["state"] == "ESTABLISHED")
            .count()
    };
    Ok(pids.iter().map(of).collect())
}

/// Starts redis without persistence on port 6379, on `service`.
pub fn redis(wire: &Wire, service: &Service) -> Result<tidelane_tests::Running, Stop> {
    require_tools(&["redis-server", "redis-benchmark", "redis-cli"])?;
    let server = wire.program(Side::Server, "redis-server");
    let server = server.args("--port 6379 --bind 0.0.0.0 --protected-mode no --appendonly no");
    wire.start_server(server.arg("--save").arg(""), Some(service), 6379)
}

/// redis-benchmark completes, with and without pipelining.
pub fn redis_benchmark() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _redis = redis(&wire, &service)?;
    for pipeline in ["1", "16"] {
        let benchmark = wire
            .program(Side::Client, "redis-benchmark")
            .arg("-h")
            .arg(SERVER);
        let benchmark = benchmark
            .args("-t set,get -n 100000 -c 50 --csv -P")
            .arg(pipeline);
        let finished = benchmark.run(Duration::from_secs(40))?;
        check_redis_csv(&finished.stdout)?;
    }
    Ok(())
}

/// Fails unless the output of redis-benchmark has a line for SET and a line for GET.
pub fn check_redis_csv(text: &str) -> Outcome {
    for name in ["\"SET\"", "\"GET\""] {
        ensure!(
            text.lines().any(|line| line.starts_with(name)),
            "no {name} in\n{text}"
        );
    }
    Ok(())
}

/// redis returns stored values of several sizes unchanged.
pub fn redis_values() -> Outcome {
    let wire = Wire::new()?;
    let service = wire.service()?;
    let _redis = redis(&wire, &service)?;
    for len in [1, 1448, 65_536, 5_000_000] {
        let value = wire.scratch().join("value");
        let got = wire.scratch().join("got");
        write_random_file(&value, len, len)?;
        // redis-cli prints a text unchanged and appends a line end.
        let text: String = fs::read(&value)?
            .iter()
            .map(|b| char::from(b'a' + b % 26))
            .collect();
        fs::write(&value, text)?;
        let set = format!(
            "redis-cli -h {SERVER} -x set key < {} && redis-cli -h {SERVER} get key > {}",
            value.display(),
            got.display()
        );
        wire.program(Side::Client, "sh")
            .arg("-c")
            .arg(set)
            .run(SHORT)?;
        let trimmed = fs::read_to_string(&got)?.trim_end().to_owned();
        fs::write(&got, trimmed)?;
        check_same(&value, &got)?;
    }
    Ok(())
}

/// memcached serves with four threads. Its main thread accepts connections and passes their
/// descriptors to worker threads.
pub fn memcached_four_threads() -> Outcome {
    require_tools(&["memcached", "memcaslap"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let server = wire.program(Side::Server, "memcached");
    let server = server.args("-t 4 -p 11211 -U 0 -l 0.0.0.0 -u nobody");
    let server = wire.start_server(server, Some(&service), 11211)?;
    let client = wire
        .program(Side::Client, "memcaslap")
        .arg("-s")
        .arg(format!("{SERVER}:11211"));
    // With -v 0.2, memcaslap verifies a fifth of the values.
    let finished = client
        .args("-T 2 -c 16 -t 5s -v 0.2")
        .run(Duration::from_secs(40))?;
    check_memcaslap(&finished.stdout)?;
    ensure!(
        !service.sockets_of(server.pid())?.is_empty(),
        "the service has no socket of memcached"
    );
    Ok(())
}

/// Fails unless memcaslap has read values, and reports a verification without a difference.
fn check_memcaslap(text: &str) -> Outcome {
    let number = |name: &str| -> Option<u64> {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(name))?;
        line.rsplit(':')
            .next()?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    };
    ensure!(number("cmd_get") > Some(0), "no gets in\n{text}");
    ensure!(
        number("verify_failed") == Some(0),
        "wrong values in\n{text}"
    );
    ensure!(
        number("verify_misses").is_some(),
        "no verification in\n{text}"
    );
    Ok(())
}

/// An Erlang server serves echo clients. BEAM, the runtime of Erlang, calls accept before it waits
/// for a connection. One thread of BEAM adds descriptors with EPOLLONESHOT to an epoll instance in
/// which another thread sleeps. BEAM copies the listener's socket options to each connection.
pub fn erlang_echo() -> Outcome {
    require_tools(&["erl", "erlc"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let source = source_root().join("tests/interop/echo.erl");
    let into = wire.scratch().display().to_string();
    wire.program(Side::Server, "erlc")
        .args("-o")
        .arg(&into)
        .arg(source.display())
        .run(SHORT)?;
    let server = wire
        .program(Side::Server, "erl")
        .args("+S 2 -noshell -pa")
        .arg(&into)
        .args("-eval")
        .arg("echo:main(7000).");
    let _server = wire.start_server(server.strict(), Some(&service), 7000)?;
    for load in [
        "--connections 1",
        "--connections 16",
        "--connections 4 --bytes 100000",
    ] {
        let client = echo_client(&wire, Side::Client, 7000)?
            .args(load)
            .args("--seconds 1");
        check_load(&client.run(SHORT)?.json()?)?;
    }
    let short = wire.load_tool(Side::Client, "short-client")?;
    let short = short.arg("--connect").arg(format!("{SERVER}:7000"));
    let short = short.args("--connections 4 --total 500 --seconds 60");
    check_load(&short.run(SHORT * 5)?.json()?)
}
