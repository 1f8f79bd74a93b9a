//! Taps. A tap copies frames of a running port for an observer, for example a capture to a file. A
//! port is one queue of a NIC, or one end of a link in memory.
//!
//! A tap copies each frame that its filter selects to a bounded buffer, as a block of a capture
//! file (pcapng), and the observer takes the blocks from time to time. While the buffer is full,
//! the tap only counts further frames as lost, so that the tap never waits for the observer.
//! [`Tapped`] is a port with taps.

use std::fmt;

use crate::{
    Burst, Capabilities, GsoParameters, GsoPayload, LinkFull, PacketIo, TxChecksum,
    capture::gso_frame,
    pcapng::{self, Direction},
};

/// Function that returns true for each frame that the tap selects.
type Filter = Box<dyn Fn(&[u8]) -> bool + Send>;

/// Limits and clock of a tap.
#[derive(Clone, Copy, Debug)]
pub struct TapOptions {
    /// Largest number of bytes that the tap copies of a frame.
    pub snap_len: u32,
    /// Capacity of the buffer in bytes. The buffer holds the blocks that wait for the observer.
    pub buffer_len: usize,
    /// Clock for the timestamps of frames, in nanoseconds since 1970.
    pub clock: fn() -> u64,
}

/// The frames that a tap has copied since the last [`Tap::take`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Enhanced Packet Blocks of pcapng.
    pub blocks: Vec<u8>,
    /// Number of the frames in `blocks`.
    pub frames: u64,
    /// Number of selected frames that the tap did not copy, because the buffer had no room.
    pub lost: u64,
}

impl Captured {
    /// Appends the frames of `other`.
    pub fn append(&mut self, mut other: Self) {
        self.blocks.append(&mut other.blocks);
        self.frames += other.frames;
        self.lost += other.lost;
    }
}

/// A tap: its filter, its limits, and the copied frames that the observer has not taken.
pub struct Tap {
    filter: Filter,
    options: TapOptions,
    captured: Captured,
}

impl Tap {
    /// Returns a tap for the frames for which `filter` returns true.
    pub fn new(options: TapOptions, filter: impl Fn(&[u8]) -> bool + Send + 'static) -> Self {
        Self {
            filter: Box::new(filter),
            options,
            captured: Captured::default(),
        }
    }

    /// Returns the copied frames, and empties the buffer.
    pub fn take(&mut self) -> Captured {
        std::mem::take(&mut self.captured)
    }

    fn record(&mut self, direction: Direction, frame: &[u8]) {
        if !(self.filter)(frame) {
            return;
        }
        let kept = &frame[..frame.len().min(self.options.snap_len as usize)];
        let captured = &mut self.captured;
        let block_len = pcapng::frame_block_len(kept.len());
        if captured.blocks.len() + block_len > self.options.buffer_len {
            captured.lost += 1;
            return;
        }
        let (time, len) = ((self.options.clock)(), frame.len());
        // A write to a vector does not fail.
        let _ = pcapng::write_frame(&mut captured.blocks, time, direction, len, kept);
        captured.frames += 1;
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap")
            .field("options", &self.options)
            .field("frames", &self.captured.frames)
            .field("lost", &self.captured.lost)
            .finish_non_exhaustive()
    }
}

/// A port with taps. While no tap is open, this layer costs at most two branches per received
/// burst, and one branch per sent frame. The layer does not offer [`PacketIo::shared_frames`]:
/// frames that a stack sends through this interface do not pass `tx_commit`, and the taps would
/// miss them.
#[derive(Debug)]
pub struct Tapped<P> {
    port: P,
    /// Direction of the frames that the port receives.
    received: Direction,
    /// The open taps, each with the number of its capture. The caller chooses the number.
    taps: Vec<(u64, Tap)>,
}

impl<P> Tapped<P> {
    /// Wraps a port of a NIC, so that taps can be opened on the port. The frames that the port
    /// receives are inbound. No tap is open yet.
    pub fn of_nic(port: P) -> Self {
        Self {
            port,
            received: Direction::Inbound,
            taps: Vec::new(),
        }
    }

    /// Wraps the service's end of a link between the service (the process `tidelaned`) and a
    /// program, so that taps can be opened on this end. The directions are those of the program:
    /// the program has sent the frames that this end receives, so these frames are outbound. No tap
    /// is open yet.
    pub fn of_program(port: P) -> Self {
        Self {
            received: Direction::Outbound,
            ..Self::of_nic(port)
        }
    }

    /// Returns the port without its taps.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// Adds a tap. `capture` is the number by which [`Self::take_tap`] and [`Self::close_tap`] find
    /// the tap.
    pub fn open_tap(&mut self, capture: u64, tap: Tap) {
        self.taps.push((capture, tap));
    }

    /// Takes the copied frames of a tap; `None` if no tap has the number `capture`.
    pub fn take_tap(&mut self, capture: u64) -> Option<Captured> {
        let mut taps = self.taps.iter_mut();
        let (_, tap) = taps.find(|(number, _)| *number == capture)?;
        Some(tap.take())
    }

    /// Removes a tap, and drops the copied frames that the observer has not taken.
    pub fn close_tap(&mut self, capture: u64) {
        self.taps.retain(|(number, _)| *number != capture);
    }

    /// Returns the direction of the frames that the port sends.
    fn sent(&self) -> Direction {
        match self.received {
            Direction::Inbound => Direction::Outbound,
            Direction::Outbound => Direction::Inbound,
        }
    }
}

fn record(taps: &mut [(u64, Tap)], direction: Direction, frame: &[u8]) {
    for (_, tap) in taps {
        tap.record(direction, frame);
    }
}

impl<P: PacketIo> Tapped<P> {
    /// Copies to the taps the last `count` frames of a burst.
    #[cold]
    #[inline(never)]
    fn record_received(&mut self, burst: &P::Burst, count: usize) {
        for frame in burst.iter().skip(burst.len() - count) {
            record(&mut self.taps, self.received, frame);
        }
    }

    /// Copies to the taps the frame that is about to be sent.
    #[cold]
    #[inline(never)]
    fn record_sent(&mut self, len: usize) {
        let sent = self.sent();
        if let Some(frame) = self.port.tx_frame() {
            record(&mut self.taps, sent, &frame[..len]);
        }
    }
}

impl<P: PacketIo> PacketIo for Tapped<P> {
    type Burst = P::Burst;

    #[inline(always)]
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn new_burst(&self) -> P::Burst {
        self.port.new_burst()
    }

    #[inline(always)]
    fn rx_burst(&mut self, burst: &mut P::Burst, max: usize) -> usize {
        let count = self.port.rx_burst(burst, max);
        if count > 0 && !self.taps.is_empty() {
            self.record_received(burst, count);
        }
        count
    }

    #[inline(always)]
    fn rx_release(&mut self, burst: &mut P::Burst) {
        self.port.rx_release(burst);
    }

    fn rx_overruns(&self) -> u64 {
        self.port.rx_overruns()
    }

    #[inline(always)]
    fn tx_frame(&mut self) -> Option<&mut [u8]> {
        self.port.tx_frame()
    }

    #[inline(always)]
    fn tx_commit(&mut self, len: usize, checksum: TxChecksum) {
        if !self.taps.is_empty() {
            self.record_sent(len);
        }
        self.port.tx_commit(len, checksum);
    }

    #[inline(always)]
    fn tx_gso_headers(&mut self) -> &mut [u8] {
        self.port.tx_gso_headers()
    }

    fn tx_gso_send(&mut self, payload: GsoPayload<'_>, gso: GsoParameters) -> Result<(), LinkFull> {
        self.port.tx_gso_send(payload, gso)?;
        if !self.taps.is_empty() {
            let frame = gso_frame(&mut self.port, payload, gso);
            let sent = self.sent();
            record(&mut self.taps, sent, &frame);
        }
        Ok(())
    }

    #[inline(always)]
    fn tx_flush(&mut self) {
        self.port.tx_flush();
    }

    #[inline(always)]
    fn tx_pending(&mut self) -> bool {
        self.port.tx_pending()
    }

    fn system_calls(&self) -> u64 {
        self.port.system_calls()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BURST_MAX, MemConfig, MemPort, capture::tests::FixedPort, pcapng::tests::blocks};

    const OPTIONS: TapOptions = TapOptions {
        snap_len: 4,
        buffer_len: 200,
        clock: || 77,
    };

    fn send(port: &mut Tapped<MemPort>, bytes: &[u8]) {
        port.tx_frame().unwrap()[..bytes.len()].copy_from_slice(bytes);
        port.tx_commit(bytes.len(), TxChecksum::Done);
        port.tx_flush();
    }

    fn receive(port: &mut Tapped<MemPort>) -> Vec<Vec<u8>> {
        let mut burst = port.new_burst();
        port.rx_burst(&mut burst, BURST_MAX);
        let frames = burst.iter().map(<[u8]>::to_vec).collect();
        port.rx_release(&mut burst);
        frames
    }

    /// Returns the direction and the bytes of each frame.
    fn frames(captured: &Captured) -> Vec<(u8, Vec<u8>)> {
        let blocks = blocks(&captured.blocks);
        blocks
            .iter()
            .map(|(_, body)| {
                let len = usize::from(body[12]);
                let flags = body.len() - 8;
                (body[flags], body[20..20 + len].to_vec())
            })
            .collect()
    }

    #[test]
    fn a_tap_copies_the_selected_frames_of_both_directions() {
        let port = MemPort::loopback(MemConfig::default());
        let mut port = Tapped::of_nic(port);
        send(&mut port, b"before");
        port.open_tap(1, Tap::new(OPTIONS, |frame| frame[0] != b'x'));
        port.open_tap(2, Tap::new(OPTIONS, |_| true));
        send(&mut port, b"hello");
        send(&mut port, b"x");
        assert_eq!(receive(&mut port), [&b"before"[..], b"hello", b"x"]);
        let captured = port.take_tap(1).unwrap();
        let expected = [
            (2, b"hell".to_vec()),
            (1, b"befo".to_vec()),
            (1, b"hell".to_vec()),
        ];
        assert_eq!(frames(&captured), expected);
        assert_eq!((captured.frames, captured.lost), (3, 0));
        // The block contains the original length of the truncated frame.
        assert_eq!(blocks(&captured.blocks)[0].1[16..20], [5, 0, 0, 0]);
        assert_eq!(port.take_tap(1), Some(Captured::default()));
        // The buffer of tap 2 (200 bytes) has room for four blocks of 48 bytes each.
        let captured = port.take_tap(2).unwrap();
        assert_eq!((captured.frames, captured.lost), (4, 1));
        port.close_tap(1);
        assert_eq!(port.take_tap(1), None);
        send(&mut port, b"after");
        assert_eq!(port.take_tap(2).map(|captured| captured.frames), Some(1));
    }

    #[test]
    fn frames_of_a_program_have_its_directions() {
        let port = MemPort::loopback(MemConfig::default());
        let mut port = Tapped::of_program(port);
        port.open_tap(1, Tap::new(OPTIONS, |_| true));
        send(&mut port, b"in");
        receive(&mut port);
        let captured = port.take_tap(1).unwrap();
        assert_eq!(
            frames(&captured),
            [(1, b"in".to_vec()), (2, b"in".to_vec())]
        );
    }

    #[test]
    fn the_state_of_the_port_is_forwarded() {
        let mut port = Tapped::of_nic(FixedPort);
        assert!(port.tx_pending());
        assert_eq!((port.rx_overruns(), port.system_calls()), (3, 4));
    }
}
