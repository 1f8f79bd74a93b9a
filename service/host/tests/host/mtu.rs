//! Tests of changes of the interface's MTU on a host, the stack of one core of the service. The
//! host's port, which stands for the AF_XDP socket of a NIC queue, has an MTU of its own.

use tidelane_wire::TcpFlags;

use crate::{
    rig::Core,
    stage::{Stage, listen, segment, stranger},
};

/// Returns the MSS that the host announces on a new connection from `port`.
fn mss_for(stage: &mut Stage, port: u16) -> Option<u16> {
    let mut syn = segment(TcpFlags::SYN, 7, 0);
    syn.src_port = port;
    syn.options.mss = Some(8960);
    let answers = stage.exchange(stranger(1), syn);
    answers.first().and_then(|answer| answer.options.mss)
}

/// A port drops a segment that exceeds the port's MTU, and each retransmission of the segment,
/// without an ICMP error. Therefore the port's MTU also limits the MSS that the host announces.
#[test]
fn no_segment_is_longer_than_the_port_carries() {
    let mut stage = Stage::new();
    listen(&mut stage.core.host, 1 << 20);
    stage.core.host.set_mtu(stage.now, 1300);
    assert_eq!(mss_for(&mut stage, 5001), Some(1260));
    stage.core.host.set_mtu(stage.now, 9000);
    assert_eq!(mss_for(&mut stage, 5002), Some(1460));
}

/// A connection keeps the NIC queue on which its SYN arrived. A new MTU applies to the connections
/// of all queues.
#[test]
fn a_new_mtu_applies_to_connections_of_each_queue() {
    for core in [Core::new(), Core::with_two_queues()] {
        let mut stage = Stage::with_core(core);
        listen(&mut stage.core.host, 1 << 20);
        stage.connect(5001, b"text");
        stage.core.host.set_mtu(stage.now, 1300);
        let sockets = stage.core.host.sockets();
        let path_mss = sockets
            .iter()
            .find_map(|socket| Some(socket.info?.path_mss));
        assert_eq!(path_mss, Some(1260));
    }
}
