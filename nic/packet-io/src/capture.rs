//! A layer that writes every frame of a port to a pcapng stream.
//!
//! The layer has no clock. Its owner sets the time of the next frames with [`Capture::set_time`],
//! in real or in virtual time. A write error ends the capture, and the port still carries frames.

use std::io::{self, Write};

use crate::{Burst, Capabilities, GsoParameters, GsoPayload, LinkFull, PacketIo, TxChecksum};

const BLOCK_SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BLOCK_INTERFACE: u32 = 1;
const BLOCK_ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINKTYPE_ETHERNET: u16 = 1;
const OPTION_IF_TSRESOL: u16 = 9;
const OPTION_EPB_FLAGS: u16 = 2;
/// Direction of a frame in pcapng's `epb_flags`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Writes Ethernet frames as pcapng (one section, one interface, nanoseconds).
struct PcapngWriter<W> {
    out: W,
    block: Vec<u8>,
}

impl<W: Write> PcapngWriter<W> {
    fn new(out: W, frame_len_max: u32) -> io::Result<Self> {
        let mut writer = Self {
            out,
            block: Vec::with_capacity(frame_len_max as usize + 64),
        };
        let mut body = Vec::new();
        body.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        body.extend([1, 0, 0, 0]);
        body.extend((-1i64).to_le_bytes());
        writer.write_block(BLOCK_SECTION_HEADER, &body)?;
        body.clear();
        body.extend(LINKTYPE_ETHERNET.to_le_bytes());
        body.extend([0, 0]);
        body.extend(0u32.to_le_bytes());
        body.extend(OPTION_IF_TSRESOL.to_le_bytes());
        body.extend([1, 0, 9, 0, 0, 0]);
        body.extend([0; 4]);
        writer.write_block(BLOCK_INTERFACE, &body)?;
        Ok(writer)
    }

    fn write_block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let len = body.len() as u32 + 12;
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(body)?;
        self.out.write_all(&len.to_le_bytes())
    }

    fn write_frame(&mut self, time_ns: u64, direction: u32, bytes: &[u8]) -> io::Result<()> {
        let mut body = std::mem::take(&mut self.block);
        body.clear();
        body.extend(0u32.to_le_bytes());
        body.extend(((time_ns >> 32) as u32).to_le_bytes());
        body.extend((time_ns as u32).to_le_bytes());
        body.extend((bytes.len() as u32).to_le_bytes());
        body.extend((bytes.len() as u32).to_le_bytes());
        body.extend(bytes);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(OPTION_EPB_FLAGS.to_le_bytes());
        body.extend(4u16.to_le_bytes());
        body.extend(direction.to_le_bytes());
        body.extend([0; 4]);
        let written = self.write_block(BLOCK_ENHANCED_PACKET, &body);
        self.block = body;
        written
    }
}

/// A port that also writes its frames as pcapng.
pub struct Capture<P, W> {
    port: P,
    writer: PcapngWriter<W>,
    time_ns: u64,
    error: Option<io::Error>,
}

impl<P: PacketIo, W: Write> Capture<P, W> {
    /// Starts a capture of `port` into `out`.
    pub fn new(port: P, out: W) -> io::Result<Self> {
        let capabilities = port.capabilities();
        let frame_len_max = capabilities
            .tx_frame_len_max
            .max(capabilities.tx_gso_len_max);
        let writer = PcapngWriter::new(out, frame_len_max)?;
        Ok(Self {
            port,
            writer,
            time_ns: 0,
            error: None,
        })
    }

    /// Sets the timestamp of the next frames, in nanoseconds since an epoch of the caller's choice.
    pub fn set_time(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
    }

    /// Returns the port below.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Returns the port below. Frames that pass through it directly are not captured.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Ends the capture. Returns the port, and the writer or the error that ended the capture.
    pub fn finish(mut self) -> (P, io::Result<W>) {
        let flushed = match self.error.take() {
            Some(error) => Err(error),
            None => self.writer.out.flush(),
        };
        (self.port, flushed.map(|()| self.writer.out))
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
        if self.error.is_none() {
            for bytes in burst.iter().skip(before) {
                if let Err(error) = self.writer.write_frame(self.time_ns, INBOUND, bytes) {
                    self.error = Some(error);
                    break;
                }
            }
        }
        count
    }

    fn rx_release(&mut self, burst: &mut P::Burst) {
        self.port.rx_release(burst);
    }

    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.port.tx_frame()
    }

    fn tx_commit(&mut self, len: usize, checksum: TxChecksum) {
        if self.error.is_none()
            && let Some(frame) = self.port.tx_frame()
        {
            self.error = self
                .writer
                .write_frame(self.time_ns, OUTBOUND, &frame[..len])
                .err();
        }
        self.port.tx_commit(len, checksum);
    }

    fn tx_gso_headers(&mut self) -> &mut [u8] {
        self.port.tx_gso_headers()
    }

    fn tx_gso_send(&mut self, payload: GsoPayload<'_>, gso: GsoParameters) -> Result<(), LinkFull> {
        self.port.tx_gso_send(payload, gso)?;
        if self.error.is_none() {
            let headers_len = usize::from(gso.headers_len);
            let mut frame = self.port.tx_gso_headers()[..headers_len].to_vec();
            frame.resize(headers_len + payload.len(), 0);
            payload.copy_to(&mut frame[headers_len..]);
            self.error = self
                .writer
                .write_frame(self.time_ns, OUTBOUND, &frame)
                .err();
        }
        Ok(())
    }

    fn tx_flush(&mut self) {
        self.port.tx_flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BURST_MAX, MemConfig, MemPort};

    /// Splits a pcapng stream into its blocks. Checks the two length fields of each block.
    fn blocks(mut stream: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let mut blocks = Vec::new();
        while !stream.is_empty() {
            let len = word(&stream[4..]) as usize;
            assert_eq!(len % 4, 0);
            assert_eq!(word(&stream[len - 4..]) as usize, len);
            blocks.push((word(stream), stream[8..len - 4].to_vec()));
            stream = &stream[len..];
        }
        blocks
    }

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
        assert_eq!(kinds, [BLOCK_SECTION_HEADER, BLOCK_INTERFACE, 6, 6]);
        for (block, direction) in blocks[2..].iter().zip([OUTBOUND, INBOUND]) {
            let body = &block.1;
            assert_eq!(body[4..12], [1, 0, 0, 0, 2, 0, 0, 0]);
            assert_eq!(body[12..20], [5, 0, 0, 0, 5, 0, 0, 0]);
            assert_eq!(&body[20..25], b"hello");
            assert_eq!(body[28..36], [2, 0, 4, 0, direction as u8, 0, 0, 0]);
        }
    }

    /// Accepts `left` bytes, then fails.
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
}
