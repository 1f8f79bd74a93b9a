//! Test of a host, the stack of one core of the service. When a program ends, the host resets the
//! program's connections. In this test, there are more connections than transmit frames of the
//! host's port. The port stands for the AF_XDP socket of a NIC queue.

use tidelane_packet_io::MemConfig;
use tidelane_wire::TcpFlags;

use crate::{
    rig::Core,
    stage::{Stage, listen, stranger},
};

/// Number of transmit frames of the port.
const FRAMES: u32 = 4;

/// The host resets the remaining connections when frames are free again. Each connection needs this
/// reset: a peer that waits for data sends no segment to which the host could answer with a RST.
#[test]
fn resets_that_find_no_frame_wait_for_one() {
    let port = MemConfig {
        frames: FRAMES,
        ..MemConfig::default()
    };
    let mut stage = Stage::with_core(Core::with_port(port));
    let program = listen(&mut stage.core.host, 1 << 20);
    let ports = 5001..=5010;
    for port in ports.clone() {
        stage.connect(port, b"text");
    }
    stage.core.host.remove_program(stage.now, program.0);
    let mut reset = Vec::new();
    while reset.len() < ports.clone().count() {
        assert!(stage.core.host.next_timeout().is_some(), "{reset:?}");
        stage.run();
        let answers = stage.answers(stranger(1));
        assert!((1..=FRAMES as usize).contains(&answers.len()));
        for answer in answers {
            assert!(answer.flags.contains(TcpFlags::RST));
            reset.push(answer.dst_port);
        }
    }
    reset.sort_unstable();
    assert!(reset.into_iter().eq(ports));
    stage.run();
    assert_eq!(stage.answers(stranger(1)).len(), 0);
    assert_eq!(stage.core.host.next_timeout(), None);
    // No program, no connection and no receive buffer remains.
    assert_eq!(stage.core.host.usage(), (0, 0, 0));
}
