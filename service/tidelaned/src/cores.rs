//! All fast-path cores of the service, for the control thread.

use std::{os::fd::BorrowedFd, sync::Arc};

use rustix::fd::OwnedFd;
use tidelane_host::{Bell, Place};
use tidelane_ring::{Doorbell, ServicePageMap, sleep};
use tidelane_time::Instant;

use crate::core::{CoreHandle, CoreHost};

/// Handles to the cores, in their order.
#[derive(Clone)]
pub struct Cores(Vec<CoreHandle>);

impl Cores {
    /// At least one.
    pub fn new(handles: Vec<CoreHandle>) -> Self {
        Self(handles)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Runs what `make` gives for each core on it, without waiting.
    pub fn send_each<F>(&self, mut make: impl FnMut(usize) -> F)
    where
        F: FnOnce(&mut CoreHost, Instant) + Send + 'static,
    {
        for (number, core) in self.0.iter().enumerate() {
            core.send(make(number));
        }
    }

    /// Runs what `make` gives for each core on it, at the same time, and returns the answers in the
    /// cores' order; `None` if a core has stopped.
    pub fn call_each<R: Send + 'static, F>(
        &self,
        mut make: impl FnMut(usize) -> F,
    ) -> Option<Vec<R>>
    where
        F: FnOnce(&mut CoreHost, Instant) -> R + Send + 'static,
    {
        let numbered = self.0.iter().enumerate();
        let asked: Vec<_> = numbered
            .map(|(number, core)| core.ask(make(number)))
            .collect();
        asked.into_iter().map(|answer| answer.wait()).collect()
    }

    /// Runs `f` on core `number`; `None` if there is no such core, or it has stopped.
    pub fn call<R: Send + 'static>(
        &self,
        number: usize,
        f: impl FnOnce(&mut CoreHost, Instant) -> R + Send + 'static,
    ) -> Option<R> {
        self.0.get(number)?.ask(f).wait()
    }

    /// The number of the core that has, or had, a connection.
    pub fn of_connection(&self, connection: u64) -> usize {
        Place::core_of_connection(connection, self.len())
    }

    /// Wakes each core when a program rings its doorbell of `bells`.
    pub fn watch(&self, bells: &[Doorbell]) -> std::io::Result<()> {
        let mut pairs = self.0.iter().zip(bells);
        pairs.try_for_each(|(core, bell)| core.watch(bell.fd()))
    }

    /// Undoes [`watch`](Self::watch).
    pub fn unwatch(&self, bells: &[Doorbell]) {
        for (core, bell) in self.0.iter().zip(bells) {
            core.unwatch(bell.fd());
        }
    }

    /// Asks all to stop after their present step.
    pub fn stop(&self) {
        self.0.iter().for_each(CoreHandle::stop);
    }

    /// How often the watchdogs found a core starved.
    pub fn boosts(&self) -> u32 {
        self.0.iter().map(CoreHandle::boosts).sum()
    }
}

/// Wakes a core that sleeps, for another one.
pub struct CoreBell {
    /// Where it says that it sleeps.
    pub page: Arc<ServicePageMap>,
    /// Its number.
    pub core: u32,
    /// The eventfd that it waits for.
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

/// Makes an eventfd readable. One whose counter is full is readable.
pub fn ring(bell: impl std::os::fd::AsFd) {
    let bell: BorrowedFd<'_> = bell.as_fd();
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}
