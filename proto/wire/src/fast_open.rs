//! The TCP Fast Open option (RFC 7413 §4.1.1): a cookie, or a request for a cookie.
//!
//! The option has kind 34. Its experimental form (RFC 6994) has kind 254 and a two-byte identifier
//! (ExID). The stack answers a peer in the form that the peer used.

/// Kind of the option.
pub(crate) const KIND: u8 = 34;
/// Kind of experimental options.
pub(crate) const KIND_EXPERIMENT: u8 = 254;
/// ExID of Fast Open in the experimental form.
const EXPERIMENT: [u8; 2] = [0xf9, 0x89];
/// Kind of the no-operation option, which pads to a multiple of four bytes.
const NOP: u8 = 1;

/// Smallest length of a cookie, in bytes.
const COOKIE_LEN_MIN: usize = 4;
/// Largest length of a cookie, in bytes.
const COOKIE_LEN_MAX: usize = 16;

/// A Fast Open cookie: an even number of bytes, from 4 to 16. A cookie of zero bytes is the request
/// for a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FastOpenCookie {
    /// The cookie, followed by zeros.
    bytes: [u8; COOKIE_LEN_MAX],
    /// Length of the cookie in bytes. Zero for a request.
    len: u8,
}

impl FastOpenCookie {
    /// The request for a cookie.
    pub const REQUEST: Self = Self {
        bytes: [0; COOKIE_LEN_MAX],
        len: 0,
    };

    /// Creates a cookie, or a request if `bytes` is empty. Returns `None` if the length is invalid.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len = bytes.len();
        let fits = len == 0 || (COOKIE_LEN_MIN..=COOKIE_LEN_MAX).contains(&len);
        if !fits || !len.is_multiple_of(2) {
            return None;
        }
        let mut cookie = Self::REQUEST;
        cookie.bytes.get_mut(..len)?.copy_from_slice(bytes);
        cookie.len = len as u8;
        Some(cookie)
    }

    /// Returns the bytes of the cookie; empty for a request.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// Returns true if this is the request for a cookie.
    pub const fn is_request(&self) -> bool {
        self.len == 0
    }
}

/// The Fast Open option. The option is valid in a SYN only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FastOpenOption {
    /// Cookie or request.
    pub cookie: FastOpenCookie,
    /// True if the option has the experimental form.
    pub experimental: bool,
}

impl FastOpenOption {
    /// Parses the body of the option: the bytes after kind and length. Returns `None` if the length
    /// of the cookie is invalid, or if the ExID of an experimental option is not that of Fast Open.
    pub(crate) fn parse(kind: u8, body: &[u8]) -> Option<Self> {
        let experimental = kind == KIND_EXPERIMENT;
        let cookie = match experimental {
            true => body.strip_prefix(&EXPERIMENT)?,
            false => body,
        };
        Some(Self {
            cookie: FastOpenCookie::new(cookie)?,
            experimental,
        })
    }

    /// Returns the length of the option without padding, in bytes.
    fn option_len(&self) -> usize {
        let head = if self.experimental { 4 } else { 2 };
        head + usize::from(self.cookie.len)
    }

    /// Returns the number of bytes that [`FastOpenOption::emit`] writes: a multiple of four.
    pub(crate) fn len(&self) -> usize {
        self.option_len().next_multiple_of(4)
    }

    /// Writes the option, followed by padding. Returns the number of bytes written.
    pub(crate) fn emit(&self, buf: &mut [u8]) -> usize {
        let (len, whole) = (self.option_len(), self.len());
        let (option, fill) = buf[..whole].split_at_mut(len);
        fill.fill(NOP);
        let head = if self.experimental { 4 } else { 2 };
        let kind = if self.experimental {
            KIND_EXPERIMENT
        } else {
            KIND
        };
        let [high, low] = EXPERIMENT;
        option[..head].copy_from_slice(&[kind, len as u8, high, low][..head]);
        option[head..].copy_from_slice(self.cookie.as_slice());
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TcpOptions, Timestamps};

    fn syn(fast_open: FastOpenOption) -> TcpOptions {
        let mut options = TcpOptions {
            mss: Some(1460),
            wscale: Some(8),
            sack_permitted: true,
            timestamps: Some(Timestamps { tsval: 1, tsecr: 2 }),
            ..TcpOptions::NONE
        };
        assert!(options.set_fast_open(fast_open));
        options
    }

    #[test]
    fn rfc7413_section_4_1_1_lengths_are_even_and_4_to_16() {
        let all = [7; 20];
        for len in 0..20 {
            let allowed = len == 0 || (4..=16).contains(&len) && len % 2 == 0;
            assert_eq!(FastOpenCookie::new(&all[..len]).is_some(), allowed, "{len}");
        }
    }

    #[test]
    fn both_forms_come_back_from_the_bytes_of_a_syn() {
        let all = [0xab; 16];
        for len in [0, 4, 6, 8, 16] {
            for experimental in [false, true] {
                let cookie = FastOpenCookie::new(&all[..len]).unwrap();
                let options = syn(FastOpenOption {
                    cookie,
                    experimental,
                });
                let mut bytes = [0; 40];
                let written = options.emit(&mut bytes);
                assert_eq!((written, written % 4), (options.len(), 0));
                assert_eq!(TcpOptions::parse(&bytes[..written]), options);
            }
        }
    }

    #[test]
    fn an_option_that_does_not_fit_is_not_set() {
        let cookie = FastOpenCookie::new(&[1; 16]).unwrap();
        let option = FastOpenOption {
            cookie,
            experimental: true,
        };
        let mut options = syn(option);
        options.sack.push(crate::SeqNumber(1), crate::SeqNumber(2));
        assert_eq!(options.fast_open(), None, "SACK blocks replace the option");
        assert!(!options.set_fast_open(option), "the blocks stay");
    }

    #[test]
    fn an_invalid_cookie_is_skipped() {
        let others: [&[u8]; 4] = [
            &[34, 3, 1, 1],
            &[34, 4, 1, 1],
            &[254, 6, 0xf9, 0x88, 1, 1, 1, 1],
            &[254, 2, 1, 1],
        ];
        for bytes in others {
            assert_eq!(TcpOptions::parse(bytes).fast_open(), None, "{bytes:?}");
        }
        let two = [34, 6, 1, 2, 3, 4, 34, 6, 5, 6, 7, 8];
        let last = TcpOptions::parse(&two).fast_open().unwrap();
        assert_eq!(last.cookie.as_slice(), [5, 6, 7, 8]);
    }
}
