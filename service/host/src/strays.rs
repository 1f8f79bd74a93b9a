//! Checks the source addresses of segments without a flow, and sends the answers to these segments,
//! for example a RST.

use tidelane_engine::{LinkId, SegmentOut, TxFull, Verdict};
use tidelane_packet_io::PacketIo;
use tidelane_wire::{DropReason, FlowKey, HeaderTemplate, IpAddress, IpFields, MacAddress};

use crate::{
    io::HostIo,
    links::{LOCAL_PATH_LINK, MUX_LINK},
};

impl<P: PacketIo> HostIo<P> {
    /// Returns the link address for an answer to a frame without a flow: the address of the
    /// neighbour on the path to `peer`. While the kernel has not resolved the neighbour, returns
    /// `arrival`, the source address of the frame. If the neighbour is an unresolved router, asks
    /// the kernel to resolve the router, and returns `None`. The caller then drops the answer.
    pub(crate) fn mac_for_reply(
        &mut self,
        peer: IpAddress,
        arrival: Option<MacAddress>,
    ) -> Option<MacAddress> {
        if let Some(known) = self.routes.known_mac(peer) {
            return Some(known);
        }
        if self.routes.is_routed(peer) {
            if let Some(router) = self.routes.hop_to(peer) {
                self.use_hop(router);
            }
            return None;
        }
        arrival.filter(|_| self.routes.leads_out(peer))
    }

    /// Returns the verdict on a segment without a flow, by its source address. Counts a dropped
    /// segment.
    pub(crate) fn check_source(&mut self, key: &FlowKey, link: LinkId) -> Verdict {
        // The mux has checked the source addresses of packets of ports.
        if link == LOCAL_PATH_LINK || link == MUX_LINK {
            return Verdict::Accept;
        }
        match self.routes.check_peer(key.peer.addr) {
            Ok(()) => Verdict::Accept,
            Err(reason) => {
                self.counters.drops[reason.index()] += 1;
                Verdict::Drop
            }
        }
    }

    /// Sends an answer to a segment without a flow.
    #[inline(never)]
    pub(crate) fn transmit_back(
        &mut self,
        out: &SegmentOut,
        fields: IpFields,
    ) -> Result<(), TxFull> {
        if out.link == LOCAL_PATH_LINK {
            return self.links.transmit_local(out, |_| ());
        }
        let from = self.routes.interface.mac;
        let to = match out.link {
            MUX_LINK => Some(from),
            _ => self.mac_for_reply(out.key.peer.addr, self.arrival),
        };
        let Some(mac) = to else {
            self.counters.drops[DropReason::NoNeighbor.index()] += 1;
            return Ok(());
        };
        let ends = (out.key.local.addr, out.key.peer.addr);
        let Some(mut template) = HeaderTemplate::new(from, mac, ends.0, ends.1) else {
            return Ok(());
        };
        template.set_fields(fields);
        // An answer without a flow has the DF flag and identification zero, as in Linux.
        if out.link == MUX_LINK {
            let counters = &mut self.counters;
            return self
                .links
                .transmit_to_mux(counters, out, &mut template, None);
        }
        self.links
            .transmit(&mut self.counters, out, &mut template, None)
    }
}
