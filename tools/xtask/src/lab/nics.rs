//! The kinds of NICs that an emulated machine can have. `cargo xtask lab` runs its tests on each
//! selected kind.
//!
//! A machine usually has a pair of NICs of each selected kind, joined by a link: one NIC for the
//! Tidelane service and one for its peer. The two machines of [`super::pair`] have only one NIC
//! each, and the link joins the machines.

use super::{emulator::Emulator, taps};

/// A kind of NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Name on the command line.
    pub name: &'static str,
    /// Name of the emulator's device. `None` for veth, which the tests create themselves.
    pub device: Option<&'static str>,
    /// Options of the device. `@END@` stands for the number of the NIC in its pair, 0 or 1.
    options: &'static str,
    /// Number of queues of the device's back end (the emulator's option `-netdev`).
    queues: u32,
    /// Kernel module of the driver.
    pub module: &'static str,
}

/// All kinds.
pub const NICS: [Nic; 7] = [
    Nic {
        name: "veth",
        device: None,
        options: "",
        queues: 1,
        module: "veth",
    },
    Nic {
        name: "virtio-net",
        device: Some("virtio-net-pci"),
        options: "",
        queues: 1,
        module: "virtio_net",
    },
    // The driver supports AF_XDP zero-copy only for a device that requires the kernel's DMA API.
    Nic {
        name: "virtio-net-dma",
        device: Some("virtio-net-pci"),
        options: ",iommu_platform=on,disable-legacy=on",
        queues: 1,
        module: "virtio_net",
    },
    Nic {
        name: "virtio-net-mq",
        device: Some("virtio-net-pci"),
        // There is an interrupt for each queue and direction, one for the device's configuration,
        // and one for the control queue.
        options: ",mq=on,vectors=6",
        queues: taps::QUEUES,
        module: "virtio_net",
    },
    Nic {
        name: "vmxnet3",
        device: Some("vmxnet3"),
        options: "",
        queues: 1,
        module: "vmxnet3",
    },
    Nic {
        name: "e1000e",
        device: Some("e1000e"),
        options: "",
        queues: 1,
        module: "e1000e",
    },
    // The pair consists of two functions of one PCI device, as on a real card. Two separate devices
    // would not work, because the address ranges of their (unused) virtual functions would overlap.
    // The PCI slot 0e is free, because the emulator assigns lower slots to other NICs.
    Nic {
        name: "igb",
        device: Some("igb"),
        options: ",multifunction=on,addr=0e.@END@",
        queues: 1,
        module: "igb",
    },
];

impl Nic {
    /// Returns the kind called `name`. Fails with a message that lists the kinds.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = NICS.iter().find(|nic| nic.name == name).copied();
        found.ok_or_else(|| {
            let names: Vec<_> = NICS.iter().map(|nic| nic.name).collect();
            format!("no NIC {name}; there are {}", names.join(", "))
        })
    }

    /// Returns the reason why a machine cannot have this kind of NIC, if it cannot.
    pub fn missing(&self, emulator: &Emulator) -> Option<String> {
        let lacking = self.device.and_then(|device| emulator.missing(device));
        lacking.or_else(|| self.is_on_taps().then(taps::missing).flatten())
    }

    /// Returns true if the back ends are tap devices, which a NIC with several queues needs.
    pub fn is_on_taps(&self) -> bool {
        self.queues > 1
    }

    /// Returns the MAC addresses of the two NICs of pair `number`, or `None` for veth.
    pub fn addresses(&self, number: usize) -> Option<[String; 2]> {
        self.device?;
        Some([1, 2].map(|end| format!("52:54:00:00:{number:02x}:{end:02x}")))
    }

    /// Returns the emulator's options for a single NIC with the back end `netdev` and the MAC
    /// address `address`, or `None` for veth.
    pub fn end(&self, netdev: &str, address: &str) -> Option<[String; 2]> {
        let (device, options) = (self.device?, self.options);
        let options = options.replace("@END@", "0");
        let device = format!("{device},netdev={netdev},mac={address},romfile={options}");
        Some(["-device".to_owned(), device])
    }

    /// Returns the emulator's options for pair `number`: two devices, joined by a hub or bridge.
    /// Returns an empty list for veth.
    pub fn arguments(&self, number: usize) -> Vec<String> {
        let (Some(device), Some(addresses)) = (self.device, self.addresses(number)) else {
            return Vec::new();
        };
        let ends = addresses.iter().enumerate().flat_map(|(end, address)| {
            let port = format!("n{number}e{end}");
            let options = self.options.replace("@END@", &end.to_string());
            let back_end = if self.is_on_taps() {
                taps::back_end(&port, number, end)
            } else {
                format!("hubport,id={port},hubid={number}")
            };
            [
                "-netdev".to_owned(),
                back_end,
                "-device".to_owned(),
                // An empty `romfile` leaves out the ROM for booting from the network.
                format!("{device},netdev={port},mac={address},romfile={options}"),
            ]
        });
        ends.collect()
    }
}
