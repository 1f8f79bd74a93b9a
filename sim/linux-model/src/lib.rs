//! What Linux' TCP does with a bulk transfer, as a model: a [`Sender`] and a [`Receiver`] that
//! exchange abstract packets, to be compared with Tidelane over the same simulated network.
//!
//! Written from RFC 9438 (CUBIC), 8985 (RACK-TLP), 6937 (PRR), 5682 (F-RTO), 2883 and 3522 (undo),
//! 6298, and from what is publicly known of Linux 6.x: its constants, HyStart, and the order in
//! which an acknowledgment is processed. Everything is a function of its arguments: time comes in
//! as microseconds, packets come out by [`Sender::take`] and as return values.
//!
//! A sequence number here is that of a full segment, and never wraps. What is *not* modelled: the
//! handshake (a flow begins with one sample of the round trip), batches (GRO, GSO, TSQ), pacing
//! (CUBIC has none without `fq`), buffers (the window is given), compressed acknowledgments (so
//! the model hears of losses a twentieth of a round trip sooner than Linux), ECN, and the end.
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
