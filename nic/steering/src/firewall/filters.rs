//! Filters of tc: on ingress, on egress, and on the root qdisc. Frames that the service (a TCP/IP
//! stack in user space) receives or sends over AF_XDP bypass these filters.

use std::io;

use super::{
    Direction, Hook,
    netlink::{self, Attributes, malformed},
};

const RTM_GETTFILTER: u16 = 46;
/// Length of `struct tcmsg` in bytes.
const TCMSG_LEN: usize = 20;
const TCA_KIND: u16 = 1;
/// Parents to which filters are attached: `TC_H_CLSACT` combined with `TC_H_MIN_INGRESS`,
/// `TC_H_CLSACT` combined with `TC_H_MIN_EGRESS`, and zero for the root qdisc.
const PARENTS: [(u32, Option<Direction>); 3] = [
    (0xffff_fff2, Some(Direction::Ingress)),
    (0xffff_fff3, Some(Direction::Egress)),
    (0, None),
];

/// Returns the filters of an interface, without duplicates.
pub(super) fn filters(interface: &str, ifindex: u32) -> io::Result<Vec<Hook>> {
    let mut hooks = Vec::new();
    for (parent, side) in PARENTS {
        let dump = netlink::dump(None, RTM_GETTFILTER, &request(ifindex, parent))?;
        for message in dump.unwrap_or_default() {
            let hook = filter(&message, interface, side)?;
            // The kernel dumps a filter once for each of its elements, and once as a whole.
            if !hooks.contains(&hook) {
                hooks.push(hook);
            }
        }
    }
    Ok(hooks)
}

/// Returns the request for the filters of one parent (`struct tcmsg`).
fn request(ifindex: u32, parent: u32) -> [u8; TCMSG_LEN] {
    let mut body = [0; TCMSG_LEN];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body[12..16].copy_from_slice(&parent.to_ne_bytes());
    body
}

/// Returns the filter that `message` describes.
fn filter(message: &[u8], interface: &str, side: Option<Direction>) -> io::Result<Hook> {
    let (fixed, attributes) = message
        .split_first_chunk::<TCMSG_LEN>()
        .ok_or_else(malformed)?;
    let [.., i0, i1, i2, i3] = *fixed;
    Ok(Hook::Filter {
        interface: interface.to_owned(),
        side,
        kind: Attributes(attributes).text(TCA_KIND)?.unwrap_or_default(),
        pref: (u32::from_ne_bytes([i0, i1, i2, i3]) >> 16) as u16,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_named_by_its_kind_and_preference() {
        let mut message = vec![0; 16];
        message.extend((49_152u32 << 16 | 0x0300).to_ne_bytes());
        message.extend([8, 0, 1, 0, b'u', b'3', b'2', 0]);
        let hook = filter(&message, "eth1", Some(Direction::Egress)).expect("a filter");
        assert_eq!(
            hook.to_string(),
            "tc filter on eth1 egress (u32, pref 49152)"
        );
        for end in 0..message.len() {
            let cut = filter(&message[..end], "eth1", None);
            assert_eq!(cut.is_ok(), end == TCMSG_LEN, "{end}");
        }
    }
}
