//! Ports of the mux: those that the service closes, because their programs have made them unusable,
//! and their rates.

use tidelane_host::Host;
use tidelane_mux::PortId;

use super::Control;
use crate::{core::Port, pace};

impl<P: Port> Control<P> {
    /// Ends the sessions of ports whose programs have written impossible values into their rings on
    /// `core`.
    pub(super) fn close_corrupt_ports(&mut self, core: usize) {
        let take = |host: &mut Host<P>, _| host.mux_ports_mut().take_corrupt();
        for id in self.shared.cores.call(core, take).unwrap_or_default() {
            self.close_corrupt_port(id);
        }
    }

    /// Applies the users' limits to all ports.
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
                "tidelaned: closed port {} of {name} ({pid}), which wrote an impossible value to \
                 its packet rings",
                id.0
            );
            self.end_session(number);
        }
    }
}
