//! Features of an interface, such as GRO and checksum offload. `ethtool -k` shows the features, and
//! `ethtool -K` changes them.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

mod sys;

const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
/// Number of the string set with the names of features.
const ETH_SS_FEATURES: u32 = 4;
/// Length in bytes of the field for the name of a feature or of a driver.
const NAME_LEN: usize = 32;
/// Length of `struct ethtool_drvinfo` in words of 32 bits. The structure's second field is the name
/// of the driver.
const DRIVER_INFO_WORDS: usize = 49;
/// Largest number of features that this module supports; kernels have some 70.
const FEATURES_MAX: u32 = 256;

/// Number that the kernel gives a feature. The number does not change while the kernel runs.
pub type FeatureNumber = u32;

/// The state of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// True if an operator may change the feature.
    pub changeable: bool,
    /// True if the feature is requested. The driver may be unable to enable the feature at present.
    pub wanted: bool,
    /// True if the feature is on.
    pub active: bool,
}

/// Returns the text in a field. The text ends at a zero byte or at the end of the field.
fn text_of(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&field[..end.unwrap_or(field.len())]).into_owned()
}

/// The features of an interface. The value stores the index of the interface, so the value stays
/// valid if the interface is renamed.
#[derive(Debug)]
pub struct Features {
    socket: OwnedFd,
    ifindex: u32,
}

impl Features {
    /// Opens the features of an interface of this thread's network namespace.
    pub fn of(ifindex: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        Ok(Self { socket, ifindex })
    }

    /// Returns the index of the interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Returns the interface's current name.
    pub fn interface(&self) -> io::Result<String> {
        Ok(netdevice::index_to_name(&self.socket, self.ifindex)?)
    }

    fn ioctl(&self, mut words: Vec<u32>) -> io::Result<Vec<u32>> {
        let name = self.interface()?;
        sys::ethtool(self.socket.as_fd(), &name, &mut words)?;
        Ok(words)
    }

    /// Returns the name of the driver.
    pub fn driver(&self) -> io::Result<String> {
        let mut info = vec![0; DRIVER_INFO_WORDS];
        info[0] = ETHTOOL_GDRVINFO;
        let info = self.ioctl(info)?;
        let words = info.iter().skip(1).take(NAME_LEN / 4);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        Ok(text_of(&bytes))
    }

    /// Returns the names of all features. The index of a name is the number of the feature. The
    /// names have the kernel's spelling: for example, `ethtool` shows the kernel's name `rx-gro` as
    /// `generic-receive-offload`.
    pub fn names(&self) -> io::Result<Vec<String>> {
        // `struct ethtool_sset_info`: command, zero, mask of sets (64 bits), a count for each set.
        let info = self.ioctl(vec![ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0])?;
        let [_, _, known, _, count, ..] = info[..] else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if known == 0 || count > FEATURES_MAX {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // `struct ethtool_gstrings`: command, set, count, the names.
        let names = self.ioctl(vec![ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count])?;
        let words = names.iter().skip(3);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        let names = bytes.chunks_exact(NAME_LEN).take(count as usize);
        Ok(names.map(text_of).collect())
    }

    /// Returns the state of each feature. The index of a state is the number of the feature. The
    /// kernel reports blocks of 32 features, so the last block may have numbers without a feature.
    /// All flags of these numbers are false.
    pub fn states(&self) -> io::Result<Vec<Feature>> {
        // `struct ethtool_gfeatures`: command, number of blocks; each block of 32 features has the
        // words available, wanted, active and never changed.
        let answer = self.ioctl(vec![ETHTOOL_GFEATURES, FEATURES_MAX / 32])?;
        let known = answer.get(1).copied().unwrap_or(0).min(FEATURES_MAX / 32);
        let blocks = answer.iter().skip(2).copied().collect::<Vec<u32>>();
        let (blocks, _) = blocks.as_chunks::<4>();
        let blocks = blocks.iter().take(known as usize);
        let states = blocks.flat_map(|[available, wanted, active, _]| {
            (0..32).map(move |bit| Feature {
                changeable: available & (1 << bit) != 0,
                wanted: wanted & (1 << bit) != 0,
                active: active & (1 << bit) != 0,
            })
        });
        Ok(states.collect())
    }

    /// Returns the state of one feature. Returns `None` if the number is beyond the kernel's last
    /// block of 32 features. If the last block contains the number but no feature has it, all flags
    /// of the state are false.
    pub fn state(&self, number: FeatureNumber) -> io::Result<Option<Feature>> {
        Ok(self.states()?.get(number as usize).copied())
    }

    /// Requests that the kernel switch a feature on or off. The driver may be unable to comply, and
    /// the function returns success in this case, too. The caller therefore reads the state again.
    pub fn request(&self, number: FeatureNumber, on: bool) -> io::Result<()> {
        // `struct ethtool_sfeatures`: command, number of blocks; each block of 32 features has a
        // word with the features to change and a word with their new state. The number of blocks
        // must equal the number that the kernel reports.
        let answer = self.ioctl(vec![ETHTOOL_GFEATURES, 0])?;
        let blocks = answer.get(1).copied().unwrap_or(0).min(FEATURES_MAX / 32);
        let mut words = vec![0; 2 + 2 * blocks as usize];
        (words[0], words[1]) = (ETHTOOL_SFEATURES, blocks);
        let bit = 1 << (number % 32);
        let at = 2 + 2 * (number / 32) as usize;
        let Some([change, state]) = words.get_mut(at..).and_then(<[u32]>::first_chunk_mut) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        (*change, *state) = (bit, if on { bit } else { 0 });
        self.ioctl(words).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_ends_with_its_zero() {
        assert_eq!(text_of(b"veth\0\0\0"), "veth");
        assert_eq!(text_of(b"full"), "full");
        assert_eq!(text_of(b""), "");
    }
}
