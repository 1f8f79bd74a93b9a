//! Checks the source addresses of segments without a flow (a connection in the engine), and sends
//! the answers to these segments, for example a RST.

use tidelane_engine::{LinkId, SegmentOut, TxFull, Verdict};
use tidelane_packet_io::PacketIo;
use tidelane_wire::{DropReason, FlowKey, HeaderTemplate, IpFields};

use crate::{
    io::HostIo,
    links::{LOCAL_PATH_LINK, MUX_LINK},
};

impl<P: PacketIo> HostIo<P> {
    /// Returns the verdict on a segment without a flow, by its source address. Counts a dropped
    /// segment.
    pub(crate) fn check_source(&mut self, key: &FlowKey, link: LinkId) -> Verdict {
        // The local path (in memory) carries only segments of programs of this host. The mux has
        // checked the source addresses of the packets of mux ports, which belong to programs with
        // TCP/IP stacks of their own.
        if link == LOCAL_PATH_LINK || link == MUX_LINK {
            return Verdict::Accept;
        }
        match self.neighbours.routes().check_peer(key.peer.addr) {
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
        let from = self.neighbours.routes().interface().mac;
        let to = match out.link {
            MUX_LINK => Some(from),
            _ => {
                let (peer, requests) = (out.key.peer.addr, &mut self.requests);
                self.neighbours.mac_for_reply(self.now, peer, requests)
            }
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
