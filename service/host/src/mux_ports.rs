//! Ports of the mux beside the host: programs with stacks of their own share the NIC and its
//! addresses. See `docs/design/mux.md`.
//!
//! The host gives each received frame to the port that has claimed it, before its own engine sees
//! the frame. Frames that ports send leave by the first NIC queue of this core.

use tidelane_engine::LinkId;
use tidelane_mux::{GsoFrame, Outlet, Ports, copy_to};
use tidelane_packet_io::{Burst, Capabilities, PacketIo};
use tidelane_packet_ring::ServiceEnd;
use tidelane_time::Instant;

use crate::{Host, HostRequest};

/// Largest number of ports.
pub const MUX_PORTS_MAX: usize = 4096;

/// The ports of one core.
pub type MuxPorts = Ports<ServiceEnd>;

/// The NIC, for packets of ports.
struct Nic<'a, P> {
    queue: &'a mut P,
    sent: bool,
}

impl<P: PacketIo> Outlet for Nic<'_, P> {
    fn nic_capabilities(&self) -> Capabilities {
        self.queue.capabilities()
    }

    fn send_gso_to_nic(&mut self, frame: &GsoFrame<'_>) -> bool {
        frame.send(self.queue).is_ok()
    }

    fn send_to_nic(&mut self, frame: &[u8]) -> bool {
        let taken = copy_to(self.queue, frame);
        self.sent |= taken;
        taken
    }

    /// Drops the packet: a port reaches no sockets of its own host.
    fn give_to_host(&mut self, _frame: &[u8]) -> bool {
        false
    }
}

impl<P: PacketIo> Host<P> {
    /// Returns the ports of this core.
    pub fn mux_ports(&self) -> &MuxPorts {
        &self.mux_ports
    }

    /// Returns the ports of this core. The driver opens and closes ports, and claims their
    /// 3-tuples, with proof from the kernel.
    pub fn mux_ports_mut(&mut self) -> &mut MuxPorts {
        &mut self.mux_ports
    }

    /// Sets the link address and the addresses that ports may send from.
    pub(crate) fn set_mux_link(&mut self) {
        let interface = &self.io.routes.interface;
        self.mux_ports
            .set_link(interface.mac, interface.addresses.clone());
    }

    /// Receives the frames of a burst that no port has claimed.
    #[cold]
    #[inline(never)]
    pub(crate) fn receive_beside_ports(
        &mut self,
        now: Instant,
        link: LinkId,
        burst: &P::Burst,
        partial_allowed: bool,
    ) {
        for frame in burst.iter() {
            if !self.mux_ports.receive(frame, true) {
                self.receive_frame(now, link, frame, partial_allowed);
            }
        }
    }

    /// Sends packets of ports, and shows the packets of this step to the ports' programs. Returns
    /// true if a port has sent a packet.
    #[cold]
    #[inline(never)]
    pub(crate) fn serve_mux_ports(&mut self) -> bool {
        let Some(queue) = self.io.ports.first_mut() else {
            return false;
        };
        let mut nic = Nic { queue, sent: false };
        let count = self.mux_ports.take_turns(&mut nic);
        self.io.tx_queued |= nic.sent;
        self.mux_ports.flush();
        let request = HostRequest::CorruptPorts;
        if self.mux_ports.has_corrupt() && !self.io.requests.contains(&request) {
            self.io.request(request);
        }
        count > 0
    }
}
