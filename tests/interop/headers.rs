//! The DiffServ field and the TTL of an accelerated program's packets, as the peer receives them.
//!
//! An accelerated program runs under `tidelane run`: the service (`tidelaned`), not the kernel,
//! carries the program's TCP connections.

use std::time::Duration;

use tidelane_tests::{
    Outcome, Service, Side, Stop, Wire, ensure, tools,
    wire::{CLIENT, CLIENT_V6, SERVER, SERVER_V6},
};

/// First port of the case. Each run of the two programs uses two ports.
const PORT: u16 = 7200;
/// Time limit of a step, which suffices on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Runs `headers.c` at both ends: `headers own` on `service` if given or else on the kernel, and
/// `headers peer` on the kernel. Returns the header fields that the peer received.
fn seen(
    wire: &Wire,
    service: Option<&Service>,
    (own, peer): (&str, &str),
    port: u16,
) -> Result<String, Stop> {
    let binary = wire.scratch().join("headers-program");
    let program = |side| wire.program(side, &binary.to_string_lossy());
    let other = program(Side::Client)
        .args(&format!("peer {own} {peer} {port}"))
        .spawn_ready(LONG)?;
    let program = program(Side::Server)
        .args(&format!("own {peer} {own} {port}"))
        .on(service);
    let program = if service.is_some() {
        program.strict()
    } else {
        program
    };
    let finished = program.finish(LONG)?;
    ensure!(finished.status.success(), "{finished}");
    Ok(other.wait(LONG)?.success()?.stdout)
}

/// RFC 9293 MUST-48, MUST-49, SHLD-21, SHLD-22: the options of a socket determine the fields of its
/// packets, whether the program sets the options before or after connect. The options of a listener
/// determine the fields of accepted connections. RFC 1122 §3.2.1.7: without options, sysctls
/// determine the TTL. The result is the same as on the kernel.
pub fn ip_headers_are_as_chosen() -> Outcome {
    let wire = Wire::new()?;
    let binary = wire.scratch().join("headers-program");
    let source = tools::source_root().join("tests/interop/headers.c");
    tools::compile(&binary, &[source])?;
    let (server, client) = (SERVER.to_string(), CLIENT.to_string());
    let (server_v6, client_v6) = (SERVER_V6.to_string(), CLIENT_V6.to_string());
    // Set the TTL and the hop limit of sockets without options.
    wire.sysctl(Side::Server, "net.ipv4.ip_default_ttl", "55")?;
    wire.sysctl(Side::Server, "net.ipv6.conf.eth1.hop_limit", "55")?;
    let service = wire.service()?;
    for (at, ends) in [(&*server, &*client), (&*server_v6, &*client_v6)]
        .into_iter()
        .enumerate()
    {
        let port = PORT + 10 * at as u16;
        let expected = seen(&wire, None, ends, port)?;
        for line in [
            "SYN -: class b8, hops 9",
            "data b: class 28, hops 33",
            "SYN,ACK -: class 48, hops 77",
            "data d: class 48, hops 77",
            "SYN -: class 0, hops 55",
            "data e: class 0, hops 55",
        ] {
            ensure!(expected.contains(line), "the kernel itself: {expected}");
        }
        let got = seen(&wire, Some(&service), ends, port + 2)?;
        ensure!(got == expected, "expected:\n{expected}seen:\n{got}");
    }
    Ok(())
}
