//! The part of the control thread that follows the operator's configuration: it admits programs by
//! the rules of the configuration, and reads the configuration again on request. A session is a
//! program's connection to the registration socket.

use std::{io::Write, os::unix::net::UnixStream};

use serde_json::{Value, json};
use tidelane_host::{Host, RuleSet};

use super::Control;
use crate::{
    admin,
    clock::now,
    core_link::NicPort,
    pace,
    session::{Admission, Session},
    settings::Settings,
    sys::{self, Signal},
};

/// Maximum number of sessions of programs that are not admitted. These sessions only report why
/// sockets stay with the kernel. Further sessions of this kind end immediately.
const REFUSED_MAX: usize = 128;

impl<P: NicPort> Control<P> {
    /// Decides whether the program of a new session is admitted, and starts to watch the session
    /// for messages. A program that is not admitted may only report why its sockets stay with the
    /// kernel. If [`REFUSED_MAX`] sessions of this kind exist, ends a further session of this kind
    /// instead.
    pub(super) fn judge_and_watch(&mut self, mut session: Session) {
        pace::rest();
        session.admission = Admission {
            denied: self.shared.access.judge(&session.peer, &session.peer).err(),
            view: self.shared.access.view_of(&session.peer),
            ..Admission::default()
        };
        pace::rest();
        let is_refused = |session: &Session| session.admission.denied.is_some();
        let refused = self.sessions.values().filter(|other| is_refused(other));
        if is_refused(&session) && refused.count() >= REFUSED_MAX {
            return session.end(&mut self.shared);
        }
        self.watch_session(session);
    }

    pub(super) fn take_signals(&mut self) {
        while let Some(signal) = sys::next_signal(&self.signals) {
            match signal {
                Signal::Reload => {
                    if let Err(error) = self.reload() {
                        eprintln!("tidelaned: {error}; the previous configuration stays");
                    }
                }
                Signal::End => self.stopping = true,
            }
        }
    }

    /// Reads the configuration again. An invalid configuration changes nothing.
    fn reload(&mut self) -> Result<(), String> {
        let (settings, notices) = Settings::load(&self.config)?;
        if settings.policy.socket() != self.socket {
            // The service has given up the right to change this setting.
            eprintln!(
                "tidelaned: the registration socket keeps its group and mode until a restart"
            );
        }
        self.shared.access.set_policy(settings.policy);
        self.shared.accounts.set_limits(settings.limits);
        self.limit_ports();
        self.shared.loopback = settings.loopback;
        self.judge_again();
        self.set_rules(settings.rules);
        notices.log();
        eprintln!("tidelaned: configuration {} applied", self.config.display());
        Ok(())
    }

    /// Sets new rules, and resets the open connections that the new rules refuse.
    pub(super) fn set_rules(&mut self, rules: RuleSet) {
        self.shared.ports.rules_change(&self.shared.rules, &rules);
        self.shared.rules = rules.clone();
        let reset = self.shared.cores.call_each(|_| {
            let rules = rules.clone();
            move |host: &mut Host<P>, now| host.set_rules(now, rules)
        });
        let reset: usize = reset.into_iter().flatten().sum();
        if reset > 0 {
            eprintln!("tidelaned: reset {reset} open connections that the new rules refuse");
        }
    }

    /// Judges the program of each session by the new configuration. If a program is not admitted
    /// and its session is in use, the session ends, and the program loses its connections. A
    /// session is in use if it has a registered program or a mux port (packet rings for a TCP/IP
    /// stack of the program's own). All other sessions stay open.
    fn judge_again(&mut self) {
        let access = &self.shared.access;
        let mut over = Vec::new();
        for session in self.sessions.values_mut() {
            session.admission.denied = access
                .judge(session.connected_ancestor(), &session.peer)
                .err();
            if session.admission.denied.is_some() && session.is_in_use() {
                over.push(session.number);
            }
        }
        for number in over {
            self.end_session(number);
        }
    }

    pub(super) fn check_firewall(&mut self) {
        self.guard.recheck();
    }

    /// Answers a request of `tidelane capture`.
    pub(super) fn answer_capture(&mut self, mut stream: &UnixStream, request: &Value) {
        let (answer, blocks) = self.captures.handle(&self.shared.cores, now(), request);
        let sent = admin::answer(stream, &answer).and_then(|()| stream.write_all(&blocks));
        if let Err(error) = sent {
            eprintln!("tidelaned: admin: {error}");
        }
    }

    pub(super) fn answer_reload(&mut self, stream: &UnixStream) {
        let answer = match self.reload() {
            Ok(()) => json!({"ok": true}),
            Err(error) => json!({"error": error}),
        };
        if let Err(error) = admin::answer(stream, &answer) {
            eprintln!("tidelaned: admin: {error}");
        }
    }
}
