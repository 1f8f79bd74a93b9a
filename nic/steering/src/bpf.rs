//! eBPF objects: loads an object file, attaches its XDP program and opens its maps. Only this
//! module and `firewall` use the eBPF loader `aya`.

mod maps;

use std::{error::Error, io, os::fd::AsFd, thread, time::Duration};

use aya::{
    Ebpf, EbpfError, EbpfLoader, TestRun,
    maps::{Array, DevMap, HashMap, Map, PerCpuArray, XskMap},
    programs::{ProgramError, TestRunAttrs, TestRunOptions, Xdp, XdpMode, links::FdLink},
};
use rustix::thread::{CapabilitySet, capabilities};

use crate::{
    SteeringError,
    firewall::Program,
    kernel_tables::{AttachedXdpMode, KernelTables},
    shared_words_unsafe::SharedWords,
};

pub(crate) use maps::{ArrayEntry, BpfHashMap, PerCpuCounters, XskSocketMap};

/// The eBPF object of the demux, the XDP program that redirects packets to the service (the process
/// `tidelaned`) if the service has claimed their destination address, protocol and port. `build.rs`
/// compiles the object, or copies the checked-in object.
pub(crate) const DEMUX_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/demux.bpf.o"));

/// The eBPF object of the impaired link, which joins two interfaces for tests. `build.rs` compiles
/// the object, or copies the checked-in object.
pub(crate) const IMPAIR_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/impair.bpf.o"));

/// Number of 32-bit words of `struct xdp_md`, and the word indices of two of its fields.
const CONTEXT_WORDS: usize = 6;
const CONTEXT_DATA_END: usize = 1;
const CONTEXT_IFINDEX: usize = 3;

/// Maximum number of attempts to attach to an interface that has another XDP program, and the pause
/// between two attempts.
const ATTACH_TRIES_MAX: u32 = 15;
const ATTACH_PAUSE: Duration = Duration::from_millis(20);

/// Maximum number of attempts to load a program. The verifier gives up with EAGAIN if a signal is
/// pending.
const LOAD_TRIES_MAX: u32 = 5;

/// Place in the kernel at which an attached XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver, before the socket buffer exists.
    Native,
    /// In the kernel's network stack, after the socket buffer was made: slower, but works with
    /// every driver.
    Generic,
}

/// XDP mode that a caller requests for a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachRequest {
    /// In the driver, or in the kernel's network stack if the driver cannot run the program.
    #[default]
    Best,
    /// In the driver only.
    Native,
    /// In the kernel's network stack only.
    Generic,
}

/// Returns an error if the process lacks the capabilities that loading and attaching need:
/// CAP_NET_ADMIN, and CAP_BPF or CAP_SYS_ADMIN. Without the check, each of several calls would fail
/// with a message of its own.
pub(crate) fn check_permission() -> Result<(), SteeringError> {
    let held = capabilities(None).map_err(|error| SteeringError::System {
        action: "reading the capabilities of this process",
        error: error.into(),
    })?;
    let wanted = CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
    let enough = held.effective.contains(wanted)
        || held
            .effective
            .contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN);
    if enough {
        Ok(())
    } else {
        Err(SteeringError::NotPermitted)
    }
}

/// Returns the first errno in a chain of errors.
fn errno_of(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(code) = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
        {
            return Some(code);
        }
        next = error.source();
    }
    None
}

/// Returns the text of an error and of its causes, up to the first line break.
fn chain_text(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !line.contains(&cause_text) {
            line = format!("{line}: {cause_text}");
        }
        next = cause.source();
    }
    line.lines().next().unwrap_or_default().to_owned()
}

/// Converts the error of `action`, an operation other than loading a program.
fn failed(action: &'static str, error: &(dyn Error + 'static)) -> SteeringError {
    match errno_of(error) {
        Some(libc::EPERM | libc::EACCES) => SteeringError::NotPermitted,
        Some(code) => SteeringError::System {
            action,
            error: io::Error::from_raw_os_error(code),
        },
        None => SteeringError::System {
            action,
            error: io::Error::other(chain_text(error)),
        },
    }
}

/// Converts an error of loading an object or a program. EACCES means that the verifier rejected the
/// program, not that the process lacks rights.
fn load_failed(error: &(dyn Error + 'static)) -> SteeringError {
    match errno_of(error) {
        Some(libc::EPERM) => SteeringError::NotPermitted,
        _ => SteeringError::NoKernelSupport(chain_text(error)),
    }
}

/// A loaded object with its attachments, which all end when the value is dropped or the process
/// ends.
pub(crate) struct Object {
    ebpf: Ebpf,
    program: &'static str,
    links: Vec<FdLink>,
}

/// Returns the program `name` of an object.
fn program_named<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, SteeringError> {
    let program = ebpf.program_mut(name).expect("the object has the program");
    let program: Result<&mut Xdp, ProgramError> = program.try_into();
    program.map_err(|error| load_failed(&error))
}

fn load_program(ebpf: &mut Ebpf, name: &str) -> Result<(), SteeringError> {
    let program = program_named(ebpf, name)?;
    retry_load(|| program.load()).map_err(|error| load_failed(&error))
}

/// Calls `load` until the call succeeds or fails with an error other than EAGAIN, at most
/// `LOAD_TRIES_MAX` times.
fn retry_load<E: Error + 'static>(mut load: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    let mut result = load();
    for _ in 1..LOAD_TRIES_MAX {
        match &result {
            Err(error) if errno_of(error) == Some(libc::EAGAIN) => result = load(),
            _ => break,
        }
    }
    result
}

/// Reason for which a program could not be attached in one mode.
enum AttachFailure {
    /// The interface has another XDP program.
    Occupied,
    Other(SteeringError),
}

impl Object {
    /// Loads the program `program` from an object. `sizes` gives the named maps other maximum
    /// numbers of entries. `globals` replaces the values of the named constants.
    pub(crate) fn load(
        object: &[u8],
        program: &'static str,
        sizes: &[(&str, u32)],
        globals: &[(&str, u32)],
    ) -> Result<Self, SteeringError> {
        let mut loader = EbpfLoader::new();
        for (map, size) in sizes {
            loader.map_max_entries(map, *size);
        }
        for (name, value) in globals {
            loader.override_global(name, value, true);
        }
        let mut ebpf = loader
            .load(object)
            .map_err(|error: EbpfError| load_failed(&error))?;
        // Load the program before `take_map` removes the maps to which the program refers.
        load_program(&mut ebpf, program)?;
        Ok(Self {
            ebpf,
            program,
            links: Vec::new(),
        })
    }

    /// Loads another program of the object. [`receive`](Self::receive) can then run the program.
    pub(crate) fn load_another(&mut self, program: &'static str) -> Result<(), SteeringError> {
        load_program(&mut self.ebpf, program)
    }

    fn program(&mut self) -> Result<&mut Xdp, SteeringError> {
        program_named(&mut self.ebpf, self.program)
    }

    /// Makes the kernel receive a frame as if the frame had arrived on an interface
    /// (BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18). The kernel runs the XDP program `program` instead
    /// of the program that is attached to the interface.
    pub(crate) fn receive(
        &mut self,
        program: &'static str,
        frame: &[u8],
        ifindex: u32,
    ) -> Result<(), SteeringError> {
        let mut context = [0u32; CONTEXT_WORDS];
        context[CONTEXT_DATA_END] = frame.len() as u32;
        context[CONTEXT_IFINDEX] = ifindex;
        let context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(&context),
            attrs: TestRunAttrs::new().xdp_live_frames(1),
            ..TestRunOptions::new()
        };
        let run = program_named(&mut self.ebpf, program)?.test_run(options);
        run.map(drop)
            .map_err(|error| failed("handing a frame to the kernel", &error))
    }

    /// Attaches the program in the requested XDP mode. Returns the mode of the attachment. If the
    /// request is [`AttachRequest::Best`] and native mode failed, also returns the reason of the
    /// failure.
    pub(crate) fn attach(
        &mut self,
        ifindex: u32,
        interface: &str,
        request: AttachRequest,
    ) -> Result<(AttachMode, Option<String>), SteeringError> {
        let attached = self.attach_as_requested(ifindex, request);
        let programs = xdp_programs(ifindex);
        let offloaded = |(mode, _): &&(AttachedXdpMode, u32)| *mode == AttachedXdpMode::Offloaded;
        let other = match &attached {
            Err(AttachFailure::Occupied) => programs.first(),
            // The NIC would run another process's offloaded program before this program.
            Ok(_) => programs.iter().find(offloaded),
            Err(AttachFailure::Other(_)) => None,
        };
        let interface = interface.to_owned();
        match attached {
            Ok(attached) if other.is_none() => Ok(attached),
            Err(AttachFailure::Other(error)) => Err(error),
            Ok(_) | Err(AttachFailure::Occupied) => Err(SteeringError::OtherProgram {
                interface,
                mode: other.map(|(mode, _)| *mode),
                program: other.map(|(_, id)| Program::numbered(*id)),
            }),
        }
    }

    fn attach_as_requested(
        &mut self,
        ifindex: u32,
        request: AttachRequest,
    ) -> Result<(AttachMode, Option<String>), AttachFailure> {
        if request == AttachRequest::Generic {
            self.attach_with_retries(ifindex, XdpMode::Skb)?;
            return Ok((AttachMode::Generic, None));
        }
        let native = match self.attach_with_retries(ifindex, XdpMode::Driver) {
            Ok(()) => return Ok((AttachMode::Native, None)),
            Err(AttachFailure::Other(error)) if request == AttachRequest::Best => error,
            Err(failure) => return Err(failure),
        };
        if matches!(native, SteeringError::NotPermitted) {
            return Err(AttachFailure::Other(native));
        }
        self.attach_in(ifindex, XdpMode::Skb)?;
        Ok((AttachMode::Generic, Some(native.to_string())))
    }

    /// Calls [`attach_in`](Self::attach_in) until the interface has no other XDP program, at most
    /// [`ATTACH_TRIES_MAX`] times. A killed process takes some milliseconds to close its
    /// attachment.
    fn attach_with_retries(&mut self, ifindex: u32, mode: XdpMode) -> Result<(), AttachFailure> {
        for _ in 1..ATTACH_TRIES_MAX {
            match self.attach_in(ifindex, mode) {
                Err(AttachFailure::Occupied) => thread::sleep(ATTACH_PAUSE),
                outcome => return outcome,
            }
        }
        self.attach_in(ifindex, mode)
    }

    fn attach_in(&mut self, ifindex: u32, mode: XdpMode) -> Result<(), AttachFailure> {
        let program = self.program().map_err(AttachFailure::Other)?;
        let attached = program.attach_to_if_index(ifindex, mode);
        let link = attached
            .and_then(|id| program.take_link(id))
            .map_err(|error| {
                // The kernel returns EBUSY if another program is attached in the same mode, and
                // EEXIST if another program is attached in another mode.
                match errno_of(&error) {
                    Some(libc::EBUSY | libc::EEXIST) => AttachFailure::Occupied,
                    Some(libc::ENODEV) => {
                        AttachFailure::Other(SteeringError::NoSuchInterface(ifindex))
                    }
                    _ => AttachFailure::Other(failed("attaching the XDP program", &error)),
                }
            })?;
        // Without bpf_link, the loader (aya) attaches over netlink. A program attached over netlink
        // would outlive the process and still redirect packets. The failed conversion drops the
        // link, and thus detaches the program.
        let link = FdLink::try_from(link).map_err(|_| {
            AttachFailure::Other(SteeringError::NoKernelSupport(
                "no bpf_link for XDP".to_owned(),
            ))
        })?;
        self.links.push(link);
        Ok(())
    }

    fn take_map(&mut self, name: &str) -> Map {
        self.ebpf
            .take_map(name)
            .expect("the object has the map, and no caller took the map before")
    }

    /// Opens a hash map with keys of `K` bytes and values of `V` bytes.
    pub(crate) fn hash_map<const K: usize, const V: usize>(
        &mut self,
        name: &str,
    ) -> Result<BpfHashMap<K, V>, SteeringError> {
        let map = HashMap::try_from(self.take_map(name));
        Ok(BpfHashMap {
            map: map.map_err(|error| failed("opening a map", &error))?,
        })
    }

    /// Opens the map of AF_XDP sockets.
    pub(crate) fn xsk_map(&mut self, name: &str) -> Result<XskSocketMap, SteeringError> {
        let map = XskMap::try_from(self.take_map(name));
        Ok(XskSocketMap {
            map: map.map_err(|error| failed("opening a map", &error))?,
        })
    }

    /// Opens an array map and maps its first `len` words (64 bits each) into this process. The
    /// process then accesses the words as memory.
    pub(crate) fn mapped_array(
        &mut self,
        name: &str,
        len: usize,
    ) -> Result<SharedWords, SteeringError> {
        let Map::Array(map) = self.take_map(name) else {
            unreachable!("the object has an array of that name");
        };
        let words = SharedWords::of_map(map.fd().as_fd(), len);
        words.map_err(SteeringError::system("mapping an array of the demux"))
    }

    /// Fills the map of devices with the interface indices `ends`, to which frames can be
    /// redirected.
    pub(crate) fn set_devices(&mut self, name: &str, ends: &[u32]) -> Result<(), SteeringError> {
        let map = DevMap::try_from(self.take_map(name));
        let mut map = map.map_err(|error| failed("opening a map", &error))?;
        for (index, ifindex) in (0..).zip(ends) {
            let set = map.set(index, *ifindex, None, 0);
            set.map_err(|error| failed("naming an interface to redirect to", &error))?;
        }
        Ok(())
    }

    /// Opens an array of one entry of `V` bytes.
    pub(crate) fn array_entry<const V: usize>(
        &mut self,
        name: &str,
    ) -> Result<ArrayEntry<V>, SteeringError> {
        let map = Array::try_from(self.take_map(name));
        Ok(ArrayEntry {
            map: map.map_err(|error| failed("opening a map", &error))?,
        })
    }

    /// Opens a per-CPU array whose only entry is a set of `N` counters.
    pub(crate) fn counters<const N: usize>(
        &mut self,
        name: &str,
    ) -> Result<PerCpuCounters<N>, SteeringError> {
        let map = PerCpuArray::try_from(self.take_map(name));
        Ok(PerCpuCounters {
            map: map.map_err(|error| failed("opening a map", &error))?,
        })
    }

    /// Runs the program on the bytes of a frame. No interface takes part. Returns the XDP action.
    #[cfg(test)]
    pub(crate) fn run(&mut self, frame: &[u8]) -> u32 {
        let program = self.program().expect("the program loads");
        let options = TestRunOptions {
            data_in: Some(frame),
            ..TestRunOptions::new()
        };
        program
            .test_run(options)
            .expect("the program runs")
            .return_value
    }
}

/// Returns the mode and the ID of each XDP program of an interface, in the order in which a
/// received packet passes the programs. Returns an empty list if netlink fails.
fn xdp_programs(ifindex: u32) -> Vec<(AttachedXdpMode, u32)> {
    let tables = KernelTables::open().ok();
    let link = tables.as_ref().and_then(|tables| tables.link(ifindex));
    link.map(|link| link.xdp_programs.clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `retry_load`. The first attempts to load fail with `errnos`, in this order. Later
    /// attempts succeed. Returns the number of attempts, and the errno of the result.
    fn attempts(errnos: &[i32]) -> (usize, Option<i32>) {
        let mut count = 0;
        let result = retry_load(|| {
            count += 1;
            match errnos.get(count - 1) {
                Some(errno) => Err(io::Error::from_raw_os_error(*errno)),
                None => Ok(()),
            }
        });
        (count, result.err().and_then(|error| error.raw_os_error()))
    }

    /// E2BIG and ENOSPC can mean a full table only if the operation is an insertion into a map.
    #[test]
    fn a_failed_attachment_does_not_report_a_full_table() {
        for code in [libc::E2BIG, libc::ENOSPC] {
            let error = failed("attaching", &io::Error::from_raw_os_error(code));
            let is_code = |error: &io::Error| error.raw_os_error() == Some(code);
            assert!(
                matches!(&error, SteeringError::System { error, .. } if is_code(error)),
                "{error}"
            );
        }
    }

    #[test]
    fn a_load_is_repeated_only_after_eagain_and_a_bounded_number_of_times() {
        const MAX: usize = LOAD_TRIES_MAX as usize;
        assert_eq!(attempts(&[]), (1, None));
        assert_eq!(attempts(&[libc::EAGAIN; 3]), (4, None));
        assert_eq!(attempts(&[libc::EAGAIN; 9]), (MAX, Some(libc::EAGAIN)));
        assert_eq!(attempts(&[libc::EACCES; 2]), (1, Some(libc::EACCES)));
        let mixed = [libc::EAGAIN, libc::EPERM, libc::EAGAIN];
        assert_eq!(attempts(&mixed), (2, Some(libc::EPERM)));
    }
}
