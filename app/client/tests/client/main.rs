//! Tests of the client with a fake service: over memory, and over the registration socket.

mod contexts;
mod cores;
mod fake_service;
mod in_place;
mod session;
mod streams;
