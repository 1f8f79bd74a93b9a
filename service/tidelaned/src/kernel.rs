//! Kernel features that the Tidelane service needs, and optional kernel features.
//!
//! `docs/kernels.md` lists all features, most of them with the Linux version that introduced the
//! feature. At its start, the service tests the needed features in `NEEDS`, so that the service's
//! error message names a missing feature. The features of AF_XDP and of the demux (an XDP program)
//! are not tested here, because the errors of AF_XDP and of the demux name these features.

use std::fmt;

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    process::{PidfdFlags, getpid, pidfd_open},
};
use tidelane_af_xdp::XdpPort;
use tidelane_steering::{Demux, Steering};

use crate::sys;

/// A feature without which the service does not start.
struct Need {
    /// Name of the feature, and its purpose.
    name: &'static str,
    /// Version of Linux that introduced the feature.
    since: &'static str,
    /// Returns true if the kernel has the feature.
    present: fn() -> bool,
}

/// The needed features that [`check`] tests, from the oldest to the newest Linux version.
const NEEDS: [Need; 3] = [
    Need {
        name: "F_SEAL_FUTURE_WRITE, which keeps programs from writing to the service's memory",
        since: "5.1",
        present: has_future_write_seal,
    },
    Need {
        name: "pidfd_open, which shows the end of a program",
        since: "5.3",
        present: || pidfd_open(getpid(), PidfdFlags::empty()).is_ok(),
    },
    Need {
        name: "epoll_pwait2, by which programs wait",
        since: "5.11",
        present: sys::has_epoll_pwait2,
    },
];

fn has_future_write_seal() -> bool {
    let memory = memfd_create("seal", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    memory.is_ok_and(|memory| fcntl_add_seals(memory, SealFlags::FUTURE_WRITE).is_ok())
}

/// The error of [`check`]. The error names the newest missing feature, because the Linux version
/// that introduced this feature has the older features, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// Release of the running kernel.
    release: String,
    name: &'static str,
    since: &'static str,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            release,
            name,
            since,
        } = self;
        write!(
            f,
            "Linux {release} lacks {name}; boot Linux {since} or later (see: uname -r)"
        )
    }
}

/// Tests the needed features in `NEEDS`. Returns an error if one of these features is missing.
pub fn check() -> Result<(), Lacking> {
    lacking(&NEEDS, release()).map_or(Ok(()), Err)
}

fn lacking(needs: &[Need], release: String) -> Option<Lacking> {
    let newest = needs.iter().rev().find(|need| !(need.present)())?;
    Some(Lacking {
        release,
        name: newest.name,
        since: newest.since,
    })
}

/// Returns the running kernel's release, as `uname -r` prints it.
fn release() -> String {
    let known = rustix::system::uname();
    known.release().to_string_lossy().into_owned()
}

/// Returns one text for each optional feature that this kernel or the interface's driver lacks. The
/// text names the feature and the effect of the lack.
pub fn missing_features(interface: &str, demux: &Demux, ports: &[XdpPort]) -> Vec<String> {
    let mut texts = Vec::new();
    if let Some(reason) = demux.native_error() {
        texts.push(format!(
            "the driver of {interface} runs no XDP program ({reason}): generic XDP takes the \
             packets after the kernel has made a buffer of each, which costs CPU time"
        ));
    }
    let any = |lacks: fn(&XdpPort) -> bool| ports.iter().any(lacks);
    if any(|port| !port.leaves_partial_checksums()) {
        texts.push(format!(
            "the service computes the checksums of all segments that it sends: {interface} has no \
             tx-checksumming, or AF_XDP no transmit metadata (needs copy mode and Linux 6.11, or \
             7.3 for virtio-net)"
        ));
    }
    if any(|port| !port.has_gso()) {
        texts.push(format!(
            "no GSO frames on {interface}: each segment of a bulk transfer costs a frame"
        ));
    }
    if any(|port| !port.sends_long_batches()) {
        texts.push(
            "no XDP_MAX_TX_SKB_BUDGET (Linux 6.17): a system call transmits 32 frames at most"
                .to_owned(),
        );
    }
    if !demux.takes_frames_back() {
        texts.push(
            "no BPF_F_TEST_XDP_LIVE_FRAMES (Linux 5.18): a connection that the kernel accepted \
             while a core had no heartbeat is reset"
                .to_owned(),
        );
    }
    if !sys::has_peer_pidfd() {
        texts.push(
            "no SO_PEERPIDFD (Linux 6.5): the end of a program in another PID namespace shows \
             when its socket closes"
                .to_owned(),
        );
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(since: &'static str, present: fn() -> bool) -> Need {
        Need {
            name: "x",
            since,
            present,
        }
    }

    #[test]
    fn the_newest_lacking_feature_is_named() {
        let needs = [
            need("5.1", || false),
            need("5.3", || false),
            need("5.11", || true),
        ];
        let lacking = lacking(&needs, "5.2.0-test".to_owned()).expect("two are missing");
        let text = lacking.to_string();
        assert!(text.starts_with("Linux 5.2.0-test lacks x;"), "{text}");
        assert!(text.contains("Linux 5.3 or later"), "{text}");
    }

    #[test]
    fn this_kernel_has_all() {
        assert_eq!(check(), Ok(()));
    }
}
