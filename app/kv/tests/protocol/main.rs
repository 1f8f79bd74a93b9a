//! Tests of the protocol on a store in the test's memory, without a network and in virtual time.

#[path = "../differential/commands.rs"]
mod commands;
mod conversation;
mod hostile;
mod memory;
mod splits;
mod times;
