//! The path of a flow's frames to its peer, and the changes of the path with routes and neighbours.

use tidelane_abi::service_flags;
use tidelane_engine::{CloseCause, FlowId, LinkId, TxFull};
use tidelane_packet_io::PacketIo;
use tidelane_wire::{DropReason, FlowKey, HeaderTemplate, IpAddress, MacAddress};

use crate::{
    HostRequest,
    binding::{Binding, Path},
    hash::first_ip_id,
    hops::HopId,
    io::HostIo,
    links::{LOCAL_PATH_LINK, MUX_LINK},
    slots,
};

impl<P: PacketIo> HostIo<P> {
    /// Makes the binding of a new flow, with the path to the flow's peer.
    pub fn bind_new(&mut self, flow: FlowId, key: &FlowKey, link: LinkId) -> &mut Binding {
        let path = match self.opens_without_path {
            true => Path::Nowhere,
            false => self.path_to(key, link),
        };
        if self.bindings.len() <= flow.index() {
            self.bindings.resize_with(flow.index() + 1, || None);
        }
        self.local_ports.begin(key.local.port);
        self.bindings[flow.index()].insert(Binding::new(path, key.local.port))
    }

    /// Returns the path to the peer of `key`.
    ///
    /// The source of a SYN may be forged. The host asks the kernel about an unknown neighbour only
    /// after the peer has answered ([`join_hop`](Self::join_hop)). Otherwise each forged SYN would
    /// take an entry of the kernel's neighbour table and start a resolution in vain. Until the peer
    /// has answered, segments go to the source link address of the SYN's frame. If the peer is
    /// behind a router, the host asks the kernel about the router at once, because a forged SYN
    /// cannot choose the router.
    fn path_to(&mut self, key: &FlowKey, link: LinkId) -> Path {
        if link == LOCAL_PATH_LINK {
            return Path::Local;
        }
        let peer = key.peer.addr;
        let from = self.routes.interface.mac;
        let to = MacAddress::default();
        let Some(mut template) = HeaderTemplate::new(from, to, key.local.addr, peer) else {
            return Path::Local;
        };
        template.set_flow_label(key.hash64(self.label_seed) as u32);
        template.set_ip_id(first_ip_id(&self.secret, key, self.now));
        if link == MUX_LINK {
            template.set_link(from, from);
            return Path::Mux { template };
        }
        let back = self.routes.known_mac(peer).or(self.arrival);
        match back {
            Some(to) if self.arrival.is_some() && !self.routes.is_routed(peer) => {
                template.set_link(from, to);
                Path::Port {
                    hop: None,
                    template,
                }
            }
            _ => self.path_over_hop(peer, template),
        }
    }

    /// Returns the path to `peer` through the neighbour that the kernel resolves, and holds the
    /// neighbour for the flow.
    fn path_over_hop(&mut self, peer: IpAddress, mut template: HeaderTemplate) -> Path {
        let hop = self.hop_in_use(peer);
        match hop.and_then(|hop| self.routes.hops.get(hop).mac) {
            Some(mac) => {
                template.set_link(self.routes.interface.mac, mac);
                Path::Port { hop, template }
            }
            None => Path::Waiting { hop, template },
        }
    }

    /// Holds the neighbour on the path to `peer` for a flow, and asks the kernel about the
    /// neighbour if a request is due.
    fn hop_in_use(&mut self, peer: IpAddress) -> Option<HopId> {
        let hop = self.routes.hop_to(peer)?;
        self.routes.hops.hold(hop);
        self.use_hop(hop);
        Some(hop)
    }

    /// Asks the kernel to resolve or confirm a neighbour in use, if a request is due.
    pub(crate) fn use_hop(&mut self, hop: HopId) {
        if let Some(addr) = self.routes.hops.use_at(hop, self.now) {
            self.requests.push(HostRequest::Resolve { addr });
        }
    }

    /// Replaces the path of a passive open, after the peer has answered, by the path through the
    /// neighbour that the kernel resolves.
    pub(crate) fn join_hop(&mut self, flow: FlowId) {
        let path = self.binding(flow).map(|binding| binding.path);
        if let Some(Path::Port {
            hop: None,
            template,
        }) = path
        {
            let path = self.path_over_hop(template.peer(), template);
            if let Some(binding) = self.binding(flow) {
                binding.path = path;
            }
        }
    }

    /// Returns the error that makes the engine keep a segment of `flow` until the kernel has
    /// resolved the neighbour. Asks the kernel about the neighbour at intervals.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait_for_hop(&mut self, flow: FlowId) -> TxFull {
        let hop = self.binding(flow).and_then(|it| it.path.hop_mut().copied());
        if let Some(hop) = hop {
            self.use_hop(hop);
        }
        self.counters.drops[DropReason::NoNeighbor.index()] += 1;
        TxFull
    }

    /// Releases the neighbour that `path` holds, because the flow no longer uses the path.
    pub(crate) fn leave_hop(&mut self, path: &mut Path) {
        if let Path::Port { hop, .. } | Path::Waiting { hop, .. } = path
            && let Some(hop) = hop.take()
        {
            self.routes.hops.release(hop);
        }
    }

    /// Records a soft error (RFC 9293 §3.9.2.2), which does not end `flow`. Before accept, no
    /// program learns of the error.
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

    /// Makes the kernel probe the neighbour of `flow` again, even if the last request was recent
    /// (RFC 9293 MUST-20). The neighbour may be gone, or may have another link address.
    pub(crate) fn probe_neighbour(&mut self, flow: FlowId) {
        let hop = self.binding(flow).and_then(|it| it.path.hop_mut().copied());
        if let Some(hop) = hop {
            let addr = self.routes.hops.note_probe(hop, self.now);
            self.counters.path_doubts += 1;
            self.requests.push(HostRequest::Resolve { addr });
        }
    }

    /// Applies a changed link address of a neighbour or of the interface to the paths of all flows.
    /// Flows that waited for the neighbour can now send.
    pub fn refresh_paths(&mut self) {
        let from = self.routes.interface.mac;
        for binding in self.bindings.iter_mut().flatten() {
            match &mut binding.path {
                Path::Local | Path::Nowhere | Path::Waiting { hop: None, .. } => {}
                Path::Mux { template } => template.set_link(from, from),
                Path::Port {
                    hop: None,
                    template,
                } => template.set_link(from, template.dst_mac()),
                Path::Port {
                    hop: Some(hop),
                    template,
                } => {
                    // If the kernel has forgotten the neighbour, keep its last link address.
                    let known = self.routes.hops.get(*hop).mac;
                    template.set_link(from, known.unwrap_or(template.dst_mac()));
                }
                Path::Waiting {
                    hop: Some(hop),
                    template,
                } => {
                    let Some(mac) = self.routes.hops.get(*hop).mac else {
                        continue;
                    };
                    template.set_link(from, mac);
                    let (hop, template) = (Some(*hop), *template);
                    binding.path = Path::Port { hop, template };
                    self.links.note_blocked();
                }
            }
        }
    }

    /// Applies changed routes to the paths of all flows. If the peer of a flow has no route any
    /// more, the flow keeps its path until there is a route again.
    pub fn find_paths_again(&mut self) {
        for index in 0..self.bindings.len() {
            let Some(Some(binding)) = self.bindings.get(index) else {
                continue;
            };
            let (hop, template) = match binding.path {
                Path::Local | Path::Mux { .. } | Path::Nowhere | Path::Port { hop: None, .. } => {
                    continue;
                }
                Path::Port { hop, template } | Path::Waiting { hop, template } => (hop, template),
            };
            let next = self.routes.hop_to(template.peer());
            if next.is_none() || next == hop {
                continue;
            }
            let path = self.path_over_hop(template.peer(), template);
            if matches!(path, Path::Port { .. }) {
                self.links.note_blocked();
            }
            if let Some(Some(binding)) = self.bindings.get_mut(index) {
                let mut before = std::mem::replace(&mut binding.path, path);
                self.leave_hop(&mut before);
            }
        }
    }
}
