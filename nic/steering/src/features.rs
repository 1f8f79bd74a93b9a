//! Features of an interface, as `ethtool -k` shows and `ethtool -K` changes them.

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
/// The set of strings that has the names of features.
const ETH_SS_FEATURES: u32 = 4;
/// Bytes of a name.
const NAME_LEN: usize = 32;
/// Words of `struct ethtool_drvinfo`, whose second field is the driver's name.
const DRIVER_INFO_WORDS: usize = 49;
/// Features that a kernel may know at most: there are some 70.
const FEATURES_MAX: u32 = 256;

/// A feature's number, which a kernel keeps as long as it runs.
pub type FeatureNumber = u32;

/// The state of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// An operator may change it.
    pub changeable: bool,
    /// The feature is asked for. The driver may be unable to have it on at present.
    pub wanted: bool,
    /// The feature is on.
    pub active: bool,
}

/// A text that ends with a zero, or with its field.
fn text_of(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&field[..end.unwrap_or(field.len())]).into_owned()
}

/// The features of an interface, whatever its name is.
#[derive(Debug)]
pub struct Features {
    socket: OwnedFd,
    ifindex: u32,
}

impl Features {
    /// The features of an interface of this thread's network namespace.
    pub fn of(ifindex: u32) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        Ok(Self { socket, ifindex })
    }

    /// The interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The interface's present name.
    pub fn interface(&self) -> io::Result<String> {
        Ok(netdevice::index_to_name(&self.socket, self.ifindex)?)
    }

    fn ask(&self, mut words: Vec<u32>) -> io::Result<Vec<u32>> {
        let name = self.interface()?;
        sys::ethtool(self.socket.as_fd(), &name, &mut words)?;
        Ok(words)
    }

    /// The name of the driver.
    pub fn driver(&self) -> io::Result<String> {
        let mut info = vec![0; DRIVER_INFO_WORDS];
        info[0] = ETHTOOL_GDRVINFO;
        let info = self.ask(info)?;
        let words = info.iter().skip(1).take(NAME_LEN / 4);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        Ok(text_of(&bytes))
    }

    /// The names of all features, each at its number, in the kernel's spelling (`rx-gro`, which
    /// `ethtool` shows as `generic-receive-offload`).
    pub fn names(&self) -> io::Result<Vec<String>> {
        // `struct ethtool_sset_info`: command, zero, mask of sets (64 bits), a count for each set.
        let info = self.ask(vec![ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0])?;
        let [_, _, known, _, count, ..] = info[..] else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if known == 0 || count > FEATURES_MAX {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // `struct ethtool_gstrings`: command, set, count, the names.
        let names = self.ask(vec![ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count])?;
        let words = names.iter().skip(3);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        let names = bytes.chunks_exact(NAME_LEN).take(count as usize);
        Ok(names.map(text_of).collect())
    }

    /// The state of each feature, at its number.
    pub fn states(&self) -> io::Result<Vec<Feature>> {
        // `struct ethtool_gfeatures`: command, number of blocks; available, wanted, active and
        // never changed in each, 32 features to a block.
        let answer = self.ask(vec![ETHTOOL_GFEATURES, FEATURES_MAX / 32])?;
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

    /// The state of one feature; `None` if the kernel knows fewer.
    pub fn state(&self, number: FeatureNumber) -> io::Result<Option<Feature>> {
        Ok(self.states()?.get(number as usize).copied())
    }

    /// Asks for a feature, or for its end. The driver may be unable to follow: look again.
    pub fn want(&self, number: FeatureNumber, on: bool) -> io::Result<()> {
        // `struct ethtool_sfeatures`: command, number of blocks; those to change and their new
        // state in each. The kernel wants as many blocks as it has.
        let answer = self.ask(vec![ETHTOOL_GFEATURES, 0])?;
        let blocks = answer.get(1).copied().unwrap_or(0).min(FEATURES_MAX / 32);
        let mut words = vec![0; 2 + 2 * blocks as usize];
        (words[0], words[1]) = (ETHTOOL_SFEATURES, blocks);
        let bit = 1 << (number % 32);
        let at = 2 + 2 * (number / 32) as usize;
        let Some([change, state]) = words.get_mut(at..).and_then(<[u32]>::first_chunk_mut) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        (*change, *state) = (bit, if on { bit } else { 0 });
        self.ask(words).map(drop)
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
