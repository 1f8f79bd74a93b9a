//! The key-value server of Tidelane (`app/kv`), whose connections are in the service (`tidelaned`).
//! The server uses the ring API of the service instead of sockets. The clients are test programs of
//! memcached, on the kernel's stack.

use tidelane_tests::{Outcome, Side, Wire, ensure, tools, wire::SERVER};

use crate::support::SHORT;

/// Port of the server.
const PORT: u16 = 7420;

/// memccapable finds no fault in the protocol. memcaslap reads the values that it has written.
pub fn memcached_clients_on_the_service() -> Outcome {
    tools::require_tools(&["memccapable", "memcaslap"])?;
    let wire = Wire::new()?;
    let service = wire.service()?;
    let path = tools::binary("tidelane-kv")?;
    let server = wire.program(Side::Server, &path.to_string_lossy());
    let server = server.registering_at(&service);
    let line = format!("--backend service --listen 0.0.0.0:{PORT} --memory 64");
    let mut server = server.args(&line).spawn_ready(SHORT)?;
    let before = service.counters()?["in_segs"].as_u64();
    let capable = wire.program(Side::Client, "memccapable");
    let line = format!("-h {SERVER} -p {PORT} -a");
    let finished = capable.args(&line).finish(SHORT)?;
    let output = finished.stdout + &finished.stderr;
    ensure!(
        output.contains("All tests passed") && !output.contains("[FAIL]"),
        "{output}"
    );
    let slap = wire.program(Side::Client, "memcaslap");
    let line = format!("-s {SERVER}:{PORT} -T 1 -c 16 -x 40000 -v 0.5");
    let output = slap.args(&line).run(SHORT)?.success()?.stdout;
    for word in ["cmd_get: 36000", "get_misses: 0", "verify_failed: 0"] {
        ensure!(output.contains(word), "no {word:?} in {output}");
    }
    let segments = service.counters()?["in_segs"].as_u64();
    ensure!(
        segments > before.map(|before| before + 1000),
        "{segments:?} segments through the service"
    );
    server.check_alive()
}
