//! `tidelane capture`: writes the frames that the service (`tidelaned`) captures to a file in the
//! format pcapng, which tcpdump and Wireshark read.

use std::{
    fs::File,
    io::{self, ErrorKind, IsTerminal, Write},
    net::IpAddr,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::json;

use crate::{
    admin::ServiceName,
    failure::{Context, Failure},
};

/// Pause between two requests for captured frames. Between two requests, the service copies at most
/// 4 MiB of frames for each NIC queue. In a capture at a mux port (the packet rings of a program
/// with a TCP/IP stack of its own), the service copies at most 4 MiB for each core (polling
/// thread).
const INTERVAL: Duration = Duration::from_millis(50);

/// Options of `capture`.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    service: ServiceName,
    /// File to write; without a file, write to standard output: tidelane capture | tcpdump -nr -
    #[arg(long, short)]
    write: Option<PathBuf>,
    /// Capture at this mux port instead of at the NIC; a mux port is the packet rings of a program
    /// with a TCP/IP stack of its own (see tidelane port list)
    #[arg(long, value_name = "NUMBER")]
    mux_port: Option<u32>,
    /// Capture only packets of this protocol
    #[arg(long)]
    protocol: Option<Protocol>,
    /// Capture only packets from or to this address
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// Capture only packets from or to this TCP or UDP port, and ICMP errors about such packets
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Bytes to keep of each frame; 0 keeps all
    #[arg(long, short = 's', default_value_t = 0)]
    snap_len: u32,
    /// End after this number of frames
    #[arg(long, short)]
    count: Option<u64>,
    /// End after this number of seconds
    #[arg(long)]
    seconds: Option<u64>,
}

/// A protocol above IP.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
    /// ICMP of IPv4
    Icmp,
    /// ICMP of IPv6
    Icmp6,
}

impl Protocol {
    /// Returns the number that stands for the protocol in an IP header.
    fn number(self) -> u8 {
        match self {
            Self::Icmp => 1,
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Icmp6 => 58,
        }
    }
}

/// The service's answer to a request that starts a capture.
#[derive(Deserialize, Debug)]
struct Opened {
    /// Number of the capture, for the later requests.
    number: u64,
    /// Length in bytes of the header of the capture file. The header follows the answer.
    bytes: u64,
}

/// The service's answer to a request for captured frames. The frames follow the answer, as blocks
/// of the file format.
#[derive(Deserialize, Debug)]
struct Taken {
    /// Number of frames that follow the answer.
    frames: u64,
    /// Number of further frames, which the service could not copy for lack of room.
    lost: u64,
    /// Length in bytes of the blocks that follow the answer.
    bytes: u64,
}

/// Writes frames until the number of `--count` or the time of `--seconds` is reached. The function
/// also ends if the output is a pipe and its reader ends, or if a request fails. A signal can end
/// the command at any time.
pub fn capture(options: &Options) -> Result<(), Failure> {
    let mut out: Box<dyn Write> = match &options.write {
        Some(path) => {
            let file = File::create(path);
            Box::new(file.context(format!("cannot write {}", path.display()))?)
        }
        None if io::stdout().is_terminal() => {
            return Err(Failure::new(
                "standard output is a terminal; use --write FILE, or: tidelane capture | tcpdump \
                 -nr -",
            ));
        }
        None => Box::new(io::stdout()),
    };
    let open = json!({
        "op": "capture",
        "capture": "open",
        "mux_port": options.mux_port,
        "protocol": options.protocol.map(Protocol::number),
        "address": options.host,
        "port": options.port,
        "snap_len": (options.snap_len > 0).then_some(options.snap_len),
    });
    let length = |opened: &Opened| opened.bytes;
    let (opened, start) = options.service.request_with_data(&open, length)?;
    let written = write_to(&mut out, &start)
        .and_then(|is_read| copy_frames(options, opened.number, &mut out, is_read));
    let close = json!({"op": "capture", "capture": "close", "number": opened.number});
    let closed = options.service.request::<serde_json::Value>(&close);
    let (frames, lost) = written?;
    eprintln!("tidelane: {frames} frames captured, {lost} lost");
    closed.map(drop)
}

/// Copies captured frames from the service to `out`. If `is_read` is false, `out` has no reader,
/// and the function copies nothing. Returns the number of copied frames and the number of lost
/// frames.
fn copy_frames(
    options: &Options,
    number: u64,
    out: &mut dyn Write,
    mut is_read: bool,
) -> Result<(u64, u64), Failure> {
    let start = Instant::now();
    let (mut frames, mut lost) = (0, 0);
    while is_read {
        let take = json!({"op": "capture", "capture": "take", "number": number});
        let (taken, blocks): (Taken, Vec<u8>) = options
            .service
            .request_with_data(&take, |taken: &Taken| taken.bytes)?;
        let left = options.count.map_or(u64::MAX, |count| count - frames);
        is_read = write_to(out, first_blocks(&blocks, left))?;
        frames += taken.frames.min(left);
        lost += taken.lost;
        let is_late = |seconds| start.elapsed() >= Duration::from_secs(seconds);
        if options.count == Some(frames) || options.seconds.is_some_and(is_late) {
            break;
        }
        thread::sleep(INTERVAL);
    }
    Ok((frames, lost))
}

/// Writes the bytes and flushes `out`. Returns false if `out` is a pipe without a reader.
fn write_to(out: &mut dyn Write, bytes: &[u8]) -> Result<bool, Failure> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write the frames"),
    }
}

/// Returns the first `count` blocks in `bytes`, a part of a capture file. Returns all of `bytes` if
/// there are fewer blocks, or if a block has a length that reaches beyond `bytes`.
fn first_blocks(bytes: &[u8], count: u64) -> &[u8] {
    let mut at = 0;
    for _ in 0..count {
        let Some(len) = bytes.get(at + 4..at + 8) else {
            break;
        };
        at += u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize;
    }
    bytes.get(..at).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_by_their_lengths() {
        let block = |len: u8| {
            let mut block = vec![len; usize::from(len)];
            block[..8].copy_from_slice(&[6, 0, 0, 0, len, 0, 0, 0]);
            block
        };
        let blocks = [block(16), block(40), block(12)].concat();
        for (count, len) in [(0, 0), (1, 16), (2, 56), (3, 68), (9, 68)] {
            assert_eq!(first_blocks(&blocks, count).len(), len);
        }
        // An impossible length selects all bytes.
        assert_eq!(first_blocks(&block(16)[..12], 1).len(), 12);
    }
}
