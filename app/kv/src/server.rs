//! [`Server`]: serves all clients of one context of the ring API (the sockets of one thread).
//!
//! A cycle receives commands, executes the commands and queues the answers, which the next cycle
//! sends. The work for one client per cycle, its *turn*, is limited, so that one client cannot
//! delay the others. The server stops receiving from a client that does not read its answers. If
//! memory that clients hold becomes scarce, the server resets the client that has had no event for
//! the longest time.
//!
//! The server does not see how many buffers the context has queued for a client. The program
//! therefore limits the context's queues by [`Server::send_queue_max`], so that all clients
//! together leave a part of the pool free.

use std::{collections::VecDeque, io, mem, time::Duration};

use tidelane_rings::{Context, Descriptor, Events, Pool, ReadyList, Wait};

use crate::{
    client::{Client, Shared, Stop},
    kv::Kv,
    lingering::Lingering,
};

/// Limit of the unused input (received bytes that no session has consumed) of all clients, in
/// multiples of the memory of the context's buffer pool. After the server has paused a client (has
/// stopped receiving from it), the present and the next event list may still have data of this
/// client. On the io-uring back end, each list has at most half of the buffers of the pool, so one
/// client alone may have as much unused input as the pool has memory.
const INPUT_POOLS_MAX: usize = 2;
/// Largest useful limit of the buffers that a context queues for a connection.
const SEND_QUEUE_MAX: u64 = 64;
/// Divisor of the number of buffers in the pool. The server reserves the quotient for received
/// data.
const RESERVED_PART: u32 = 16;
/// Limit of the clients that the server resets in one cycle.
const EVICTIONS_MAX: u32 = 16;
/// Time without an event after which the server may reset a client that holds scarce memory. The
/// server does not wait for this time if the unused input exceeds its limit. The server also resets
/// clients without this wait if the store will soon refuse values, because unfinished uploads and
/// pinned items (items whose values are being sent) fill too much of the store.
const STALL_MIN: Duration = Duration::from_millis(200);
/// Limit of a wait while a client needs a free buffer.
const BUFFER_WAIT: Duration = Duration::from_millis(1);
/// Number of buckets of the store that a cycle sweeps for expired items.
const SWEEP_BUCKETS: usize = 64;
/// Answer to a connection beyond the limit of connections.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// A server with its store and its clients.
pub struct Server {
    kv: Kv,
    pool: Pool,
    /// The clients, indexed by descriptor.
    clients: Vec<Option<Client>>,
    /// Clients that continue in the next cycle without an event.
    waiting: VecDeque<Descriptor>,
    /// True if a client has used up its turn and has more commands.
    has_turns: bool,
    /// True if a client needs a free buffer.
    lacks_buffers: bool,
    /// Connections without a client that stay open until the peer has read the last answers.
    lingering: Lingering,
    /// Memory of the unused input of all clients, in bytes.
    input_memory: usize,
    list: ReadyList,
    /// Number of the present cycle.
    cycle: u64,
    /// Present time, as the time since the Unix epoch.
    now: Duration,
}

impl Server {
    /// Returns a server without clients, for the listeners of `context`.
    pub fn new(kv: Kv, context: &dyn Context) -> Self {
        Self {
            kv,
            pool: context.pool().clone(),
            clients: Vec::new(),
            waiting: VecDeque::new(),
            has_turns: false,
            lacks_buffers: false,
            lingering: Lingering::default(),
            input_memory: 0,
            list: ReadyList::new(),
            cycle: 0,
            now: Duration::ZERO,
        }
    }

    /// Returns the largest number of buffers that a context with `buffers` buffers may queue for
    /// each of `connections` connections. The limit leaves more than half of the buffers for
    /// received data. Returns `None` if there are too few buffers, or if `connections` is zero.
    pub fn send_queue_max(buffers: u32, connections: u64) -> Option<usize> {
        let for_answers = buffers / 2 - buffers / RESERVED_PART;
        let each = u64::from(for_answers).checked_div(connections)?;
        usize::try_from(each.min(SEND_QUEUE_MAX))
            .ok()
            .filter(|each| *each > 0)
    }

    /// Returns the store, so that the program itself can execute commands.
    pub fn kv(&mut self) -> &mut Kv {
        &mut self.kv
    }

    /// Waits for events for at most `limit`, and serves the clients. `clock` returns the time since
    /// the Unix epoch.
    ///
    /// # Errors
    ///
    /// An error means that the context has failed.
    pub fn cycle(
        &mut self,
        context: &mut dyn Context,
        limit: Duration,
        clock: impl FnOnce() -> Duration,
    ) -> io::Result<()> {
        let wait = match (self.has_turns, self.lacks_buffers) {
            (true, _) => Wait::No,
            (false, true) => Wait::For(limit.min(BUFFER_WAIT)),
            (false, false) => Wait::For(limit),
        };
        context.sync(&mut self.list, wait)?;
        self.now = clock();
        self.cycle += 1;
        self.has_turns = false;
        self.lacks_buffers = false;
        let turns = self.waiting.len();
        let mut list = mem::take(&mut self.list);
        for at in 0..list.len() {
            self.handle(context, &mut list, at)?;
        }
        self.list = list;
        for _ in 0..turns {
            self.continue_next(context)?;
        }
        self.relieve(context);
        self.lingering.end_old(context, self.now.as_secs());
        self.kv.sweep(self.now.as_secs(), SWEEP_BUCKETS);
        Ok(())
    }

    /// Handles the entry `at` of the event list: accepts or ends a client, or executes its
    /// commands.
    fn handle(
        &mut self,
        context: &mut dyn Context,
        list: &mut ReadyList,
        at: usize,
    ) -> io::Result<()> {
        let entry = list.entry(at);
        self.kv.connections.bytes_read += u64::from(entry.bytes);
        if entry.events.intersects(Events::ACCEPTED) {
            self.accept(context, entry.descriptor);
        }
        let Some(mut client) = self.take(entry.descriptor) else {
            if entry.events.intersects(Events::END.union(Events::CLOSED)) {
                self.lingering.end(context, entry.descriptor);
            }
            return Ok(());
        };
        if entry.events.intersects(Events::CLOSED) {
            self.drop_client(context, client);
            return Ok(());
        }
        client.has_ended |= entry.events.intersects(Events::END);
        client.last_progress = self.now;
        client.start_turn(self.cycle);
        let mut stop = None;
        while let Some(buffer) = list.take_next(at) {
            let shared = &mut self.shared();
            stop = Some(client.receive(shared, context, buffer.payload()));
            if matches!(stop, Some(Stop::Closed | Stop::Failed)) {
                break;
            }
        }
        let is_due = entry.events.intersects(Events::WRITABLE.union(Events::END));
        if stop.is_none() && is_due {
            stop = Some(client.proceed(&mut self.shared(), context));
        }
        self.put_back(context, client, stop.unwrap_or(Stop::Input))
    }

    /// Serves the next client that waits for a turn.
    fn continue_next(&mut self, context: &mut dyn Context) -> io::Result<()> {
        let Some(descriptor) = self.waiting.pop_front() else {
            return Ok(());
        };
        let Some(mut client) = self.take(descriptor) else {
            return Ok(());
        };
        client.is_waiting = false;
        client.start_turn(self.cycle);
        let stop = client.proceed(&mut self.shared(), context);
        self.put_back(context, client, stop)
    }

    fn shared(&mut self) -> Shared<'_> {
        Shared {
            kv: &mut self.kv,
            pool: &self.pool,
            reserve: self.pool.count() / RESERVED_PART,
            unix: self.now.as_secs(),
        }
    }

    /// Adds the client of an accepted connection. If the limit of connections is reached, answers
    /// with an error instead, and keeps the connection only until the peer closes.
    fn accept(&mut self, context: &mut dyn Context, descriptor: Descriptor) {
        let connections = &mut self.kv.connections;
        if connections.current >= connections.limit {
            connections.rejected += 1;
            if let Some(mut buffer) = self.pool.allocate() {
                buffer.append(TOO_MANY);
                // If the connection is already closed, the send fails, and the error message is not
                // needed.
                let _ = context.send(descriptor, buffer);
            }
            self.lingering.add(context, descriptor, self.now.as_secs());
            return;
        }
        connections.current += 1;
        connections.total += 1;
        let place = descriptor.0 as usize;
        if place >= self.clients.len() {
            self.clients.resize_with(place + 1, || None);
        }
        self.clients[place] = Some(Client::new(descriptor, self.now));
    }

    /// Removes a client from the table for the time of its turn.
    fn take(&mut self, descriptor: Descriptor) -> Option<Client> {
        let client = self.clients.get_mut(descriptor.0 as usize)?.take()?;
        self.input_memory -= client.input_memory();
        Some(client)
    }

    /// Puts a client back into the table after its turn, or ends the client.
    fn put_back(
        &mut self,
        context: &mut dyn Context,
        mut client: Client,
        stop: Stop,
    ) -> io::Result<()> {
        self.kv.connections.bytes_written += mem::take(&mut client.written);
        let descriptor = client.descriptor();
        let is_over = stop == Stop::Closed || (stop == Stop::Input && client.has_ended);
        if is_over || stop == Stop::Failed {
            self.end_client(context, client, stop == Stop::Failed);
            return Ok(());
        }
        let should_pause = client.should_pause(stop);
        if should_pause != client.is_paused {
            client.is_paused = should_pause;
            match should_pause {
                true => context.pause(descriptor),
                false => context.resume(descriptor)?,
            }
        }
        self.has_turns |= stop == Stop::Turn;
        self.lacks_buffers |= stop == Stop::Buffers;
        let is_waiting = matches!(stop, Stop::Buffers | Stop::Turn);
        if is_waiting && !mem::replace(&mut client.is_waiting, true) {
            self.waiting.push_back(descriptor);
        }
        self.input_memory += client.input_memory();
        self.clients[descriptor.0 as usize] = Some(client);
        Ok(())
    }

    /// Ends a client after the context has accepted all answers, or after its connection has
    /// failed.
    fn end_client(&mut self, context: &mut dyn Context, client: Client, has_failed: bool) {
        let descriptor = client.descriptor();
        let may_linger = client.may_linger();
        let has_ended = client.has_ended;
        if client.is_paused && !has_failed {
            // A paused connection would not report END when the peer closes.
            let _ = context.resume(descriptor);
        }
        self.kv.connections.current -= 1;
        client.end(&mut self.kv);
        match (has_failed, may_linger || !has_ended) {
            (true, _) | (false, false) => context.close(descriptor),
            (false, true) => self.lingering.add(context, descriptor, self.now.as_secs()),
        }
    }

    /// Ends a client, and aborts the connection of the client.
    fn drop_client(&mut self, context: &mut dyn Context, client: Client) {
        let descriptor = client.descriptor();
        self.kv.connections.current -= 1;
        client.end(&mut self.kv);
        context.abort(descriptor);
    }

    /// If a kind of memory is scarce (free buffers, memory of the store, or unused input), resets
    /// clients that hold memory of this kind. The client with the longest time without an event
    /// comes first. If buffers are scarce, lingering connections come before all clients.
    fn relieve(&mut self, context: &mut dyn Context) {
        for _ in 0..EVICTIONS_MAX {
            let has_relieved = if self.lacks_buffers {
                self.lingering.abort_oldest(context)
                    || self.evict(context, STALL_MIN, Client::holds_buffers)
            } else if self.kv.is_pinned_full() {
                self.evict(context, Duration::ZERO, Client::holds_items)
            } else if self.kv.is_pinned_high() {
                self.evict(context, STALL_MIN, Client::holds_items)
            } else if self.input_memory > self.input_max() {
                self.evict(context, Duration::ZERO, |client| client.input_memory() > 0)
            } else {
                false
            };
            if !has_relieved {
                return;
            }
        }
    }

    /// Returns the limit of the unused input of all clients in bytes.
    fn input_max(&self) -> usize {
        INPUT_POOLS_MAX * self.pool.count() as usize * self.pool.buffer_len() as usize
    }

    /// Of the clients that `is_holding` selects, resets the client with the longest time without an
    /// event. Resets no client and returns false if this time is shorter than `stall_min`, or if no
    /// client is selected.
    fn evict(
        &mut self,
        context: &mut dyn Context,
        stall_min: Duration,
        is_holding: fn(&Client) -> bool,
    ) -> bool {
        let clients = self.clients.iter().flatten();
        let holding = clients.filter(|client| is_holding(client));
        let Some(oldest) = holding.min_by_key(|client| client.last_progress) else {
            return false;
        };
        if self.now.saturating_sub(oldest.last_progress) < stall_min {
            return false;
        }
        let descriptor = oldest.descriptor();
        if let Some(client) = self.take(descriptor) {
            self.kv.connections.evicted += 1;
            self.drop_client(context, client);
        }
        true
    }
}
