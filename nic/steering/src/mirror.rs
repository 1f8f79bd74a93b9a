//! Mirror.
