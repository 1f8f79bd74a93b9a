//! Listeners, and the choice of the context that gets a new connection. A *context* is the set of
//! rings of one thread of a program.
//!
//! A listener is the 3-tuple (protocol, address, port) of one listening kernel socket. Several
//! programs may hold the socket (fork after listen). Each context that accepts connections of the
//! listener is a *member* of the listener. A program that holds the socket but never accepts, for
//! example a supervising parent, has no members.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tidelane_engine::{FlowId, ListenerId};
use tidelane_wire::Endpoint;

use crate::{
    accounts::{Account, Charge, Resource},
    credentials::Credentials,
    hash::FixedState,
    ids::{ListenerOfFlow, ProgramId},
    program::Programs,
};

/// A context that accepts connections of a listener.
#[derive(Debug)]
pub struct Member {
    /// The context, with its program.
    pub acceptor: Acceptor,
    /// Number of connections that the host assigned to the member and that the program has not
    /// accepted yet.
    pub untaken: u32,
    /// Number of all connections that the host assigned to the member. The number decides between
    /// members with equal `untaken`.
    pub given: u64,
    /// The charge to the program's user for the membership.
    _place: Charge,
}

/// The identity of a context that can get connections of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Acceptor {
    /// The program.
    pub program: ProgramId,
    /// Number of the context within the program.
    pub context: u32,
    /// Cookie of the program for the listener. Events return the cookie to the program.
    pub cookie: u64,
}

impl Member {
    /// Returns the sort key of a member. The member with the smallest key gets the next connection.
    pub fn load(&self) -> (u32, u64) {
        (self.untaken, self.given)
    }
}

/// A listening address and port, with the programs that accept connections there.
pub struct Listener {
    /// Number that programs use for the listener.
    pub number: u32,
    /// The kernel socket's cookie (SO_COOKIE).
    pub key: u64,
    /// Listening address and port.
    pub local: Endpoint,
    /// True if the listener also gets connections within the host (loopback and addresses of other
    /// interfaces).
    pub within_host: bool,
    /// Credentials of the first program that listened on the socket.
    pub owner: Arc<Credentials>,
    /// Programs that hold the socket.
    pub holders: Vec<ProgramId>,
    /// Contexts that accept the listener's connections.
    pub members: Vec<Member>,
    /// Established connections that wait for a member, oldest first: the part of the accept queue
    /// that the host has not assigned yet.
    pub waiting: VecDeque<FlowId>,
}

impl Listener {
    /// Returns the member for the next connection: the member with the smallest [`Member::load`].
    pub fn choose(&mut self) -> Option<&mut Member> {
        self.members.iter_mut().min_by_key(|member| member.load())
    }

    /// Returns the member of a program and context.
    pub fn member(&mut self, program: ProgramId, context: u32) -> Option<&mut Member> {
        let is_it = |member: &&mut Member| {
            member.acceptor.program == program && member.acceptor.context == context
        };
        self.members.iter_mut().find(is_it)
    }

    /// Adds a new member. `place` is the charge to the user of the member's program.
    pub fn join(&mut self, acceptor: Acceptor, place: Charge) {
        self.members.push(Member {
            acceptor,
            untaken: 0,
            given: 0,
            _place: place,
        });
    }

    /// Records that `program` holds the socket. `within_host` is true if the program wants the
    /// connections within the host, too.
    pub fn hold(&mut self, program: ProgramId, within_host: bool) {
        self.within_host |= within_host;
        if !self.holders.contains(&program) {
            self.holders.push(program);
        }
    }

    /// Makes a context a member, and charges the program's user for the membership. Changes nothing
    /// if the context is a member already. Returns `None` if the program does not hold the
    /// listener, or if the user has reached a limit.
    fn admit(&mut self, acceptor: Acceptor, programs: &Programs) -> Option<()> {
        let Acceptor {
            program, context, ..
        } = acceptor;
        let account = &programs.get(program)?.account;
        if !self.holders.contains(&program) {
            return None;
        }
        if self.member(program, context).is_none() {
            let place = account.charge(Resource::Holds, 1).ok()?;
            self.join(acceptor, place);
        }
        Some(())
    }

    /// Removes a member. Returns the number of assigned connections that the program had not
    /// accepted.
    pub fn leave(&mut self, program: ProgramId, context: u32) -> u32 {
        self.remove_members(|member| {
            member.acceptor.program == program && member.acceptor.context == context
        })
    }

    /// Removes a program. The boolean of the result is true if no other program holds the socket.
    /// The number counts the assigned connections that the program had not accepted.
    pub fn drop_holder(&mut self, program: ProgramId) -> (bool, u32) {
        let untaken = self.remove_members(|member| member.acceptor.program == program);
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

    /// Records that `program` accepted `count` connections through any of its contexts. Counts at
    /// most the connections that the host had assigned to the program, because the program may
    /// report any number. Returns the number of counted connections.
    pub fn taken(&mut self, program: ProgramId, count: u32) -> u32 {
        let mut left = count;
        for member in self
            .members
            .iter_mut()
            .filter(|member| member.acceptor.program == program)
        {
            let taken = left.min(member.untaken);
            member.untaken -= taken;
            left -= taken;
        }
        count - left
    }
}

/// All listeners of a host.
#[derive(Default)]
pub struct Listeners {
    /// Listeners that are not suspended, by the engine's [`ListenerId`].
    entries: Vec<Option<Listener>>,
    /// Suspended listeners, by the number that programs use. The kernel socket of a suspended
    /// listener was shut down, or has moved to another port. The engine has no suspended listener.
    suspended: HashMap<u32, Listener, FixedState>,
    /// Ids of the listeners that are not suspended, by the number that programs use.
    by_number: HashMap<u32, ListenerId, FixedState>,
    /// True if an accept queue has connections that wait only for room in a context or a program.
    has_unassigned: bool,
    /// True if there may be room for connections that wait for room (see `has_unassigned`).
    has_room: bool,
}

impl Listeners {
    /// Returns the listener `id`.
    pub fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.entries.get(id.index())?.as_ref()
    }

    /// Returns the listener `id`.
    pub fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.entries.get_mut(id.index())?.as_mut()
    }

    /// Returns the account of the first program that holds listener `id`.
    pub fn account<'p>(&self, id: ListenerId, programs: &'p Programs) -> Option<&'p Arc<Account>> {
        let holder = self.get(id)?.holders.first()?;
        Some(&programs.get(*holder)?.account)
    }

    /// Returns the length in bytes of the longest receive buffer that every program with the
    /// listener could allocate. Returns `u32::MAX` if no program has the listener.
    pub fn longest_buffer(&self, id: Option<ListenerId>, programs: &Programs) -> u32 {
        let listener = id.and_then(|id| self.get(id));
        let holders = listener.map_or(&[][..], |listener| &listener.holders);
        let programs = holders.iter().filter_map(|id| programs.get(*id));
        let lengths = programs.map(|program| program.rx.longest());
        lengths.min().unwrap_or(u32::MAX)
    }

    /// Returns the value by which connections refer to the listener `id`.
    pub fn reference(&self, id: ListenerId) -> Option<ListenerOfFlow> {
        let number = self.get(id)?.number;
        Some(ListenerOfFlow { id, number })
    }

    /// Returns the id of a connection's listener. Returns `None` if the listener has ended.
    pub fn id_of(&self, listener: ListenerOfFlow) -> Option<ListenerId> {
        let current = self.get(listener.id)?;
        (current.number == listener.number).then_some(listener.id)
    }

    /// Returns the listener of the kernel socket with cookie `key`. Returns `None` if no listener
    /// has this cookie, or if the listener is suspended.
    pub fn find(&self, key: u64) -> Option<ListenerId> {
        let of_key = |entry: &Option<Listener>| entry.as_ref().is_some_and(|l| l.key == key);
        self.entries
            .iter()
            .position(of_key)
            .map(|index| ListenerId(index as u32))
    }

    /// Returns the listener for which programs use `number`. Returns `None` if no listener has this
    /// number, or if the listener is suspended.
    pub fn numbered_mut(&mut self, number: u32) -> Option<(ListenerId, &mut Listener)> {
        let id = *self.by_number.get(&number)?;
        Some((id, self.get_mut(id)?))
    }

    /// Makes a context a member of the listener with this number, and charges the program's user
    /// for the membership. Returns the listener, and the connections that waited for a member.
    /// Returns `None` if the listener does not exist, or if the context cannot become a member. For
    /// a suspended listener, the context becomes a member, but the result is `None`.
    pub fn join(
        &mut self,
        number: u32,
        acceptor: Acceptor,
        programs: &Programs,
    ) -> Option<(ListenerId, VecDeque<FlowId>)> {
        let Some(id) = self.by_number.get(&number).copied() else {
            self.suspended_mut(number)?.admit(acceptor, programs)?;
            return None;
        };
        let listener = self.get_mut(id)?;
        listener.admit(acceptor, programs)?;
        Some((id, std::mem::take(&mut listener.waiting)))
    }

    /// Returns the suspended listener for which programs use `number`.
    pub fn suspended_mut(&mut self, number: u32) -> Option<&mut Listener> {
        self.suspended.get_mut(&number)
    }

    /// Suspends listener `id`. Returns the connections that waited for a member.
    pub fn suspend(&mut self, id: ListenerId) -> VecDeque<FlowId> {
        let Some(mut listener) = self.remove(id) else {
            return VecDeque::new();
        };
        // The caller ends the engine's accept queue, which counts the untaken connections.
        for member in &mut listener.members {
            member.untaken = 0;
        }
        let waiting = std::mem::take(&mut listener.waiting);
        self.suspended.insert(listener.number, listener);
        waiting
    }

    /// Takes the suspended listener of the kernel socket with cookie `key`.
    pub fn take_suspended(&mut self, key: u64) -> Option<Listener> {
        let mut suspended = self.suspended.values();
        let number = suspended.find(|listener| listener.key == key)?.number;
        self.suspended.remove(&number)
    }

    /// Releases a program's holds of the suspended listeners for which `is_released` returns true.
    /// A listener ends with its last holder.
    pub fn drop_suspended_holder(
        &mut self,
        program: ProgramId,
        is_released: impl Fn(&Listener) -> bool,
    ) {
        self.suspended
            .retain(|_, listener| !(is_released(listener) && listener.drop_holder(program).0));
    }

    /// Adds a listener with the engine's number `id`.
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

    /// Returns all listeners that are not suspended.
    pub fn iter(&self) -> impl Iterator<Item = (ListenerId, &Listener)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| Some((ListenerId(index as u32), entry.as_ref()?)))
    }

    /// Appends a connection to the accept queue of `id`.
    pub fn push_waiting(&mut self, id: ListenerId, flow: FlowId) {
        if let Some(listener) = self.get_mut(id) {
            listener.waiting.push_back(flow);
            let has_members = !listener.members.is_empty();
            self.has_unassigned |= has_members;
        }
    }

    /// Records that connections wait for room in a context or a program.
    pub fn note_unassigned(&mut self) {
        self.has_unassigned = true;
    }

    /// Returns true if connections wait for room in a context or a program.
    pub fn has_unassigned(&self) -> bool {
        self.has_unassigned
    }

    /// Records that a program has a free slot or memory, which a waiting connection may need.
    pub fn note_room(&mut self) {
        self.has_room |= self.has_unassigned;
    }

    /// Returns true if the host has to try without delay to assign the waiting connections.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.has_room
    }

    /// Returns the listeners that have both members and connections that are not assigned to a
    /// member. The caller tries to assign these connections, and then
    /// [records](Self::note_unassigned) the failures.
    pub fn take_unassigned(&mut self) -> Vec<ListenerId> {
        (self.has_unassigned, self.has_room) = (false, false);
        self.iter()
            .filter(|(_, l)| !l.waiting.is_empty() && !l.members.is_empty())
            .map(|(id, _)| id)
            .collect()
    }

    /// Returns the connection of `id` that has waited longest for a member.
    pub fn first_waiting(&self, id: ListenerId) -> Option<FlowId> {
        self.get(id)?.waiting.front().copied()
    }

    /// Returns the listeners that `program` holds and that are not suspended.
    pub fn held_by(&self, program: ProgramId) -> Vec<ListenerId> {
        self.iter()
            .filter(|(_, l)| l.holders.contains(&program))
            .map(|(id, _)| id)
            .collect()
    }
}
