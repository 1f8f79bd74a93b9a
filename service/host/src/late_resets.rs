//! Resets for which there was no room when their flows ended. What is lost on its way to a wire is
//! lost, but a program that ends may leave more connections than a port has frames, and nobody
//! would reset them again: peers that have sent all they had would wait for ever.

use std::collections::VecDeque;

use tidelane_engine::{SegmentOut, TxFull};
use tidelane_packet_io::PacketIo;
use tidelane_wire::HeaderTemplate;

use crate::{binding::Path, io::HostIo, transmit::outlet};

/// Resets that may wait; more are lost.
const WAITING_MAX: usize = 65_536;

/// A reset, and how it gets to its peer: its flow is gone by then.
struct LateReset {
    out: SegmentOut,
    /// None for the memory wire.
    template: Option<HeaderTemplate>,
}

/// Resets that wait for room, oldest first.
#[derive(Default)]
pub struct LateResets(VecDeque<LateReset>);

impl<P: PacketIo> HostIo<P> {
    /// Keeps the reset of a flow, which still has its binding, for the next step.
    #[cold]
    pub(crate) fn put_off_reset(&mut self, out: &SegmentOut) {
        let binding = out.flow.and_then(|flow| self.bindings.get(flow.index()));
        let Some(Some(binding)) = binding else {
            return;
        };
        let template = match &binding.path {
            Path::Port { template, .. } => Some(*template),
            Path::Memory => None,
            // Where its peer is nobody knows, or a rule lets nothing go there.
            Path::Waiting { .. } | Path::Nowhere => return,
        };
        if self.late_resets.0.len() < WAITING_MAX {
            let out = SegmentOut { flow: None, ..*out };
            self.late_resets.0.push_back(LateReset { out, template });
        }
    }

    /// Sends what was put off, as far as there is room now.
    pub(crate) fn send_late_resets(&mut self) {
        while let Some(LateReset { out, template }) = self.late_resets.0.front_mut() {
            let sent = match template {
                Some(template) => outlet!(self).transmit_single(out, template, None, None),
                None => self.memory.push(out, |_| ()).then_some(()).ok_or(TxFull),
            };
            if sent.is_err() {
                self.blocked = true;
                return;
            }
            self.late_resets.0.pop_front();
        }
        // A crowd of them may have taken much memory.
        self.late_resets = LateResets::default();
    }
}
