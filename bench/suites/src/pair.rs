//! The verdicts on one case of a suite on the two stacks.

use crate::output_format::Verdict;

/// The verdicts on one case, on the kernel and on Tidelane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The verdict on the kernel, and the verdict on Tidelane. If the case passed in a repetition
    /// on a stack, the stack's verdict is [`Verdict::Passed`]. Otherwise, the stack's verdict is
    /// the result of the first run.
    pub verdicts: [Verdict; 2],
    /// The number of the repetition in which the case passed, from 1, on the kernel and on
    /// Tidelane. 0 if the case was not repeated, or if it passed in no repetition.
    pub repeats: [usize; 2],
}
