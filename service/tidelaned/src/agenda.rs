//! Deadlines of sessions: the ends of pauses, and the times by which new sessions must register. A
//! session is a program's connection to the registration socket, which the control thread serves.

use std::collections::{BTreeSet, VecDeque};

use tidelane_time::{Duration, Instant};

/// Longest time from a program's connect to its registration.
const REGISTER_TIME_MAX: Duration = Duration::from_secs(5);

/// Sessions by their deadlines. An entry has the deadline and the session's number.
#[derive(Debug, Default)]
pub struct Agenda {
    /// Paused sessions, with the time at which each pause ends.
    paused: BTreeSet<(Instant, u64)>,
    /// New sessions, with the time by which each must register. An entry stays until this time,
    /// even if the session has registered.
    unregistered: VecDeque<(Instant, u64)>,
}

impl Agenda {
    /// Records that session `number` is paused until `due`, because its user has sent more messages
    /// than the rate limit allows.
    pub fn pause(&mut self, due: Instant, number: u64) {
        self.paused.insert((due, number));
    }

    /// Sets the time limit for the registration of a new session.
    pub fn expect(&mut self, now: Instant, number: u64) {
        self.unregistered
            .push_back((now + REGISTER_TIME_MAX, number));
    }

    /// Returns a session whose pause is over, and removes it from the agenda.
    pub fn next_resumed(&mut self, now: Instant) -> Option<u64> {
        let first = self.paused.first().filter(|(due, _)| *due <= now)?;
        let (due, number) = *first;
        self.paused.remove(&(due, number));
        Some(number)
    }

    /// Returns a session whose time limit is over, and removes it from the agenda. The session may
    /// have registered or ended meanwhile.
    pub fn next_late(&mut self, now: Instant) -> Option<u64> {
        let (due, number) = *self.unregistered.front()?;
        (due <= now).then(|| {
            self.unregistered.pop_front();
            number
        })
    }

    /// Returns the next deadline.
    pub fn next_due(&self) -> Option<Instant> {
        let paused = self.paused.first().map(|(due, _)| *due);
        let unregistered = self.unregistered.front().map(|(due, _)| *due);
        paused.into_iter().chain(unregistered).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_come_up_when_they_are_due_and_once() {
        let at = |seconds| Instant(0) + Duration::from_secs(seconds);
        let mut agenda = Agenda::default();
        assert_eq!(agenda.next_due(), None);
        agenda.expect(at(1), 1);
        agenda.expect(at(2), 2);
        agenda.pause(at(4), 3);
        agenda.pause(at(3), 4);
        assert_eq!(agenda.next_due(), Some(at(3)));
        assert_eq!(agenda.next_resumed(at(2)), None);
        assert_eq!(agenda.next_resumed(at(4)), Some(4));
        assert_eq!(agenda.next_resumed(at(4)), Some(3));
        assert_eq!(agenda.next_resumed(at(9)), None);
        assert_eq!(agenda.next_due(), Some(at(6)));
        assert_eq!(agenda.next_late(at(5)), None);
        assert_eq!(agenda.next_late(at(6)), Some(1));
        assert_eq!(agenda.next_late(at(6)), None);
        assert_eq!(agenda.next_late(at(7)), Some(2));
        assert_eq!(agenda.next_due(), None);
    }
}
