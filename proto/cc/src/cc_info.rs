//! The state that a congestion control algorithm has besides its window, for the socket option
//! TCP_CC_INFO.

use tidelane_time::Duration;

use crate::{Bbr, Controller, bbr::UNIT};

/// Representation of a gain of 1.0 in [`CcInfo`].
pub const GAIN_UNIT: u32 = 256;

/// State of one algorithm, for Linux's `tcp_cc_info`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CcInfo {
    /// NewReno, CUBIC and custom algorithms report no further state.
    #[default]
    None,
    /// State of DCTCP.
    Dctcp {
        /// DCTCP.Alpha in units of 1/1024.
        alpha: u32,
        /// DCTCP.BytesMarked of the present window.
        marked: u32,
        /// DCTCP.BytesAcked of the present window.
        acked: u32,
    },
    /// State of BBR.
    Bbr {
        /// BtlBw in bytes per second, at most `u32::MAX`. Zero before the first sample.
        bandwidth: u32,
        /// RTprop, or `None` before the first sample.
        min_rtt: Option<Duration>,
        /// Pacing gain in units of 1 / [`GAIN_UNIT`].
        pacing_gain: u32,
        /// Window gain in units of 1 / [`GAIN_UNIT`].
        cwnd_gain: u32,
    },
}

impl Controller {
    /// Returns the state of the algorithm in use.
    pub fn cc_info(&self) -> CcInfo {
        match self {
            Self::NewReno(_) | Self::Cubic(_) | Self::Custom(..) => CcInfo::None,
            Self::Dctcp(dctcp) => dctcp.cc_info(),
            Self::Bbr(bbr) => of_bbr(bbr),
        }
    }
}

fn of_bbr(bbr: &Bbr) -> CcInfo {
    let gain = |gain: u64| (gain * u64::from(GAIN_UNIT)).div_ceil(UNIT) as u32;
    CcInfo::Bbr {
        bandwidth: bbr.bandwidth(),
        min_rtt: bbr.min_rtt(),
        pacing_gain: gain(bbr.pacing_gain()),
        cwnd_gain: gain(bbr.cwnd_gain()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Algorithm;

    #[test]
    fn cc_info_of_a_new_controller_matches_linux() {
        let cc_info = |algorithm| Controller::new(algorithm, 1460, 10).cc_info();
        assert_eq!(cc_info(Algorithm::Cubic), CcInfo::None);
        assert_eq!(cc_info(Algorithm::NewReno), CcInfo::None);
        let dctcp = CcInfo::Dctcp {
            alpha: 1024,
            marked: 0,
            acked: 0,
        };
        assert_eq!(cc_info(Algorithm::Dctcp), dctcp);
        let bbr = CcInfo::Bbr {
            bandwidth: 0,
            min_rtt: None,
            pacing_gain: 739,
            cwnd_gain: 739,
        };
        assert_eq!(cc_info(Algorithm::Bbr), bbr);
    }
}
