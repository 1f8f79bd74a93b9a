//! Records of the kernel's network interfaces, which netlink calls links.

use std::fmt;

use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
};

use super::MacAddress;

/// The kind of a link (IFLA_INFO_KIND).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// A device without a kind in the kernel, for example a physical NIC.
    #[default]
    Device,
    /// One end of a veth pair. Packets from the other end may have a partial checksum
    /// (CHECKSUM_PARTIAL).
    Veth,
    /// The loopback interface.
    Loopback,
    /// Another virtual link, with the kernel's name of the kind: `bond`, `bridge`, `vlan`, ...
    Virtual(String),
}

/// XDP mode of an attached program: the point in the receive path at which the program runs. A
/// received packet passes these points in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachedXdpMode {
    /// In the NIC.
    Offloaded,
    /// In the driver.
    Native,
    /// In the kernel's stack, after the driver.
    Generic,
}

impl fmt::Display for AttachedXdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Offloaded => "offloaded",
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

/// A link (network interface), as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkRecord {
    /// Index of the link.
    pub ifindex: u32,
    /// Name of the link.
    pub name: String,
    /// Link-layer address; `None` if the link has no address of six bytes.
    pub mac: Option<MacAddress>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Kind of the link.
    pub kind: LinkKind,
    /// True if the link's frames have an Ethernet header.
    pub ethernet: bool,
    /// True if the link is switched on (IFF_UP), with or without a carrier.
    pub up: bool,
    /// Index of the link's master, which is for example a bond, bridge, team or VRF. `None` for a
    /// link without a master.
    pub master: Option<u32>,
    /// Index of the link that carries this link's frames (IFLA_LINK). For a veth, index of the
    /// other end. `None` for a link without a lower link.
    pub lower: Option<u32>,
    /// True if the link with index `lower` is in another network namespace.
    pub lower_is_elsewhere: bool,
    /// Mode and program ID of each attached XDP program, ordered by mode.
    pub xdp_programs: Vec<(AttachedXdpMode, u32)>,
}

impl LinkRecord {
    /// Updates the record from an RTM_NEWLINK message of the kernel.
    pub(super) fn apply(&mut self, message: &LinkMessage) {
        self.up = message.header.flags.contains(LinkFlags::Up);
        self.ethernet = message.header.link_layer_type == LinkLayerType::Ether;
        if message.header.link_layer_type == LinkLayerType::Loopback {
            self.kind = LinkKind::Loopback;
        }
        let names = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfName(_));
        if message.attributes.iter().any(names) {
            // Only a complete description of the link has IFLA_IFNAME. If a complete description
            // lacks IFLA_MASTER, the link has no master. If the description lacks IFLA_LINK, the
            // link has no lower link.
            (self.master, self.lower, self.lower_is_elsewhere) = (None, None, false);
        }
        for attribute in &message.attributes {
            self.apply_attribute(attribute);
        }
    }

    fn apply_attribute(&mut self, attribute: &LinkAttribute) {
        match attribute {
            LinkAttribute::IfName(name) => self.name.clone_from(name),
            LinkAttribute::Address(bytes) => self.mac = mac_address(bytes),
            LinkAttribute::Mtu(mtu) => self.mtu = *mtu,
            LinkAttribute::Controller(master) => self.master = Some(*master).filter(|at| *at != 0),
            LinkAttribute::Link(lower) => self.lower = Some(*lower).filter(|at| *at != 0),
            LinkAttribute::LinkNetNsId(_) => self.lower_is_elsewhere = true,
            LinkAttribute::LinkInfo(infos) => {
                let kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(InfoKind::Veth) => Some(LinkKind::Veth),
                    LinkInfo::Kind(kind) => Some(LinkKind::Virtual(kind.to_string())),
                    _ => None,
                });
                self.kind = kind.unwrap_or_default();
            }
            LinkAttribute::Xdp(attributes) => self.xdp_programs = xdp_programs(attributes),
            _ => {}
        }
    }
}

fn xdp_programs(attributes: &[LinkXdp]) -> Vec<(AttachedXdpMode, u32)> {
    let attached = attributes.iter().filter_map(|attribute| match attribute {
        LinkXdp::HwProgId(id) => Some((AttachedXdpMode::Offloaded, *id)),
        LinkXdp::DrvProgId(id) => Some((AttachedXdpMode::Native, *id)),
        LinkXdp::SkbProgId(id) => Some((AttachedXdpMode::Generic, *id)),
        _ => None,
    });
    let mut programs: Vec<_> = attached.filter(|(_, id)| *id != 0).collect();
    programs.sort_unstable();
    programs
}

pub(super) fn mac_address(bytes: &[u8]) -> Option<MacAddress> {
    bytes.try_into().ok().map(MacAddress)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.link_layer_type = LinkLayerType::Ether;
        let name = LinkAttribute::IfName("eth1".to_owned());
        message.attributes = [vec![name], attributes].concat();
        message
    }

    #[test]
    fn a_port_that_leaves_its_bridge_has_no_master() {
        let mut link = LinkRecord::default();
        link.apply(&described(vec![LinkAttribute::Controller(7)]));
        assert_eq!((link.master, link.ethernet), (Some(7), true));
        // A message without IFLA_IFNAME is not a complete description, so the master stays.
        link.apply(&LinkMessage::default());
        assert_eq!((link.master, link.ethernet), (Some(7), false));
        link.apply(&described(Vec::new()));
        assert_eq!(link.master, None);
    }

    #[test]
    fn a_kind_is_named_as_the_kernel_names_it() {
        let kind_of = |kind| {
            let mut link = LinkRecord::default();
            let info = LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]);
            link.apply(&described(vec![info]));
            link.kind
        };
        assert_eq!(kind_of(InfoKind::Veth), LinkKind::Veth);
        assert_eq!(kind_of(InfoKind::Vlan), LinkKind::Virtual("vlan".into()));
        let other = InfoKind::Other("openvswitch".into());
        let named = LinkKind::Virtual("openvswitch".into());
        assert_eq!(kind_of(other), named);
    }

    #[test]
    fn programs_are_ordered_by_their_point_in_the_receive_path() {
        let attributes = [
            LinkXdp::ProgId(0),
            LinkXdp::SkbProgId(3),
            LinkXdp::HwProgId(9),
        ];
        let programs = xdp_programs(&attributes);
        assert_eq!(
            programs,
            [
                (AttachedXdpMode::Offloaded, 9),
                (AttachedXdpMode::Generic, 3)
            ]
        );
    }
}
