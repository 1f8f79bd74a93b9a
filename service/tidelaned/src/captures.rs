//! Captures of frames for the operator (`tidelane capture`).
//!
//! The operator's command opens a capture, takes the copied frames several times a second, and
//! closes the capture. While the capture is open, the cores (polling threads of the service) copy
//! frames to buffers of a fixed size. A frame that finds its buffer full is counted as lost. A
//! capture whose frames are not taken for [`IDLE_MAX`] is closed, because the operator's command
//! has probably ended.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};
use tidelane_host::{CaptureFilter, CapturePoint, Host};
use tidelane_mux::PortId;
use tidelane_packet_io::{Captured, TapOptions, pcapng};
use tidelane_time::{Duration, Instant};

use crate::{core_link::NicPort, cores::Cores};

/// Largest number of captures at a time.
const CAPTURES_MAX: usize = 8;
/// Time after which a capture is closed if its frames are not taken.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Capacity in bytes of a buffer of copied frames. A capture of the NIC has a buffer for each queue
/// of the NIC. A capture of a mux port (the packet rings of a program with a stack of its own) has
/// a buffer for each core.
const BUFFER_LEN: usize = 4 << 20;
/// Largest number of bytes that a capture copies of a frame. No frame is longer.
const SNAP_LEN_MAX: u32 = 1 << 18;

/// A request of the operator.
#[derive(Deserialize, Clone, Debug)]
#[serde(tag = "capture", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// Start a capture.
    Open {
        /// Number of a mux port, through which a program with a TCP/IP stack of its own sends and
        /// receives frames. `None` captures the NIC's frames.
        mux_port: Option<u32>,
        /// IP protocol number that a packet must have.
        protocol: Option<u8>,
        /// Source or destination address that a packet must have.
        address: Option<std::net::IpAddr>,
        /// Source or destination port that a packet (TCP or UDP) must have. For an ICMP error, the
        /// port of the packet that the error quotes.
        port: Option<u16>,
        /// Largest number of bytes to copy of each frame. `None` copies the whole frame.
        snap_len: Option<u32>,
    },
    /// Take the copied frames of the capture `number`.
    Take { number: u64 },
    /// End the capture `number`.
    Close { number: u64 },
}

/// An open capture.
#[derive(Debug)]
struct OpenCapture {
    /// Number by which the operator's command identifies the capture.
    number: u64,
    point: CapturePoint,
    /// Time of the most recent `Take` of this capture, or of its `Open` before the first `Take`.
    taken: Instant,
}

/// The open captures of a service.
#[derive(Debug, Default)]
pub struct Captures {
    /// Number of the newest capture. Each capture has a new number.
    last: u64,
    open: Vec<OpenCapture>,
}

impl Captures {
    /// Handles a request. Returns the line of the answer, and the bytes of the capture file that
    /// follow the line: the start of the file, or blocks with frames.
    pub fn handle<P: NicPort>(
        &mut self,
        cores: &Cores<P>,
        now: Instant,
        request: &Value,
    ) -> (Value, Vec<u8>) {
        let mut fields = request.clone();
        if let Some(fields) = fields.as_object_mut() {
            fields.remove("op");
        }
        let (answer, blocks) = match serde_json::from_value(fields) {
            Ok(Request::Open {
                mux_port,
                protocol,
                address,
                port,
                snap_len,
            }) => {
                let point = mux_port.map_or(CapturePoint::Nic, |number| {
                    CapturePoint::Port(PortId(number))
                });
                let filter = CaptureFilter {
                    protocol,
                    address: address.map(Into::into),
                    port,
                };
                let snap_len = snap_len.unwrap_or(SNAP_LEN_MAX).min(SNAP_LEN_MAX);
                let opened = self.open(cores, now, (point, filter, snap_len));
                match opened {
                    Ok(number) => {
                        let mut header = Vec::new();
                        // A write to a vector does not fail.
                        let _ = pcapng::write_header(&mut header);
                        let answer = json!({"number": number, "bytes": header.len()});
                        (Ok(answer), header)
                    }
                    Err(error) => (Err(error), Vec::new()),
                }
            }
            Ok(Request::Take { number }) => match self.take(cores, now, number) {
                Ok(Captured {
                    blocks,
                    frames,
                    lost,
                }) => {
                    let answer = json!({"frames": frames, "lost": lost, "bytes": blocks.len()});
                    (Ok(answer), blocks)
                }
                Err(error) => (Err(error), Vec::new()),
            },
            Ok(Request::Close { number }) => {
                self.close(cores, |open| open.number == number);
                (Ok(json!({"ok": true})), Vec::new())
            }
            Err(error) => (Err(format!("bad request: {error}")), Vec::new()),
        };
        (
            answer.unwrap_or_else(|error| json!({ "error": error })),
            blocks,
        )
    }

    /// Closes the captures whose frames were not taken in time.
    pub fn close_abandoned<P: NicPort>(&mut self, cores: &Cores<P>, now: Instant) {
        if !self.open.is_empty() {
            self.close(cores, |open| now - open.taken > IDLE_MAX);
        }
    }

    fn open<P: NicPort>(
        &mut self,
        cores: &Cores<P>,
        now: Instant,
        (point, filter, snap_len): (CapturePoint, CaptureFilter, u32),
    ) -> Result<u64, String> {
        if self.open.len() >= CAPTURES_MAX {
            return Err(format!("{CAPTURES_MAX} captures are open; end one of them"));
        }
        self.last += 1;
        let number = self.last;
        let options = TapOptions {
            snap_len,
            buffer_len: BUFFER_LEN,
            clock: unix_time_ns,
        };
        let opened = cores.call_each(|_| {
            move |host: &mut Host<P>, _| host.open_capture(number, point, filter, options)
        });
        self.open.push(OpenCapture {
            number,
            point,
            taken: now,
        });
        let error = match (opened, point) {
            (None, _) => "a core (polling thread) does not answer".to_owned(),
            (Some(opened), CapturePoint::Port(PortId(id))) if opened.contains(&false) => {
                format!("mux port {id} is not open, or has no claim yet; tidelane port list")
            }
            _ => return Ok(number),
        };
        self.close(cores, |open| open.number == number);
        Err(error)
    }

    fn take<P: NicPort>(
        &mut self,
        cores: &Cores<P>,
        now: Instant,
        number: u64,
    ) -> Result<Captured, String> {
        let open = self.open.iter_mut().find(|open| open.number == number);
        let Some(open) = open else {
            return Err(format!("there is no capture {number}"));
        };
        open.taken = now;
        let point = open.point;
        let taken = cores
            .call_each(|_| move |host: &mut Host<P>, _| host.take_capture(number, point))
            .ok_or("a core (polling thread) does not answer")?;
        let mut all = Captured::default();
        for captured in taken {
            all.append(captured.ok_or("the mux port is closed")?);
        }
        all.blocks = pcapng::sorted_by_time(&all.blocks);
        Ok(all)
    }

    fn close<P: NicPort>(&mut self, cores: &Cores<P>, is_over: impl Fn(&OpenCapture) -> bool) {
        for open in self.open.extract_if(.., |open| is_over(open)) {
            let OpenCapture { number, point, .. } = open;
            cores.send_each(|_| move |host: &mut Host<P>, _| host.close_capture(number, point));
        }
    }
}

/// Returns the time in nanoseconds since 1970.
fn unix_time_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests;
