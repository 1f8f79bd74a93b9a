//! The settings of a stack under test: sysctls, and the flags of packetdrill's `--so_flags`.
//!
//! The defaults follow the preambles of Linux's packetdrill scripts. A preamble is the part of a
//! script before the first `socket` call. A script sets a sysctl in the kernel. The stack reads the
//! kernel's sysctls before the preamble, and again at each `socket` call and at Fast Open calls. At
//! each later reading, the stack applies the sysctls that have changed since the previous reading.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
};

use tidelane_engine::{Algorithm, Duration, EcnPolicy, EngineConfig, MtuProbing};

use crate::offload::Sizing;

/// Folder of the kernel's TCP sysctls.
const SYSCTLS: &str = "/proc/sys/net/ipv4";
/// The supported sysctls with their defaults.
const DEFAULTS: [(&str, &str); 21] = [
    ("tcp_timestamps", "1"),
    ("tcp_sack", "1"),
    ("tcp_rmem", "4096 540000 15728640"),
    ("tcp_wmem", "4096 262144 4194304"),
    ("tcp_congestion_control", "cubic"),
    ("tcp_syn_retries", "5"),
    ("tcp_syn_linear_timeouts", "4"),
    ("tcp_synack_retries", "5"),
    ("tcp_retries2", "15"),
    ("tcp_fin_timeout", "60"),
    ("tcp_notsent_lowat", "4294967295"),
    ("tcp_rto_min_us", "200000"),
    ("tcp_rto_max_ms", "120000"),
    ("tcp_ecn", "0"),
    ("tcp_mtu_probing", "0"),
    ("tcp_min_tso_segs", "2"),
    ("tcp_tso_rtt_log", "9"),
    ("tcp_pacing_ss_ratio", "200"),
    ("tcp_pacing_ca_ratio", "120"),
    ("tcp_fastopen", "0x70403"),
    (KEY, "a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4"),
];
/// The sysctl of the key for Fast Open cookies.
const KEY: &str = "tcp_fastopen_key";
/// Default MTU in bytes.
const MTU: u32 = 1500;
/// packetdrill's default IPv4 address of the host under test.
const LOCAL_IP: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
/// packetdrill's default IPv6 address of the host under test.
const LOCAL_IP6: Ipv6Addr = Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, 1);
/// Largest number of concurrent connections. The number is low because packetdrill locks all memory
/// of the process.
const FLOWS_MAX: u32 = 1024;

/// The settings of a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Values of the sysctls by name.
    sysctls: BTreeMap<String, String>,
    /// MTU of the device in bytes.
    pub mtu: u32,
    /// True if segments are joined into large packets, as Linux does for TSO or GSO.
    pub offload: bool,
    /// True if large packets leave unsegmented, as to a device with TSO: scripts see large packets.
    /// False if large packets are segmented first, as with GSO: scripts see single segments. The
    /// field has an effect only if `offload` is true.
    pub tso: bool,
    /// True to time ACKs and tail loss probes as the service (the process `tidelaned`) does. False
    /// to follow the timing of Linux.
    pub service: bool,
    /// IPv4 source address of a socket that the script did not bind to an address.
    pub local_ip: Ipv4Addr,
    /// IPv6 source address of a socket that the script did not bind to an address.
    pub local_ip6: Ipv6Addr,
}

impl Settings {
    /// Returns the default settings with the changes in `flags`. `flags` has `key=value` pairs with
    /// commas between them. A key is a sysctl or a name such as `mtu`. Fails with a message for the
    /// user if a key is unknown or a value is invalid.
    pub fn new(flags: &str) -> Result<Self, String> {
        let mut settings = Self {
            sysctls: DEFAULTS
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            mtu: MTU,
            offload: true,
            tso: true,
            service: false,
            local_ip: LOCAL_IP,
            local_ip6: LOCAL_IP6,
        };
        for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
            settings.set(flag)?;
        }
        Ok(settings)
    }

    fn set(&mut self, flag: &str) -> Result<(), String> {
        let (key, value) = flag
            .split_once('=')
            .ok_or_else(|| format!("{flag}: expected key=value"))?;
        let bad = |_| format!("{flag}: bad value");
        match key {
            "mtu" => self.mtu = value.parse().map_err(bad)?,
            "offload" => self.offload = value.parse::<u8>().map_err(bad)? != 0,
            "tso" => self.tso = value.parse::<u8>().map_err(bad)? != 0,
            "service" => self.service = value.parse::<u8>().map_err(bad)? != 0,
            "local_ip" => {
                self.local_ip = value.parse().map_err(|_| format!("{flag}: bad value"))?;
            }
            "local_ip6" => {
                self.local_ip6 = value.parse().map_err(|_| format!("{flag}: bad value"))?;
            }
            _ => match self.sysctls.get_mut(key) {
                Some(place) => *place = value.to_owned(),
                None => return Err(format!("{key}: unknown")),
            },
        }
        Ok(())
    }

    /// Applies the values in `after` that differ from the values in `before`. Applies the Fast Open
    /// key in every case, because a script that does not set the key works with any key.
    pub fn follow(&mut self, before: &Reading, after: &Reading) {
        for (name, value) in &after.0 {
            let changed = before.0.get(name) != Some(value) || name == KEY;
            if changed && let Some(place) = self.sysctls.get_mut(name) {
                place.clone_from(value);
            }
        }
    }

    /// Returns the text of a sysctl, or an empty text if the sysctl is not supported.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.sysctls.get(name).map_or("", String::as_str)
    }

    /// Returns the first number of a sysctl, or 0 if there is none.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.numbers(name).first().copied().unwrap_or(0)
    }

    /// Returns the numbers of a sysctl, such as the three of `tcp_rmem`.
    fn numbers(&self, name: &str) -> Vec<u64> {
        let number = |word: &str| match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        };
        let words = self.text(name).split_whitespace();
        words.filter_map(number).collect()
    }

    /// Returns SO_SNDBUF of a new socket, in bytes.
    pub fn sndbuf(&self) -> u32 {
        self.numbers("tcp_wmem")
            .get(1)
            .map_or(1 << 18, |n| *n as u32)
    }

    /// Returns the size in bytes up to which send buffers grow automatically.
    pub fn sndbuf_max(&self) -> u32 {
        self.numbers("tcp_wmem")
            .get(2)
            .map_or(1 << 22, |n| *n as u32)
    }

    /// Returns SO_RCVBUF of a new socket, in bytes.
    pub fn rcvbuf(&self) -> u32 {
        self.numbers("tcp_rmem")
            .get(1)
            .map_or(1 << 17, |n| *n as u32)
    }

    /// Returns the default of TCP_NOTSENT_LOWAT, in bytes.
    pub fn notsent_lowat(&self) -> u32 {
        self.number("tcp_notsent_lowat").min(u64::from(u32::MAX)) as u32
    }

    /// Returns the name of the congestion control of new sockets.
    pub fn congestion(&self) -> &str {
        self.sysctls
            .get("tcp_congestion_control")
            .map_or("cubic", String::as_str)
    }

    /// Returns the settings that determine packet sizes.
    pub fn sizing(&self) -> Sizing {
        Sizing {
            offload: self.offload,
            segments_min: self.number("tcp_min_tso_segs").clamp(1, 63) as u32,
            rtt_log: self.number("tcp_tso_rtt_log").min(63) as u32,
            slow_start_ratio: self.number("tcp_pacing_ss_ratio"),
            avoidance_ratio: self.number("tcp_pacing_ca_ratio"),
        }
    }

    /// Returns the configuration of the engine (Tidelane's TCP).
    pub fn engine(&self) -> EngineConfig {
        let largest = self.numbers("tcp_rmem").get(2).copied();
        let rx_window_max = largest.unwrap_or(6 << 20).clamp(1 << 16, 1 << 30) as u32;
        let of_name = |algorithm: &Algorithm| algorithm.name() == self.congestion();
        let congestion = Algorithm::ALL.into_iter().find(of_name);
        let config = EngineConfig {
            rx_window_max,
            rx_window_initial: 1 << 16,
            tx_limit: EngineConfig::WINDOW_MAX,
            flows_max: FLOWS_MAX,
            time_wait_max: FLOWS_MAX,
            congestion: congestion.unwrap_or_default(),
            rto_min: Duration::from_micros(self.number("tcp_rto_min_us").max(1000)),
            rto_max: Duration::from_millis(self.number("tcp_rto_max_ms").max(1000)),
            syn_retries: self.number("tcp_syn_retries").min(127) as u8,
            syn_linear_timeouts: self.number("tcp_syn_linear_timeouts").min(127) as u8,
            syn_ack_retries: self.number("tcp_synack_retries").min(127) as u8,
            retries: self.number("tcp_retries2").clamp(1, 255) as u8,
            fin_wait_2: Duration::from_secs(self.number("tcp_fin_timeout").max(1)),
            pto_min: Duration::from_millis(2),
            eager_acks: true,
            ecn: match self.number("tcp_ecn") {
                0 => EcnPolicy::Off,
                1 => EcnPolicy::Request,
                _ => EcnPolicy::Accept,
            },
            mtu_probing: match self.number("tcp_mtu_probing") {
                0 => MtuProbing::Off,
                1 => MtuProbing::BlackHole,
                _ => MtuProbing::Always,
            },
            fast_open: self.fast_open(),
            timestamps: self.number("tcp_timestamps") != 0,
            timestamp_offsets: false,
            sack: self.number("tcp_sack") != 0,
            ..EngineConfig::default()
        };
        let service = EngineConfig::default();
        match self.service {
            true => EngineConfig {
                pto_min: service.pto_min,
                eager_acks: service.eager_acks,
                ..config
            },
            false => config,
        }
    }
}

/// The kernel's values of the supported sysctls at one moment, by name. A sysctl that the kernel
/// does not have is absent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reading(BTreeMap<String, String>);

impl Reading {
    /// Returns true if no sysctl was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the sysctls of this process' network namespace.
    pub fn now() -> Self {
        let read = |name: &str| {
            let text = fs::read_to_string(Path::new(SYSCTLS).join(name)).ok()?;
            Some((name.to_owned(), text.trim().to_owned()))
        };
        Self(DEFAULTS.iter().filter_map(|(name, _)| read(name)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(name: &str, value: &str) -> Reading {
        Reading([(name.to_owned(), value.to_owned())].into())
    }

    /// The readings do not contain the Fast Open key, because `follow` applies the key even without
    /// a change.
    #[test]
    fn only_settings_that_a_script_changed_are_followed() {
        let mut settings = Settings::new("").unwrap();
        let before = reading("tcp_timestamps", "0");
        settings.follow(&before, &before);
        assert!(settings.engine().timestamps, "applied an unchanged sysctl");
        settings.follow(&reading("tcp_timestamps", "1"), &before);
        assert!(!settings.engine().timestamps);
    }

    #[test]
    fn flags_are_applied_or_refused() {
        let settings = Settings::new("mtu=1280,tcp_sack=0,local_ip=10.0.0.1").unwrap();
        assert_eq!((settings.mtu, settings.engine().sack), (1280, false));
        assert_eq!(settings.local_ip, Ipv4Addr::new(10, 0, 0, 1));
        for bad in ["mtu", "mtu=x", "colour=blue"] {
            assert!(Settings::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_defaults_announce_a_window_scale_of_eight() {
        let config = Settings::new("").unwrap().engine();
        assert_eq!(config.check(), Ok(()));
        // A window of 240 * 2^16 bytes needs a scale of 8, because 2^7 < 240 < 2^8.
        assert_eq!(config.rx_window_max >> 16, 240);
    }
}
