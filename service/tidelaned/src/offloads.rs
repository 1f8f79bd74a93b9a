//! Offloads of the NIC or the kernel that change packets before the demux, the service's XDP
//! program, sees them.
//!
//! The service switches these offloads off, and restores them when the service ends. If the service
//! is killed, another process restores the offloads: [`Restorer`]. If an operator switches an
//! offload on while the service runs, the service logs the change and switches the offload off. In
//! this case, too, the offload is on again after the service. The service does not change an
//! offload that is never on.

use std::io;

use tidelane_steering::{
    features::{Feature, FeatureNumber, Features},
    kernel_tables::{KernelTables, LinkRecord},
    links,
};

use crate::restorer::{Restorer, switch_on};

/// A network feature (`ethtool -k`) that must be off while the service runs.
#[derive(Clone, Copy, Debug)]
struct Offload {
    /// Name in the kernel.
    name: &'static str,
    /// Name in `ethtool -k`.
    shown: &'static str,
    /// The harm of the feature, as the end of a sentence.
    harm: &'static str,
}

/// Large receive offload: the NIC joins received packets, and loses their boundaries.
const LRO: Offload = Offload {
    name: "rx-lro",
    shown: "large-receive-offload",
    harm: "joins packets into packets that are too long for AF_XDP",
};
/// Generic receive offload in the NIC: joins received packets.
const GRO_HW: Offload = Offload {
    name: "rx-gro-hw",
    shown: "rx-gro-hw",
    harm: LRO.harm,
};
/// Generic receive offload in the kernel: joins received packets.
const GRO: Offload = Offload {
    name: "rx-gro",
    shown: "generic-receive-offload",
    harm: LRO.harm,
};
/// Removal of VLAN tags (IEEE 802.1Q) by the NIC.
const VLAN: Offload = Offload {
    name: "rx-vlan-hw-parse",
    shown: "rx-vlan-offload",
    harm: "hides VLAN tags from the demux",
};
/// Removal of service VLAN tags (IEEE 802.1ad) by the NIC.
const VLAN_SERVICE: Offload = Offload {
    name: "rx-vlan-stag-hw-parse",
    shown: "rx-vlan-stag-hw-parse",
    harm: VLAN.harm,
};

/// Offloads that must be off on a served interface. The kernel's own GRO may stay on, because GRO
/// comes after native XDP, and does not run with generic XDP.
const OF_SERVED: [Offload; 4] = [LRO, GRO_HW, VLAN, VLAN_SERVICE];
/// Offloads that must be off on the NIC below a served VLAN device. The kernel's GRO must be off,
/// too, because GRO joins the NIC's packets before the kernel removes their VLAN tags.
const OF_CARRIER: [Offload; 3] = [LRO, GRO_HW, GRO];

/// A feature of one interface that the service keeps off.
#[derive(Debug)]
struct DisabledOffload {
    /// Index of the interface in [`Offloads::interfaces`].
    interface: usize,
    offload: Offload,
    number: FeatureNumber,
    /// True if the service has switched the feature off, or has tried to do so.
    switched: bool,
}

/// The features that a service keeps off.
#[derive(Debug)]
pub struct Offloads {
    /// The served interface, and the NIC below it if the served interface is a VLAN device.
    interfaces: Vec<Features>,
    /// The harmful features that the kernel knows, including features that were never on.
    disabled: Vec<DisabledOffload>,
    restorer: Restorer,
}

impl Offloads {
    /// Switches off harmful features of an interface that is about to be served. If the interface
    /// is a VLAN device, also switches off harmful features of the NIC below it. The error is one
    /// line for the operator.
    pub fn switch_off(
        kernel_tables: &KernelTables,
        link: &LinkRecord,
        restorer: Restorer,
    ) -> Result<Self, String> {
        let mut offloads = Self {
            interfaces: Vec::new(),
            disabled: Vec::new(),
            restorer,
        };
        let name = &link.name;
        let unread = |error| format!("cannot read the offloads of {name}: {error}");
        let added = offloads.add(link.ifindex, &OF_SERVED);
        added.map_err(unread)?;
        if let Some(carrier) = links::carrier(kernel_tables, link) {
            let added = offloads.add(carrier.ifindex, &OF_CARRIER);
            added.map_err(unread)?;
        }
        for text in offloads.check()? {
            eprintln!("tidelaned: {text}; it is on again when the service ends");
        }
        Ok(offloads)
    }

    fn add(&mut self, ifindex: u32, offloads: &[Offload]) -> io::Result<()> {
        let features = Features::of(ifindex)?;
        let names = features.names()?;
        let interface = self.interfaces.len();
        for offload in offloads {
            let number = names.iter().position(|name| name == offload.name);
            // A feature that the kernel does not know cannot be on.
            self.disabled.extend(number.map(|number| DisabledOffload {
                interface,
                offload: *offload,
                number: number as FeatureNumber,
                switched: false,
            }));
        }
        self.interfaces.push(features);
        Ok(())
    }

    /// Switches off every feature in `disabled` that is on, and returns a sentence for each. The
    /// error names the first feature that stays on.
    pub fn check(&mut self) -> Result<Vec<String>, String> {
        let mut texts = Vec::new();
        // The states of a removed interface cannot be read. No feature of this interface counts as
        // on.
        let states = self.interfaces.iter().map(Features::states);
        let states: Vec<_> = states.map(Result::unwrap_or_default).collect();
        for disabled in &mut self.disabled {
            let state = states[disabled.interface].get(disabled.number as usize);
            if let Some(found) = state.filter(|found| found.active) {
                let features = &self.interfaces[disabled.interface];
                texts.push(disabled.switch_off(features, *found, &self.restorer)?);
            }
        }
        Ok(texts)
    }
}

impl DisabledOffload {
    /// Switches off a feature that is on. Returns a sentence for the log.
    fn switch_off(
        &mut self,
        features: &Features,
        found: Feature,
        restorer: &Restorer,
    ) -> Result<String, String> {
        let Offload { shown, harm, .. } = self.offload;
        let interface = features.interface().unwrap_or_default();
        let stuck = |why: &str| {
            format!("{interface} has {shown} on, which {harm}, and {why}; serve another interface")
        };
        if !found.changeable {
            return Err(stuck("its driver does not switch it off"));
        }
        // Tell the restorer before the change, because this process may be killed right after the
        // change.
        if !self.switched {
            let noted = restorer.note(features.ifindex(), self.number);
            noted.map_err(|error| {
                stuck(&format!(
                    "no process could restore it after a kill ({error})"
                ))
            })?;
            self.switched = true;
        }
        let asked = features.request(self.number, false);
        asked.map_err(|error| stuck(&error.to_string()))?;
        let now = features.state(self.number).ok().flatten();
        if now.is_some_and(|now| now.active) {
            return Err(stuck("it stays on"));
        }
        Ok(format!(
            "{shown} of {interface} is off now, since it {harm}"
        ))
    }
}

impl Drop for Offloads {
    /// Switches on again the features that the service switched off. The caller must have detached
    /// the XDP program, because some drivers refuse a feature while an XDP program is attached.
    fn drop(&mut self) {
        for disabled in self.disabled.iter().filter(|disabled| disabled.switched) {
            if let Err(error) = switch_on(&self.interfaces[disabled.interface], disabled.number) {
                let Offload { shown, .. } = disabled.offload;
                eprintln!("tidelaned: cannot switch {shown} on again: {error}");
            }
        }
    }
}
