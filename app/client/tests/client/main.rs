//! Tests of the client library (`tidelane-client`) with a fake service. The tests in `session`
//! connect to a fake service over a registration socket. The other tests only share memory with a
//! fake service.

mod contexts;
mod cores;
mod fake_service;
mod in_place;
mod session;
mod streams;
