//! An io_uring whose requests own the memory that the kernel accesses.
//!
//! A request keeps its buffers and addresses until its last completion (for a zero-copy send, the
//! notification that the kernel has read the buffers). When data for a socket arrives, the kernel
//! takes a buffer for the data from a *provided buffer ring*.

use std::{
    io,
    net::SocketAddr,
    os::fd::{FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use io_uring::{
    IoUring, Probe, cqueue, opcode,
    types::{BufRingEntry, CancelBuilder, Napi, SubmitArgs, Timespec},
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use tidelane_rings::{Buffer, Descriptor, Pool, Wait};

use crate::{
    piece::Piece,
    request_unsafe::{GROUP, Request, RequestId, entry_of, strip_head},
    zero_copy::is_refusal,
};

/// Longest time for which the drop of a ring waits for the kernel to end all requests.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// The answer to a zero-copy send, whose notification follows.
#[derive(Debug)]
pub struct Answer {
    /// Number of buffers that the kernel reads until the notification.
    pub held: usize,
    /// Pieces of the message that are not sent.
    pub unsent: Vec<Piece>,
}

/// A completion of a request, as one entry of the completion queue reports it.
#[derive(Debug)]
pub struct Completion {
    /// The descriptor of the socket for which the request was made.
    pub descriptor: Descriptor,
    /// Result of the system call, or a negative errno. For a notification: flags.
    pub result: i32,
    /// Received data, if the request receives.
    pub buffer: Option<Buffer>,
    /// Sender of a received datagram.
    pub sender: Option<SocketAddr>,
    /// An accepted connection.
    pub accepted: Option<OwnedFd>,
    /// The request, if this is its last completion. `None` while the request continues: a multishot
    /// request, or a zero-copy send whose notification has not arrived.
    pub ended: Option<Request>,
    /// The answer to a zero-copy send whose notification follows. `None` for other completions.
    pub answer: Option<Answer>,
    /// True if the completion is the notification of a zero-copy send.
    pub is_notification: bool,
}

impl Completion {
    /// Returns true if the completion may cause an event for the program: data, an end, a
    /// connection or an error.
    pub fn has_event(&self) -> bool {
        // The result of a notification consists of flags, and is no errno.
        let is_failed = !self.is_notification && self.result < 0 && -self.result != libc::EAGAIN;
        match &self.ended {
            None if self.answer.is_some() => is_failed && !is_refusal(-self.result),
            None
            | Some(
                Request::Accept(_)
                | Request::Receive(_)
                | Request::ReceiveFrom(..)
                | Request::Connect(..),
            ) => true,
            Some(Request::Send(..) | Request::SendTo(..)) => is_failed,
            Some(Request::SendZeroCopy(..)) => is_failed && !is_refusal(-self.result),
            Some(
                Request::AwaitRoom(_) | Request::Pause(_) | Request::Cancel(_) | Request::Close(_),
            ) => false,
        }
    }
}

/// A request whose last completion has not arrived.
struct Pending {
    descriptor: Descriptor,
    request: Request,
    /// True if a zero-copy send is answered, and only its notification has not arrived. A cancel
    /// then does not end the request.
    is_answered: bool,
}

/// The requests that the kernel has not finished. The number of a request (`user_data`) consists of
/// its index in `places` and of a generation, which counts the uses of this index. Therefore the
/// number of a finished request does not find a later request.
#[derive(Default)]
struct Requests {
    /// The generation of each index, and the request if the index is in use.
    places: Vec<(u32, Option<Pending>)>,
    /// Indices of `places` without a request.
    free: Vec<u32>,
    /// Number of answered zero-copy sends whose notification has not arrived.
    answered: usize,
}

impl Requests {
    /// Adds a request. Returns the number of the request.
    fn add(&mut self, pending: Pending) -> RequestId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let (generation, free) = &mut self.places[place as usize];
        *generation = generation.wrapping_add(1);
        *free = Some(pending);
        RequestId(u64::from(*generation) << 32 | u64::from(place))
    }

    fn get(&self, id: u64) -> Option<&Pending> {
        let (generation, pending) = self.places.get(id as u32 as usize)?;
        pending
            .as_ref()
            .filter(|_| u64::from(*generation) == id >> 32)
    }

    fn remove(&mut self, id: u64) -> Option<Pending> {
        self.get(id)?;
        let pending = self.places[id as u32 as usize].1.take()?;
        self.free.push(id as u32);
        self.answered -= usize::from(pending.is_answered);
        Some(pending)
    }

    /// Processes the answer to a zero-copy send, whose notification follows. Returns `None` if the
    /// request is not a zero-copy send.
    fn answer(&mut self, id: u64, result: i32) -> Option<Answer> {
        self.get(id)?;
        let pending = self.places[id as u32 as usize].1.as_mut()?;
        let Request::SendZeroCopy(_, message) = &mut pending.request else {
            return None;
        };
        // A failed send has sent no byte, and the kernel reads none of its buffers.
        let unsent = message.take_unsent(usize::try_from(result).unwrap_or(0));
        let held = message.held();
        self.answered += usize::from(!std::mem::replace(&mut pending.is_answered, true));
        Some(Answer { held, unsent })
    }

    /// Returns the number of requests that a cancel can end.
    fn unanswered(&self) -> usize {
        self.places.len() - self.free.len() - self.answered
    }

    /// Removes all requests, and gives up the buffers that the kernel still reads in zero-copy
    /// sends. These buffers are never used again, and do not return to `pool`.
    fn give_up(&mut self, pool: &Pool) {
        for pending in self.places.drain(..).filter_map(|(_, pending)| pending) {
            if let Request::SendZeroCopy(_, message) = pending.request {
                message.give_up(pool);
            }
        }
        self.free.clear();
        self.answered = 0;
    }
}

/// The provided buffer ring: buffers into which the kernel may receive.
struct Provided {
    entries: NonNull<BufRingEntry>,
    /// Number of entries, a power of two.
    len: u16,
    /// Number of buffers that were ever added, modulo 2^16.
    tail: u16,
    /// Number of buffers that the kernel holds.
    given: u32,
}

impl Provided {
    fn new(len: u16) -> io::Result<Self> {
        assert!(len.is_power_of_two(), "the length is a power of two");
        // SAFETY: the kernel chooses the address of a new mapping.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                Self::bytes(len),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        Ok(Self {
            entries: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            len,
            tail: 0,
            given: 0,
        })
    }

    fn bytes(len: u16) -> usize {
        usize::from(len) * size_of::<BufRingEntry>()
    }

    /// Gives free buffers of `pool` to the kernel until the ring is full or no buffer is free.
    fn fill(&mut self, pool: &Pool) {
        let before = self.tail;
        while self.given < u32::from(self.len) {
            let Some(buffer) = pool.allocate() else {
                break;
            };
            let index = buffer.into_index();
            let at = usize::from(self.tail & (self.len - 1));
            // SAFETY: the position is within the mapping. The kernel does not read an entry beyond
            // the tail. Buffer numbers are below 2^15.
            unsafe {
                let entry = self.entries.add(at).as_mut();
                entry.set_addr(pool.address(index).as_ptr().addr() as u64);
                entry.set_len(pool.buffer_len());
                entry.set_bid(index as u16);
            }
            self.tail = self.tail.wrapping_add(1);
            self.given += 1;
        }
        if self.tail != before {
            // SAFETY: the tail is an aligned word of the mapping. Only this process writes the
            // tail. The kernel only reads the tail.
            let tail = unsafe {
                AtomicU16::from_ptr(BufRingEntry::tail(self.entries.as_ptr()).cast_mut())
            };
            tail.store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and the ring that used it is closed.
        let _ = unsafe { munmap(self.entries.as_ptr().cast(), Self::bytes(self.len)) };
    }
}

/// An io_uring with its requests and its provided buffer ring.
pub struct Uring {
    ring: std::mem::ManuallyDrop<IoUring>,
    requests: Requests,
    provided: std::mem::ManuallyDrop<Provided>,
    pool: Pool,
    /// True if the kernel has IORING_OP_SENDMSG_ZC.
    has_zero_copy: bool,
    /// Number of `io_uring_enter` calls.
    enters: u64,
}

impl Uring {
    /// Creates an io_uring with a submission queue of `entries` entries. The sockets receive into
    /// at most `provided` buffers of `pool` at a time. `provided` must be a power of two.
    ///
    /// # Errors
    ///
    /// `Unsupported` on kernels that lack a required feature (Linux 6.1 has all of them).
    /// `PermissionDenied` if the system forbids io_uring.
    pub fn new(entries: u32, pool: &Pool, provided: u16) -> io::Result<Self> {
        let ring = IoUring::builder()
            .dontfork()
            .setup_cqsize(entries * 4)
            .setup_single_issuer()
            // IORING_SETUP_DEFER_TASKRUN would limit a call to about 20 events.
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            // A request that the kernel refuses does not hold the later requests back.
            .setup_submit_all()
            .build(entries)
            .map_err(unsupported)?;
        let provided = Provided::new(provided)?;
        let address = provided.entries.as_ptr().addr() as u64;
        // SAFETY: the mapping has `provided.len` entries, and lives longer than the ring.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(address, provided.len, GROUP, 0)
                .map_err(unsupported)?;
        }
        let mut probe = Probe::new();
        let is_probed = ring.submitter().register_probe(&mut probe).is_ok();
        Ok(Self {
            ring: std::mem::ManuallyDrop::new(ring),
            requests: Requests::default(),
            provided: std::mem::ManuallyDrop::new(provided),
            pool: pool.clone(),
            has_zero_copy: is_probed && probe.is_supported(opcode::SendMsgZc::CODE),
            enters: 0,
        })
    }

    /// Makes each wait poll the NAPI instances of the sockets for at most `micros` microseconds.
    ///
    /// # Errors
    ///
    /// Kernels before 6.9 lack the option and return an error.
    pub fn set_busy_poll(&self, micros: u32) -> io::Result<()> {
        let mut napi = Napi::new()
            .set_busy_poll_timeout(micros)
            .set_prefer_busy_poll(true);
        self.ring.submitter().register_napi(&mut napi)
    }

    /// Returns true if the kernel has zero-copy sends (IORING_OP_SENDMSG_ZC).
    pub fn has_zero_copy(&self) -> bool {
        self.has_zero_copy
    }

    /// Returns the number of `io_uring_enter` calls.
    pub fn enters(&self) -> u64 {
        self.enters
    }

    /// Queues a request for `descriptor`. The next [`enter`](Self::enter) submits the request.
    ///
    /// # Errors
    ///
    /// The errors of `io_uring_enter`, which `push` calls if the submission queue is full.
    pub fn push(&mut self, descriptor: Descriptor, request: Request) -> io::Result<RequestId> {
        let id = self.requests.add(Pending {
            descriptor,
            request,
            is_answered: false,
        });
        let entry = match self.requests.get(id.0) {
            Some(pending) => entry_of(&pending.request).user_data(id.0),
            None => return Err(io::ErrorKind::Other.into()),
        };
        // SAFETY: `requests` keeps all memory of the request until its last completion, at a stable
        // address.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enters += 1;
            self.ring.submit()?;
        }
        Ok(id)
    }

    /// Submits all queued requests in one system call. If no completion is present, the call also
    /// waits for a completion as `wait` says. Makes no system call if no wait is needed, no request
    /// is queued, and the kernel has neither deferred work nor overflowed completions.
    ///
    /// # Errors
    ///
    /// The errors of `io_uring_enter`.
    pub fn enter(&mut self, wait: Wait) -> io::Result<()> {
        self.provided.fill(&self.pool);
        let present = self.ring.completion().len();
        let is_idle = {
            let queue = self.ring.submission();
            queue.is_empty() && !queue.taskrun() && !queue.cq_overflow()
        };
        let wait = if present > 0 { Wait::No } else { wait };
        if wait == Wait::No && is_idle {
            return Ok(());
        }
        let want = usize::from(wait != Wait::No);
        self.enters += 1;
        let result = match wait {
            Wait::For(limit) => {
                let limit = Timespec::from(limit);
                let args = SubmitArgs::new().timespec(&limit);
                self.ring.submitter().submit_with_args(want, &args)
            }
            Wait::No | Wait::Forever => self.ring.submit_and_wait(want),
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // ETIME: the time limit has passed. EINTR: a signal arrived. EBUSY and EAGAIN: the
                // caller has to take completions first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Takes the next completion of a pending request. Returns `None` if no completion is present.
    pub fn next(&mut self) -> Option<Completion> {
        loop {
            let entry = self.ring.completion().next()?;
            if let Some(completion) = self.completion_of(&entry) {
                return Some(completion);
            }
        }
    }

    fn completion_of(&mut self, entry: &cqueue::Entry) -> Option<Completion> {
        let (result, flags) = (entry.result(), entry.flags());
        let mut buffer = cqueue::buffer_select(flags).map(|index| {
            self.provided.given -= 1;
            let len = u32::try_from(result).unwrap_or(0);
            // SAFETY: `fill` gave this buffer to the kernel by `into_index`. The kernel gives each
            // buffer back once, and does not access the buffer afterwards.
            unsafe { self.pool.adopt(index.into(), 0..len) }
        });
        let id = entry.user_data();
        let pending = self.requests.get(id)?;
        let descriptor = pending.descriptor;
        let is_datagram = matches!(pending.request, Request::ReceiveFrom(..));
        let sender = buffer.as_mut().filter(|_| is_datagram).and_then(strip_head);
        let is_accepted = matches!(pending.request, Request::Accept(_)) && result >= 0;
        // SAFETY: the result of a successful accept is a new descriptor, which has no other owner.
        let accepted = is_accepted.then(|| unsafe { OwnedFd::from_raw_fd(result) });
        let more = cqueue::more(flags);
        let answer = match more {
            true => self.requests.answer(id, result),
            false => None,
        };
        let ended = match more {
            true => None,
            false => self.requests.remove(id).map(|pending| pending.request),
        };
        Some(Completion {
            descriptor,
            result,
            buffer: buffer.filter(|_| !is_datagram || sender.is_some()),
            sender,
            accepted,
            ended,
            answer,
            is_notification: cqueue::notif(flags),
        })
    }

    /// Cancels all requests, and waits until the kernel has ended or answered each request. Does
    /// not wait for the notifications of zero-copy sends, which may need an acknowledgment of the
    /// peer. Returns false if a request is neither ended nor answered after [`DRAIN_MAX`].
    fn drain(&mut self) -> bool {
        let start = Instant::now();
        while self.requests.unanswered() > 0 {
            if start.elapsed() > DRAIN_MAX {
                return false;
            }
            let timeout = Some(Timespec::new().nsec(1_000_000));
            let _ = self
                .ring
                .submitter()
                .register_sync_cancel(timeout, CancelBuilder::any());
            let _ = self.ring.submit();
            let limit = Timespec::new().nsec(1_000_000);
            let args = SubmitArgs::new().timespec(&limit);
            let _ = self.ring.submitter().submit_with_args(1, &args);
            while self.next().is_some() {}
        }
        true
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.drain() {
            self.requests.give_up(&self.pool);
            // SAFETY: each value is dropped once. The kernel has ended or answered all requests, so
            // the kernel does not access the provided buffer ring, and only reads buffers that are
            // given up. The io_uring is closed before the provided buffer ring is unmapped.
            unsafe {
                std::mem::ManuallyDrop::drop(&mut self.ring);
                std::mem::ManuallyDrop::drop(&mut self.provided);
            }
        } else {
            // The kernel may still access the requests and the buffers, so their memory is leaked.
            std::mem::forget(std::mem::take(&mut self.requests));
            std::mem::forget(self.pool.clone());
        }
    }
}

/// Replaces the errors of a kernel that lacks an option by `Unsupported`.
fn unsupported(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENOSYS) => io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel lacks features of io_uring that Linux 6.1 has",
        ),
        _ => error,
    }
}
