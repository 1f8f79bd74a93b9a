//! Determines whether Tidelane or the kernel carried a client's connections, from the counters of
//! the services and of the kernel in the namespaces of client and server.

use tidelane_programs::counters::kernel_count;
use tidelane_tests::{Service, Side, Stop};

use crate::testbed::Testbed;

/// The numbers of opened connections that the stacks have counted.
#[derive(Clone, Copy, Debug, Default)]
struct Opens {
    /// Active opens to the server by the kernel in the client's namespace.
    kernel: u64,
    /// Active opens by the client's service. 0 if the client is on the kernel.
    client: u64,
    /// Passive opens by the server's service. 0 if the server is on the kernel.
    passive: u64,
    /// Passive opens by the kernel in the server's namespace.
    kernel_passive: u64,
}

/// Compares the counters after a client's run with the counters before the run.
#[derive(Debug)]
pub struct StackDetector<'a> {
    testbed: &'a Testbed<'a>,
    /// The service that the client runs on. `None` if the client is on the kernel.
    client: Option<&'a Service>,
    /// The counters before the client's run.
    before: Opens,
}

/// The stack that carried a client's connections. Each connection has two ends, client and server.
/// Tidelane should carry the connection at each end that has a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedBy {
    /// The client opened at least one connection, and Tidelane carried all connections at each end
    /// that has a service. If no end has a service, only the first condition counts.
    Accelerated,
    /// The client opened `connections` connections. At an end that has a service, the kernel
    /// carried `kernels` of them. If this is so at both ends, `kernels` is the greater of the two
    /// numbers. If the client opened no connection, both fields are 0.
    Kernel { connections: u64, kernels: u64 },
}

impl<'a> StackDetector<'a> {
    /// Reads the counters before a client's run. `client` is the service that the client runs on.
    /// `client` is `None` if the client is on the kernel.
    pub fn new(testbed: &'a Testbed<'a>, client: Option<&'a Service>) -> Result<Self, Stop> {
        let before = Opens::now(testbed, client)?;
        Ok(Self {
            testbed,
            client,
            before,
        })
    }

    /// Reads the counters after the client's run, and returns the stack that carried the client's
    /// connections.
    pub fn detect(&self) -> Result<CarriedBy, Stop> {
        let now = Opens::now(self.testbed, self.client)?;
        let by_kernel = now.kernel - self.before.kernel;
        let by_service = now.client - self.before.client;
        let passive = now.passive - self.before.passive;
        let connections = by_kernel + by_service;
        // A connection that the service did not accept counts as missed only if the kernel accepted
        // the connection. No stack accepts an attempt if, for example, an accept queue is full.
        let taken_by_kernel = now.kernel_passive - self.before.kernel_passive;
        let missed_by_server = match self.testbed.service {
            Some(_) => connections.saturating_sub(passive).min(taken_by_kernel),
            None => 0,
        };
        let missed_by_client = if self.client.is_some() { by_kernel } else { 0 };
        let kernels = missed_by_server.max(missed_by_client);
        Ok(match (kernels, connections) {
            (0, 1..) => CarriedBy::Accelerated,
            _ => CarriedBy::Kernel {
                connections,
                kernels,
            },
        })
    }
}

impl Opens {
    /// Reads all counters.
    fn now(testbed: &Testbed<'_>, client: Option<&Service>) -> Result<Self, Stop> {
        let count = |service: Option<&Service>, name: &str| -> Result<u64, Stop> {
            let Some(service) = service else { return Ok(0) };
            Ok(service.counters()?[name].as_u64().unwrap_or(0))
        };
        Ok(Self {
            kernel: kernel_opens(testbed)?,
            kernel_passive: kernel_count(&testbed.wire, Side::Server, "PassiveOpens")?,
            client: count(client, "active_opens")?,
            passive: count(testbed.service.as_ref(), "passive_opens")?,
        })
    }
}

/// Returns the number of connections that the kernel in the client's namespace has opened to the
/// server.
///
/// Some clients connect to themselves over loopback, for example to emulate socket pairs. The
/// kernel counts such a connection as an active open and as a passive open. The passive opens are
/// therefore subtracted from the active opens. If the server is a proxy, the client's namespace
/// also has the HTTP server behind the proxy (the origin). The passive opens in this namespace then
/// come from the proxy, and are not subtracted.
fn kernel_opens(testbed: &Testbed<'_>) -> Result<u64, Stop> {
    let count = |name| kernel_count(&testbed.wire, Side::Client, name);
    let own = if testbed.entry.origin {
        0
    } else {
        count("PassiveOpens")?
    };
    Ok(count("ActiveOpens")?.saturating_sub(own))
}
