//! A layer that writes every frame of a port (a NIC queue, or one end of a link in memory) to a
//! pcapng stream.
//!
//! The layer has no clock. The owner of the layer sets the time of the next frames with
//! [`Capture::set_time`], in real or in virtual time. After a write error, the layer writes no more
//! frames, but the port still receives and sends.

use std::io::{self, Write};

use crate::{
    Burst, Capabilities, GsoParameters, GsoPayload, LinkFull, PacketIo, TxChecksum,
    pcapng::{self, Direction},
};

/// A port that also writes each frame it receives or sends as pcapng. The layer does not offer
/// [`PacketIo::shared_frames`]: frames that a stack sends through this interface do not pass
/// `tx_commit`, and would be missing in the capture.
pub struct Capture<P, W> {
    port: P,
    out: W,
    /// Timestamp of the next frames in nanoseconds.
    time_ns: u64,
    /// The write error that ended the capture.
    error: Option<io::Error>,
}

impl<P: PacketIo, W: Write> Capture<P, W> {
    /// Starts a capture of `port` into `out`.
    pub fn new(port: P, mut out: W) -> io::Result<Self> {
        pcapng::write_header(&mut out)?;
        Ok(Self {
            port,
            out,
            time_ns: 0,
            error: None,
        })
    }

    fn write(&mut self, direction: Direction, bytes: &[u8]) {
        if self.error.is_none() {
            let (time_ns, len) = (self.time_ns, bytes.len());
            let written = pcapng::write_frame(&mut self.out, time_ns, direction, len, bytes);
            self.error = written.err();
        }
    }

    /// Sets the timestamp of the next frames, in nanoseconds since an epoch of the caller's choice.
    pub fn set_time(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
    }

    /// Returns the captured port.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Returns the captured port. Frames that the caller sends or receives directly through this
    /// port are not captured.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Ends the capture. Returns the port and the writer. If a write or the final flush failed,
    /// returns the error instead of the writer.
    pub fn finish(mut self) -> (P, io::Result<W>) {
        let flushed = match self.error.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        };
        (self.port, flushed.map(|()| self.out))
    }
}

impl<P: PacketIo, W: Write> PacketIo for Capture<P, W> {
    type Burst = P::Burst;

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn new_burst(&self) -> P::Burst {
        self.port.new_burst()
    }

    fn rx_burst(&mut self, burst: &mut P::Burst, max: usize) -> usize {
        let before = burst.len();
        let count = self.port.rx_burst(burst, max);
        for bytes in burst.iter().skip(before) {
            self.write(Direction::Inbound, bytes);
        }
        count
    }

    fn rx_release(&mut self, burst: &mut P::Burst) {
        self.port.rx_release(burst);
    }

    fn rx_overruns(&self) -> u64 {
        self.port.rx_overruns()
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.port.tx_frame()
    }

    fn tx_commit(&mut self, len: usize, checksum: TxChecksum) {
        if self.error.is_none()
            && let Some(frame) = self.port.tx_frame()
        {
            let (time_ns, bytes) = (self.time_ns, &frame[..len]);
            let written =
                pcapng::write_frame(&mut self.out, time_ns, Direction::Outbound, len, bytes);
            self.error = written.err();
        }
        self.port.tx_commit(len, checksum);
    }

    fn tx_gso_headers(&mut self) -> &mut [u8] {
        self.port.tx_gso_headers()
    }

    fn tx_gso_send(&mut self, payload: GsoPayload<'_>, gso: GsoParameters) -> Result<(), LinkFull> {
        self.port.tx_gso_send(payload, gso)?;
        if self.error.is_none() {
            let frame = gso_frame(&mut self.port, payload, gso);
            self.write(Direction::Outbound, &frame);
        }
        Ok(())
    }

    fn tx_flush(&mut self) {
        self.port.tx_flush();
    }

    fn tx_pending(&mut self) -> bool {
        self.port.tx_pending()
    }

    fn system_calls(&self) -> u64 {
        self.port.system_calls()
    }
}

/// Returns the headers and the payload of the GSO frame (a frame with the payload of many TCP
/// segments) that `port` has just sent. A shared payload may differ from the bytes that `port`
/// sent, because a program may write to the payload at any time.
pub fn gso_frame(port: &mut impl PacketIo, payload: GsoPayload<'_>, gso: GsoParameters) -> Vec<u8> {
    let headers_len = usize::from(gso.headers_len);
    let mut frame = port.tx_gso_headers()[..headers_len].to_vec();
    frame.resize(headers_len + payload.len(), 0);
    payload.copy_to(&mut frame[headers_len..]);
    frame
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{BURST_MAX, MemBurst, MemConfig, MemPort, pcapng::tests::blocks};

    #[test]
    fn both_directions_are_written_with_time_and_bytes() {
        let port = MemPort::loopback(MemConfig::default());
        let mut port = Capture::new(port, Vec::new()).unwrap();
        port.set_time(0x1_0000_0002);
        port.tx_frame().unwrap()[..5].copy_from_slice(b"hello");
        port.tx_commit(5, TxChecksum::Done);
        port.tx_flush();
        let mut burst = port.new_burst();
        assert_eq!(port.rx_burst(&mut burst, BURST_MAX), 1);
        assert_eq!(burst.iter().collect::<Vec<_>>(), [b"hello"]);
        port.rx_release(&mut burst);

        let stream = port.finish().1.unwrap();
        let blocks = blocks(&stream);
        let kinds: Vec<_> = blocks.iter().map(|block| block.0).collect();
        assert_eq!(kinds, [0x0a0d_0d0a, 1, 6, 6]);
        for (block, direction) in blocks[2..].iter().zip([2, 1]) {
            let body = &block.1;
            assert_eq!(body[4..12], [1, 0, 0, 0, 2, 0, 0, 0]);
            assert_eq!(body[12..20], [5, 0, 0, 0, 5, 0, 0, 0]);
            assert_eq!(&body[20..25], b"hello");
            assert_eq!(body[28..36], [2, 0, 4, 0, direction, 0, 0, 0]);
        }
    }

    /// A writer that accepts `left` bytes and then fails like a full disk.
    struct FullDisk {
        left: usize,
    }

    impl Write for FullDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.left < bytes.len() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.left -= bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_stops_the_capture_and_not_the_traffic() {
        let port = MemPort::loopback(MemConfig::default());
        let mut port = Capture::new(port, FullDisk { left: 80 }).unwrap();
        let mut burst = port.new_burst();
        for _ in 0..3 {
            port.tx_frame().unwrap()[0] = 7;
            port.tx_commit(1, TxChecksum::Done);
            port.tx_flush();
            assert_eq!(port.rx_burst(&mut burst, BURST_MAX), 1);
        }
        assert_eq!(
            port.finish().1.err().unwrap().kind(),
            io::ErrorKind::StorageFull
        );
    }

    #[test]
    fn the_state_of_the_port_is_forwarded() {
        let mut port = Capture::new(FixedPort, Vec::new()).unwrap();
        assert!(port.tx_pending());
        assert_eq!((port.rx_overruns(), port.system_calls()), (3, 4));
    }

    /// A port with fixed values, which moves no frames.
    pub(crate) struct FixedPort;

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
