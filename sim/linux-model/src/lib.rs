//! What Linux' TCP does with a bulk transfer, as a model: a [`Sender`] and a [`Receiver`] that
//! exchange abstract packets, to be compared with Tidelane over the same simulated network.
//!
//! Written from RFC 9438 (CUBIC), 8985 (RACK-TLP), 6937 (PRR), 5682 (F-RTO), 2883 and 3522 (undo),
//! 6298, and from what is publicly known of Linux 6.x: its constants, HyStart, and the order in
//! which an acknowledgment is processed. Everything is a function of its arguments: time comes in
//! as microseconds, packets come out by [`Sender::take`] and as return values.
//!
//! A sequence number here is that of a full segment, and never wraps. Batches are modelled by what
//! they do to acknowledgments: super-frames of at most half a window, with PSH at their end and put
//! off while less than a third of it is free; runs that GRO makes one of; the backlog of a socket
//! whose program reads; compressed reports. What is *not* modelled: the handshake (a flow begins
//! with one sample of the round trip), time that a CPU takes (so a program reads only while a batch
//! comes), TSQ, pacing (CUBIC has none without `fq`), buffers (the window is given), ECN, and the
//! end.
#![forbid(unsafe_code)]

mod board;
mod cubic;
mod hystart;
mod packet;
mod rack;
mod receiver;
mod rtt;
mod sender;
mod ticks;

pub use crate::{
    packet::{Ack, BLOCKS_MAX, Data},
    receiver::Receiver,
    sender::{Counters, Sender, Settings},
};
