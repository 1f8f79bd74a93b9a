//! Memory that a program and the service (process `tidelaned`) share. This crate maps, reads and
//! writes the memory for both sides. The crate `tidelane-abi` has the layout of the memory, and
//! explains the terms region, ring set, context, slot and port.
//!
//! ```text
//! Region            one range of addresses: bounds-checked copies, release of pages
//! Memories          the memfds of a program's region: rights to write and to punch holes
//! ProgramRegion     Region + validated Layout: ring sets, slots         (program <-> service)
//! ServicePageMap    Region: which cores sleep, route table (a seqlock)  (service -> programs)
//! Producer/Consumer one side of a ring, with private copies of both indices
//! sleep, Doorbell   wake the other side of a ring, so that a sleeper never misses an entry
//! PortMemories      the memfds of a port's packet rings (a port serves a program's own stack)
//! PacketProducer, PacketConsumer    the two ends of a packet ring
//! StreamBuffer      a circular buffer in a region; allocated by BufferAllocator
//! CoreShare         the part of a region that one core (a polling thread of the service) uses
//! core_of           the core of the connections between two TCP ports
//! registration      messages and descriptors over the unix socket
//! ```
//!
//! These rules apply to memory that a hostile peer (the other process) may write. The peer's index
//! is compared, and never used to access memory. An entry is copied once, and the copy is
//! validated. Payload is copied by pointer and never accessed through a reference. All unsafe code
//! is in `*_unsafe.rs`.
//!
//! Under `cfg(loom)` only the index and sleep protocols are built, for `tests/loom.rs`.

pub mod cursor;
pub mod sleep;
pub mod sync;

#[cfg(not(loom))]
mod allocator;
#[cfg(not(loom))]
mod control_request;
#[cfg(not(loom))]
mod control_unsafe;
#[cfg(not(loom))]
mod cores;
#[cfg(not(loom))]
mod descriptor_unsafe;
#[cfg(not(loom))]
mod doorbell;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod memories;
#[cfg(not(loom))]
mod message_unsafe;
#[cfg(not(loom))]
mod packet_ring_unsafe;
#[cfg(not(loom))]
mod port_memory;
#[cfg(not(loom))]
mod prefetch_unsafe;
#[cfg(not(loom))]
mod region_unsafe;
#[cfg(not(loom))]
pub mod registration;
#[cfg(not(loom))]
mod ring_unsafe;
#[cfg(not(loom))]
mod service_page;
#[cfg(not(loom))]
mod stream_buffer;
#[cfg(not(loom))]
mod views_unsafe;
#[cfg(not(loom))]
pub mod words;

pub use cursor::{Corrupt, PushError};

#[cfg(not(loom))]
pub use self::{
    allocator::BufferAllocator,
    control_request::new_control_request,
    cores::{CoreShare, contexts_max, core_of},
    descriptor_unsafe::Descriptor,
    doorbell::Doorbell,
    layout::{Layout, LayoutError},
    memories::{MEMORIES, Memories},
    packet_ring_unsafe::{PacketConsumer, PacketPlace, PacketProducer, PacketView},
    port_memory::{PortMemories, PortRegions},
    region_unsafe::{Part, Region},
    ring_unsafe::{
        Consumer, ControlEventConsumer, ControlEventProducer, ControlRequestConsumer,
        ControlRequestProducer, DataEventConsumer, DataEventProducer, DataRequestConsumer,
        DataRequestProducer, Producer,
    },
    service_page::{PublishedRoute, RoutesError},
    stream_buffer::StreamBuffer,
    views_unsafe::{MapError, ProgramRegion, RingSetView, ServicePageMap, SlotHandle, SlotView},
};
