//! [`FnPort`]: a port (packet interface) that consists of two functions of the program, which
//! receive and send IP packets.

use tidelane_packet_io::{Burst, Capabilities, PacketIo, TxChecksum};
use tidelane_wire::ETHERNET_HEADER_LEN;

/// Returns the EtherType of an IP packet, by the version in its first byte.
pub fn ether_type(packet: &[u8]) -> [u8; 2] {
    match packet.first().map(|first| first >> 4) {
        Some(6) => [0x86, 0xdd],
        _ => [0x08, 0x00],
    }
}

/// A port that moves IP packets by two functions, for example to and from a TUN device or a tunnel.
///
/// `receive` writes the next received packet to its argument and returns the length of the packet.
/// If there is no packet, `receive` returns `None`. `send` sends a packet and returns true. If
/// `send` returns false, the port calls `send` with the same packet again later. The stack works on
/// frames, so the port adds Ethernet headers with zero addresses to received packets, and removes
/// the Ethernet headers of sent frames.
pub struct FnPort<R, S> {
    receive: R,
    send: S,
    /// Longest frame in bytes.
    frame_len_max: usize,
    /// Buffer of the frame that the stack writes.
    tx: Box<[u8]>,
    /// Length in bytes of the frame in `tx`, if `send` has refused this frame. `None` otherwise.
    waiting: Option<usize>,
    /// Free buffers for received frames.
    free: Vec<Box<[u8]>>,
}

/// A burst of frames that an [`FnPort`] has received: the buffer of each frame, and the length of
/// the frame in bytes.
#[derive(Default)]
pub struct FnBurst(Vec<(Box<[u8]>, usize)>);

impl Burst for FnBurst {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn frame(&self, at: usize) -> Option<&[u8]> {
        let (bytes, len) = self.0.get(at)?;
        bytes.get(..*len)
    }
}

impl<R, S> FnPort<R, S>
where
    R: FnMut(&mut [u8]) -> Option<usize>,
    S: FnMut(&[u8]) -> bool,
{
    /// Creates a port for packets of at most `mtu` bytes.
    pub fn new(mtu: u32, receive: R, send: S) -> Self {
        let frame_len_max = mtu as usize + ETHERNET_HEADER_LEN;
        Self {
            receive,
            send,
            frame_len_max,
            tx: vec![0; frame_len_max].into_boxed_slice(),
            waiting: None,
            free: Vec::new(),
        }
    }

    /// Sends the waiting frame, if any.
    fn send_waiting(&mut self) {
        if let Some(len) = self.waiting
            && (self.send)(&self.tx[ETHERNET_HEADER_LEN..len])
        {
            self.waiting = None;
        }
    }
}

impl<R, S> PacketIo for FnPort<R, S>
where
    R: FnMut(&mut [u8]) -> Option<usize>,
    S: FnMut(&[u8]) -> bool,
{
    type Burst = FnBurst;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_frame_len_max: self.frame_len_max as u32,
            tx_checksum: false,
            rx_checksum_may_be_partial: false,
            tx_gso_len_max: 0,
        }
    }

    fn new_burst(&self) -> FnBurst {
        FnBurst::default()
    }

    fn rx_burst(&mut self, burst: &mut FnBurst, max: usize) -> usize {
        let before = burst.len();
        while burst.len() - before < max {
            let mut bytes = self
                .free
                .pop()
                .unwrap_or_else(|| vec![0; self.frame_len_max].into_boxed_slice());
            let packet = &mut bytes[ETHERNET_HEADER_LEN..];
            let Some(len) = (self.receive)(packet) else {
                self.free.push(bytes);
                break;
            };
            let len = len.min(packet.len());
            let ether_type = ether_type(packet);
            bytes[ETHERNET_HEADER_LEN - 2..ETHERNET_HEADER_LEN].copy_from_slice(&ether_type);
            burst.0.push((bytes, ETHERNET_HEADER_LEN + len));
        }
        burst.len() - before
    }

    fn rx_release(&mut self, burst: &mut FnBurst) {
        self.free.extend(burst.0.drain(..).map(|(bytes, _)| bytes));
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.send_waiting();
        match self.waiting {
            None => Some(&mut self.tx),
            Some(_) => None,
        }
    }

    fn tx_commit(&mut self, len: usize, _checksum: TxChecksum) {
        self.waiting = Some(len);
        self.send_waiting();
    }

    fn tx_flush(&mut self) {
        self.send_waiting();
    }

    fn tx_pending(&mut self) -> bool {
        self.waiting.is_some()
    }
}
