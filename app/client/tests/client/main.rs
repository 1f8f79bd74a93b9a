//! The client against a service made for the test: over memory, and over the registration socket.

mod contexts;
mod cores;
mod fake_service;
mod session;
mod streams;
