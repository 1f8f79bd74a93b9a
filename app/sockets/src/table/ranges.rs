//! The ranges of descriptors that a call of `close_range` has to close: all descriptors in the
//! caller's range except the library's own. The library is `libtidelane.so`, which contains this
//! crate. A descriptor of the program is tracked if the library knows its socket or epoll instance.

use std::os::fd::RawFd;

use super::{descriptors, is_internal};

/// One step of a `close_range`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseRangeStep {
    /// If this descriptor is tracked, the caller has to stop tracking it.
    Forget(RawFd),
    /// The caller has to let the kernel close the descriptors from the first to the last, both
    /// included.
    Close(u32, u32),
}

/// Calls `each` for the steps of closing `first..=last`, in the order in which the caller has to
/// carry them out.
pub(crate) fn close_range_steps(first: u32, last: u32, each: impl FnMut(CloseRangeStep)) {
    split(first..=last, descriptors(), is_internal, each);
}

/// Does the work of `close_range_steps`. The range `known` contains all tracked descriptors and all
/// of the library's own descriptors.
fn split(
    range: std::ops::RangeInclusive<u32>,
    known: std::ops::Range<RawFd>,
    is_internal: impl Fn(RawFd) -> bool,
    mut each: impl FnMut(CloseRangeStep),
) {
    let mut begin = *range.start();
    for fd in known {
        let number = fd as u32;
        if !range.contains(&number) {
            continue;
        }
        if !is_internal(fd) {
            each(CloseRangeStep::Forget(fd));
            continue;
        }
        if begin < number {
            each(CloseRangeStep::Close(begin, number - 1));
        }
        begin = number + 1;
    }
    if begin <= *range.end() {
        each(CloseRangeStep::Close(begin, *range.end()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_descriptors_are_spared() {
        let of = |range, internal: &[RawFd]| {
            let mut seen = Vec::new();
            let each = |step| match step {
                CloseRangeStep::Close(first, last) => seen.push((first, last)),
                CloseRangeStep::Forget(fd) => assert!(!internal.contains(&fd)),
            };
            split(range, 0..10, |fd| internal.contains(&fd), each);
            seen
        };
        assert_eq!(of(3..=u32::MAX, &[]), [(3, u32::MAX)]);
        assert_eq!(of(3..=20, &[3, 5, 6]), [(4, 4), (7, 20)]);
        assert_eq!(of(3..=6, &[1, 6, 8]), [(3, 5)]);
        assert_eq!(of(4..=5, &[4, 5]), []);
    }

    #[test]
    fn tracked_descriptors_are_forgotten() {
        let mut forgotten = Vec::new();
        split(
            2..=4,
            0..10,
            |fd| fd == 3,
            |step| {
                if let CloseRangeStep::Forget(fd) = step {
                    forgotten.push(fd);
                }
            },
        );
        assert_eq!(forgotten, [2, 4]);
    }
}
