//! The user and the groups of a program.

/// The user and the groups of a program, for the conditions of the operator's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Group ids, including the primary group id.
    pub groups: Vec<u32>,
}
