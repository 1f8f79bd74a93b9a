//! The restorer: a process that restores settings and resets peers if the Tidelane service
//! (`tidelaned`) is killed.
//!
//! A killed service restores no setting of the NIC and resets no connection, so another process
//! waits for the end of the service. This process, the restorer, is forked before the service sets
//! itself up. The restorer keeps only CAP_NET_ADMIN and its open sockets, and sleeps. The service
//! announces each change of a setting to the restorer in advance, and writes its connections to
//! memory that both processes share ([`Orphans`]). After the service's end, the restorer notifies
//! the peers of the remaining connections, restores changed settings, and ends. A service that ends
//! by itself leaves no connections.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair},
    process::{PidfdFlags, getpid, pidfd_open},
};
use tidelane_host::JournalMemory;
use tidelane_steering::features::{FeatureNumber, Features};

use crate::{confine, orphans::Orphans, sys};

/// Length of a message in bytes: four bytes for the index of an interface, and four bytes for the
/// number of a feature.
const MESSAGE_LEN: usize = 8;
/// Maximum number of recorded changes. A service makes at most one change for each harmful feature
/// of two interfaces.
const CHANGES_MAX: usize = 64;
/// Time limit for the exit of the service's process after the service has closed its side of the
/// socket pair.
const END_MAX: Duration = Duration::from_secs(10);
/// Number of attempts to switch a feature on, and the pause between two attempts. A driver may
/// refuse while an XDP program is attached.
const TRIES_MAX: u32 = 100;
const TRY_PAUSE: Duration = Duration::from_millis(20);
/// Pauses in seconds between two notifications of the peers. The restorer repeats the notification,
/// because the ACK to the peer, the peer's answer or the RST may be lost. If each of these segments
/// is lost with a probability of 5 %, seven attempts notify all but one peer in a million. On each
/// connection, Linux answers at most one of these ACKs per half second (tcp_invalid_ratelimit).
const PAUSES_S: [u64; 6] = [1, 1, 2, 3, 4, 4];

/// The service's handle of the restorer process. The process regards a dropped handle as the end of
/// the service.
#[derive(Debug)]
pub struct Restorer(OwnedFd);

impl Restorer {
    /// Starts the process. The caller must have only one thread. The new process closes every
    /// inherited descriptor that it does not need.
    pub fn start(journal: &JournalMemory, interface: &str) -> io::Result<Self> {
        let orphans = Orphans::of(journal.clone(), interface)?;
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let service = pidfd_open(getpid(), PidfdFlags::empty())?;
        match sys::fork()? {
            sys::Forked::Parent => Ok(Self(ours)),
            sys::Forked::Child => {
                let kept = [theirs.as_fd(), service.as_fd()].into_iter();
                let kept: Vec<_> = kept.chain(orphans.descriptors()).collect();
                let ended = sys::close_all_but(&kept)
                    .map_err(|error| error.to_string())
                    .and_then(|()| live(&theirs, &service, &orphans));
                if let Err(error) = &ended {
                    eprintln!("tidelaned: no process will restore settings after a kill: {error}");
                }
                std::process::exit(i32::from(ended.is_err()))
            }
        }
    }

    /// Announces that the service is about to switch off a feature of the interface `ifindex`.
    pub fn note(&self, ifindex: u32, feature: FeatureNumber) -> io::Result<()> {
        let message = [ifindex.to_ne_bytes(), feature.to_ne_bytes()].concat();
        send(&self.0, &message, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// Runs the process: takes messages until the service ends, then notifies the peers and restores
/// settings.
fn live(messages: &OwnedFd, service: &OwnedFd, orphans: &Orphans) -> Result<(), String> {
    sys::leave_session("tdl-restorer");
    confine::enter_restorer().map_err(|error| error.to_string())?;
    let changes = take_messages(messages);
    wait_for_end(service);
    // The peers come first, because a change of a NIC may take seconds.
    let count = orphans.probe_peers();
    put_back(&changes);
    if count > 0 {
        eprintln!("tidelaned: the service was killed: notifying the peers of {count} connections");
        for pause in PAUSES_S {
            thread::sleep(Duration::from_secs(pause));
            orphans.probe_peers();
        }
    }
    Ok(())
}

/// Takes messages until the service ends, or closes its end of the socket pair. Returns the changes
/// that the messages announced.
fn take_messages(messages: &OwnedFd) -> Vec<(Features, FeatureNumber)> {
    let mut changes = Vec::new();
    loop {
        let mut message = [0; MESSAGE_LEN];
        match recv(messages, &mut message[..], RecvFlags::empty()) {
            Ok((MESSAGE_LEN, _)) => {
                let [a, b, c, d, rest @ ..] = message;
                let ifindex = u32::from_ne_bytes([a, b, c, d]);
                // If this change cannot be recorded, the process still restores the other changes
                // and notifies the peers.
                match Features::of(ifindex) {
                    Ok(features) if changes.len() < CHANGES_MAX => {
                        changes.push((features, FeatureNumber::from_ne_bytes(rest)));
                    }
                    Ok(_) => {}
                    Err(error) => eprintln!("tidelaned: a kill would leave a setting: {error}"),
                }
            }
            Err(Errno::INTR) => {}
            // Any other result means that the service has ended.
            _ => return changes,
        }
    }
}

/// Restores changed settings of the NIC.
fn put_back(changes: &[(Features, FeatureNumber)]) {
    for (features, number) in changes {
        let interface = features.interface().unwrap_or_default();
        match switch_on(features, *number) {
            Ok(false) => {}
            Ok(true) => {
                let names = features.names().unwrap_or_default();
                let name = names.get(*number as usize).map_or("", String::as_str);
                eprintln!("tidelaned: the service was killed: {name} of {interface} is on again");
            }
            Err(error) => eprintln!("tidelaned: cannot restore {interface}: {error}"),
        }
    }
}

/// Switches on a feature that a service switched off. Returns false if there is nothing to do: the
/// feature is on, or the interface is gone.
pub fn switch_on(features: &Features, number: FeatureNumber) -> io::Result<bool> {
    for at in 0..TRIES_MAX {
        let Ok(Some(found)) = features.state(number) else {
            return Ok(false);
        };
        if found.active {
            return Ok(at > 0);
        }
        if at > 0 {
            thread::sleep(TRY_PAUSE);
        }
        features.request(number, true)?;
    }
    Err(io::Error::other("the driver does not switch it on"))
}

/// Waits for the end of the service's process, for up to [`END_MAX`]. The kernel detaches the
/// service's XDP program when the process ends.
fn wait_for_end(service: &OwnedFd) {
    let limit = Timespec {
        tv_sec: END_MAX.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut ends = [PollFd::new(service, PollFlags::IN)];
    while poll(&mut ends, Some(&limit)) == Err(Errno::INTR) {}
}
