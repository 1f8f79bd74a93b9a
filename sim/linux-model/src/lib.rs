//! A model of Linux's TCP in bulk transfer.
//!
//! A [`Sender`] and a [`Receiver`] exchange abstract packets. The simulator runs the model as a
//! reference for Tidelane over the same simulated network.
//!
//! The model is written from RFC 9438 (CUBIC), RFC 8985 (RACK-TLP), RFC 6937 (PRR), RFC 5682
//! (F-RTO), RFC 2883 and RFC 3522 (undo), and RFC 6298 (RTO). The constants, HyStart, and the order
//! in which an ACK is processed come from public knowledge of Linux 6.x. The model has no clock and
//! no random numbers: each call that reports an event passes the time in microseconds. The
//! functions of the receiver return its ACKs, and [`Sender::take_segments`] returns the sender's
//! segments.
//!
//! A sequence number counts full segments and never wraps. The model reproduces the batching that
//! determines the number of ACKs and their times:
//!
//! - The sender forms super-frames (bursts that Linux passes to TSO as one packet) of at most half
//!   a congestion window. The last segment of a super-frame has PSH if the super-frame has several
//!   segments. The sender may defer a super-frame while less than a third of the window is free.
//! - GRO merges consecutive segments at the receiver.
//! - Segments go to the backlog of the socket while the program reads.
//! - The receiver compresses SACKs: after a few duplicate ACKs, one ACK covers several out-of-order
//!   arrivals.
//!
//! The model has *no* handshake (a flow begins with one round-trip sample), no CPU time (each read
//! of a program therefore ends with the batch that woke the program), no TSQ (TCP small queues), no
//! pacing (CUBIC has none without `fq`), no buffer management (the peer's window is a parameter),
//! no ECN, and no connection close.
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
