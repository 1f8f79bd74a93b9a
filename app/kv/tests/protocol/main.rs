//! The protocol, without a network and in virtual time.

#[path = "../differential/commands.rs"]
mod commands;
mod conversation;
mod hostile;
mod memory;
mod splits;
mod times;
