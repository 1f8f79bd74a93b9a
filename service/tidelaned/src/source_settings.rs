//! The kernel's settings (sysctls) for checks of the source addresses of received IPv4 packets,
//! such as `rp_filter`. The service makes the same checks.
//!
//! The kernel does not announce most changes of these settings, so the control thread reads the
//! settings at intervals. The files stay open. An open file refers to its interface in the network
//! namespace in which the file was opened, and a read needs no rights.

use std::{fs::File, os::unix::fs::FileExt};

use tidelane_host::{ReversePathFilter, SourceChecks};

/// Directory of the IPv4 settings of interfaces.
const CONF: &str = "/proc/sys/net/ipv4/conf";

/// A setting with two values: for all interfaces, and for the served interface.
struct Setting {
    /// The files of the two values. `None` for a file that cannot be opened.
    files: [Option<File>; 2],
    /// The values that were read most recently. 0 for a value that was never read.
    values: [u8; 2],
}

impl Setting {
    fn open(interface: &str, name: &str) -> Self {
        let file = |of: &str| File::open(format!("{CONF}/{of}/{name}")).ok();
        let mut setting = Self {
            files: [file("all"), file(interface)],
            values: [0; 2],
        };
        setting.read_again();
        setting
    }

    /// Reads both values again. A value that cannot be read stays unchanged.
    fn read_again(&mut self) {
        for (file, value) in self.files.iter().zip(&mut self.values) {
            let read = file.as_ref().and_then(read_number);
            *value = read.unwrap_or(*value);
        }
    }

    /// Returns the larger of the two values. The kernel combines the values of these settings with
    /// the same result.
    fn value(&self) -> u8 {
        let [all, interface] = self.values;
        all.max(interface)
    }
}

fn read_number(file: &File) -> Option<u8> {
    let mut text = [0; 16];
    let len = file.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..len)?).ok()?;
    text.trim().parse().ok()
}

/// The settings of one interface. Each field is named after its sysctl.
pub struct SourceSettings {
    rp_filter: Setting,
    accept_local: Setting,
    route_localnet: Setting,
}

impl SourceSettings {
    /// Opens the settings of `interface` in the network namespace of this thread.
    pub fn open(interface: &str) -> Self {
        let setting = |name| Setting::open(interface, name);
        Self {
            rp_filter: setting("rp_filter"),
            accept_local: setting("accept_local"),
            route_localnet: setting("route_localnet"),
        }
    }

    /// Reads the settings again. Returns true if a setting has changed.
    pub fn read_again(&mut self) -> bool {
        let before = self.checks();
        self.rp_filter.read_again();
        self.accept_local.read_again();
        self.route_localnet.read_again();
        self.checks() != before
    }

    /// Returns the checks of source addresses that the settings request.
    pub fn checks(&self) -> SourceChecks {
        let reverse_path = match self.rp_filter.value() {
            0 => ReversePathFilter::Off,
            1 => ReversePathFilter::Strict,
            _ => ReversePathFilter::Loose,
        };
        SourceChecks {
            reverse_path,
            accept_local: self.accept_local.value() != 0,
            route_localnet: self.route_localnet.value() != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_interface_has_the_settings_of_all() {
        let settings = SourceSettings::open("no-such-interface");
        let all = SourceSettings::open("all");
        assert_eq!(settings.checks(), all.checks());
    }

    #[test]
    fn numbers_are_read_as_the_kernel_writes_them() {
        let file = File::open(format!("{CONF}/all/rp_filter"));
        let number = read_number(&file.expect("every kernel with IPv4 has the file"));
        assert!(number.is_some_and(|number| number <= 2));
        let other = File::open("/proc/self/status").expect("procfs");
        assert_eq!(read_number(&other), None);
    }
}
