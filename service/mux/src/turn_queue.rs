//! The order in which the mux ports have their turns. A mux port is a pair of packet rings through
//! which a program with a TCP/IP stack of its own shares the NIC. A *turn* is one burst of frames
//! that the mux takes from a mux port.

use std::{collections::VecDeque, sync::Arc};

use tidelane_time::Instant;

use crate::{
    claims::PortId, port::Port, port_end::PortEnd, port_table::PortTable, ready::ReadySet,
    turn::Turn, waiting::Waiting,
};

/// Largest number of mux ports that one step ([`TurnQueue::begin_step`]) polls for new frames.
const POLLS_MAX: usize = 32;

/// The mux ports with packets, and the ports that wait for their rate or for the NIC.
pub struct TurnQueue {
    /// Mux ports whose doorbells have rung. A program rings the doorbell of its mux port after it
    /// has sent frames.
    pub ready: Arc<ReadySet>,
    /// Mux ports that were taken from `ready` and are not in the queue yet.
    rung: Vec<PortId>,
    /// Mux ports that wait for a turn, next first.
    turns: VecDeque<PortId>,
    /// A turn in which a packet waits for room in the NIC. All other turns wait behind the paused
    /// turn, because a full NIC would lose the packets that the mux takes from the mux ports.
    paused: Option<Turn>,
    /// Mux ports that wait until their rate lets them send.
    waiting: Waiting,
}

impl TurnQueue {
    /// Makes an empty queue for at most `ports_max` mux ports.
    pub fn new(ports_max: usize) -> Self {
        Self {
            ready: Arc::new(ReadySet::new(ports_max)),
            rung: Vec::new(),
            turns: VecDeque::new(),
            paused: None,
            waiting: Waiting::default(),
        }
    }

    /// Returns the number of mux ports in the queue for a turn.
    #[inline]
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Returns true if no mux port is in the queue for a turn, and no turn is paused.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.paused.is_none()
    }

    /// Returns the earliest time at which a mux port's wait for its rate ends. Returns `None` if no
    /// mux port waits for its rate, or if all these waits are endless.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.waiting.next_due()
    }

    /// Queues the mux ports whose wait for their rate ends by `now`, and then mux ports with
    /// packets. If the mux polls the ports ([`PortEnd::POLLED`]), the function looks for packets at
    /// the next `POLLS_MAX` ports only. Otherwise, it queues the ports whose doorbells have rung.
    #[inline]
    pub fn begin_step<P: PortEnd>(&mut self, now: Instant, table: &mut PortTable<P>) {
        if !self.waiting.is_empty() {
            self.end_waits(now, table);
        }
        if !P::POLLED {
            self.ready.drain_to(&mut self.rung);
            while let Some(port) = self.rung.pop() {
                self.add(table, port);
            }
            return;
        }
        for _ in 0..table.len().min(POLLS_MAX) {
            let Some(id) = table.next_to_poll() else {
                break;
            };
            if table.get(id).is_some_and(Port::is_ready) {
                self.add(table, id);
            }
        }
    }

    /// Queues the mux ports whose wait for their rate ends by `now`.
    #[cold]
    fn end_waits<P: PortEnd>(&mut self, now: Instant, table: &mut PortTable<P>) {
        while let Some(id) = self.waiting.pop(now) {
            if let Some(port) = table.get_mut(id) {
                port.waits_until = None;
            }
            self.add(table, id);
        }
    }

    /// Appends a mux port to the queue for a turn. Does nothing if the port is already in the
    /// queue, or if the port waits for its rate.
    #[inline]
    pub fn add<P: PortEnd>(&mut self, table: &mut PortTable<P>, id: PortId) {
        let Some(port) = table.get_mut(id) else {
            return;
        };
        if !port.in_turns && port.waits_until.is_none() {
            port.in_turns = true;
            self.turns.push_back(id);
        }
    }

    /// Takes the mux port that has the next turn. Returns `None` if no port is in the queue, or
    /// while a turn is paused.
    #[inline]
    pub fn pop(&mut self) -> Option<PortId> {
        match self.paused {
            None => self.turns.pop_front(),
            Some(_) => None,
        }
    }

    /// Returns the mux port at the front of the queue. The port stays in the queue.
    #[inline]
    pub fn next(&self) -> Option<PortId> {
        self.turns.front().copied()
    }

    /// Pauses a turn. All other turns wait behind the paused turn.
    pub fn pause(&mut self, turn: Turn) {
        self.paused = Some(turn);
    }

    /// Takes the paused turn.
    #[inline]
    pub fn resume(&mut self) -> Option<Turn> {
        self.paused.take()
    }

    /// Returns true if a turn of the mux port `id` is paused.
    pub fn is_paused(&self, id: PortId) -> bool {
        self.paused.is_some_and(|turn| turn.port == id)
    }

    /// Adds a mux port that waits for its rate until `due`.
    pub fn add_wait(&mut self, due: Instant, id: PortId) {
        self.waiting.add(due, id);
    }

    /// Ends a mux port's wait for its rate, and queues the port for a turn. Does nothing if the
    /// port does not wait.
    pub fn end_wait<P: PortEnd>(&mut self, table: &mut PortTable<P>, id: PortId) {
        let due = table.get_mut(id).and_then(|port| port.waits_until.take());
        if let Some(due) = due {
            self.waiting.remove(due, id);
            self.add(table, id);
        }
    }

    /// Removes a closed mux port from the queues, and drops the paused turn of the port. Returns
    /// true if the port had a paused turn.
    pub fn remove<P>(&mut self, id: PortId, closed: &Port<P>) -> bool {
        self.turns.retain(|turn| *turn != id);
        if let Some(due) = closed.waits_until {
            self.waiting.remove(due, id);
        }
        self.paused.take_if(|turn| turn.port == id).is_some()
    }
}
