//! The channels of this process: the default channel, one channel for each tracked epoll instance,
//! and a limited number of channels of threads. A thread gets a channel of its own when it begins
//! to wait for a socket while another thread sleeps on the socket's channel (`thread_channels`).
//!
//! A [`Channel`] contains the rings over which this process exchanges requests and events with the
//! service (the process `tidelaned`). Channels are never freed: an unused channel stays in a pool
//! until an epoll instance or a thread takes the channel. A tracked epoll instance is an epoll
//! instance of the program for which this crate keeps an interest list.

use super::channel::Channel;
use crate::{
    sys::StaticCell,
    table::{NumberTable, Pool},
};

/// Largest number of channels in a process, and thus of tracked epoll instances.
pub(crate) const CHANNELS_MAX: usize = 1 << 16;

/// All channels by their number.
static CHANNEL: NumberTable<Channel, CHANNELS_MAX> = NumberTable::new();
/// The pool of unused channels.
static FREE: Pool<Channel> = Pool::new();
/// The default channel: the channel for sockets that are in no epoll instance.
static DEFAULT: StaticCell<Channel> = StaticCell::new();
/// The channel of the last `prefer`: usually the channel of the epoll instance that the program
/// last created, waited on, or added an accelerated socket to.
static PREFERRED: StaticCell<Channel> = StaticCell::new();

/// Returns the channel with this number.
pub(crate) fn numbered(number: u32) -> Option<&'static Channel> {
    CHANNEL.get(number)
}

/// Returns all channels that were ever created.
pub(crate) fn all() -> impl Iterator<Item = &'static Channel> {
    (0..FREE.count()).filter_map(numbered)
}

/// Takes a channel from the pool, or creates a channel. Returns `None` at [`CHANNELS_MAX`].
pub(crate) fn take_free() -> Option<&'static Channel> {
    FREE.take(&CHANNEL, Channel::new)
}

/// Returns a channel to the pool. No descriptor and no thread uses the channel any more.
pub(crate) fn free(channel: &'static Channel) {
    FREE.free(channel);
}

/// Returns the channel whose epoll instance will probably get the next new connection: the channel
/// of the last `prefer`, or else the default channel.
pub(crate) fn preferred() -> Option<&'static Channel> {
    PREFERRED.load().or_else(default)
}

/// Returns the default channel. Creates the channel at the first call. Returns `None` if this is
/// not possible, because there are already [`CHANNELS_MAX`] channels and none is unused.
pub(crate) fn default() -> Option<&'static Channel> {
    if let Some(channel) = DEFAULT.load() {
        return Some(channel);
    }
    let new = take_free()?;
    let channel = DEFAULT.fill(new);
    if !std::ptr::eq(channel, new) {
        // Another thread was faster.
        free(new);
    }
    Some(channel)
}

/// Returns the default channel, or `None` if it was not created yet.
#[inline]
pub(super) fn existing_default() -> Option<&'static Channel> {
    DEFAULT.load()
}

/// Makes `channel` receive the first events of new connections, because the program will probably
/// add these connections to the channel's epoll instance.
#[inline]
pub(crate) fn prefer(channel: &'static Channel) {
    if !PREFERRED.is(channel) {
        PREFERRED.store(Some(channel));
    }
}

/// Undoes an earlier `prefer` of `channel`.
pub(crate) fn forget(channel: &'static Channel) {
    if PREFERRED.is(channel) {
        PREFERRED.store(None);
    }
}

/// Resets all channels in a child after fork.
pub(crate) fn reset_after_fork() {
    FREE.reset_after_fork();
    for channel in all() {
        channel.reset_after_fork();
    }
}
