//! The neighbours of the served interface (the network interface on which the service runs):
//! routes, next hops, and the paths of flows.
//!
//! ```text
//!   routes.rs    the kernel's routes      peer -> next hop
//!   hops.rs      the next hops            next hop -> link address
//!   path.rs      a flow's path            headers of the frames to the peer
//!   ingress.rs   source address checks    peer -> accepted or dropped
//!   prefixes.rs  address prefixes         address -> value of the longest prefix
//! ```
//!
//! The kernel resolves neighbours. The host (the TCP/IP stack of one core) asks the kernel by
//! requests to the host's driver. The driver is the program that runs the host: the daemon or the
//! simulator.

mod hops;
mod ingress;
mod path;
mod prefixes;
mod routes;

use tidelane_engine::LinkId;
use tidelane_time::Instant;
use tidelane_wire::{FlowKey, HeaderTemplate, IpAddress, MacAddress};

use self::hops::{HopId, Hops};
pub use self::{
    hops::Hop,
    ingress::{IngressPolicy, KernelRoute, ReversePathFilter, SourceChecks, Way, can_be_a_host},
    path::Path,
    routes::{Interface, Route, Routes},
};
use crate::{
    HostRequest,
    driver_requests::DriverRequests,
    hash::{first_ip_id, label_seed, stray_ip_id},
    links::{LOCAL_PATH_LINK, MUX_LINK},
};

/// The routes and neighbours of the served interface.
pub struct Neighbours {
    routes: Routes,
    hops: Hops,
    /// Source link address of the frame that the host is processing. `None` while the host
    /// processes no frame.
    arrival: Option<MacAddress>,
    /// Seed of IPv6 flow labels (RFC 6437).
    label_seed: [u64; 2],
    /// Secret key of the hashes that make IP identifications.
    secret: [u8; 16],
    /// True during an active open that a rule of the operator drops. The new flow then gets
    /// [`Path::Nowhere`].
    opens_nowhere: bool,
}

impl Neighbours {
    /// Returns the neighbours of `interface`, without routes and next hops. `secret` is the key of
    /// hashes whose input peers can choose.
    pub fn new(interface: Interface, secret: [u8; 16]) -> Self {
        Self {
            routes: Routes::new(interface),
            hops: Hops::new(secret),
            arrival: None,
            label_seed: label_seed(secret),
            secret,
            opens_nowhere: false,
        }
    }

    /// Returns the routes and addresses of the interface.
    #[inline(always)]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns the routes and addresses of the interface for a change. The change alone does not
    /// change the paths of flows. The caller applies changed routes to each path with
    /// [`reroute`](Self::reroute), and a changed link address with [`refresh`](Self::refresh).
    pub fn routes_mut(&mut self) -> &mut Routes {
        &mut self.routes
    }

    /// Begins the processing of a frame. `sender` is the source link address of the frame.
    #[inline(always)]
    pub fn begin_frame(&mut self, sender: &MacAddress) {
        self.arrival = Some(*sender);
    }

    /// Ends the processing of frames.
    #[inline(always)]
    pub fn end_frames(&mut self) {
        self.arrival = None;
    }

    /// Returns the identification (IP ID) of a packet to `peer`. The packet has no flow and no DF
    /// flag.
    pub fn stray_ip_id(&self, peer: IpAddress, now: Instant) -> u16 {
        stray_ip_id(&self.secret, peer, now)
    }

    /// Applies the kernel's entry for neighbour `addr`. `mac` is `None` while the kernel has not
    /// resolved the neighbour. Returns `None` if the neighbour's link address has not changed, or
    /// if the table of neighbours has no place for the neighbour. Otherwise, returns true if a flow
    /// uses the neighbour.
    pub fn set_neighbour(&mut self, addr: IpAddress, mac: Option<MacAddress>) -> Option<bool> {
        let hop = self.hops.set_neighbour(addr, mac)?;
        Some(self.hops.is_used(hop))
    }

    /// Returns the link address of the next hop to `addr`. Returns `None` if there is no route, or
    /// if the kernel has not resolved the next hop.
    fn known_mac(&self, addr: IpAddress) -> Option<MacAddress> {
        let next = self.routes.next_hop(addr)?;
        self.hops.get(self.hops.find(next)?).mac
    }

    /// Returns the next hop to `addr`. Adds the next hop to the table of neighbours if the table
    /// does not have the next hop. Returns `None` if there is no route, or if the table is full of
    /// neighbours in use.
    fn hop_to(&mut self, addr: IpAddress) -> Option<HopId> {
        let next = self.routes.next_hop(addr)?;
        self.hops.find_or_make(next)
    }

    /// Asks the kernel to resolve or confirm a neighbour in use, if a request is due
    /// ([`Hops::use_at`]).
    fn use_hop(&mut self, now: Instant, hop: HopId, requests: &mut DriverRequests) {
        if let Some(addr) = self.hops.use_at(hop, now) {
            requests.push(HostRequest::Resolve { addr });
        }
    }

    /// Returns the next hop to `peer` for a new flow, and asks the kernel about the next hop if a
    /// request is due. Returns `None` if there is no route, or if the table of neighbours is full
    /// of neighbours in use.
    pub fn next_hop(
        &mut self,
        now: Instant,
        peer: IpAddress,
        requests: &mut DriverRequests,
    ) -> Option<Hop> {
        let hop = self.hop_to(peer)?;
        self.use_hop(now, hop, requests);
        Some(*self.hops.get(hop))
    }

    /// Returns the destination link address of the answer to a frame without a flow. `peer` is the
    /// frame's source IP address, and `arrival` is the frame's source link address.
    ///
    /// * If the kernel has resolved the next hop to `peer`, returns the next hop's link address.
    /// * If the next hop is an unresolved router, asks the kernel to resolve the router, and
    ///   returns `None`.
    /// * In all other cases, returns `arrival` if packets to `peer` leave over the interface, and
    ///   `None` otherwise.
    ///
    /// After `None`, the caller drops the answer.
    pub fn mac_for_reply_to(
        &mut self,
        now: Instant,
        peer: IpAddress,
        arrival: Option<MacAddress>,
        requests: &mut DriverRequests,
    ) -> Option<MacAddress> {
        if let Some(known) = self.known_mac(peer) {
            return Some(known);
        }
        if self.routes.is_routed(peer) {
            if let Some(router) = self.hop_to(peer) {
                self.use_hop(now, router, requests);
            }
            return None;
        }
        arrival.filter(|_| self.routes.leads_out(peer))
    }

    /// Returns the destination link address of the answer to the frame that the host is processing,
    /// as [`mac_for_reply_to`](Self::mac_for_reply_to) does. The frame has no flow.
    pub fn mac_for_reply(
        &mut self,
        now: Instant,
        peer: IpAddress,
        requests: &mut DriverRequests,
    ) -> Option<MacAddress> {
        self.mac_for_reply_to(now, peer, self.arrival, requests)
    }

    /// Sets whether new flows get [`Path::Nowhere`]. The caller passes true before an active open
    /// that a rule drops, and false after the open.
    pub fn set_opens_nowhere(&mut self, opens_nowhere: bool) {
        self.opens_nowhere = opens_nowhere;
    }

    /// Returns the path of a new flow over `link` to the peer of `key`. The frames of an active
    /// open over the NIC go through the neighbour that the kernel resolves.
    ///
    /// The source address of a received SYN may be forged. If the peer is on the link, the host
    /// therefore asks the kernel about the peer only after the peer has answered the SYN-ACK
    /// ([`join`](Self::join)). Otherwise each forged SYN would take an entry of the kernel's
    /// neighbour table and start a useless resolution. Until the peer has answered, segments go to
    /// the peer's link address if the table of neighbours has the address, and otherwise to the
    /// source link address of the SYN's frame. If the peer is behind a router, the host asks the
    /// kernel about the router immediately, because a forged SYN cannot choose the router.
    pub fn path_to(
        &mut self,
        now: Instant,
        key: &FlowKey,
        link: LinkId,
        requests: &mut DriverRequests,
    ) -> Path {
        if self.opens_nowhere {
            return Path::Nowhere;
        }
        if link == LOCAL_PATH_LINK {
            return Path::Local;
        }
        let peer = key.peer.addr;
        let from = self.routes.interface().mac;
        let to = MacAddress::default();
        let Some(mut template) = HeaderTemplate::new(from, to, key.local.addr, peer) else {
            return Path::Local;
        };
        template.set_flow_label(key.hash64(self.label_seed) as u32);
        template.set_ip_id(first_ip_id(&self.secret, key, now));
        if link == MUX_LINK {
            template.set_link(from, from);
            return Path::Mux { template };
        }
        let back = self.known_mac(peer).or(self.arrival);
        match back {
            Some(to) if self.arrival.is_some() && !self.routes.is_routed(peer) => {
                template.set_link(from, to);
                Path::Port {
                    hop: None,
                    template,
                }
            }
            _ => self.path_over_hop(now, template, requests),
        }
    }

    /// Returns the path to the peer of `template` through the neighbour that the kernel resolves.
    /// Holds the neighbour for the flow, and asks the kernel about the neighbour if a request is
    /// due.
    fn path_over_hop(
        &mut self,
        now: Instant,
        mut template: HeaderTemplate,
        requests: &mut DriverRequests,
    ) -> Path {
        let hop = self.hop_to(template.peer());
        if let Some(hop) = hop {
            self.hops.hold(hop);
            self.use_hop(now, hop, requests);
        }
        match hop.and_then(|hop| self.hops.get(hop).mac) {
            Some(mac) => {
                template.set_link(self.routes.interface().mac, mac);
                Path::Port { hop, template }
            }
            None => Path::Waiting { hop, template },
        }
    }

    /// Replaces the path of a passive open after the peer has answered. The new path leads through
    /// the neighbour that the kernel resolves. A path that already has a hop does not change.
    pub fn join(&mut self, now: Instant, path: &mut Path, requests: &mut DriverRequests) {
        if let Path::Port {
            hop: None,
            template,
        } = *path
        {
            *path = self.path_over_hop(now, template, requests);
        }
    }

    /// Sets the link addresses of a SYN-ACK that the host sends over a path without a hop. The
    /// destination link address may have changed since the peer's first SYN.
    pub fn readdress(&self, peer: IpAddress, template: &mut HeaderTemplate) {
        if let Some(to) = self.known_mac(peer).or(self.arrival) {
            template.set_link(self.routes.interface().mac, to);
        }
    }

    /// Asks the kernel about the neighbour of `path`, if a request is due.
    pub fn use_path(&mut self, now: Instant, path: &Path, requests: &mut DriverRequests) {
        if let Some(hop) = path.hop() {
            self.use_hop(now, hop, requests);
        }
    }

    /// Asks the kernel to probe the neighbour of `path` again, even if the last request was recent
    /// (RFC 9293 MUST-20). The neighbour may be gone, or may have another link address. Returns
    /// false if the path has no neighbour.
    pub fn probe_neighbour(
        &mut self,
        now: Instant,
        path: &Path,
        requests: &mut DriverRequests,
    ) -> bool {
        let Some(hop) = path.hop() else {
            return false;
        };
        let addr = self.hops.note_probe(hop, now);
        requests.push(HostRequest::Resolve { addr });
        true
    }

    /// Releases the neighbour that `path` holds, if there is one. The caller calls this function
    /// when the flow stops using the path.
    pub fn leave(&mut self, path: &mut Path) {
        if let Path::Port { hop, .. } | Path::Waiting { hop, .. } = path
            && let Some(hop) = hop.take()
        {
            self.hops.release(hop);
        }
    }

    /// Applies a changed link address of a neighbour or of the interface to `path`. Returns true if
    /// the flow waited for the neighbour, and can send over the changed path.
    pub fn refresh(&self, path: &mut Path) -> bool {
        let from = self.routes.interface().mac;
        match path {
            Path::Local | Path::Nowhere | Path::Waiting { hop: None, .. } => false,
            Path::Mux { template } => {
                template.set_link(from, from);
                false
            }
            Path::Port { hop, template } => {
                // If the kernel has forgotten the neighbour, or if the path has no hop, keep the
                // template's destination link address.
                let known = hop.and_then(|hop| self.hops.get(hop).mac);
                template.set_link(from, known.unwrap_or(template.dst_mac()));
                false
            }
            Path::Waiting {
                hop: Some(hop),
                template,
            } => {
                let Some(mac) = self.hops.get(*hop).mac else {
                    return false;
                };
                template.set_link(from, mac);
                let (hop, template) = (Some(*hop), *template);
                *path = Path::Port { hop, template };
                true
            }
        }
    }

    /// Applies changed routes to `path`. The path does not change if the peer has no route, or if
    /// the table of neighbours has no place for the new next hop. The path of a passive open does
    /// not change before [`join`](Self::join), because this path has no hop. Returns true if the
    /// flow can send over a new path.
    pub fn reroute(
        &mut self,
        now: Instant,
        path: &mut Path,
        requests: &mut DriverRequests,
    ) -> bool {
        let (hop, template) = match *path {
            Path::Local | Path::Mux { .. } | Path::Nowhere | Path::Port { hop: None, .. } => {
                return false;
            }
            Path::Port { hop, template } | Path::Waiting { hop, template } => (hop, template),
        };
        let next = self.hop_to(template.peer());
        if next.is_none() || next == hop {
            return false;
        }
        let found = self.path_over_hop(now, template, requests);
        let mut before = std::mem::replace(path, found);
        self.leave(&mut before);
        matches!(path, Path::Port { .. })
    }
}
