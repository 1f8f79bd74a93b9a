//! The calls of the driver about addresses, routes and neighbours.

use tidelane_engine::FlowId;
use tidelane_packet_io::PacketIo;
use tidelane_time::Instant;
use tidelane_wire::{IpAddress, MacAddress};

use super::Host;
use crate::{
    links::memory_mtu,
    neighbours::{IngressPolicy, Route},
    within_host::{AddressesWithin, LOCALHOST_V4},
};

impl<P: PacketIo> Host<P> {
    /// Replaces the interface's addresses and routes.
    pub fn set_routes(&mut self, now: Instant, addresses: Vec<IpAddress>, routes: Vec<Route>) {
        self.stack.io.now = now;
        let table = self.stack.io.neighbours.routes_mut();
        let before = table.set_addresses(addresses);
        let differ = table.set_routes(routes);
        for addr in before {
            if !table.is_local(addr) {
                self.stack.io.ephemeral_ports.remove_address(addr);
            }
        }
        if differ {
            self.stack.io.reroute_paths();
        }
        self.input
            .mux_mut()
            .set_link(self.stack.io.neighbours.routes());
        self.retry_parked(now);
    }

    /// Sets the source address checks for segments without a flow, for fragments and for ICMP
    /// errors. Existing flows go on, as in the kernel.
    pub fn set_ingress(&mut self, ingress: IngressPolicy) {
        self.stack.io.neighbours.routes_mut().set_ingress(ingress);
    }

    /// Sets the interface's link address.
    pub fn set_link_address(&mut self, mac: MacAddress) {
        self.stack.io.neighbours.routes_mut().set_link_address(mac);
        self.input
            .mux_mut()
            .set_link(self.stack.io.neighbours.routes());
        self.stack.io.refresh_paths();
    }

    /// Sets the interface's MTU in bytes, also for open connections over the NIC. Limits the value
    /// to the largest MTU that all NIC queues support.
    pub fn set_mtu(&mut self, now: Instant, mtu: u32) {
        let mtu = mtu.min(self.stack.io.links.nic_mtu_max());
        if !self.stack.io.neighbours.routes_mut().set_mtu(mtu) {
            return;
        }
        self.stack.io.now = now;
        self.input
            .mux_mut()
            .set_link(self.stack.io.neighbours.routes());
        let all: Vec<FlowId> = self.stack.engine.flows().collect();
        for flow in all {
            let state = self.stack.engine.flow(flow);
            if state.is_some_and(|state| memory_mtu(state.link).is_none()) {
                self.stack
                    .engine
                    .set_link_mtu(now, flow, mtu, &mut self.stack.io);
            }
        }
    }

    /// Applies the kernel's entry for neighbour `addr`. `mac` is `None` while the kernel has not
    /// resolved the neighbour.
    pub fn set_neighbour(&mut self, now: Instant, addr: IpAddress, mac: Option<MacAddress>) {
        self.stack.io.now = now;
        let Some(is_used) = self.stack.io.neighbours.set_neighbour(addr, mac) else {
            return;
        };
        if is_used {
            self.stack.io.refresh_paths();
        }
        self.retry_parked(now);
    }

    /// Replaces the list of this machine's addresses that the served interface does not have:
    /// loopback, and addresses of other interfaces.
    pub fn set_addresses_within(&mut self, addresses: AddressesWithin) {
        let before = std::mem::replace(&mut self.stack.io.within, addresses);
        let sources = before.single.into_iter().chain([LOCALHOST_V4]);
        for addr in sources {
            if !self.stack.io.within.has_pool(addr)
                && !self.stack.io.neighbours.routes().is_local(addr)
            {
                self.stack.io.ephemeral_ports.remove_address(addr);
            }
        }
    }
}
