//! A model of Linux's TCP in bulk transfer: a [`Sender`] and a [`Receiver`] that exchange abstract
//! packets, as a reference for Tidelane over the same simulated network.
//!
//! The model is written from RFC 9438 (CUBIC), 8985 (RACK-TLP), 6937 (PRR), 5682 (F-RTO), 2883 and
//! 3522 (undo), 6298, and from public knowledge of Linux 6.x: its constants, HyStart, and the order
//! in which an ACK is processed. All functions depend only on their arguments. Time is an argument
//! in microseconds; packets are return values, or are taken by [`Sender::take_segments`].
//!
//! A sequence number is the number of a full segment and never wraps. Batching is modelled by its
//! effects on ACKs: super-frames of at most half a window, with PSH at their end, deferred while
//! less than a third of the window is free; runs that GRO merges; the backlog of a socket whose
//! program reads; compressed SACKs. The model has *no* handshake (a flow begins with one round-trip
//! sample), no CPU time (a program therefore reads only while a batch arrives), no TSQ, no pacing
//! (CUBIC has none without `fq`), no buffer management (the window is given), no ECN, and no
//! connection close.
#![forbid(unsafe_code)]

mod cubic;
mod hystart;
mod packet;
mod rack;
mod receiver;
mod rtt;
mod scoreboard;
mod sender;
mod ticks;

pub use crate::{
    packet::{Ack, BLOCKS_MAX, Data},
    receiver::Receiver,
    sender::{Counters, Sender, Settings},
};
