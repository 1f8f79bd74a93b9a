//! The server and the service of a measurement, and the numbers that the clients print.

use std::time::Duration;

use serde_json::Value;
use tidelane_tests::{Running, Service, Stop, service::cpu_time_of};

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
