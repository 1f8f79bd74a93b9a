//! A reference to the registration of a socket with an epoll instance. Each epoll instance has a
//! channel: rings over which the service (the process `tidelaned`) reports events to this process.

/// A reference to a registration: the number of the epoll instance's channel, and the index of the
/// registration in the instance's interest list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegistrationRef {
    /// Number of the channel of the epoll instance.
    pub(crate) channel: u32,
    /// Index of the registration in the interest list of the instance.
    pub(crate) index: u32,
}

impl RegistrationRef {
    /// Packs the reference into a word that is not 0.
    pub(crate) const fn pack(self) -> u64 {
        (self.channel as u64) << 32 | (self.index as u64 + 1)
    }

    /// Unpacks a word that `pack` returned. Returns `None` for 0.
    #[inline]
    pub(crate) const fn unpack(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self {
            channel: (word >> 32) as u32,
            index: word as u32 - 1,
        })
    }
}
