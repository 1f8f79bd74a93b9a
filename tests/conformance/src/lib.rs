//! Packet scripts in packetdrill's notation, run against Tidelane's engine and the Linux kernel.
//!
//! `docs/design/conformance.md` describes the notation and the two stacks. [`parse`] turns a text
//! into a [`Script`](ast::Script). [`run`] executes its events on a [`Stack`](stack::Stack), of
//! which there are two.

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
