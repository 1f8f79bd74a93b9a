//! Packet scripts in packetdrill's notation, run against Tidelane's engine and the Linux kernel.
//!
//! `docs/design/conformance.md` says how a script is written and what the two stacks have in
//! common. A text becomes a [`Script`](ast::Script) in [`parse`]; [`run`] takes it event by event
//! to a [`Stack`](stack::Stack), of which there are two.

pub mod ast;
pub mod calls;
pub mod engine;
pub mod flows;
pub mod ip;
pub mod kernel;
pub mod parse;
pub mod release;
pub mod run;
pub mod stack;
pub mod suite;
pub mod tcp_info;
pub mod terms;
pub mod wire;
