//! Mappings of shared memory.

/// A mapping.
#[derive(Debug)]
pub struct Region;
/// A program region with its validated layout.
#[derive(Debug)]
pub struct ProgramRegion;
/// The service page.
#[derive(Debug)]
pub struct ServicePageMap;
