//! Attacks through a region, the memory that a registered program shares with the service
//! (`tidelaned`). The program meanwhile uses connections, so that the service reads and writes the
//! region.

use std::{thread, time::Instant};

use super::{Counts, Options, PAUSE};
use crate::{
    Target,
    protocol::Failure,
    region::Program,
    rings::{Connection, Event, Rings},
};

/// Number of connections that a program opens.
const CONNECTIONS: u32 = 8;
/// Number of bytes at the start of each attacked part of the region. `holes` frees these bytes with
/// one hole. Each write of `scribbling` begins in the first sixteenth of these bytes.
const PART_LEN: u64 = 1 << 20;
/// Size of a page, in bytes.
const PAGE: u64 = 4096;

/// The attack `holes`: while the service uses the region, punches holes at the start of the region,
/// of the receive buffers and of the send buffers. A hole frees pages, which then read as zero.
pub fn holes(target: &Target, options: &Options, until: Instant) -> Counts {
    misuse(target, options, until, |program, _, _| {
        let layout = program.region.layout();
        let parts = [0, layout.rx_area().start, layout.tx_area().start];
        for part in parts {
            program.region.punch_hole(part, PART_LEN)?;
        }
        // Also punch the first 64 pages of the receive buffers one by one, so that the service can
        // touch pages between two calls.
        for page in 0..64 {
            program
                .region
                .punch_hole(layout.rx_area().start + page * PAGE, PAGE)?;
        }
        Ok(())
    })
}

/// The attack `scribbling`: writes random values to random places. Each place is near the start of
/// the region, of the slots (the records of connections), of the receive buffers, or of the send
/// buffers.
pub fn scribbling(target: &Target, options: &Options, until: Instant) -> Counts {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    misuse(target, options, until, move |program, rings, turn| {
        let layout = program.region.layout();
        let slots = layout.slot_offset(0).unwrap_or(0);
        let parts = [0, slots, layout.rx_area().start, layout.tx_area().start];
        for _ in 0..64 {
            // Marsaglia's xorshift64.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let part = parts[(state % 4) as usize];
            let offset = (state >> 8) % (PART_LEN / 64) * 4;
            program.region.copy_in(part + offset, &state.to_le_bytes());
        }
        // If no event arrives after 200 turns, the writes have probably spoilt the ring indices.
        // Only a new registration has valid indices.
        let spoilt = turn > 200 && rings.events().is_empty();
        if spoilt { Err(Failure::HungUp) } else { Ok(()) }
    })
}

/// Registers a program, opens connections, and calls `act` between transfers of data until the
/// deadline `until`. Begins again with a new program when `act` returns [`Failure::HungUp`]. The
/// last argument of `act` is the number of earlier calls with this program.
fn misuse(
    target: &Target,
    options: &Options,
    until: Instant,
    mut act: impl FnMut(&Program, &mut Rings, u32) -> Result<(), Failure>,
) -> Counts {
    let mut counts = Counts::default();
    while Instant::now() < until {
        let opened = Program::register(target, "misuse").and_then(|program| {
            let rings = program.context(0)?;
            Ok((program, rings))
        });
        counts.count(&opened);
        let Ok((program, mut rings)) = opened else {
            thread::sleep(PAUSE);
            continue;
        };
        for _ in 0..CONNECTIONS {
            let server = options.connect;
            rings.connect(server.ip().to_ipv6_mapped().octets(), server.port(), 0);
        }
        let mut connections: Vec<Connection> = Vec::new();
        for turn in 0.. {
            carry(&program, &mut rings, &mut connections);
            let acted = act(&program, &mut rings, turn);
            counts.count(&acted);
            let over = matches!(acted, Err(Failure::HungUp));
            if over || Instant::now() >= until {
                break;
            }
        }
    }
    counts
}

/// Sends data on each new connection, adds the new connections to `connections`, and marks the data
/// that arrived on all connections as read.
fn carry(program: &Program, rings: &mut Rings, connections: &mut Vec<Connection>) {
    for event in rings.events() {
        if let Event::Started(connection) = event {
            connections.push(connection);
            rings.send(connection, 0, &[0x41; 4096]);
        }
    }
    for connection in connections.iter() {
        rings.read_all(*connection);
    }
    program.ring_cores();
}
