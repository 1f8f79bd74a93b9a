//! The back ends of emulated NICs with several queues: pairs of tap devices, each pair joined by a
//! bridge.
//!
//! The devices are in the emulator's own network namespace, and disappear with this namespace when
//! the emulator ends.

use std::process::Command;

use super::apt::run;

/// Number of queues of each tap device.
pub const QUEUES: u32 = 2;

/// Shell script that creates the pairs whose numbers are in its first argument, and then executes
/// its other arguments as a command.
const SCRIPT: &str = r#"set -e
quiet=/proc/sys/net/ipv6/conf/default/disable_ipv6
[ ! -e "$quiet" ] || echo 1 >"$quiet"
for pair in $1; do
    ip link add "bridge$pair" type bridge mcast_snooping 0
    for end in 0 1; do
        ip tuntap add "tap${pair}e$end" mode tap multi_queue
        ip link set "tap${pair}e$end" master "bridge$pair" up
    done
    ip link set "bridge$pair" up
done
shift
exec "$@"
"#;

/// Returns the words of a command that creates these pairs in a new network namespace. Arguments
/// that a caller appends to the words are a second command, which runs in this namespace. Returns
/// an empty list if there are no pairs.
pub fn wrapper(pairs: &[usize]) -> Vec<String> {
    if pairs.is_empty() {
        return Vec::new();
    }
    let numbers: Vec<String> = pairs.iter().map(usize::to_string).collect();
    let words = ["unshare", "--net", "sh", "-c", SCRIPT, "sh"];
    let words = words.into_iter().map(str::to_owned);
    words.chain([numbers.join(" ")]).collect()
}

/// Returns the reason why this machine cannot create the tap devices, if it cannot.
pub fn missing() -> Option<String> {
    let words = wrapper(&[0]);
    let failure = run(Command::new(&words[0]).args(&words[1..]).arg("true")).err()?;
    Some(format!("no tap devices with several queues: {failure}"))
}

/// Returns the value of the emulator's option `-netdev` for the back end `name` on the tap device
/// `end` (0 or 1) of a pair.
pub fn back_end(name: &str, pair: usize, end: usize) -> String {
    format!(
        "tap,id={name},ifname=tap{pair}e{end},script=no,downscript=no,vhost=off,queues={QUEUES}"
    )
}
