//! RST segments for which the NIC queue (or the link in memory) had no room when their flows ended.
//!
//! A program that ends may leave more connections than a NIC queue has free frames. If the RSTs
//! were lost, peers that have sent all their data would wait for ever. The host therefore keeps the
//! RSTs, and sends each RST when there is room.

use std::collections::VecDeque;

use tidelane_engine::{SegmentOut, TxFull};
use tidelane_packet_io::PacketIo;
use tidelane_wire::HeaderTemplate;

use crate::{binding::Path, io::HostIo, mux_link::MUX_LINK, transmit::transmitter};

/// Limit of waiting RSTs. Further RSTs are lost.
const WAITING_MAX: usize = 65_536;

/// A RST that waits for room, and the headers for its frame. The headers are kept here, because the
/// flow no longer exists.
struct LateReset {
    /// The RST segment.
    out: SegmentOut,
    /// Ethernet and IP headers; `None` for the local path.
    template: Option<HeaderTemplate>,
}

/// RSTs that wait for room, oldest first.
#[derive(Default)]
pub struct LateResets(VecDeque<LateReset>);

impl<P: PacketIo> HostIo<P> {
    /// Keeps the RST of a flow for the next step. The flow must still have its binding.
    #[cold]
    pub(crate) fn put_off_reset(&mut self, out: &SegmentOut) {
        let binding = out.flow().and_then(|flow| self.bindings.get(flow.index()));
        let Some(Some(binding)) = binding else {
            return;
        };
        let template = match &binding.path {
            Path::Port { template, .. } | Path::Mux { template } => Some(*template),
            Path::Local => None,
            // The neighbour is unknown, or a rule drops the segments of the flow.
            Path::Waiting { .. } | Path::Nowhere => return,
        };
        if self.late_resets.0.len() < WAITING_MAX {
            let out = *out;
            self.late_resets.0.push_back(LateReset { out, template });
        }
    }

    /// Sends the waiting RSTs while there is room.
    pub(crate) fn send_late_resets(&mut self) {
        while let Some(LateReset { out, template }) = self.late_resets.0.front_mut() {
            let sent = match template {
                Some(template) if out.link == MUX_LINK => {
                    let state = (&mut self.tx_queued, &mut self.blocked);
                    self.mux_link
                        .transmit(&mut self.counters, state, out, template, None)
                }
                Some(template) => transmitter!(self).transmit_single(out, template, None),
                None => self
                    .local_path
                    .push(out, |_| ())
                    .then_some(())
                    .ok_or(TxFull),
            };
            if sent.is_err() {
                self.blocked = true;
                return;
            }
            self.late_resets.0.pop_front();
        }
        // Free the memory of the list, which may have grown large.
        self.late_resets = LateResets::default();
    }
}
