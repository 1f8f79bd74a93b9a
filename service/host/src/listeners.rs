//! Listeners, and the choice of the context that gets a new connection.
//!
//! A listener is one kernel socket's 3-tuple. Several programs may hold it (fork after listen), and
//! the contexts among them that wait for connections are its *members*: a program that holds the
//! socket but never accepts, like a supervising parent, gets none.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tidelane_engine::{FlowId, ListenerId};
use tidelane_wire::Endpoint;

use crate::{accounts::Charge, hash::FixedState, program::ProgramId, rules::Credentials};

/// A context that takes connections.
#[derive(Debug)]
pub struct Member {
    /// The holder.
    pub seat: Seat,
    /// Connections given to it and not taken yet.
    pub untaken: u32,
    /// Connections given to it in all; decides between equals.
    pub given: u64,
    /// Its user's place among the members.
    _place: Charge,
}

/// Where connections of a listener can go.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// Its program.
    pub program: ProgramId,
    /// Its number within the program.
    pub context: u32,
    /// The program's number for the listener.
    pub cookie: u64,
}

impl Member {
    /// The order of members: the least loaded one gets the next connection.
    pub fn load(&self) -> (u32, u64) {
        (self.untaken, self.given)
    }
}

/// A listening 3-tuple.
pub struct Listener {
    /// Number by which programs know the listener.
    pub number: u32,
    /// The kernel socket's cookie (SO_COOKIE).
    pub key: u64,
    /// Where it listens.
    pub local: Endpoint,
    /// Connections within the host are its own, too.
    pub within_host: bool,
    /// Whose the program was that listened first.
    pub owner: Arc<Credentials>,
    /// Programs that hold the socket.
    pub holders: Vec<ProgramId>,
    /// Contexts that take its connections.
    pub members: Vec<Member>,
    /// Established connections, oldest first, that no member was there for, or had room for.
    pub waiting: VecDeque<FlowId>,
}

impl Listener {
    /// The member to give the next connection to: the one with the fewest untaken ones.
    pub fn choose(&mut self) -> Option<&mut Member> {
        self.members.iter_mut().min_by_key(|member| member.load())
    }

    /// A context of a program that takes its connections.
    pub fn member(&mut self, program: ProgramId, context: u32) -> Option<&mut Member> {
        let is_it =
            |member: &&mut Member| member.seat.program == program && member.seat.context == context;
        self.members.iter_mut().find(is_it)
    }

    /// Adds a member, which is none yet, for whom its user paid with `place`.
    pub fn join(&mut self, seat: Seat, place: Charge) {
        self.members.push(Member {
            seat,
            untaken: 0,
            given: 0,
            _place: place,
        });
    }

    /// Removes a member. Returns how many connections it had not taken.
    pub fn leave(&mut self, program: ProgramId, context: u32) -> u32 {
        self.remove_members(|member| {
            member.seat.program == program && member.seat.context == context
        })
    }

    /// Removes a program. Whether it was the last that held the socket, and how many connections
    /// it had not taken.
    pub fn drop_holder(&mut self, program: ProgramId) -> (bool, u32) {
        let untaken = self.remove_members(|member| member.seat.program == program);
        self.holders.retain(|held| *held != program);
        (self.holders.is_empty(), untaken)
    }

    fn remove_members(&mut self, of: impl Fn(&Member) -> bool) -> u32 {
        let untaken = self
            .members
            .iter()
            .filter(|member| of(member))
            .map(|member| member.untaken);
        let untaken = untaken.sum();
        self.members.retain(|member| !of(member));
        untaken
    }

    /// `program` took `count` connections, through whichever context. Returns how many of them
    /// were outstanding.
    pub fn taken(&mut self, program: ProgramId, count: u32) -> u32 {
        let mut left = count;
        for member in self
            .members
            .iter_mut()
            .filter(|member| member.seat.program == program)
        {
            let taken = left.min(member.untaken);
            member.untaken -= taken;
            left -= taken;
        }
        count - left
    }
}

/// All listeners, by the engine's number.
#[derive(Default)]
pub struct Listeners {
    entries: Vec<Option<Listener>>,
    by_number: HashMap<u32, ListenerId, FixedState>,
}

impl Listeners {
    /// The listener `id`.
    pub fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.entries.get(id.index())?.as_ref()
    }

    /// The listener `id`.
    pub fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.entries.get_mut(id.index())?.as_mut()
    }

    /// The listener of the kernel socket `key`.
    pub fn find(&self, key: u64) -> Option<ListenerId> {
        let of_key = |entry: &Option<Listener>| entry.as_ref().is_some_and(|l| l.key == key);
        self.entries
            .iter()
            .position(of_key)
            .map(|index| ListenerId(index as u32))
    }

    /// The listener that programs call `number`.
    pub fn numbered(&self, number: u32) -> Option<ListenerId> {
        self.by_number.get(&number).copied()
    }

    /// Adds a listener under the engine's number.
    pub fn insert(&mut self, id: ListenerId, listener: Listener) {
        self.by_number.insert(listener.number, id);
        if self.entries.len() <= id.index() {
            self.entries.resize_with(id.index() + 1, || None);
        }
        self.entries[id.index()] = Some(listener);
    }

    /// Removes a listener.
    pub fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.entries.get_mut(id.index())?.take()?;
        self.by_number.remove(&listener.number);
        Some(listener)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (ListenerId, &Listener)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| Some((ListenerId(index as u32), entry.as_ref()?)))
    }

    /// Listeners that have members, and connections that wait for one.
    pub fn with_waiting(&self) -> Vec<ListenerId> {
        self.iter()
            .filter(|(_, l)| !l.waiting.is_empty() && !l.members.is_empty())
            .map(|(id, _)| id)
            .collect()
    }

    /// The connection of `id` that has waited longest.
    pub fn first_waiting(&self, id: ListenerId) -> Option<FlowId> {
        self.get(id)?.waiting.front().copied()
    }

    /// The listeners that `program` holds.
    pub fn held_by(&self, program: ProgramId) -> Vec<ListenerId> {
        self.iter()
            .filter(|(_, l)| l.holders.contains(&program))
            .map(|(id, _)| id)
            .collect()
    }
}
