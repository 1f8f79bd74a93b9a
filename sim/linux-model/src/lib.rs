//! A model of Linux's TCP in bulk transfer.
//!
//! A [`Sender`] and a [`Receiver`] exchange abstract packets. The simulator runs the model as a
//! reference for Tidelane over the same simulated network.
//!
//! The model is written from RFC 9438 (CUBIC), 8985 (RACK-TLP), 6937 (PRR), 5682 (F-RTO), 2883 and
//! 3522 (undo) and 6298 (RTO), and from public knowledge of Linux 6.x: its constants, HyStart, and
//! the order in which an ACK is processed. The model has no clock and no random numbers: each call
//! passes the time in microseconds. The functions of the receiver return its ACKs, and
//! [`Sender::take_segments`] returns the sender's segments.
//!
//! A sequence number counts full segments and never wraps. The model reproduces the effects of
//! batching on ACKs:
//!
//! - The sender forms super-frames (bursts that Linux passes to TSO as one packet) of at most half
//!   a congestion window. The last segment of a super-frame has PSH if the super-frame has several
//!   segments. The sender may defer a super-frame while less than a third of the window is free.
//! - GRO merges consecutive segments at the receiver.
//! - Segments go to the backlog of the socket while the program reads.
//! - The receiver compresses SACKs.
//!
//! The model has *no* handshake (a flow begins with one round-trip sample), no CPU time (each
//! read of a program therefore ends with the batch that woke the program), no TSQ, no pacing (CUBIC
//! has none without `fq`), no buffer management (the window is given), no ECN, and no connection
//! close.
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
