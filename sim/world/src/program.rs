//! A process: its memory, its threads, and its registration with the service of its host.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tidelane_client::{ListenerHandle, Program};
use tidelane_host::{Bell, Listen};
use tidelane_netem::Rng;
use tidelane_ring::{Layout, ProgramRegion};
use tidelane_time::Instant;
use tidelane_wire::{Endpoint, IpAddress};

use crate::{
    family::{Bound, Family},
    machine::Machine,
    program_spec::{AREA_LEN, Behaviour, ListenerSpec, ProgramSpec},
    region_fuzzer::RegionFuzzer,
    service::ProgramIds,
    topology::address,
    worker::{Accepting, Worker},
};

/// Largest number of simultaneous connections of a program.
const SLOTS: u32 = 256;
/// Largest number of listeners of a run. The key of a listener's second socket is the key of the
/// first socket plus this value, so that all sockets of a run have different keys.
const LISTENERS_MAX: usize = 1000;

/// A doorbell that sets a flag. The simulator polls the flag.
struct FlagBell(Arc<AtomicBool>);

impl Bell for FlagBell {
    fn ring(&self) -> bool {
        self.0.store(true, Ordering::Relaxed);
        true
    }
}

/// Parameters of a start of a program.
pub struct Launch {
    /// Name of the process in listings.
    pub name: String,
    /// Random numbers of the process.
    pub rng: Rng,
    /// The region fuzzer of a hostile program overwrites the shared memory word by word. This field
    /// is the number of words that the fuzzer overwrote in the earlier processes of the program.
    pub swept: u64,
}

/// A running process of a program. Owns the program's shared memory and its threads.
pub struct Process {
    /// Numbers of the program at the service, one for each core (polling thread of the service).
    pub id: ProgramIds,
    /// State of the client library.
    pub program: Program,
    /// Shared memory of the process.
    pub region: Arc<ProgramRegion>,
    /// Threads of the process, each with the time of its next run. `None` if the thread waits for
    /// its doorbell.
    pub workers: Vec<(Option<Instant>, Worker)>,
    /// In a hostile program, the fuzzer that writes random values to the shared memory.
    pub fuzzer: Option<RegionFuzzer>,
}

impl Process {
    /// Starts a process of the program on `machine`.
    pub fn start(
        now: Instant,
        spec: &ProgramSpec,
        machine: &mut Machine,
        launch: &Launch,
    ) -> std::io::Result<Self> {
        let rng = &launch.rng;
        let layout =
            Layout::new(SLOTS, spec.area_len, spec.area_len).expect("the layout is possible");
        let region = Arc::new(ProgramRegion::heap(&layout)?);
        let doorbell_rang = machine.doorbell_rang.clone();
        let ring = move || doorbell_rang.store(true, Ordering::Relaxed);
        let program = Program::in_memory(region.clone(), machine.page.clone(), ring);
        let id = machine.add_program(spec.user, &launch.name, &region);
        let mut workers = Vec::new();
        for number in 0..spec.workers {
            let bell = Arc::new(AtomicBool::new(false));
            let added = machine
                .host
                .add_context(&id, number, || Box::new(FlagBell(bell.clone())));
            assert!(added, "a new program can have a context");
            let context = program.new_context().expect("a context");
            let rng = rng.fork(u64::from(number) + 10);
            let mut worker = Worker::new(program.clone(), context, bell, rng);
            worker.memory_short = spec.area_len < AREA_LEN;
            workers.push((Some(now), worker));
        }
        let fuzzer = match spec.behaviour {
            Behaviour::Good => None,
            Behaviour::Bad { every } => {
                let region = region.clone();
                Some(RegionFuzzer::new(region, every, launch.swept, rng.fork(2)))
            }
        };
        Ok(Self {
            id,
            program,
            region,
            workers,
            fuzzer,
        })
    }

    /// Adds the sockets of a listener to the service. The threads of the process then accept
    /// connections from these sockets. `host` is the index of the host. `key` identifies the
    /// listener, like the inode of a kernel socket. Returns true if the service has accepted all
    /// sockets of the listener.
    pub fn listen(
        &mut self,
        machine: &mut Machine,
        host: usize,
        key: usize,
        spec: &ListenerSpec,
    ) -> bool {
        let (any_v4, any_v6) = (IpAddress::UNSPECIFIED_V4, IpAddress::UNSPECIFIED_V6);
        let sockets = match spec.bound {
            Bound::ToV4 => vec![(address(Family::V4, host), false)],
            Bound::ToBoth => vec![(any_v6, false)],
            Bound::Twice => vec![(any_v4, false), (any_v6, true)],
        };
        let mut sockets = (key..).step_by(LISTENERS_MAX).zip(sockets);
        sockets.all(|(key, (addr, v6_only))| {
            let listen = Listen {
                number: key as u32,
                key: key as u64 + 1,
                local: Endpoint::new(addr, spec.port),
                v6_only,
                group: None,
                backlog: spec.backlog,
                within_host: false,
            };
            let listens = machine.host.listen(&self.id, &listen);
            for (_, worker) in self.workers.iter_mut().filter(|_| listens) {
                worker.accept(Accepting {
                    listener: ListenerHandle(listen.number),
                    cookie: key as u64 + 100,
                    delay: spec.accept_delay,
                });
            }
            listens
        })
    }

    /// Kills the process. First marks the service as gone, so that the destructors of the process's
    /// streams do nothing: no code of a killed process runs.
    pub fn kill(self, now: Instant, machine: &mut Machine) {
        self.program.mark_service_gone();
        machine.host.remove_program(machine.clock(now), &self.id);
        machine.wake(now);
    }

    /// Returns true if the process has no connection to open or to serve.
    pub fn is_idle(&self) -> bool {
        self.workers.iter().all(|(_, worker)| worker.is_idle())
    }
}
