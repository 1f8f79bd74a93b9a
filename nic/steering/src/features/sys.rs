//! The `ioctl` of ethtool with a structure of 32-bit words.
#![allow(unsafe_code)]

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd},
};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// Length in words of the largest structure that the commands below use (`ETHTOOL_GSTRINGS`): a
/// header of 3 words, and 256 names of 32 bytes.
const WORDS_MAX: usize = 256 * 8 + 3;

/// Runs the command in the first word of `words` on the interface called `name`. The kernel's
/// answer replaces the words.
///
/// The kernel writes at most `WORDS_MAX` words. `ETHTOOL_GDRVINFO` has a structure of a fixed
/// length. For `ETHTOOL_GSSET_INFO`, `ETHTOOL_GFEATURES` and `ETHTOOL_SFEATURES`, the request in
/// `words` limits the length of the answer. For `ETHTOOL_GSTRINGS`, most kernels write the names of
/// all features, even if the request asks for fewer names. The caller therefore checks the kernel's
/// number of features before this command.
pub(super) fn ethtool(socket: BorrowedFd<'_>, name: &str, words: &mut Vec<u32>) -> io::Result<()> {
    let len = words.len();
    words.resize(WORDS_MAX.max(len), 0);
    // SAFETY: `ifreq` is plain data, for which all zeros is a valid value. The name is copied only
    // if the name and its terminator fit. The buffer `words` lives through the call, and is at
    // least as long as the kernel's answer.
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
