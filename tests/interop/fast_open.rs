//! TCP Fast Open (RFC 7413) between the service (`tidelaned`) and the kernel: nginx is the server,
//! and curl is the client.
//!
//! A wire is two network namespaces, the server's and the client's, joined by a veth pair.

use rustix::process::Signal;
use tidelane_tests::{
    Nginx, Outcome, Program, Service, Side, Stop, Wire, ensure,
    nginx::NginxOptions,
    tools::{require_tools, wait_until},
    wire::SERVER,
};

use crate::support::{SHORT, check_same};

/// Port of nginx's listener with the option `fastopen`.
const PORT: u16 = 8080;

/// Returns a wire on which the kernel allows TCP Fast Open in both namespaces, for clients and for
/// servers.
fn wire() -> Result<Wire, Stop> {
    require_tools(&["curl", "nginx"])?;
    let wire = Wire::new()?;
    for side in [Side::Server, Side::Client] {
        wire.sysctl(side, "net.ipv4.tcp_fastopen", "3")?;
    }
    Ok(wire)
}

/// Starts nginx with a Fast Open listener, on `service` if given or else on the kernel.
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

/// Gets files with `curl --tcp-fastopen` four times, each time over a new connection. If the client
/// has no cookie, the first connection requests a cookie. `on` decides if curl uses the service or
/// the kernel.
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

/// Fails unless the counter `name` of the service is at least 3. Of the four connections of
/// [`get`], all but the first have a cookie.
fn check_counter(service: &Service, name: &str) -> Outcome {
    let counters = service.counters()?;
    ensure!(
        counters[name].as_u64() >= Some(3),
        "too few {name}: {counters}"
    );
    Ok(())
}

/// nginx on the service accepts data in the SYNs of curl on the kernel.
pub fn nginx_accepts_data_in_syn() -> Outcome {
    let wire = wire()?;
    let service = wire.service()?;
    let nginx = nginx(&wire, Some(&service))?;
    get(&wire, &nginx, |curl| curl)?;
    check_counter(&service, "fast_open_passive")
}

/// curl on the service sends data in its SYNs to nginx on the kernel.
pub fn curl_sends_data_in_syn() -> Outcome {
    let wire = wire()?;
    let service = wire.service_with(Side::Client, &[])?;
    let nginx = nginx(&wire, None)?;
    get(&wire, &nginx, |curl| curl.accelerated(&service).strict())?;
    check_counter(&service, "fast_open_active")
}

/// A cookie from one service is valid with the next service, because both services use the key
/// that the kernel has for the namespace.
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
        "a SYN without a valid cookie: {counters}"
    );
    Ok(())
}
