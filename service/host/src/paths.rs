//! How frames of a flow reach its peer, and what is done when they seem not to.

use tidelane_abi::service_flags;
use tidelane_engine::{CloseCause, FlowId, LinkId};
use tidelane_packet_io::PacketIo;
use tidelane_wire::{FlowKey, HeaderTemplate, MacAddress};

use crate::{
    HostRequest,
    binding::{Binding, Path},
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
    fn path_to(&mut self, key: &FlowKey, link: LinkId) -> Path {
        if link == MEMORY_LINK {
            return Path::Memory;
        }
        let hop = self.routes.hop_to(key.peer.addr);
        let known = hop.and_then(|hop| self.routes.hop(hop).mac);
        let here = self.arrival.map(|(_, mac)| mac);
        let to = known.or(here).unwrap_or(MacAddress([0; 6]));
        let from = self.routes.interface.mac;
        if let Some(hop) = hop
            && self.routes.use_hop(hop, self.now)
        {
            let addr = self.routes.hop(hop).addr;
            self.request(HostRequest::Resolve { addr });
        }
        match HeaderTemplate::new(from, to, key.local.addr, key.peer.addr) {
            Some(mut template) => {
                template.set_flow_label(key.hash64(self.label_seed) as u32);
                Path::Port { hop, template }
            }
            None => Path::Memory,
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
            let addr = self.routes.doubt_hop(*hop, self.now);
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
                && let Some(mac) = self.routes.hop(*hop).mac
            {
                template.set_link(from, mac);
            }
        }
    }
}
