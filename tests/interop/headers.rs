//! DiffServ field and TTL of a program's packets, as its peer receives them.

use std::time::Duration;

use tidelane_tests::{
    Outcome, Service, Side, Stop, Wire, ensure,
    tools::{self, wait_until},
    wire::{CLIENT, CLIENT_V6, SERVER, SERVER_V6},
};

const PORT: u16 = 7200;
/// Time limit of a step on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Returns the header fields that the peer received from a program on `service`, or on the kernel.
fn seen(
    wire: &Wire,
    service: Option<&Service>,
    (own, peer): (&str, &str),
    port: u16,
) -> Result<String, Stop> {
    let binary = wire.scratch().join("headers-program");
    let program = |side| wire.program(side, &binary.to_string_lossy());
    let mut other = program(Side::Client)
        .args(&format!("peer {own} {peer} {port}"))
        .spawn()?;
    wait_until(LONG, "the peer", || {
        other.check_alive()?;
        Ok(other.written().0.contains("ready"))
    })?;
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

/// RFC 9293 MUST-48, MUST-49, SHLD-21, SHLD-22: the program's options determine the fields, before
/// and during the connection, and its listener's options those of accepted connections, as on the
/// kernel's stack. RFC 1122 §3.2.1.7: otherwise the host's sysctls do.
pub fn ip_headers_are_as_chosen() -> Outcome {
    let wire = Wire::new()?;
    let binary = wire.scratch().join("headers-program");
    let source = tools::source_root().join("tests/interop/headers.c");
    tools::compile(&binary, &[source])?;
    let (server, client) = (SERVER.to_string(), CLIENT.to_string());
    let (server_v6, client_v6) = (SERVER_V6.to_string(), CLIENT_V6.to_string());
    // The values for programs that set no option.
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
            "text b: class 28, hops 33",
            "SYN,ACK -: class 48, hops 77",
            "text d: class 48, hops 77",
            "SYN -: class 0, hops 55",
            "text e: class 0, hops 55",
        ] {
            ensure!(expected.contains(line), "the kernel itself: {expected}");
        }
        let got = seen(&wire, Some(&service), ends, port + 2)?;
        ensure!(got == expected, "expected:\n{expected}seen:\n{got}");
    }
    Ok(())
}
