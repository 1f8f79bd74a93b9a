//! The NICs of the emulator. A machine has a pair of each kind: one for the service, one for its
//! peer.

use super::{emulator::Emulator, taps};

/// A kind of NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Name on the command line.
    pub name: &'static str,
    /// Device of the emulator. `None` for veth.
    pub device: Option<&'static str>,
    /// Options of the device, with the number of the end for `@END@`.
    options: &'static str,
    /// Queues of the back end. A hub has one.
    queues: u32,
    /// The kernel's module.
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
    // The driver supports zero-copy only for a device behind the DMA interface.
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
        // One interrupt per queue and direction, one for the device, one for the control queue.
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
    // Two functions of one device, as on the card. As two devices, the address ranges of their
    // virtual functions, which nobody uses, would overlap. Other NICs use the slots below.
    Nic {
        name: "igb",
        device: Some("igb"),
        options: ",multifunction=on,addr=0e.@END@",
        queues: 1,
        module: "igb",
    },
];

impl Nic {
    /// Returns the kind called `name`.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = NICS.iter().find(|nic| nic.name == name).copied();
        found.ok_or_else(|| {
            let names: Vec<_> = NICS.iter().map(|nic| nic.name).collect();
            format!("no NIC {name}; there are {}", names.join(", "))
        })
    }

    /// Returns the reason why a machine cannot have this NIC, if it cannot.
    pub fn missing(&self, emulator: &Emulator) -> Option<String> {
        let lacking = self.device.and_then(|device| emulator.missing(device));
        lacking.or_else(|| self.is_on_taps().then(taps::missing).flatten())
    }

    /// Returns true if the back ends are tap devices.
    pub fn is_on_taps(&self) -> bool {
        self.queues > 1
    }

    /// Returns the two link addresses of pair `number`. `None` for veth.
    pub fn addresses(&self, number: usize) -> Option<[String; 2]> {
        self.device?;
        Some([1, 2].map(|end| format!("52:54:00:00:{number:02x}:{end:02x}")))
    }

    /// Returns the emulator's options for one device on the back end `netdev`. `None` for veth.
    pub fn end(&self, netdev: &str, address: &str) -> Option<[String; 2]> {
        let (device, options) = (self.device?, self.options);
        let options = options.replace("@END@", "0");
        let device = format!("{device},netdev={netdev},mac={address},romfile={options}");
        Some(["-device".to_owned(), device])
    }

    /// Returns the emulator's options for pair `number`: two devices on a hub or bridge of their
    /// own.
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
                // No network boot, so no boot ROM.
                format!("{device},netdev={port},mac={address},romfile={options}"),
            ]
        });
        ends.collect()
    }
}
