//! The input of IP packets: the destination of each frame that a core receives.
//!
//! ```text
//!   NIC queue ──┐    ┌──> another core, if the flow belongs to that core (siblings.rs)
//!   other core ─┼────┼──> the mux port that has claimed the destination (mux_ports.rs)
//!   mux link ───┘    ├──> the reassembly of fragments, and then again as above (fragments.rs)
//!                    └──> the TCP engine (tcp_input.rs)
//! ```
//!
//! A *core* is a polling thread of the service with a host of its own. A *mux port* belongs to a
//! program with a TCP/IP stack of its own. The *mux link* carries frames in memory between these
//! ports and the sockets of the service. Of the frames in this diagram, only frames of NIC queues
//! and reassembled packets go to a mux port.

use tidelane_engine::LinkId;
use tidelane_fragments::Counters;
use tidelane_mux::Reception;
use tidelane_packet_io::{Burst, PacketIo};
use tidelane_time::Instant;
use tidelane_wire::{DropReason, parse_fragment};

use crate::{
    fragments::Fragments,
    links::{MUX_LINK, MuxQueue},
    mux_ports::PortMux,
    siblings::{CoreIndex, Siblings},
    stack::Stack,
    tcp_input,
};

/// Link number of the first port (NIC queue) of this core.
const OWN_LINK: LinkId = LinkId(1);
/// Limit of batches from other cores that one step receives.
const BATCHES_PER_STEP_MAX: usize = 8;

/// The input of IP packets of one core. The host calls [`receive`](Self::receive) once per step,
/// and passes the [`Stack`] that gets the packets of this core's flows.
///
/// In all functions, `link` is the link on which a frame arrived. `partial_allowed` is true if the
/// checksum of the frame may be partial (only the pseudo-header sum).
pub(crate) struct IpInput {
    /// The channels to the other cores.
    siblings: Siblings,
    /// The mux ports.
    mux: PortMux,
    /// The outcomes for the frames of an earlier burst. The outcomes of the next burst reuse this
    /// memory.
    receptions: Vec<Reception>,
    /// Incomplete IP packets, whose fragments have not all arrived.
    fragments: Fragments,
}

impl IpInput {
    /// Returns the input of a service with one core.
    pub(crate) fn new(mux: PortMux) -> Self {
        Self {
            siblings: Siblings::alone(),
            mux,
            receptions: Vec::new(),
            fragments: Fragments::default(),
        }
    }

    /// Connects a new input to the other cores.
    pub(crate) fn set_siblings(&mut self, siblings: Siblings) {
        self.siblings = siblings;
    }

    /// Returns the index of this core, and the number of cores.
    pub(crate) fn core_index(&self) -> CoreIndex {
        self.siblings.core_index()
    }

    /// Returns the mux.
    #[inline]
    pub(crate) fn mux(&self) -> &PortMux {
        &self.mux
    }

    /// Returns the mux.
    #[inline]
    pub(crate) fn mux_mut(&mut self) -> &mut PortMux {
        &mut self.mux
    }

    /// Returns the counters of the reassembly.
    pub(crate) fn reassembly_counters(&self) -> Counters {
        self.fragments.counters()
    }

    /// Returns true if frames of other cores or of mux ports wait for this core.
    pub(crate) fn has_work(&self) -> bool {
        self.siblings.has_work() || self.mux.ports().has_work()
    }

    /// Returns the time at which the reassembly or a mux port next needs a step.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let ports = self.mux.ports().next_timeout();
        ports.into_iter().chain(self.fragments.next_timeout()).min()
    }

    /// Receives one burst from each NIC queue, frames that other cores have handed over, and frames
    /// of mux ports. Returns true if there was a frame. If this step gives the mux ports no turns,
    /// also returns true if a mux port has a packet to send.
    #[inline]
    pub(crate) fn receive<P: PacketIo>(&mut self, now: Instant, stack: &mut Stack<P>) -> bool {
        let mut worked = self.receive_queues(now, stack);
        worked |= !self.siblings.is_alone() && self.receive_handed_over(now, stack);
        worked |= !self.mux.ports().is_empty() && self.serve_mux_ports(now, stack);
        worked
    }

    #[inline]
    fn receive_queues<P: PacketIo>(&mut self, now: Instant, stack: &mut Stack<P>) -> bool {
        let (mut index, mut most) = (0, 0);
        while let Some(received) = stack.io.links.rx_burst(index) {
            if received > 0 {
                self.receive_burst(now, index, stack);
                most = most.max(received);
            }
            index += 1;
        }
        stack.io.links.note_longest_burst(most);
        most > 0
    }

    /// Processes the burst of NIC queue `index`, and then releases the frames to the queue.
    #[inline(never)]
    fn receive_burst<P: PacketIo>(&mut self, now: Instant, index: usize, stack: &mut Stack<P>) {
        let Some((burst, partial_allowed)) = stack.io.links.take_burst(index) else {
            return;
        };
        let link = LinkId(index as u16 + 1);
        if self.mux.ports().is_empty() {
            for frame in burst.iter() {
                self.receive_frame(now, link, frame, partial_allowed, stack);
            }
        } else {
            self.receive_beside_ports(now, link, &burst, partial_allowed, stack);
        }
        let io = &mut stack.io;
        if io.hand_back.is_asked() {
            let requests = &mut io.requests;
            io.hand_back.keep(burst.iter(), partial_allowed, requests);
        }
        io.neighbours.end_frames();
        io.counters.in_frames += burst.len() as u64;
        io.links.release(index, burst);
        self.send_batches(stack);
    }

    /// Receives a burst while mux ports are open. Gives each frame to the mux port that has claimed
    /// the frame's destination. Afterwards, all other frames go the way of
    /// [`receive_frame`](Self::receive_frame). A reassembled packet therefore reaches its mux port
    /// after the unfragmented packets of the same burst.
    #[cold]
    #[inline(never)]
    fn receive_beside_ports<P: PacketIo>(
        &mut self,
        now: Instant,
        link: LinkId,
        burst: &P::Burst,
        partial_allowed: bool,
        stack: &mut Stack<P>,
    ) {
        let receptions = self.offer_to_ports(now, link, burst.iter(), partial_allowed, stack);
        for (frame, reception) in burst.iter().zip(&receptions) {
            if *reception == Reception::Unclaimed {
                self.receive_frame(now, link, frame, partial_allowed, stack);
            }
        }
        self.receptions = receptions;
    }

    /// Gives each frame from the wire to the mux port that has claimed the frame's destination.
    /// Answers the frames that the operator's rules refuse. Returns the outcome for each frame.
    fn offer_to_ports<'a, P: PacketIo>(
        &mut self,
        now: Instant,
        link: LinkId,
        frames: impl Iterator<Item = &'a [u8]> + Clone,
        partial_allowed: bool,
        stack: &mut Stack<P>,
    ) -> Vec<Reception> {
        let mut receptions = std::mem::take(&mut self.receptions);
        let (mux, io) = (&mut self.mux, &mut stack.io);
        mux.receive(now, frames.clone(), true, io, &mut receptions);
        for (frame, reception) in frames.zip(&receptions) {
            if *reception == Reception::Refused {
                tcp_input::answer_refused(stack, now, link, frame, partial_allowed);
            }
        }
        receptions
    }

    /// Receives up to `BATCHES_PER_STEP_MAX` batches of frames that other cores have handed over.
    /// Returns true if there was a batch.
    #[inline(never)]
    fn receive_handed_over<P: PacketIo>(&mut self, now: Instant, stack: &mut Stack<P>) -> bool {
        let mut any = false;
        for _ in 0..BATCHES_PER_STEP_MAX {
            let Some(next) = self.siblings.next() else {
                break;
            };
            for (frame, link) in next.0.frames() {
                // Send the answer through a NIC queue of this core.
                let link = if link == MUX_LINK { link } else { OWN_LINK };
                self.receive_frame(now, link, frame, next.0.partial_allowed(), stack);
            }
            let io = &mut stack.io;
            if io.hand_back.is_asked() {
                let frames = next.0.frames().map(|(frame, _)| frame);
                let partial_allowed = next.0.partial_allowed();
                io.hand_back.keep(frames, partial_allowed, &mut io.requests);
            }
            any = true;
            self.siblings.recycle(next);
        }
        stack.io.neighbours.end_frames();
        if any {
            // A packet that this core has reassembled may belong to a flow of another core.
            self.send_batches(stack);
        }
        any
    }

    /// Sends packets of mux ports, and publishes the packets that mux ports received in this step.
    /// Returns the result of [`PortMux::take_turns`].
    #[cold]
    #[inline(never)]
    fn serve_mux_ports<P: PacketIo>(&mut self, now: Instant, stack: &mut Stack<P>) -> bool {
        let worked = self.mux.take_turns(now, &mut stack.io);
        self.receive_from_mux_ports(now, stack);
        tcp_input::answer_refused_ports(stack, now);
        self.mux.flush(&mut stack.io);
        worked
    }

    /// Receives the packets that mux ports have sent to sockets of the service.
    fn receive_from_mux_ports<P: PacketIo>(&mut self, now: Instant, stack: &mut Stack<P>) {
        let Some(frames) = stack.io.links.mux_link().take(MuxQueue::ToEngine) else {
            return;
        };
        for frame in frames.iter() {
            self.receive_frame(now, MUX_LINK, frame, false, stack);
        }
        stack.io.neighbours.end_frames();
        let mux_link = stack.io.links.mux_link();
        mux_link.recycle(MuxQueue::ToEngine, frames);
        self.send_batches(stack);
    }

    /// Receives a frame that no mux port has claimed. Hands the frame over if its flow belongs to
    /// another core, and otherwise passes the frame to the engine or to the reassembly.
    #[inline(always)]
    fn receive_frame<P: PacketIo>(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
        stack: &mut Stack<P>,
    ) {
        if !self.siblings.is_alone() && self.siblings.takes(link, frame, partial_allowed) {
            return;
        }
        if let Err(reason) = tcp_input::receive(stack, now, link, frame, partial_allowed) {
            let taken = match reason {
                DropReason::Fragment => {
                    self.receive_fragment(now, link, frame, partial_allowed, stack)
                }
                other => Err(other),
            };
            stack.io.counters.count_drop(taken);
        }
    }

    /// Receives a frame with a fragment. One core reassembles all fragments of a packet, because
    /// the fragments may arrive on any queue. A NIC selects the queue of a fragment by the
    /// addresses, and a veth selects the queue by the sender's CPU.
    #[cold]
    #[inline(never)]
    fn receive_fragment<P: PacketIo>(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &[u8],
        partial_allowed: bool,
        stack: &mut Stack<P>,
    ) -> Result<(), DropReason> {
        let fragment = parse_fragment(frame)?;
        let packet_id = fragment.packet_id;
        if let Some(core) = self.siblings.elsewhere_in_fragments(packet_id.id) {
            self.siblings.hand_over(core, link, frame, partial_allowed);
            return Ok(());
        }
        if !stack.io.neighbours.routes().is_local(packet_id.dst) {
            return Err(DropReason::NotOurs);
        }
        stack.io.neighbours.routes().check_source(packet_id.src)?;
        let Some(whole) = self.fragments.push(now, &fragment)? else {
            return Ok(());
        };
        let frames = std::iter::once(whole.as_slice());
        let receptions = self.offer_to_ports(now, link, frames, partial_allowed, stack);
        let is_claimed = receptions != [Reception::Unclaimed];
        self.receptions = receptions;
        if is_claimed || self.siblings.takes(link, &whole, partial_allowed) {
            return Ok(());
        }
        tcp_input::receive_other(stack, now, link, &whole, partial_allowed)
    }

    /// Drops the incomplete packets whose time limit has passed.
    #[inline]
    pub(crate) fn expire_fragments<P: PacketIo>(&mut self, now: Instant, stack: &mut Stack<P>) {
        if self.fragments.are_due(now) {
            self.fragments.expire(now, &mut stack.io);
        }
    }

    /// Sends the batches of frames for other cores. Counts the frames that a busy or ended core
    /// does not take.
    #[inline]
    fn send_batches<P: PacketIo>(&mut self, stack: &mut Stack<P>) {
        if !self.siblings.is_alone() {
            stack.io.counters.drops[DropReason::CoreBusy.index()] += self.siblings.flush();
        }
    }

    /// Returns the number of received frames that this core handed over to other cores, including
    /// the frames that the other cores did not take.
    pub(crate) fn handed_over(&self) -> u64 {
        self.siblings.handed_over()
    }
}
