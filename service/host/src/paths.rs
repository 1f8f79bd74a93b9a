//! How frames of a flow reach its peer, and what is done when they seem not to.

use tidelane_abi::service_flags;
use tidelane_engine::{CloseCause, FlowId, LinkId};
use tidelane_packet_io::PacketIo;
use tidelane_wire::{FlowKey, HeaderTemplate, IpAddress, MacAddress};

use crate::{
    HostRequest,
    binding::{Binding, Path},
    hash::timestamp_offset,
    hops::HopId,
    io::{HostIo, MEMORY_LINK},
    slots,
};

impl<P: PacketIo> HostIo<P> {
    /// Makes the binding of a flow that was just opened.
    pub fn bind_new(&mut self, flow: FlowId, key: &FlowKey, link: LinkId) -> &mut Binding {
        let path = self.path_to(key, link);
        if self.bindings.len() <= flow.index() {
            self.bindings.resize_with(flow.index() + 1, || None);
        }
        self.bindings[flow.index()].insert(Binding::new(path))
    }

    /// How frames reach the peer of `key`. Without a resolved neighbour they go to where the
    /// present frame came from.
    ///
    /// What came in a frame may be forged: only when the peer has shown that it is there
    /// ([`join_hop`](Self::join_hop)) is its neighbour remembered, and the kernel asked. Else each
    /// forged SYN would take a place in the kernel's table of neighbours, and have it look for
    /// somebody who is not there.
    fn path_to(&mut self, key: &FlowKey, link: LinkId) -> Path {
        if link == MEMORY_LINK {
            return Path::Memory;
        }
        let here = self.arrival;
        let to = self.routes.known_mac(key.peer.addr).or(here);
        let to = to.unwrap_or(MacAddress([0; 6]));
        let from = self.routes.interface.mac;
        let template = HeaderTemplate::new(from, to, key.local.addr, key.peer.addr);
        let Some(mut template) = template else {
            return Path::Memory;
        };
        template.set_flow_label(key.hash64(self.label_seed) as u32);
        template.set_timestamp_offset(timestamp_offset(&self.secret, key));
        let hop = match here {
            Some(_) => None,
            None => self.hop_in_use(key.peer.addr),
        };
        Path::Port { hop, template }
    }

    /// The neighbour on the way to `peer`, held for a flow; the kernel is asked if need be.
    fn hop_in_use(&mut self, peer: IpAddress) -> Option<HopId> {
        let hop = self.routes.hop_to(peer)?;
        self.routes.hops.hold(hop);
        if let Some(addr) = self.routes.hops.use_at(hop, self.now) {
            self.request(HostRequest::Resolve { addr });
        }
        Some(hop)
    }

    /// The peer of a passive open has answered: the flow goes where the kernel says from now on.
    pub(crate) fn join_hop(&mut self, flow: FlowId, peer: IpAddress) {
        let path = self.binding(flow).map(|binding| binding.path);
        let Some(Path::Port {
            hop: None,
            mut template,
        }) = path
        else {
            return;
        };
        let hop = self.hop_in_use(peer);
        if let Some(mac) = hop.and_then(|hop| self.routes.hops.get(hop).mac) {
            template.set_link(self.routes.interface.mac, mac);
        }
        if let Some(binding) = self.binding(flow) {
            binding.path = Path::Port { hop, template };
        }
    }

    /// A flow on this path is over.
    pub(crate) fn leave_hop(&mut self, path: &mut Path) {
        if let Path::Port { hop, .. } = path
            && let Some(hop) = hop.take()
        {
            self.routes.hops.let_go(hop);
        }
    }

    /// An error of the path that did not end `flow`. Before accept nobody is told.
    pub(crate) fn note_soft_error(&mut self, flow: FlowId, cause: CloseCause) {
        let Some(Some(binding)) = self.bindings.get_mut(flow.index()) else {
            return;
        };
        binding.soft_error = (binding.soft_error & !0xff).wrapping_add(1 << 8) | cause.to_u32();
        let Some(program) = self.programs.get(binding.home) else {
            return;
        };
        if let Some(slot) = program.region.slot(binding.slot) {
            slots::set_soft_error(slot, binding.soft_error);
            binding.service_flags |= service_flags::SOFT_ERROR;
        }
    }

    /// The kernel is to look at the neighbour of `flow` again, however lately it was asked
    /// (RFC 9293 MUST-20): if there is nobody any more, or somewhere else, it finds out.
    pub(crate) fn ask_again(&mut self, flow: FlowId) {
        if let Some(Some(Binding {
            path: Path::Port { hop: Some(hop), .. },
            ..
        })) = self.bindings.get(flow.index())
        {
            let addr = self.routes.hops.doubt(*hop, self.now);
            self.counters.path_doubts += 1;
            self.request(HostRequest::Resolve { addr });
        }
    }

    /// A neighbour's link address changed: every flow over it must see that.
    pub fn refresh_paths(&mut self) {
        let from = self.routes.interface.mac;
        for binding in self.bindings.iter_mut().flatten() {
            if let Path::Port {
                hop: Some(hop),
                template,
            } = &mut binding.path
                && let Some(mac) = self.routes.hops.get(*hop).mac
            {
                template.set_link(from, mac);
            }
        }
    }
}
