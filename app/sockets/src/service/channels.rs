//! All channels of this process. Channels are never freed, only reused.

use super::channel::Channel;
use crate::{
    sys::StaticCell,
    table::{Numbers, Pool},
};

/// Most channels, and so most tracked epoll instances, of one process.
pub(crate) const CHANNELS_MAX: usize = 1 << 16;

/// All channels by their number.
static CHANNEL: Numbers<Channel, CHANNELS_MAX> = Numbers::new();
static FREE: Pool<Channel> = Pool::new();
/// The channel for sockets that are in no epoll instance.
static DEFAULT: StaticCell<Channel> = StaticCell::new();
/// The channel of the epoll instance that was last waited on or added to.
static EXPECTED: StaticCell<Channel> = StaticCell::new();

/// The channel with this number.
pub(crate) fn numbered(number: u32) -> Option<&'static Channel> {
    CHANNEL.get(number)
}

/// All channels.
pub(crate) fn all() -> impl Iterator<Item = &'static Channel> {
    (0..FREE.count()).filter_map(numbered)
}

/// Takes a channel from the pool, or creates one.
pub(crate) fn take_free() -> Option<&'static Channel> {
    FREE.take(&CHANNEL, Channel::new)
}

/// Returns to the pool a channel that no descriptor refers to any more.
pub(crate) fn free(channel: &'static Channel) {
    FREE.free(channel);
}

/// The channel in which a new connection will probably be watched: the last one used, or the
/// default channel.
pub(crate) fn expected() -> Option<&'static Channel> {
    EXPECTED.load().or_else(default)
}

/// The channel for sockets that are in no epoll instance. Creates it at the first call.
pub(crate) fn default() -> Option<&'static Channel> {
    if let Some(channel) = DEFAULT.load() {
        return Some(channel);
    }
    let channel = take_free()?;
    DEFAULT.store(Some(channel));
    Some(channel)
}

/// The default channel, if it was created before.
#[inline]
pub(super) fn existing_default() -> Option<&'static Channel> {
    DEFAULT.load()
}

/// Makes `channel` the one that receives the first events of new connections, which the program
/// will probably watch there.
#[inline]
pub(crate) fn expect(channel: &'static Channel) {
    if !EXPECTED.is(channel) {
        EXPECTED.store(Some(channel));
    }
}

/// Withdraws an earlier `expect` of `channel`.
pub(crate) fn forget(channel: &'static Channel) {
    if EXPECTED.is(channel) {
        EXPECTED.store(None);
    }
}

/// Resets all channels in a child after fork.
pub(crate) fn reset_after_fork() {
    FREE.reset_after_fork();
    for channel in all() {
        channel.reset_after_fork();
    }
}
