//! Hosts without a service around them: frames and programs made by hand, in virtual time.

mod acceptor;
mod frames;
mod rig;
mod stage;

mod accept;
mod addresses;
mod cores;
mod fragments;
mod give_back;
mod late_resets;
mod strangers;
