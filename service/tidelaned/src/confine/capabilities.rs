//! Capabilities (Linux) of the Tidelane service: the capabilities that serving needs, and the
//! removal of all others.

use rustix::{
    process::{Resource, Rlimit, setrlimit},
    thread::{
        CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities,
        clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
        set_capabilities_secure_bits,
    },
};

use super::{ConfineError, sys};

/// The capabilities of the service while it serves. Each entry has the capability and the actions
/// that need it. The service does these actions while it serves, not only during set-up.
pub const CAPABILITIES: &[(CapabilitySet, &str)] = &[
    (
        CapabilitySet::NET_ADMIN,
        "asks the kernel to resolve a neighbour (RTM_NEWNEIGH), and for the network namespace of \
         a program's socket (SIOCGSKNS); binds beside a program's socket (TCP_REPAIR); lists the \
         BPF programs of a cgroup (BPF_PROG_QUERY); switches off offloads (SIOCETHTOOL)",
    ),
    (
        CapabilitySet::NET_BIND_SERVICE,
        "holds a port below 1024 in the kernel for as long as it is claimed",
    ),
    (
        CapabilitySet::CHOWN,
        "gives the socket that holds the port of a SO_REUSEPORT listener to the listener's owner: \
         only then may the owner's other listeners join (fchown)",
    ),
];

/// The capability to change an open eBPF map. Only kernels before Linux 5.19 demand this
/// capability, and only if `kernel.unprivileged_bpf_disabled` is set.
const FOR_MAPS: CapabilitySet = CapabilitySet::BPF;
/// The capability to set the niceness and the scheduling class of a core (a polling thread). The
/// service needs this capability only if RLIMIT_NICE or RLIMIT_RTPRIO could not be raised.
const FOR_CLASSES: CapabilitySet = CapabilitySet::SYS_NICE;

/// Value of `RLIMIT_NICE` that allows the niceness -10, which a core has in the normal scheduling
/// class. The value is 20 minus the niceness.
const NICE_LIMIT: u64 = 30;
/// Value of `RLIMIT_RTPRIO` that allows a core the lowest real-time priority.
const PRIORITY_LIMIT: u64 = crate::sys::CORE_PRIORITY as u64;
/// Number of capabilities that a set of 64 bits can have.
const CAPABILITIES_MAX: u32 = 64;

/// The capabilities that the process keeps.
#[derive(Clone, Copy, Debug)]
pub struct RemainingCapabilities {
    /// The effective and the permitted set.
    set: CapabilitySet,
    /// True if the bounding set has been emptied.
    pub bounded: bool,
}

impl RemainingCapabilities {
    /// Returns the names in the kernel's spelling.
    pub fn names(&self) -> Vec<&'static str> {
        let named = [
            (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
            (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
            (CapabilitySet::NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"),
            (CapabilitySet::CHOWN, "CAP_CHOWN"),
            (CapabilitySet::BPF, "CAP_BPF"),
            (CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
            (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
            (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
        ];
        let kept = named.into_iter().filter(|(set, _)| self.set.contains(*set));
        kept.map(|(_, name)| name).collect()
    }
}

/// Gives up every capability that is not in [`CAPABILITIES`], permanently and in all sets.
/// [`FOR_MAPS`] and [`FOR_CLASSES`] stay if this system makes them necessary. The bounding set
/// stays if the process has no CAP_SETPCAP.
pub fn keep_needed() -> Result<RemainingCapabilities, ConfineError> {
    let held = capabilities(None).map_err(ConfineError::at("reading the capabilities"))?;
    let mut set = CAPABILITIES
        .iter()
        .fold(CapabilitySet::empty(), |all, (one, _)| all | *one);
    let up_to = |limit| Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    let limits = [
        (Resource::Nice, NICE_LIMIT),
        (Resource::Rtprio, PRIORITY_LIMIT),
    ];
    let raised = |(resource, limit)| setrlimit(resource, up_to(limit)).is_ok();
    if !limits.into_iter().all(raised) {
        set |= FOR_CLASSES;
    }
    // The service locks the rings of programs in memory (`Region::keep_resident`). The lock is
    // optional, so an error of `setrlimit` is ignored.
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    let _ = setrlimit(Resource::Memlock, unlimited);
    let may_set = drop_bounding_and_ambient_sets(&held)?;
    // To find out whether the service needs FOR_MAPS, first remove it from the effective set only.
    let without = CapabilitySets {
        effective: set & held.permitted,
        permitted: (set | FOR_MAPS) & held.permitted,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, without).map_err(ConfineError::at("the capabilities"))?;
    if !sys::may_use_open_maps() {
        set |= FOR_MAPS;
    }
    reduce(&held, set)?;
    Ok(RemainingCapabilities {
        set: set & held.permitted,
        bounded: may_set,
    })
}

/// Gives up every capability that is not in `set`, permanently.
pub fn keep_only(set: CapabilitySet) -> Result<(), ConfineError> {
    let held = capabilities(None).map_err(ConfineError::at("reading the capabilities"))?;
    drop_bounding_and_ambient_sets(&held)?;
    reduce(&held, set)
}

fn reduce(held: &CapabilitySets, set: CapabilitySet) -> Result<(), ConfineError> {
    let sets = CapabilitySets {
        effective: set & held.permitted,
        permitted: set & held.permitted,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).map_err(ConfineError::at("the capabilities"))
}

/// Empties the bounding set and the ambient set, and locks the secure bits. If the process has no
/// CAP_SETPCAP, the bounding set and the secure bits stay as they are, and the function returns
/// false.
fn drop_bounding_and_ambient_sets(held: &CapabilitySets) -> Result<bool, ConfineError> {
    let may_set = held.effective.contains(CapabilitySet::SETPCAP);
    if may_set {
        lock_secure_bits()?;
        for number in 0..CAPABILITIES_MAX {
            // The kernel refuses the numbers of capabilities that it does not know.
            let one = CapabilitySet::from_bits_retain(1 << number);
            let _ = remove_capability_from_bounding_set(one);
        }
    }
    clear_ambient_capability_set().map_err(ConfineError::at("the ambient capabilities"))?;
    Ok(may_set)
}

/// Sets and locks the secure bits, so that user 0 gains no capabilities by its user id.
fn lock_secure_bits() -> Result<(), ConfineError> {
    use CapabilitiesSecureBits as Bits;
    let bits = Bits::NO_ROOT
        | Bits::NO_ROOT_LOCKED
        | Bits::NO_SETUID_FIXUP
        | Bits::NO_SETUID_FIXUP_LOCKED
        | Bits::KEEP_CAPS_LOCKED
        | Bits::NO_CAP_AMBIENT_RAISE
        | Bits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(bits).map_err(ConfineError::at("the secure bits"))
}
