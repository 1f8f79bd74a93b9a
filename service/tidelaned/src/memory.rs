//! Section `[memory]` of the configuration file: thresholds for usage, the memory that the service
//! has allocated for received data of all users. Once usage exceeds `pressure`, receive windows do
//! not grow until usage falls below `low`. Usage never exceeds `high`.
//!
//! ```toml
//! [memory]                 # in bytes; the defaults depend on the system's memory
//! low = 402653184
//! pressure = 536870912
//! high = 805306368
//! ```

use std::fmt;

use serde::Deserialize;
use tidelane_host::MemoryLimits;

/// Section `[memory]`, with the thresholds of [`MemoryLimits`] in bytes. The thresholds limit the
/// memory for received data of all connections. `None` stands for the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    low: Option<u64>,
    pressure: Option<u64>,
    high: Option<u64>,
}

/// The error for thresholds in the wrong order: `low` <= `pressure` <= `high` must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryError(MemoryLimits);

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(MemoryLimits {
            low,
            pressure,
            high,
        }) = self;
        write!(
            f,
            "low <= pressure <= high must hold: {low}, {pressure}, {high}"
        )
    }
}

impl std::error::Error for MemoryError {}

impl MemoryConfig {
    /// Returns the thresholds. `system` is the size of the system's memory in bytes, from which the
    /// defaults are computed.
    pub fn resolve(self, system: u64) -> Result<MemoryLimits, MemoryError> {
        let default = MemoryLimits::of_system(system);
        let limits = MemoryLimits {
            low: self.low.unwrap_or(default.low),
            pressure: self.pressure.unwrap_or(default.pressure),
            high: self.high.unwrap_or(default.high),
        };
        let in_order = limits.low <= limits.pressure && limits.pressure <= limits.high;
        in_order.then_some(limits).ok_or(MemoryError(limits))
    }
}

/// Returns the size of the system's memory in bytes.
pub fn of_system() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram.saturating_mul(system.mem_unit.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYSTEM: u64 = 16 << 30;

    #[test]
    fn an_unset_threshold_has_the_kernels_value() {
        let default = MemoryLimits::of_system(SYSTEM);
        assert_eq!(MemoryConfig::default().resolve(SYSTEM), Ok(default));
        let config: MemoryConfig = toml::from_str("high = 2147483648").expect("a section");
        let limits = config.resolve(SYSTEM).expect("in order");
        assert_eq!(
            limits,
            MemoryLimits {
                high: 2 << 30,
                ..default
            }
        );
    }

    #[test]
    fn thresholds_that_fall_are_refused() {
        let config: MemoryConfig = toml::from_str("pressure = 1024").expect("a section");
        let error = config.resolve(SYSTEM).expect_err("below the usual low");
        assert!(error.to_string().contains("1024"), "{error}");
    }
}
