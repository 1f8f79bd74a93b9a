//! All lanes of this process. Never freed, only used again.

use super::lane::Lane;
use crate::{
    sys::StaticCell,
    table::{Numbers, Pool},
};

/// Lanes, and so epoll instances, that one process may have under Tidelane's eyes.
pub(crate) const LANES_MAX: usize = 1 << 16;

static LANE: Numbers<Lane, LANES_MAX> = Numbers::new();
static FREE: Pool<Lane> = Pool::new();
/// The lane for sockets that no epoll instance has.
static DEFAULT: StaticCell<Lane> = StaticCell::new();
/// The epoll instance's lane that was last waited on, or added to.
static EXPECTED: StaticCell<Lane> = StaticCell::new();

/// A lane by its number.
pub(crate) fn numbered(number: u32) -> Option<&'static Lane> {
    LANE.get(number)
}

/// All lanes.
pub(crate) fn all() -> impl Iterator<Item = &'static Lane> {
    (0..FREE.made()).filter_map(numbered)
}

/// A free lane, new or used before.
pub(crate) fn take_free() -> Option<&'static Lane> {
    FREE.take(&LANE, Lane::new)
}

/// Nobody refers to the lane by a descriptor any more.
pub(crate) fn free(lane: &'static Lane) {
    FREE.free(lane);
}

/// The lane that a new connection will likely be watched in: the one used last, else the default.
pub(crate) fn expected() -> Option<&'static Lane> {
    EXPECTED.load().or_else(default)
}

/// The lane for sockets that no epoll instance has.
pub(crate) fn default() -> Option<&'static Lane> {
    if let Some(lane) = DEFAULT.load() {
        return Some(lane);
    }
    let lane = take_free()?;
    DEFAULT.store(Some(lane));
    Some(lane)
}

/// The default lane, if there is one by now.
#[inline]
pub(super) fn made_default() -> Option<&'static Lane> {
    DEFAULT.load()
}

/// New connections will likely be watched here: their first events come here at once.
#[inline]
pub(crate) fn expect(lane: &'static Lane) {
    if !EXPECTED.is(lane) {
        EXPECTED.store(Some(lane));
    }
}

/// No new connection is expected here.
pub(crate) fn forget(lane: &'static Lane) {
    if EXPECTED.is(lane) {
        EXPECTED.store(None);
    }
}

/// For the child after fork.
pub(crate) fn reset_after_fork() {
    FREE.reset_after_fork();
    for lane in all() {
        lane.reset_after_fork();
    }
}
