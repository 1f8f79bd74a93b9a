//! Doorbells of mux ports whose program runs in the same process as the mux. A mux port is a pair
//! of packet rings through which a program with a TCP/IP stack of its own shares the NIC. The
//! program's end rings the doorbell after each flush, so that the mux need not poll idle ports.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tidelane_packet_io::{Capabilities, PacketIo, SharedFrames, TxChecksum};

use crate::claims::PortId;

/// Number of mux ports in a word of [`ReadySet`].
const PORTS_PER_WORD: usize = u64::BITS as usize;

/// The set of mux ports that may have packets for the mux, with one bit for each port.
#[derive(Debug)]
pub struct ReadySet {
    words: Box<[AtomicU64]>,
}

impl ReadySet {
    /// Makes an empty set with a bit for each mux port number below `ports`. The number of bits is
    /// rounded up to a multiple of 64.
    pub fn new(ports: usize) -> Self {
        let words = (0..ports.div_ceil(PORTS_PER_WORD)).map(|_| AtomicU64::new(0));
        Self {
            words: words.collect(),
        }
    }

    /// Adds a mux port. Ignores a port number for which the set has no bit: see [`new`](Self::new).
    pub fn add(&self, port: PortId) {
        let at = port.0 as usize;
        if let Some(word) = self.words.get(at / PORTS_PER_WORD) {
            word.fetch_or(1 << (at % PORTS_PER_WORD), Ordering::Release);
        }
    }

    /// Appends all mux ports of the set to `ports`, and empties the set.
    pub fn drain_to(&self, ports: &mut Vec<PortId>) {
        for (at, word) in self.words.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                ports.push(PortId((at * PORTS_PER_WORD + bit) as u32));
            }
        }
    }
}

/// A mux port's doorbell, which adds the port to the set of ready mux ports.
#[derive(Clone, Debug)]
pub struct Doorbell {
    set: Arc<ReadySet>,
    port: PortId,
    /// True if the NIC may deliver packets with a partial checksum (only the pseudo-header sum).
    partial_checksums: bool,
}

impl Doorbell {
    /// Makes the doorbell of `port`, which adds the mux port to `set`. `partial_checksums` is true
    /// if the NIC may deliver packets with a partial checksum.
    pub(crate) fn new(set: &Arc<ReadySet>, port: PortId, partial_checksums: bool) -> Self {
        Self {
            set: Arc::clone(set),
            port,
            partial_checksums,
        }
    }

    /// Tells the mux that the mux port may have packets.
    pub fn ring(&self) {
        self.set.add(self.port);
    }
}

/// The program's end of a mux port: a [`PacketIo`] that rings the doorbell after each flush.
pub struct ProgramPort<P> {
    inner: P,
    doorbell: Doorbell,
}

impl<P> ProgramPort<P> {
    /// Makes the program's end from `inner`, an end of the packet rings, and the mux port's
    /// doorbell.
    pub fn new(inner: P, doorbell: Doorbell) -> Self {
        Self { inner, doorbell }
    }
}

impl<P: PacketIo> PacketIo for ProgramPort<P> {
    type Burst = P::Burst;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // The mux refuses packets with partial checksums. `ProgramPort` forwards no GSO frames.
            tx_checksum: false,
            tx_gso_len_max: 0,
            rx_checksum_may_be_partial: self.doorbell.partial_checksums,
            ..self.inner.capabilities()
        }
    }

    fn new_burst(&self) -> P::Burst {
        self.inner.new_burst()
    }

    fn rx_burst(&mut self, burst: &mut P::Burst, max: usize) -> usize {
        self.inner.rx_burst(burst, max)
    }

    fn rx_release(&mut self, burst: &mut P::Burst) {
        self.inner.rx_release(burst);
    }

    fn rx_overruns(&self) -> u64 {
        self.inner.rx_overruns()
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.inner.tx_frame()
    }

    fn tx_commit(&mut self, len: usize, checksum: TxChecksum) {
        self.inner.tx_commit(len, checksum);
    }

    fn tx_flush(&mut self) {
        self.inner.tx_flush();
        self.doorbell.ring();
    }

    fn tx_pending(&mut self) -> bool {
        self.inner.tx_pending()
    }

    fn shared_frames(&mut self) -> Option<&mut dyn SharedFrames<P::Burst>> {
        self.inner.shared_frames()
    }

    fn system_calls(&self) -> u64 {
        self.inner.system_calls()
    }
}

#[cfg(test)]
mod tests {
    use tidelane_packet_io::MemBurst;

    use super::*;

    #[test]
    fn each_port_that_rings_is_taken_once() {
        let set = ReadySet::new(1024);
        for port in [3, 64, 1023, 3] {
            set.add(PortId(port));
        }
        // The set has no bit for this mux port number, and ignores the number.
        set.add(PortId(5000));
        let mut ports = Vec::new();
        set.drain_to(&mut ports);
        assert_eq!(ports, [PortId(3), PortId(64), PortId(1023)]);
        ports.clear();
        set.drain_to(&mut ports);
        assert!(ports.is_empty());
    }

    #[test]
    fn the_state_of_the_inner_port_is_forwarded() {
        let doorbell = Doorbell {
            set: Arc::new(ReadySet::new(1)),
            port: PortId(0),
            partial_checksums: false,
        };
        let mut port = ProgramPort::new(FixedPort, doorbell);
        assert!(port.tx_pending() && port.shared_frames().is_none());
        assert_eq!((port.rx_overruns(), port.system_calls()), (3, 4));
    }

    /// A mux port with fixed values, which moves no frames.
    struct FixedPort;

    impl PacketIo for FixedPort {
        type Burst = MemBurst;

        fn capabilities(&self) -> Capabilities {
            unimplemented!("the tests do not read the capabilities")
        }

        fn new_burst(&self) -> MemBurst {
            unimplemented!("the tests do not receive")
        }

        fn rx_burst(&mut self, _burst: &mut MemBurst, _max: usize) -> usize {
            0
        }

        fn rx_release(&mut self, _burst: &mut MemBurst) {}

        fn rx_overruns(&self) -> u64 {
            3
        }

        fn tx_frame(&mut self) -> Option<&mut [u8]> {
            None
        }

        fn tx_commit(&mut self, _len: usize, _checksum: TxChecksum) {}

        fn tx_flush(&mut self) {}

        fn tx_pending(&mut self) -> bool {
            true
        }

        fn system_calls(&self) -> u64 {
            4
        }
    }
}
