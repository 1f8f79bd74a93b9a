//! The NICs that the emulator has, each as a pair: one for the service, one for its peer.

use super::{emulator::Emulator, taps};

/// A kind of NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Name on the command line.
    pub name: &'static str,
    /// The emulator's device, if it is one.
    pub device: Option<&'static str>,
    /// Options of the device, with the number of the end for `@END@`.
    options: &'static str,
    /// Queues of its back end: a hub has one.
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
    // The driver has zero-copy only where the device is behind the machine's DMA interface.
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
        // An interrupt for each queue of each direction, one for the device, one for its control.
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
    // Two functions of one device, as on the card: the places of the virtual functions, which
    // nobody uses, overlap otherwise. The others have the slots below.
    Nic {
        name: "igb",
        device: Some("igb"),
        options: ",multifunction=on,addr=0e.@END@",
        queues: 1,
        module: "igb",
    },
];

impl Nic {
    /// The kind of that name.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = NICS.iter().find(|nic| nic.name == name).copied();
        found.ok_or_else(|| {
            let names: Vec<_> = NICS.iter().map(|nic| nic.name).collect();
            format!("no NIC {name}; there are {}", names.join(", "))
        })
    }

    /// Why a machine cannot have it, if so.
    pub fn missing(&self, emulator: &Emulator) -> Option<String> {
        let lacking = self.device.and_then(|device| emulator.missing(device));
        lacking.or_else(|| self.is_on_taps().then(taps::missing).flatten())
    }

    /// Returns true if its back ends are tap devices.
    pub fn is_on_taps(&self) -> bool {
        self.queues > 1
    }

    /// The two link addresses of pair `number`; none where the kernel makes the pair.
    pub fn addresses(&self, number: usize) -> Option<[String; 2]> {
        self.device?;
        Some([1, 2].map(|end| format!("52:54:00:00:{number:02x}:{end:02x}")))
    }

    /// The emulator's options for one device, on the back end `netdev`; none where the kernel makes
    /// the NIC.
    pub fn end(&self, netdev: &str, address: &str) -> Option<[String; 2]> {
        let (device, options) = (self.device?, self.options);
        let options = options.replace("@END@", "0");
        let device = format!("{device},netdev={netdev},mac={address},romfile={options}");
        Some(["-device".to_owned(), device])
    }

    /// The emulator's options for pair `number`: two devices on a hub, or on a bridge, that nothing
    /// else is on.
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
                // Nothing boots from there.
                format!("{device},netdev={port},mac={address},romfile={options}"),
            ]
        });
        ends.collect()
    }
}
