//! The NICs that the emulator has, each as a pair: one for the service, one for its peer.

use std::process::Command;

/// The emulator.
pub const EMULATOR: &str = "qemu-system-x86_64";

/// A kind of NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Name on the command line.
    pub name: &'static str,
    /// The emulator's device, if it is one.
    device: Option<&'static str>,
    /// Options of the device.
    options: &'static str,
    /// The kernel's module.
    pub module: &'static str,
}

/// All kinds.
pub const NICS: [Nic; 6] = [
    Nic {
        name: "veth",
        device: None,
        options: "",
        module: "veth",
    },
    Nic {
        name: "virtio-net",
        device: Some("virtio-net-pci"),
        options: "",
        module: "virtio_net",
    },
    // The driver has zero-copy only where the device is behind the machine's DMA interface.
    Nic {
        name: "virtio-net-dma",
        device: Some("virtio-net-pci"),
        options: ",iommu_platform=on,disable-legacy=on",
        module: "virtio_net",
    },
    Nic {
        name: "vmxnet3",
        device: Some("vmxnet3"),
        options: "",
        module: "vmxnet3",
    },
    Nic {
        name: "e1000e",
        device: Some("e1000e"),
        options: "",
        module: "e1000e",
    },
    Nic {
        name: "igb",
        device: Some("igb"),
        options: "",
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

    /// Why the emulator cannot have it, if so.
    pub fn missing(&self) -> Option<String> {
        let device = self.device?;
        let mut help = Command::new(EMULATOR);
        let output = help.args(["-device", "help"]).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let known = text.contains(&format!("name \"{device}\""));
        (!known).then(|| format!("this machine's {EMULATOR} has no {device}"))
    }

    /// The two link addresses of pair `number`; none where the kernel makes the pair.
    pub fn addresses(&self, number: usize) -> Option<[String; 2]> {
        self.device?;
        Some([1, 2].map(|end| format!("52:54:00:00:{number:02x}:{end:02x}")))
    }

    /// The emulator's options for pair `number`: two devices on a hub that nothing else is on.
    pub fn arguments(&self, number: usize) -> Vec<String> {
        let (Some(device), Some(addresses)) = (self.device, self.addresses(number)) else {
            return Vec::new();
        };
        let ends = addresses.iter().enumerate().flat_map(|(end, address)| {
            let port = format!("n{number}e{end}");
            [
                "-netdev".to_owned(),
                format!("hubport,id={port},hubid={number}"),
                "-device".to_owned(),
                format!("{device},netdev={port},mac={address}{}", self.options),
            ]
        });
        ends.collect()
    }
}
