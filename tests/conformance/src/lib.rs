//! Runs packet scripts (socket calls and packets, with their times) in packetdrill's notation. The
//! scripts test three TCP stacks: Tidelane's engine, Tidelane's embedded stack (a library that a
//! program links), and the Linux kernel.
//!
//! [`parse`] parses the text of a script to a [`Script`](ast::Script). [`run`] executes the events
//! of the script on a [`Stack`](stack::Stack). The stacks are the [`engine`], the [`embedded`]
//! stack and the [`kernel`]. `docs/design/conformance.md` describes the notation and the stacks.

pub mod ast;
pub mod call_result;
pub mod calls;
pub mod embedded;
pub mod engine;
pub mod exceptions;
pub mod flows;
pub mod ip;
pub mod kernel;
pub mod parse;
pub mod release;
pub mod run;
pub mod sockets;
pub mod stack;
pub mod suite;
pub mod tcp_info;
pub mod terms;
pub mod virtual_time;
pub mod wire;
