//! The `ioctl` of ethtool with a structure of 32-bit words.
#![allow(unsafe_code)]

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd},
};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// Largest structure of this module's commands in words: names of 256 features of 32 bytes.
const WORDS_MAX: usize = 256 * 8 + 3;

/// Runs the command in the first word of `words` on the interface called `name`. The kernel's
/// answer replaces the words.
///
/// The kernel writes at most the `WORDS_MAX` words of the buffer. `ETHTOOL_GDRVINFO` has a
/// structure of a fixed length. In `ETHTOOL_GSSET_INFO`, `ETHTOOL_GFEATURES` and
/// `ETHTOOL_SFEATURES`, the words limit the length. For `ETHTOOL_GSTRINGS`, most kernels write the
/// names of all features regardless of the words. The caller therefore checks the kernel's number
/// of features before this command.
pub(super) fn ethtool(socket: BorrowedFd<'_>, name: &str, words: &mut Vec<u32>) -> io::Result<()> {
    let len = words.len();
    words.resize(WORDS_MAX.max(len), 0);
    // SAFETY: `ifreq` is plain data, and all zeros is a value of it. The name is copied only if it
    // fits with its terminator. The words live through the call, and are more than the commands
    // write.
    let result = unsafe {
        let mut request: libc::ifreq = MaybeUninit::zeroed().assume_init();
        if name.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
