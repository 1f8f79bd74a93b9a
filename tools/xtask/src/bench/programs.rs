//! The programs of a measurement.

use std::time::Duration;

use tidelane_tests::{Running, Service, Stop, service::cpu_time_of};

/// A server, and its service if the server needs one.
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
