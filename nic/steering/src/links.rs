//! Kinds of interfaces: the kinds that a stack on AF_XDP (such as the service) can serve, and the
//! reasons to refuse other kinds. The module also knows drivers that need special treatment.
//!
//! AF_XDP delivers each frame unchanged, as the interface's driver received the frame. A virtual
//! interface on top of another interface delivers packets that the lower interface has already
//! changed: GRO may have joined segments to a packet that is longer than a frame of AF_XDP, and the
//! checksum may be missing. `docs/kernels.md` has a table of the kinds.

use crate::{
    AttachRequest,
    features::Features,
    kernel_tables::{KernelTables, LinkKind, LinkRecord},
};

/// The kernel's name for the kind of a VLAN device. An example of a VLAN device is `eth1.5`.
const VLAN: &str = "vlan";

/// Drivers that stop running an attached native XDP program when they reinitialize their rings (the
/// interface goes down and up, `ethtool -G`). All packets then go to the kernel, which resets the
/// service's connections. vmxnet3 stops programs in this way in Linux 6.12 and 7.3.
const FORGETFUL_DRIVERS: [&str; 1] = ["vmxnet3"];

/// A driver that ignores AF_XDP's transmit metadata (requests to complete checksums) on older
/// kernels, and the first version of Linux (major, minor) in which the driver applies the metadata.
const VIRTIO_NET: &str = "virtio_net";
const VIRTIO_NET_SINCE: (u32, u32) = (7, 3);

/// Returns the reason for which links of a kind are not served, and the remedy.
fn refusal_of(kind: &str) -> String {
    match kind {
        "bond" | "team" => {
            format!(
                "the kernel runs XDP programs on its members, and delivers no frame to an AF_XDP \
                 socket of the {kind}; serve a NIC that is in none"
            )
        }
        "bridge" => "its ports hand over packets that were joined (GRO), larger than a frame of \
                     AF_XDP; serve a NIC that is no port, or a veth whose other end is a port"
            .to_owned(),
        "macvlan" | "macvtap" | "ipvlan" | "ipvtap" => {
            "the interface below hands over packets that were joined (GRO, TSO), larger than a \
             frame of AF_XDP; serve the interface below, or a veth"
                .to_owned()
        }
        "tun" => {
            "the process behind it may hand over packets larger than a frame of AF_XDP (TSO); \
                  serve a NIC or a veth"
                .to_owned()
        }
        "vrf" => "a VRF passes on packets of its ports; serve a NIC that is no port".to_owned(),
        _ => "this kind is not tested; serve a NIC or a veth".to_owned(),
    }
}

/// Returns the kind in words, with an article: `a NIC`.
fn name_of(kind: &LinkKind) -> String {
    match kind {
        LinkKind::Device => "a NIC".to_owned(),
        LinkKind::Veth => "a veth".to_owned(),
        LinkKind::Loopback => "the loopback".to_owned(),
        LinkKind::Virtual(kind) => match kind.as_str() {
            "openvswitch" => "an Open vSwitch".to_owned(),
            "vrf" => "a VRF".to_owned(),
            VLAN => "a VLAN".to_owned(),
            "tun" => "a tap".to_owned(),
            "ipvlan" | "ipvtap" => format!("an {kind}"),
            _ => format!("a {kind}"),
        },
    }
}

/// Returns the link below a VLAN device. The settings of the lower link affect the packets of the
/// VLAN device. Returns `None` if `link` is not a VLAN device, if the lower link is in another
/// network namespace, or if `kernel_tables` does not have the lower link.
pub fn carrier<'a>(kernel_tables: &'a KernelTables, link: &LinkRecord) -> Option<&'a LinkRecord> {
    let is_vlan = matches!(&link.kind, LinkKind::Virtual(kind) if kind == VLAN);
    let lower = link.lower.filter(|_| is_vlan && !link.lower_is_elsewhere)?;
    kernel_tables.link(lower)
}

/// Checks that the service can serve a link. The error is one line: the reason, and the remedy.
pub fn check(kernel_tables: &KernelTables, link: &LinkRecord) -> Result<(), String> {
    if let Some(master) = link.master {
        return Err(port_of(link, kernel_tables.link(master)));
    }
    let carrier = carrier(kernel_tables, link);
    judge(link, carrier)
}

/// Returns the error text for a link that is a port of a bond, a bridge or a similar interface.
pub fn port_of(link: &LinkRecord, master: Option<&LinkRecord>) -> String {
    let name = &link.name;
    let Some(master) = master else {
        return format!("{name} is a port of another interface (see: ip link show {name})");
    };
    format!(
        "{name} is a port of {}, {}, which has the addresses; serve another interface, or take it \
         out: ip link set {name} nomaster",
        master.name,
        name_of(&master.kind)
    )
}

/// Name of an interface's driver. The methods know the special cases of drivers.
pub struct Driver(String);

impl Driver {
    /// Returns the driver of `link`. The name is empty if the kernel does not report the driver.
    pub fn of(link: &LinkRecord) -> Self {
        let name = Features::of(link.ifindex).and_then(|features| features.driver());
        Self(name.unwrap_or_default())
    }

    /// Returns the XDP mode to request. If `request` is [`AttachRequest::Best`] and the driver
    /// stops running native programs (`FORGETFUL_DRIVERS`), the result is generic mode, with a
    /// message for the operator. Otherwise, the result is `request`, without a message.
    pub fn xdp_mode_for(&self, request: AttachRequest) -> (AttachRequest, Option<String>) {
        let driver = &*self.0;
        if request != AttachRequest::Best || !FORGETFUL_DRIVERS.contains(&driver) {
            return (request, None);
        }
        let text = format!(
            "Tidelane uses generic XDP here, because the driver {driver} stops running a native \
             XDP program when its rings change. Generic XDP costs CPU time, because the kernel \
             first makes a buffer of each packet. --xdp native avoids this cost, if nobody takes \
             the interface down or runs ethtool -G"
        );
        (AttachRequest::Generic, Some(text))
    }

    /// Returns true if this driver, in the kernel release `release`, completes the checksums that
    /// AF_XDP's transmit metadata requests. The driver virtio_net ignores these requests before
    /// Linux 7.3, and the segments leave without their checksums. The function assumes that all
    /// other drivers complete the checksums.
    pub fn heeds_metadata(&self, release: &str) -> bool {
        self.0 != VIRTIO_NET || version_of(release) >= VIRTIO_NET_SINCE
    }
}

/// Returns the major and minor number of a kernel release such as `6.12.117+deb13-amd64`. A part
/// that is missing or is no number counts as zero.
fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|character: char| !character.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Returns a warning if `link` is a veth; otherwise `None`. The frames of a veth may have VLAN tags
/// that the demux (the service's XDP program) cannot see.
pub fn veth_tag_warning(link: &LinkRecord) -> Option<String> {
    let name = &link.name;
    (link.kind == LinkKind::Veth).then(|| {
        format!(
            "{name} is a veth: frames that its other end sends with a VLAN tag look as if they had \
             none, unless tx-vlan-offload is off there (docs/kernels.md)"
        )
    })
}

/// Checks a link that is no port of another interface. `carrier` is the link below a VLAN device.
/// The error is one line: the reason, and the remedy.
fn judge(link: &LinkRecord, carrier: Option<&LinkRecord>) -> Result<(), String> {
    let name = &link.name;
    let kind = name_of(&link.kind);
    match &link.kind {
        LinkKind::Loopback => Err(format!(
            "{name} is the loopback, whose packets are the kernel's; serve the interface by which \
             clients come (programs of one service are joined in memory)"
        )),
        _ if !link.ethernet || link.mac.is_none() => Err(format!(
            "{name} has no Ethernet header, which Tidelane needs; serve the interface that \
             carries its packets"
        )),
        LinkKind::Device | LinkKind::Veth => Ok(()),
        LinkKind::Virtual(vlan) if vlan == VLAN => match carrier {
            Some(carrier) if carrier.master.is_some() => Err(format!(
                "{name} is a VLAN of {}, which is a port of another interface; serve a NIC, or a \
                 VLAN of one",
                carrier.name
            )),
            Some(carrier) if carrier.kind == LinkKind::Device => Ok(()),
            Some(carrier) => Err(format!(
                "{name} is a VLAN of {}, {}; only VLANs of a NIC are served",
                carrier.name,
                name_of(&carrier.kind)
            )),
            None => Err(format!(
                "{name} is a VLAN of an interface in another network namespace; the settings of \
                 that interface affect the packets of {name}; start the service in that namespace"
            )),
        },
        LinkKind::Virtual(other) => Err(format!("{name} is {kind}: {}", refusal_of(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_tables::MacAddress;

    fn link(name: &str, kind: &str) -> LinkRecord {
        let kind = match kind {
            "" => LinkKind::Device,
            "veth" => LinkKind::Veth,
            "lo" => LinkKind::Loopback,
            kind => LinkKind::Virtual(kind.to_owned()),
        };
        LinkRecord {
            name: name.to_owned(),
            kind,
            mac: Some(MacAddress([2, 0, 0, 0, 0, 1])),
            ethernet: true,
            ..LinkRecord::default()
        }
    }

    #[test]
    fn a_driver_that_stops_native_programs_gets_generic_mode() {
        let driver = |name: &str| Driver(name.to_owned());
        let (mode, text) = driver("vmxnet3").xdp_mode_for(AttachRequest::Best);
        assert_eq!(mode, AttachRequest::Generic);
        assert!(text.is_some_and(|text| text.contains("--xdp native")));
        for (name, request) in [
            ("vmxnet3", AttachRequest::Native),
            ("vmxnet3", AttachRequest::Generic),
            ("virtio_net", AttachRequest::Best),
            ("", AttachRequest::Best),
        ] {
            assert_eq!(driver(name).xdp_mode_for(request), (request, None));
        }
        let loopback = LinkRecord {
            ifindex: 1,
            ..link("lo", "lo")
        };
        let (_, text) = Driver::of(&loopback).xdp_mode_for(AttachRequest::Best);
        assert_eq!(text, None);
    }

    #[test]
    fn metadata_is_not_used_if_the_kernel_ignores_it() {
        let virtio = Driver(VIRTIO_NET.to_owned());
        for release in ["6.12.117+deb13-amd64", "6.18.5", "strange"] {
            assert!(!virtio.heeds_metadata(release), "{release}");
            assert!(Driver("veth".to_owned()).heeds_metadata(release));
        }
        for release in ["7.3.4", "7.4-rc1", "10.0-rc1"] {
            assert!(virtio.heeds_metadata(release), "{release}");
        }
    }

    #[test]
    fn nics_and_veths_are_served_and_other_kinds_say_why_not() {
        assert_eq!(judge(&link("eth1", ""), None), Ok(()));
        assert_eq!(judge(&link("eth1", "veth"), None), Ok(()));
        for (kind, words) in [
            (
                "bond",
                "bond0 is a bond: the kernel runs XDP programs on its",
            ),
            ("team", "is a team: the kernel runs"),
            ("bridge", "is a bridge: its ports"),
            ("macvlan", "is a macvlan: the interface below"),
            ("ipvlan", "is an ipvlan: the interface below"),
            ("tun", "is a tap: the process behind it"),
            ("vrf", "is a VRF: a VRF passes on"),
            ("dummy", "is a dummy: this kind is not tested"),
            ("lo", "bond0 is the loopback"),
        ] {
            let text = judge(&link("bond0", kind), None).expect_err("it is refused");
            assert!(text.contains(words) && text.contains("serve "), "{text}");
        }
    }

    #[test]
    fn without_an_ethernet_header_nothing_is_served() {
        for kind in ["", "tun", "wireguard", "veth"] {
            let without = LinkRecord {
                ethernet: false,
                ..link("wg0", kind)
            };
            let text = judge(&without, None).expect_err("it is refused");
            assert!(text.starts_with("wg0 has no Ethernet header"), "{text}");
        }
    }

    #[test]
    fn a_vlan_is_served_if_its_carrier_is_a_nic() {
        let vlan = link("eth1.5", VLAN);
        assert_eq!(judge(&vlan, Some(&link("eth1", ""))), Ok(()));
        let refused =
            |carrier: Option<&LinkRecord>| judge(&vlan, carrier).expect_err("it is refused");
        let text = refused(Some(&link("bond0", "bond")));
        assert!(text.contains("a VLAN of bond0, a bond;"), "{text}");
        assert!(refused(None).contains("another network namespace"));
        let port = LinkRecord {
            master: Some(3),
            ..link("eth1", "")
        };
        assert!(refused(Some(&port)).contains("a port of another"));
    }

    #[test]
    fn a_port_names_its_master() {
        let text = port_of(&link("eth1", ""), Some(&link("br0", "bridge")));
        assert!(
            text.starts_with("eth1 is a port of br0, a bridge, which has the addresses"),
            "{text}"
        );
        assert!(text.contains("ip link set eth1 nomaster"), "{text}");
    }
}
