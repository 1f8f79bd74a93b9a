//! GSO on a mux port (`service/mux`), with and without loss. A mux port is a pair of packet rings
//! through which a program with a TCP/IP stack of its own shares the NIC. The embedded stack on the
//! port sends bulk data as GSO frames through shared memory. A GSO frame has the payload of several
//! segments. The mux splits the frames, because the NIC of this test has no GSO.

use std::{cell::RefCell, rc::Rc};

use tidelane_embedded::{
    Connection, Duration, Endpoint, FnPort, Instant, IpAddress, MacAddress, MemConfig, MemPort,
    PacketIo, Stack, StackConfig,
};
use tidelane_mux::{Mux, PortCounters, Tuple};
use tidelane_packet_io::{Burst, TxChecksum};
use tidelane_packet_ring::{ProgramEnd, ServiceEnd};
use tidelane_ring::PortRegions;

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const PEER_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const LOCAL: IpAddress = IpAddress::from_v4([10, 0, 0, 1]);
const PEER: IpAddress = IpAddress::from_v4([10, 0, 0, 2]);
/// Endpoint of the server, which runs on the embedded stack.
const SERVER: Endpoint = Endpoint::new(LOCAL, 1000);
/// Length in bytes of each of the mux port's two packet rings.
const RING_LEN: u32 = 256 * 1024;
/// Bytes that the server sends.
const LEN: usize = 2_000_000;

type Receive = Box<dyn FnMut(&mut [u8]) -> Option<usize>>;
type Send = Box<dyn FnMut(&[u8]) -> bool>;

/// The link between the NIC and the peer.
#[derive(Clone, Copy)]
struct Link {
    /// MTU in bytes.
    mtu: u32,
    /// Each `loss`-th packet to the peer is lost; zero means no loss.
    loss: u32,
    /// True if the peer sends data to the server, too, with the same loss.
    both_ways: bool,
}

impl Link {
    const fn with_loss(loss: u32) -> Self {
        Self {
            mtu: 1500,
            loss,
            both_ways: false,
        }
    }
}

/// Makes the packet interface of the peer at the other end of the NIC. The test fails if a packet
/// to the peer is longer than the MTU.
fn peer_port(wire: MemPort, link: Link) -> FnPort<Receive, Send> {
    let loss = link.loss;
    let wire = Rc::new(RefCell::new(wire));
    let (rx, mut count) = (Rc::clone(&wire), 0_u32);
    let receive = move |packet: &mut [u8]| {
        loop {
            let port = &mut *rx.borrow_mut();
            let mut burst = port.new_burst();
            port.rx_burst(&mut burst, 1);
            let frame = burst.frame(0).map(<[u8]>::to_vec);
            port.rx_release(&mut burst);
            let frame = frame?;
            assert!(
                frame.len() <= link.mtu as usize + 14,
                "a frame is longer than the link allows"
            );
            count += 1;
            if loss == 0 || count % loss > 0 {
                packet[..frame.len() - 14].copy_from_slice(&frame[14..]);
                return Some(frame.len() - 14);
            }
        }
    };
    let mut sent = 0_u32;
    let send = move |packet: &[u8]| {
        sent += 1;
        if link.both_ways && loss > 0 && sent.is_multiple_of(loss) {
            return true;
        }
        let port = &mut *wire.borrow_mut();
        let Some(frame) = port.tx_frame() else {
            return false;
        };
        frame[..6].copy_from_slice(&MAC.0);
        frame[6..12].copy_from_slice(&PEER_MAC.0);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14..14 + packet.len()].copy_from_slice(packet);
        port.tx_commit(14 + packet.len(), TxChecksum::Done);
        port.tx_flush();
        true
    };
    FnPort::new(link.mtu, Box::new(receive), Box::new(send))
}

/// Sends [`LEN`] bytes from the server to the peer, and compares the received bytes with the sent
/// bytes. If the peer sends data, too, also compares the bytes of the other direction. Returns the
/// counters of the server's mux port.
fn transfer(link: Link) -> PortCounters {
    let config = MemConfig {
        partial_checksums: false,
        frame_len_max: link.mtu + 14,
        frames: 1024,
    };
    let (wire, nic) = MemPort::pair(config);
    let (_host, to_host) = MemPort::pair(config);
    let mut mux = Mux::new(nic, to_host, MAC, vec![LOCAL], 1);
    let (service, program) = PortRegions::heap(0, RING_LEN).unwrap();
    let (id, _) = mux.open(ServiceEnd::new(&service, None)).unwrap();
    let tuple = Tuple {
        protocol: 6,
        local: SERVER,
    };
    mux.ports_mut().claim(tuple, id).unwrap();
    let config = StackConfig {
        mac: MAC,
        gateway: PEER_MAC,
        ..StackConfig::new(LOCAL, [1; 16])
    };
    let mut stack = Stack::new(config, ProgramEnd::new(&program, link.mtu + 14, false));
    let listener = stack.listen(SERVER, 8).unwrap();
    let mut peer = Stack::new(StackConfig::new(PEER, [9; 16]), peer_port(wire, link));
    let mut now = Instant::from_secs(1);
    peer.poll(now);
    let client = peer.connect(Endpoint::new(PEER, 0), SERVER).unwrap();
    let data: Vec<u8> = (0..LEN).map(|n| (n * 31 % 251) as u8).collect();
    let (mut server, mut sent, mut got) = (None::<Connection>, 0, Vec::new());
    let (mut peer_sent, mut server_got) = (0, Vec::new());
    for _ in 0..1_000_000 {
        now += Duration::from_micros(100);
        peer.poll(now);
        let received = peer.received(client).concat();
        peer.consume(client, received.len());
        got.extend(received);
        if link.both_ways {
            peer_sent += peer.write(client, &data[peer_sent..]);
        }
        peer.flush();
        mux.step();
        stack.poll(now);
        server = server.or_else(|| stack.accept(listener));
        if let Some(server) = server {
            sent += stack.write(server, &data[sent..]);
            let received = stack.received(server).concat();
            stack.consume(server, received.len());
            server_got.extend(received);
            stack.flush();
        }
        mux.step();
        if got.len() == LEN && server_got.len() == peer_sent {
            assert!(got == data, "the bytes differ");
            assert!(server_got == data[..peer_sent], "the bytes differ");
            return mux.ports().port_counters(id).unwrap().clone();
        }
    }
    panic!("the peer has {} of {LEN} bytes", got.len());
}

#[test]
fn bulk_data_leaves_a_port_as_gso_frames() {
    let counters = transfer(Link::with_loss(0));
    assert!(counters.refused.is_empty(), "{counters:?}");
    assert_eq!(counters.lost, 0);
    // `sent` counts the packets after the split. On average, there are more than eight packets for
    // each GSO frame.
    assert!(counters.gso_frames > 10, "{counters:?}");
    assert!(counters.sent > 8 * counters.gso_frames, "{counters:?}");
}

#[test]
fn lost_segments_of_gso_frames_are_sent_again() {
    for loss in [20, 50] {
        let counters = transfer(Link::with_loss(loss));
        assert!(counters.refused.is_empty(), "{counters:?}");
        assert!(counters.gso_frames > 10, "{counters:?}");
        assert!(counters.sent > LEN as u64 / 1448, "{counters:?}");
    }
}

/// The mux refuses a GSO frame whose segments have less than 512 bytes of payload. With an MTU of
/// 576 bytes, a segment has 524 bytes of payload. SACK blocks in a segment can reduce the payload
/// below 512 bytes. The stack then sends the segments one by one.
#[test]
fn sack_blocks_may_make_segments_too_short_for_gso() {
    for loss in [7, 10] {
        let counters = transfer(Link {
            mtu: 576,
            loss,
            both_ways: true,
        });
        assert!(counters.refused.is_empty(), "{counters:?}");
        assert!(counters.gso_frames > 10, "{counters:?}");
    }
}
