//! Finds the stack that carried connections, from counters of the services and of both kernels.

use tidelane_programs::counters::kernel_count;
use tidelane_tests::{Service, Side, Stop};

use crate::stand::Stand;

/// Connections opened so far, as each stack counts them.
#[derive(Clone, Copy, Debug, Default)]
struct Opens {
    /// By the kernel of the client's namespace.
    kernel: u64,
    /// By the client's service.
    client: u64,
    /// By listeners of the server's service.
    passive: u64,
    /// By listeners of the kernel in the server's namespace, from any peer.
    kernel_passive: u64,
}

/// The counters before a client runs.
#[derive(Debug)]
pub struct Witness<'a> {
    stand: &'a Stand<'a>,
    client: Option<&'a Service>,
    before: Opens,
}

/// The stacks that carried a client's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// Tidelane on each side that should be accelerated.
    Accelerated,
    /// The kernel carried some of the connections.
    Kernel { connections: u64, kernels: u64 },
}

impl<'a> Witness<'a> {
    /// Reads the counters. `client` is the service that the client runs on.
    pub fn new(stand: &'a Stand<'a>, client: Option<&'a Service>) -> Result<Self, Stop> {
        let before = Opens::now(stand, client)?;
        Ok(Self {
            stand,
            client,
            before,
        })
    }

    /// Compares the counters with their values at the start.
    pub fn ask(&self) -> Result<Carried, Stop> {
        let now = Opens::now(self.stand, self.client)?;
        let by_kernel = now.kernel - self.before.kernel;
        let by_service = now.client - self.before.client;
        let passive = now.passive - self.before.passive;
        let connections = by_kernel + by_service;
        // An attempt that no stack accepted, because an accept queue was full, counts for neither.
        let taken_by_kernel = now.kernel_passive - self.before.kernel_passive;
        let missed_by_server = match self.stand.service {
            Some(_) => connections.saturating_sub(passive).min(taken_by_kernel),
            None => 0,
        };
        let missed_by_client = if self.client.is_some() { by_kernel } else { 0 };
        let kernels = missed_by_server.max(missed_by_client);
        Ok(match (kernels, connections) {
            (0, 1..) => Carried::Accelerated,
            _ => Carried::Kernel {
                connections,
                kernels,
            },
        })
    }
}

impl Opens {
    fn now(stand: &Stand<'_>, client: Option<&Service>) -> Result<Self, Stop> {
        let count = |service: Option<&Service>, name: &str| -> Result<u64, Stop> {
            let Some(service) = service else { return Ok(0) };
            Ok(service.counters()?[name].as_u64().unwrap_or(0))
        };
        Ok(Self {
            kernel: kernel_opens(stand)?,
            kernel_passive: kernel_count(&stand.wire, Side::Server, "PassiveOpens")?,
            client: count(client, "active_opens")?,
            passive: count(stand.service.as_ref(), "passive_opens")?,
        })
    }
}

/// Returns the number of connections that the kernel of the client's namespace opened to the
/// server. Connections of the client to itself over loopback, as portable programs make socket
/// pairs, count at both ends there. The server opens connections to the origin only.
fn kernel_opens(stand: &Stand<'_>) -> Result<u64, Stop> {
    let count = |name| kernel_count(&stand.wire, Side::Client, name);
    let own = if stand.entry.origin {
        0
    } else {
        count("PassiveOpens")?
    };
    Ok(count("ActiveOpens")?.saturating_sub(own))
}
