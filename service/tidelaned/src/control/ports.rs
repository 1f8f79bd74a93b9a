//! The part of the control thread for mux ports. A mux port consists of packet rings, by which a
//! program with a TCP/IP stack of its own uses the NIC. The service closes a mux port if the
//! program has corrupted the rings, and applies changed rate limits to open mux ports. A session is
//! a program's connection to the registration socket. The end of the session closes its mux port.

use tidelane_host::Host;
use tidelane_mux::PortId;

use super::Control;
use crate::{core_link::NicPort, pace};

impl<P: NicPort> Control<P> {
    /// Ends the sessions of the mux ports that are corrupt on core `core` (a polling thread): the
    /// program has written an impossible value into the rings of this core.
    pub(super) fn close_corrupt_ports(&mut self, core: usize) {
        let take = |host: &mut Host<P>, _| host.mux_ports_mut().take_corrupt();
        for id in self.shared.cores.call(core, take).unwrap_or_default() {
            self.close_corrupt_port(id);
        }
    }

    /// Applies the present rate limits of each mux port's user to the mux port.
    pub(super) fn limit_ports(&self) {
        for session in self.sessions.values() {
            if let Some(port) = &session.port {
                pace::rest();
                port.limit(&self.shared);
            }
        }
    }

    fn close_corrupt_port(&mut self, id: PortId) {
        let mut sessions = self.sessions.values();
        let session = sessions.find(|session| session.port.as_ref().is_some_and(|p| p.id() == id));
        if let Some(session) = session {
            let (number, name, pid) = (session.number, &session.name, session.peer.pid_number());
            eprintln!(
                "tidelaned: closed mux port {} of {name} ({pid}), which wrote an impossible value \
                 to its packet rings",
                id.0
            );
            self.end_session(number);
        }
    }
}
