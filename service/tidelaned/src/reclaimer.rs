//! Frees the shared memory of programs that have ended.
//!
//! When the last reference to a program's memory region is dropped, all pages of the region are
//! freed. The drop takes long if the program has filled gigabytes. A separate thread, for which no
//! other thread waits, therefore holds a reference to each region and drops the last reference.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use tidelane_ring::{Memories, ProgramRegion};

use crate::pace::{self, IsBesideCore};

/// Interval at which the thread checks for unused regions.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A job of the thread.
enum ReclaimJob {
    /// The region of a registered program. The thread frees the region after its last use.
    Region(Arc<ProgramRegion>),
    /// Memory files of a program that has ended before it had mapped and sealed the files. The
    /// thread drops the files.
    Memories(Memories),
    /// A program has ended: the thread checks all regions without waiting for the next interval.
    Wake,
    /// A closure that frees memory and may block.
    Work(Box<dyn FnOnce() + Send>),
}

/// A handle of the thread that frees memory. Without a thread ([`MemoryReclaimer::default`]), the
/// last user of the memory frees it.
#[derive(Clone, Default)]
pub struct MemoryReclaimer(Option<mpsc::Sender<ReclaimJob>>);

impl MemoryReclaimer {
    /// Starts the thread. The thread ends when this handle and all its clones are dropped.
    pub fn start(is_beside_core: IsBesideCore) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::Builder::new().name("tdl-memory".to_owned());
        thread.spawn(move || {
            pace::install_check(is_beside_core);
            reclaim(&receiver);
        })?;
        Ok(Self(Some(sender)))
    }

    /// Holds `region` while other threads use the region, and then frees the region.
    pub fn hold_until_unused(&self, region: Arc<ProgramRegion>) {
        self.send(ReclaimJob::Region(region));
    }

    /// Frees unused regions after the end of a program. If the program has ended before it had
    /// mapped and sealed its memory files, `memories` contains the files, which are freed, too.
    pub fn release(&self, memories: Option<Memories>) {
        self.send(memories.map_or(ReclaimJob::Wake, ReclaimJob::Memories));
    }

    /// Runs `work`, which frees memory and may block, on the thread. If there is no thread, drops
    /// `work` and does not run it.
    pub fn work(&self, work: impl FnOnce() + Send + 'static) {
        self.send(ReclaimJob::Work(Box::new(work)));
    }

    /// Returns true if there is a thread.
    pub fn has_thread(&self) -> bool {
        self.0.is_some()
    }

    fn send(&self, job: ReclaimJob) {
        if let Some(thread) = &self.0 {
            // The thread lives as long as any handle, so the send does not fail.
            let _ = thread.send(job);
        }
    }
}

fn reclaim(receiver: &mpsc::Receiver<ReclaimJob>) {
    let mut regions: Vec<Arc<ProgramRegion>> = Vec::new();
    loop {
        let job = match regions.is_empty() {
            true => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => receiver.recv_timeout(CHECK_INTERVAL),
        };
        pace::begin();
        match job {
            Ok(ReclaimJob::Region(region)) => regions.push(region),
            Ok(ReclaimJob::Memories(memories)) => drop(memories),
            Ok(ReclaimJob::Work(work)) => work(),
            Ok(ReclaimJob::Wake) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // No other thread can clone the last reference, which this thread holds.
        regions.retain(|region| {
            pace::rest();
            Arc::strong_count(region) > 1
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tidelane_ring::Layout;

    use super::*;

    #[test]
    fn a_region_is_freed_after_its_last_other_user() {
        let reclaimer = MemoryReclaimer::start(Arc::new(|| true)).expect("a thread");
        let layout = Layout::new(1, 4096, 4096).expect("a possible layout");
        let region = Arc::new(ProgramRegion::heap(&layout).expect("there is memory"));
        let watched = Arc::downgrade(&region);
        reclaimer.hold_until_unused(region.clone());
        thread::sleep(2 * CHECK_INTERVAL);
        drop(region);
        assert_eq!(watched.strong_count(), 1, "other references remain");
        let deadline = Instant::now() + 20 * CHECK_INTERVAL;
        while watched.strong_count() > 0 {
            assert!(Instant::now() < deadline, "the region is not freed");
            thread::sleep(CHECK_INTERVAL / 10);
        }
    }
}
