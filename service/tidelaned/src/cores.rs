//! All cores (polling threads) of the Tidelane service. The control thread sends work to the cores
//! through this module.

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, mpsc},
    time::Duration,
};

use rustix::fd::OwnedFd;
use tidelane_host::{Bell, CoreIndex, Host};
use tidelane_ring::{Doorbell, ServicePageMap, sleep};
use tidelane_time::Instant;

use crate::core_link::{CoreLink, NicPort};

/// Longest time that the control thread waits for a core's answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The cores, in the order of their numbers.
pub struct Cores<P: NicPort>(Vec<Arc<dyn CoreLink<P>>>);

impl<P: NicPort> Clone for Cores<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P: NicPort> Cores<P> {
    /// Makes the set of cores from `links`, of which there must be at least one.
    pub fn new(links: Vec<Arc<dyn CoreLink<P>>>) -> Self {
        assert!(!links.is_empty(), "a service has a core");
        Self(links)
    }

    /// Returns the number of cores.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Calls `make` for each core, and sends the returned closure to the core. Does not wait.
    pub fn send_each<F>(&self, mut make: impl FnMut(usize) -> F)
    where
        F: FnOnce(&mut Host<P>, Instant) + Send + 'static,
    {
        for (number, core) in self.0.iter().enumerate() {
            core.send(Box::new(make(number)));
        }
    }

    /// Calls `make` for each core, and sends the returned closure to the core. The cores run the
    /// closures at the same time. Then waits for up to 10 s for each core in turn. Returns the
    /// answers in the order of the cores. Returns `None` if a core has stopped or does not answer
    /// in time.
    pub fn call_each<R: Send + 'static, F>(
        &self,
        mut make: impl FnMut(usize) -> F,
    ) -> Option<Vec<R>>
    where
        F: FnOnce(&mut Host<P>, Instant) -> R + Send + 'static,
    {
        let numbered = self.0.iter().enumerate();
        let asked: Vec<_> = numbered
            .map(|(number, core)| Answer::ask(core.as_ref(), make(number)))
            .collect();
        asked.into_iter().map(Answer::wait).collect()
    }

    /// Runs `f` on core `number`. Returns the core's answer. Returns `None` if the core does not
    /// exist, has stopped, or does not answer within 10 s.
    pub fn call<R: Send + 'static>(
        &self,
        number: usize,
        f: impl FnOnce(&mut Host<P>, Instant) -> R + Send + 'static,
    ) -> Option<R> {
        Answer::ask(self.0.get(number)?.as_ref(), f).wait()
    }

    /// Returns the number of the core that has the connection with the id `connection`.
    pub fn of_connection(&self, connection: u64) -> usize {
        CoreIndex::core_of_connection(connection, self.len())
    }

    /// Makes each core wake up when a program rings the core's doorbell in `bells`.
    pub fn watch(&self, bells: &[Doorbell]) -> std::io::Result<()> {
        let mut pairs = self.0.iter().zip(bells);
        pairs.try_for_each(|(core, bell)| core.watch(bell.fd()))
    }

    /// Reverts [`watch`](Self::watch).
    pub fn unwatch(&self, bells: &[Doorbell]) {
        for (core, bell) in self.0.iter().zip(bells) {
            core.unwatch(bell.fd());
        }
    }

    /// Returns true if a core is awake on the calling thread's CPU.
    pub fn are_beside(&self) -> bool {
        self.0.iter().any(|core| core.is_beside())
    }

    /// Makes all cores stop after their current step.
    pub fn stop(&self) {
        self.0.iter().for_each(|core| core.stop());
    }

    /// Returns the number of times that watchdogs moved a starved core to the real-time class,
    /// summed over the cores.
    pub fn boosts(&self) -> u32 {
        self.0.iter().map(|core| core.boosts()).sum()
    }
}

/// The pending answer of a core.
struct Answer<R>(mpsc::Receiver<R>);

impl<R: Send + 'static> Answer<R> {
    /// Sends `f` to the core, without waiting for the answer.
    fn ask<P: NicPort>(
        core: &dyn CoreLink<P>,
        f: impl FnOnce(&mut Host<P>, Instant) -> R + Send + 'static,
    ) -> Self {
        let (sender, receiver) = mpsc::sync_channel(1);
        core.send(Box::new(move |host, now| {
            let _ = sender.send(f(host, now));
        }));
        Self(receiver)
    }

    /// Waits for the answer for up to [`ANSWER_MAX`]. Returns `None` after this time, or if the
    /// core has stopped.
    fn wait(self) -> Option<R> {
        self.0.recv_timeout(ANSWER_MAX).ok()
    }
}

/// The bell of a core. Another core rings the bell to wake this core from its sleep.
pub struct CoreBell {
    /// The page on which the core announces its sleep.
    pub page: Arc<ServicePageMap>,
    /// Number of the core.
    pub core: u32,
    /// The eventfd that wakes the core.
    pub bell: Arc<OwnedFd>,
}

impl Bell for CoreBell {
    fn ring(&self) -> bool {
        let asleep = self
            .page
            .core(self.core)
            .is_some_and(|line| sleep::should_ring(&line.needs_wakeup));
        if asleep {
            ring(&self.bell);
        }
        true
    }
}

/// Makes an eventfd readable. An eventfd whose counter is full is readable already.
pub fn ring(bell: impl std::os::fd::AsFd) {
    let bell: BorrowedFd<'_> = bell.as_fd();
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
