//! The kernel epoll instances on which threads sleep until a channel's doorbell rings. A channel is
//! a set of rings that this process shares with the service (the process `tidelaned`). The doorbell
//! is an eventfd by which the service wakes a thread.

use std::os::fd::RawFd;

use super::session;
use crate::sys::{Errno, Lock};

/// The epoll instances of a channel.
#[derive(Debug)]
pub(crate) struct SleepFds(Lock<Idle>);

/// The epoll instances that no thread has borrowed. Each contains the doorbell of `session`.
#[derive(Debug)]
struct Idle {
    fds: Vec<RawFd>,
    /// Number of the session (registration of this process with the service) that the channel
    /// belongs to, or 0 without a session.
    session: u32,
}

impl SleepFds {
    /// Returns the empty set of a channel without a session.
    pub(super) const fn new() -> Self {
        Self(Lock::new(Idle {
            fds: Vec::new(),
            session: 0,
        }))
    }

    /// Closes the epoll instances with the previous session's doorbell. A thread that has borrowed
    /// one of them closes it later.
    pub(super) fn begin_session(&self, session: u32) {
        let mut idle = self.0.lock();
        idle.session = session;
        let fds = std::mem::take(&mut idle.fds);
        drop(idle);
        fds.into_iter().for_each(session::close_internal);
    }

    /// Frees the lock in a child after fork, and closes all epoll instances that are not borrowed.
    pub(super) fn reset_after_fork(&self) {
        self.0.unlock_after_fork();
        self.begin_session(0);
    }

    /// Lends an epoll instance. If all are borrowed, lends a new instance, which `create` returns.
    pub(super) fn lend(
        &self,
        create: impl FnOnce() -> Result<RawFd, Errno>,
    ) -> Result<SleepFd<'_>, Errno> {
        let mut idle = self.0.lock();
        let (session, known) = (idle.session, idle.fds.pop());
        drop(idle);
        let fd = known.map_or_else(create, Ok)?;
        Ok(SleepFd {
            fd,
            session,
            owner: self,
        })
    }
}

/// An epoll instance that one sleeping thread has borrowed from a channel. Dropping the value
/// returns the epoll instance, or closes it if the channel has changed to another session.
#[derive(Debug)]
pub(crate) struct SleepFd<'a> {
    /// Descriptor of the epoll instance.
    pub(crate) fd: RawFd,
    /// Number of the session that the doorbell in the epoll instance belongs to.
    session: u32,
    owner: &'a SleepFds,
}

impl Drop for SleepFd<'_> {
    fn drop(&mut self) {
        let mut idle = self.owner.0.lock();
        if self.session == idle.session {
            return idle.fds.push(self.fd);
        }
        drop(idle);
        session::close_internal(self.fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    fn create() -> Result<RawFd, Errno> {
        sys::epoll_create().map(session::make_internal)
    }

    #[test]
    fn a_dropped_epoll_instance_can_be_borrowed_again() {
        let all = SleepFds::new();
        let (one, other) = (all.lend(create).unwrap(), all.lend(create).unwrap());
        let fds = [one.fd, other.fd];
        drop((one, other));
        let again = [(), ()].map(|()| all.lend(|| panic!("a third was created")).unwrap());
        assert!(again.iter().all(|sleep| fds.contains(&sleep.fd)));
        // The next session has another doorbell, so the borrowed epoll instances are closed when
        // they are returned.
        all.begin_session(1);
        drop(again);
        assert!(all.0.lock().fds.is_empty());
        assert!(
            fds.iter()
                .all(|fd| sys::fcntl(*fd, libc::F_GETFD, 0).is_err())
        );
    }
}
