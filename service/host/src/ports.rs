//! Local ports for active opens.
//!
//! Each port in the pool is held in the kernel by a bound socket of the driver's, so no one else
//! can have it; it then serves any number of connections to different peers. The driver adds ports
//! when the pool asks for them.

use std::collections::HashMap;

use tidelane_wire::IpAddress;

use crate::hash::FixedState;

/// Ports asked for at a time.
pub const PORTS_PER_REQUEST: u32 = 64;
/// Ports that the pool holds for one address at most: Linux's default ephemeral range.
const PORTS_MAX: usize = 28_232;
/// Ports tried for one connection before more are asked for.
const PROBES_MAX: usize = 64;

#[derive(Default)]
struct AddressPool {
    ports: Vec<u16>,
    cursor: usize,
    requested: bool,
    exhausted: bool,
}

/// What [`PortPool::choose`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This port makes the connection's 4-tuple unique.
    Port(u16),
    /// None yet: more were asked for (`ask`: this call is the one to ask).
    Wait {
        /// The driver has to be asked now.
        ask: bool,
    },
    /// None, and there will be none.
    Exhausted,
}

/// The ports of all local addresses.
#[derive(Default)]
pub struct PortPool {
    pools: HashMap<IpAddress, AddressPool, FixedState>,
}

impl PortPool {
    /// Ports that the driver reserved at `addr`; an empty list says that there are no more.
    pub fn add(&mut self, addr: IpAddress, ports: &[u16]) {
        let pool = self.pools.entry(addr).or_default();
        pool.requested = false;
        pool.exhausted = ports.is_empty() || pool.ports.len() + ports.len() > PORTS_MAX;
        if pool.ports.len() + ports.len() <= PORTS_MAX {
            pool.cursor = pool.ports.len();
            pool.ports.extend_from_slice(ports);
        }
    }

    /// The address is gone: forgets its ports.
    pub fn remove_address(&mut self, addr: IpAddress) {
        self.pools.remove(&addr);
    }

    /// A port at `addr` for which `is_free` holds.
    pub fn choose(&mut self, addr: IpAddress, mut is_free: impl FnMut(u16) -> bool) -> Choice {
        let pool = self.pools.entry(addr).or_default();
        let full = pool.ports.len() + PORTS_PER_REQUEST as usize > PORTS_MAX;
        let probes = if full || pool.exhausted {
            pool.ports.len()
        } else {
            PROBES_MAX
        };
        for _ in 0..probes.min(pool.ports.len()) {
            pool.cursor = (pool.cursor + 1) % pool.ports.len();
            let port = pool.ports[pool.cursor];
            if is_free(port) {
                return Choice::Port(port);
            }
        }
        if full || pool.exhausted {
            return Choice::Exhausted;
        }
        let ask = !pool.requested;
        pool.requested = true;
        Choice::Wait { ask }
    }
}
