//! The neighbours of the served interface: routes, next hops, and the paths of flows over them.
//!
//! ```text
//!   routes.rs    the kernel's routes      peer -> next hop
//!   hops.rs      the next hops            next hop -> link address
//!   path.rs      a flow's path            headers of the frames to the peer
//!   ingress.rs   source address checks    peer -> accepted or dropped
//!   prefixes.rs  address prefixes         address -> value of the longest prefix
//! ```
//!
//! The kernel resolves neighbours. The host asks the kernel by requests to its driver, the daemon
//! or the simulator.

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
    /// Source link address of the present frame. `None` while the host processes no frame.
    arrival: Option<MacAddress>,
    /// Seed of IPv6 flow labels (RFC 6437).
    label_seed: [u64; 2],
    /// Secret key of the hashes that make IP identifications.
    secret: [u8; 16],
    /// True during an active open that a rule drops: the new flow gets [`Path::Nowhere`].
    opens_nowhere: bool,
}

impl Neighbours {
    /// Returns a table without routes. `secret` is the key for hashes of addresses that peers
    /// choose.
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

    /// Returns the routes and addresses of the interface for a change. A change of the routes or of
    /// the link address changes no path: see [`reroute`](Self::reroute) and
    /// [`refresh`](Self::refresh).
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

    /// Returns the identification (IP ID) of a packet to `peer`, for a packet without a flow and
    /// without the DF flag.
    pub fn stray_ip_id(&self, peer: IpAddress, now: Instant) -> u16 {
        stray_ip_id(&self.secret, peer, now)
    }

    /// Applies the kernel's entry for neighbour `addr`. Returns `None` if the link address has not
    /// changed, or if the table is full of neighbours in use. Otherwise, returns true if a flow
    /// uses the neighbour.
    pub fn set_neighbour(&mut self, addr: IpAddress, mac: Option<MacAddress>) -> Option<bool> {
        let hop = self.hops.set_neighbour(addr, mac)?;
        Some(self.hops.is_used(hop))
    }

    /// Returns the link address of the next hop to `addr`. Returns `None` if there is no route, or
    /// while the kernel has not resolved the next hop.
    fn known_mac(&self, addr: IpAddress) -> Option<MacAddress> {
        let next = self.routes.next_hop(addr)?;
        self.hops.get(self.hops.find(next)?).mac
    }

    /// Returns the next hop to `addr`. Adds the next hop to the table of neighbours if needed.
    /// Returns `None` if there is no route, or if the table is full of neighbours in use.
    fn hop_to(&mut self, addr: IpAddress) -> Option<HopId> {
        let next = self.routes.next_hop(addr)?;
        self.hops.find_or_make(next)
    }

    /// Asks the kernel to resolve or confirm a neighbour in use, if a request is due.
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

    /// Returns the link address for an answer to a frame without a flow: the address of the
    /// neighbour on the path to `peer`. If the neighbour is an unresolved router, asks the kernel
    /// to resolve the router, and returns `None`. If the unresolved neighbour is `peer` itself,
    /// returns `arrival`, the source link address of the frame, or `None` if packets to `peer` do
    /// not leave over the interface. After `None`, the caller drops the answer.
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

    /// Returns the link address for an answer to the present frame, which has no flow.
    pub fn mac_for_reply(
        &mut self,
        now: Instant,
        peer: IpAddress,
        requests: &mut DriverRequests,
    ) -> Option<MacAddress> {
        self.mac_for_reply_to(now, peer, self.arrival, requests)
    }

    /// Begins or ends an active open that a rule drops: the new flow gets [`Path::Nowhere`].
    pub fn set_opens_nowhere(&mut self, opens_nowhere: bool) {
        self.opens_nowhere = opens_nowhere;
    }

    /// Returns the path of a new flow over `link` to the peer of `key`. The frames of an active
    /// open over the NIC go through the neighbour that the kernel resolves.
    ///
    /// The source of a received SYN may be forged. The host asks the kernel about an unknown
    /// neighbour only after the peer has answered ([`join`](Self::join)). Otherwise each forged SYN
    /// would take an entry of the kernel's neighbour table and start a resolution in vain. Until
    /// the peer has answered, segments go to the peer's link address in the table of neighbours, or
    /// else to the source link address of the SYN's frame. If the peer is behind a router, the host
    /// asks the kernel about the router at once, because a forged SYN cannot choose the router.
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

    /// Replaces the path of a passive open, after the peer has answered, by the path through the
    /// neighbour that the kernel resolves.
    pub fn join(&mut self, now: Instant, path: &mut Path, requests: &mut DriverRequests) {
        if let Path::Port {
            hop: None,
            template,
        } = *path
        {
            *path = self.path_over_hop(now, template, requests);
        }
    }

    /// Sets the link addresses of a SYN-ACK that the host sends over a path without a hop. The link
    /// address for the peer may have changed since the peer's first SYN.
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

    /// Releases the neighbour that `path` holds, because the flow no longer uses the path.
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
                // If the kernel has forgotten the neighbour, keep its last link address.
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

    /// Applies changed routes to `path`. A flow whose peer has no route, or whose new next hop
    /// finds no place in the table of neighbours, keeps its path. A flow that has no hop before
    /// [`join`](Self::join) also keeps its path. Returns true if the flow can send over a new path.
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
