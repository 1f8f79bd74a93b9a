//! The server and the service of a measurement, and the numbers that the clients print.

use std::time::Duration;

use serde_json::Value;
use tidelane_tests::{
    Program, Running, Service, Side, Stop, Wire, service::cpu_time_of, tools, wire::SERVER,
};

/// A running server, and the Tidelane service that it uses, if any.
pub struct Programs {
    /// The server.
    pub server: Running,
    /// The service.
    pub service: Option<Service>,
}

impl Programs {
    /// Returns the CPU time of the server and of the service.
    pub fn cpu_time(&self) -> Result<Duration, Stop> {
        let of_service = self.service.as_ref().map(Service::cpu_time).transpose()?;
        Ok(cpu_time_of(self.server.pid())? + of_service.unwrap_or_default())
    }
}

/// Returns the HTTP client on the embedded stack (TCP in the client's process). The client
/// registers a mux port (a pair of packet rings) at `service`. The client's IP address
/// is the IP address of the server, and the client connects to `port` of this address.
pub fn embedded_client(wire: &Wire, service: &Service, port: u16) -> Result<Program, Stop> {
    let path = tools::binary("tidelane-http-client")?;
    let client = wire.program(Side::Server, &path.to_string_lossy());
    let addresses = format!("--address {SERVER} --connect {SERVER}:{port}");
    Ok(client.registering_at(service).args(&addresses))
}

/// Returns the number of answered requests. `output` is the output of [`embedded_client`], which
/// begins with this number.
pub fn answered_requests(output: &str) -> Result<f64, Stop> {
    Ok(output.split(' ').next().unwrap_or_default().parse()?)
}

/// Returns the field `name` of a program's line of JSON. Fails if the field is not a number.
pub fn number(line: &Value, name: &str) -> Result<f64, Stop> {
    let number = line[name].as_f64();
    number.ok_or_else(|| Stop::Fail(format!("no {name} in {line}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::number;

    #[test]
    fn a_missing_number_is_an_error() {
        let line = json!({ "jain": 0.5, "rps": null });
        assert_eq!(number(&line, "jain").expect("a number"), 0.5);
        for name in ["rps", "goodput_bps"] {
            assert!(number(&line, name).is_err(), "{name}");
        }
    }
}
