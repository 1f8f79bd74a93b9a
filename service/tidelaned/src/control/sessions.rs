//! The part of the control thread that accepts, reads, pauses and ends sessions. A session is a
//! program's connection to the registration socket.

use rustix::{
    event::epoll::{self, EventData, EventFlags},
    net::SocketFlags,
};
use tidelane_time::Instant;

use super::{ACCEPTS_PER_TURN, Control, SESSIONS};
use crate::{
    clock::now,
    core_link::NicPort,
    pace,
    session::{NextStep, Session},
};

impl<P: NicPort> Control<P> {
    pub(super) fn accept_session(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS_PER_TURN {
            let Ok(socket) = rustix::net::accept_with(&self.registration, flags) else {
                return;
            };
            if let Ok(session) = Session::new(&mut self.shared, socket) {
                self.agenda.expect(now(), session.number);
                self.judge_and_watch(session);
            }
            pace::rest();
        }
    }

    pub(super) fn watch_session(&mut self, session: Session) {
        if self.listen_to(&session).is_err() {
            session.end(&mut self.shared);
            return;
        }
        if let Some(pidfd) = &session.peer.pidfd {
            let token = EventData::new_u64(SESSIONS + 2 * session.number + 1);
            let _ = epoll::add(&self.epoll, pidfd, token, EventFlags::IN);
        }
        self.sessions.insert(session.number, session);
    }

    /// Makes epoll report the messages of a session.
    pub(super) fn listen_to(&self, session: &Session) -> rustix::io::Result<()> {
        let token = EventData::new_u64(SESSIONS + 2 * session.number);
        epoll::add(&self.epoll, &session.socket, token, EventFlags::IN)
    }

    /// Handles an event of a session. `token` is the event's epoll token minus `SESSIONS`.
    pub(super) fn serve_session(&mut self, token: u64) {
        let (number, died) = (token / 2, token % 2 == 1);
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let next = if died {
            NextStep::End
        } else {
            session.receive(&mut self.shared)
        };
        for child in std::mem::take(&mut session.children) {
            self.watch_session(child);
        }
        self.go_on(number, next);
    }

    fn go_on(&mut self, number: u64, next: NextStep) {
        match next {
            NextStep::More | NextStep::Continue => {}
            // The session waits for the check of a message's descriptors: see `serve_checked`.
            NextStep::Wait => {
                if let Some(session) = self.sessions.get(&number) {
                    let _ = epoll::delete(&self.epoll, &session.socket);
                }
            }
            NextStep::Pause(due) => self.pause_session(number, due),
            NextStep::End => self.end_session(number),
        }
    }

    /// Handles the messages whose descriptors another thread has checked.
    pub(super) fn serve_checked(&mut self) {
        let _ = rustix::io::read(self.shared.descriptors.bell(), &mut [0u8; 8]);
        while let Some(checked) = self.shared.descriptors.next() {
            let number = checked.session;
            let Some(session) = self.sessions.get_mut(&number) else {
                continue;
            };
            let mut next = session.handle_checked(&mut self.shared, checked);
            if next == NextStep::Continue
                && let Some(session) = self.sessions.get(&number)
                && self.listen_to(session).is_err()
            {
                next = NextStep::End;
            }
            self.go_on(number, next);
            pace::rest();
        }
    }

    pub(super) fn end_session(&mut self, number: u64) {
        if let Some(session) = self.sessions.remove(&number) {
            session.end(&mut self.shared);
        }
    }

    /// Pauses a session until `due`. The session's messages wait in the socket.
    fn pause_session(&mut self, number: u64, due: Instant) {
        if let Some(session) = self.sessions.get(&number)
            && epoll::delete(&self.epoll, &session.socket).is_ok()
        {
            self.agenda.pause(due, number);
        }
    }
}
