//! A check of taps. A tap copies the frames of a mux port for a capture. A mux port is a pair of
//! packet rings through which a program with a TCP/IP stack of its own shares the NIC.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tidelane_packet_io::{Tap, TapOptions};

use super::frame;

/// Limits of a tap. The tap's buffer is so small that it is full after some frames. The capture
/// lacks the later frames, but the tap still shows them to its filter, and the mux still forwards
/// them.
const OPTIONS: TapOptions = TapOptions {
    snap_len: 100,
    buffer_len: 10_000,
    clock: || 0,
};

/// Number of times that the tap has seen a frame, minus the number of times that an observer of the
/// rings has seen the frame, by the frame's hash. The map has no entry for a frame with the
/// difference zero.
type Differences = BTreeMap<u64, i64>;

/// Compares the frames that the tap of a mux port sees with the frames that an observer of the
/// port's rings sees.
#[derive(Clone, Debug, Default)]
pub struct TapCheck {
    differences: Arc<Mutex<Differences>>,
}

impl TapCheck {
    /// Returns the tap. The tap's filter counts each frame, and selects all frames.
    pub fn tap(&self) -> Tap {
        let check = self.clone();
        Tap::new(OPTIONS, move |frame| {
            check.add(frame, 1);
            true
        })
    }

    /// Records a frame that the program has published, or that the mux has delivered.
    pub fn observe(&self, frame: &[u8]) {
        self.add(frame, -1);
    }

    /// Returns true if the tap has seen each frame as often as the observer.
    pub fn is_balanced(&self) -> bool {
        self.lock().is_empty()
    }

    fn add(&self, frame: &[u8], count: i64) {
        let mut differences = self.lock();
        let hash = frame::whole(frame);
        let difference = differences.entry(hash).or_default();
        *difference += count;
        if *difference == 0 {
            differences.remove(&hash);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Differences> {
        self.differences
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
