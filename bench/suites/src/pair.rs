//! The verdicts on one case of a suite on the two stacks.

use crate::output_format::Verdict;

/// The verdicts on one case, on the kernel and on Tidelane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The verdict on the kernel, and the verdict on Tidelane: the verdict of the first run, or
    /// [`Verdict::Passed`] if the case passed in a repetition.
    pub verdicts: [Verdict; 2],
    /// The number of the repetition in which the case passed, on the kernel and on Tidelane. 0 if
    /// the case was not repeated, or passed in no repetition.
    pub repeats: [usize; 2],
}
