//! The NICs that the emulator has, each as a pair: one for the service, one for its peer.

/// A kind of NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Name on the command line.
    pub name: &'static str,
    /// The emulator's device, if it is one.
    pub device: Option<&'static str>,
    /// Options of the device, with the number of the end for `@END@`.
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
    // Two functions of one device, as on the card: the places of the virtual functions, which
    // nobody uses, overlap otherwise. The others have the slots below.
    Nic {
        name: "igb",
        device: Some("igb"),
        options: ",multifunction=on,addr=0e.@END@",
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

    /// The emulator's options for pair `number`: two devices on a hub that nothing else is on.
    pub fn arguments(&self, number: usize) -> Vec<String> {
        let (Some(device), Some(addresses)) = (self.device, self.addresses(number)) else {
            return Vec::new();
        };
        let ends = addresses.iter().enumerate().flat_map(|(end, address)| {
            let port = format!("n{number}e{end}");
            let options = self.options.replace("@END@", &end.to_string());
            [
                "-netdev".to_owned(),
                format!("hubport,id={port},hubid={number}"),
                "-device".to_owned(),
                // Nothing boots from there.
                format!("{device},netdev={port},mac={address},romfile={options}"),
            ]
        });
        ends.collect()
    }
}
