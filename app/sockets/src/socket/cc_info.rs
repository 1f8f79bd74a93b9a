//! The value of TCP_CC_INFO, Linux' `union tcp_cc_info`, for a connection that the service (the
//! process `tidelaned`) carries. As in Linux, the value is empty for CUBIC and NewReno.

use tidelane_abi::{TcpInfo, congestion, tcp_info_features};

/// Length of a `tcp_bbr_info` in bytes. No variant of the union is longer.
const INFO_LEN_MAX: usize = 20;
/// Length of a `tcp_dctcp_info` in bytes.
const DCTCP_LEN: usize = 16;

/// Returns the bytes of the union, and the length of the value in bytes. The length depends on the
/// congestion control.
pub(crate) fn cc_info(tcp_info: &TcpInfo) -> ([u8; INFO_LEN_MAX], usize) {
    let mut info = [0; INFO_LEN_MAX];
    let words = tcp_info.details;
    match tcp_info.congestion as u16 {
        congestion::BBR => {
            for (bytes, word) in info.as_chunks_mut().0.iter_mut().zip(words) {
                *bytes = word.to_ne_bytes();
            }
            (info, INFO_LEN_MAX)
        }
        congestion::DCTCP => {
            // Without ECN, the DCTCP of Linux falls back to NewReno and reports zeros. This
            // function always sets the field `dctcp_ce_state` to zero. The field belongs to the
            // receiving direction, and the service does not report its value.
            if tcp_info.features & tcp_info_features::ECN != 0 {
                info[..2].copy_from_slice(&1u16.to_ne_bytes());
                for (bytes, word) in info[4..].as_chunks_mut().0.iter_mut().zip(&words[..3]) {
                    *bytes = word.to_ne_bytes();
                }
            }
            (info, DCTCP_LEN)
        }
        _ => (info, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp_info(congestion: u16, features: u32) -> TcpInfo {
        TcpInfo {
            congestion: congestion.into(),
            features,
            details: [1, 2, 3, 4, 5, 6],
            ..TcpInfo::default()
        }
    }

    fn words(bytes: &[u8]) -> Vec<u32> {
        let words = bytes.as_chunks().0.iter();
        words.map(|word| u32::from_ne_bytes(*word)).collect()
    }

    #[test]
    fn layouts_match_linux() {
        let of = |congestion, features| {
            let (bytes, len) = cc_info(&tcp_info(congestion, features));
            words(&bytes[..len])
        };
        assert_eq!(of(congestion::CUBIC, 0), []);
        assert_eq!(of(congestion::RENO, 0), []);
        assert_eq!(of(congestion::DCTCP, 0), [0; 4]);
        let enabled = u32::from_ne_bytes([1u16.to_ne_bytes(), [0; 2]].concat().try_into().unwrap());
        let dctcp = of(congestion::DCTCP, tcp_info_features::ECN);
        assert_eq!(dctcp, [enabled, 1, 2, 3]);
        assert_eq!(of(congestion::BBR, 0), [1, 2, 3, 4, 5]);
    }
}
