//! TCP Fast Open between the service and the kernel, in both roles, by programs that use it.

use rustix::process::Signal;
use tidelane_tests::{
    Nginx, Outcome, Program, Service, Side, Stop, Wire, ensure,
    nginx::NginxOptions,
    tools::{require_tools, wait_until},
    wire::SERVER,
};

use crate::support::{SHORT, check_same};

/// Port of nginx' listener with `fastopen`.
const PORT: u16 = 8080;

/// Returns a wire on which the kernels at both ends allow data in SYNs.
fn wire() -> Result<Wire, Stop> {
    require_tools(&["curl", "nginx"])?;
    let wire = Wire::new()?;
    for side in [Side::Server, Side::Client] {
        wire.sysctl(side, "net.ipv4.tcp_fastopen", "3")?;
    }
    Ok(wire)
}

fn nginx(wire: &Wire, service: Option<&Service>) -> Result<Nginx, Stop> {
    let options = NginxOptions {
        server: format!("listen {PORT} fastopen=16;"),
        ..NginxOptions::default()
    };
    let nginx = Nginx::start(wire, service, &options)?;
    if let Some(service) = service {
        wait_until(SHORT, "the listener with fastopen", || {
            service.has_listener(PORT)
        })?;
    }
    Ok(nginx)
}

/// Fetches a file with `curl --tcp-fastopen` several times; the first connection requests a cookie.
fn get(wire: &Wire, nginx: &Nginx, on: impl Fn(Program) -> Program) -> Outcome {
    for name in ["64", "1m", "64", "1k"] {
        let got = wire.scratch().join("got");
        let curl = wire.program(Side::Client, "curl");
        let curl = curl.args("-sS --fail --tcp-fastopen --max-time 15");
        let curl = curl.arg(format!("http://{SERVER}:{PORT}/{name}"));
        on(curl.arg("-o").arg(got.display())).run(SHORT)?;
        check_same(&nginx.file(name), &got)?;
    }
    Ok(())
}

fn check_counter(service: &Service, name: &str) -> Outcome {
    let counters = service.counters()?;
    ensure!(
        counters[name].as_u64() >= Some(3),
        "too few {name}: {counters}"
    );
    Ok(())
}

/// The client is curl on the kernel, the server nginx on the service.
pub fn nginx_takes_text_with_syn() -> Outcome {
    let wire = wire()?;
    let service = wire.service()?;
    let nginx = nginx(&wire, Some(&service))?;
    get(&wire, &nginx, |curl| curl)?;
    check_counter(&service, "fast_open_passive")
}

/// The client is curl on the service, the server nginx on the kernel.
pub fn curl_sends_text_with_syn() -> Outcome {
    let wire = wire()?;
    let service = wire.service_with(Side::Client, &[])?;
    let nginx = nginx(&wire, None)?;
    get(&wire, &nginx, |curl| curl.accelerated(&service).strict())?;
    check_counter(&service, "fast_open_active")
}

/// A cookie of one service is valid with the next one, because both use the kernel's key of the
/// namespace.
pub fn cookies_outlive_the_service() -> Outcome {
    let wire = wire()?;
    let service = wire.service()?;
    let mut first = nginx(&wire, Some(&service))?;
    get(&wire, &first, |curl| curl)?;
    first.master.signal(Signal::QUIT)?;
    ensure!(first.master.ends_within(SHORT)?, "nginx does not quit");
    drop(service);
    let service = wire.service()?;
    let second = nginx(&wire, Some(&service))?;
    get(&wire, &second, |curl| curl)?;
    let counters = service.counters()?;
    ensure!(
        counters["fast_open_passive"].as_u64() == Some(4),
        "the first one has no cookie: {counters}"
    );
    Ok(())
}
