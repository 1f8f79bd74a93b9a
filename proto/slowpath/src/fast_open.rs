//! Fast Open (RFC 7413), as far as one flow is concerned: what its SYN says and carries, and what
//! becomes of it. Who has which cookie is the engine's.

use tidelane_flow::{EngineConfig, Env, Event, ListenerId, SocketOptions, State, flags};
use tidelane_wire::{Ecn, FastOpenOption, IpAddress, Segment, SeqNumber, TcpFlags};

use crate::{Fate, Slow, delivered::Delivery, open::rmss};

/// Bytes that a SYN with text leaves free for options, its own and those that routers add, so that
/// it is not too long for the path (as in Linux).
const OPTION_SPACE: u32 = 40;

/// A flow's part in Fast Open.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastOpen {
    /// What the first SYN, or SYN,ACK, says; later ones say nothing.
    pub option: Option<FastOpenOption>,
    /// Bytes of text that the first SYN may carry.
    pub room: u32,
    /// The first SYN is more than an ordinary one.
    pub asks: bool,
    /// The first SYN waits for the text that it is to carry.
    pub held: bool,
    /// The program had the flow before the handshake ended.
    pub pending: bool,
    /// It has one of the listener's places for such flows, until the handshake is over.
    pub has_place: bool,
    /// SYN was sent again.
    pub repeated: bool,
    /// The program waits to write more than SYN carried.
    pub more_follows: bool,
    /// The form in which SYN asked for a cookie or had one: the experiment's, or not.
    pub asked_experimental: Option<bool>,
    /// The SYN carried text, and all of it was taken: TCPI_OPT_SYN_DATA.
    pub syn_text_taken: bool,
    /// What SYN,ACK said, until the engine has taken note of it.
    pub answer: Option<Answer>,
}

/// What a SYN,ACK says of the server, to one that asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// MSS that it announced.
    pub mss: Option<u16>,
    /// The cookie that it gives to one that asked for it, in the form that it gave it in.
    pub cookie: Option<FastOpenOption>,
    /// The cookie was asked for in the experiment's form; `None` if none was asked for.
    pub asked_experimental: Option<bool>,
    /// SYN carried text.
    pub text: bool,
    /// SYN was sent again, without option and text.
    pub repeated: bool,
    /// SYN carried text, was sent again without, and that was what the server answered: the first
    /// one did not arrive, or its answer did not.
    pub lost: bool,
}

/// Bytes of text in a SYN to a server at `peer` whose last MSS was `mss`.
pub fn syn_room(
    config: &EngineConfig,
    peer: IpAddress,
    mtu: u32,
    options: &SocketOptions,
    mss: Option<u16>,
) -> u32 {
    let own = rmss(config, peer, mtu, options);
    let whole = u32::from(own.min(mss.unwrap_or(own)));
    whole.saturating_sub(OPTION_SPACE)
}

impl<E: Env> Slow<'_, E> {
    /// Whether text and FIN may be sent: in SYN-RECEIVED, too, once a SYN brought a good cookie
    /// (RFC 7413 §4.2.2).
    pub(crate) fn may_send(&self) -> bool {
        self.hot.state.sends() || self.is_pending()
    }

    /// Whether SYN waits for text, of which there is none yet.
    pub(crate) fn is_syn_held(&self) -> bool {
        self.cold.fast_open.held && self.hot.tx_end == self.hot.iss.add(1)
    }

    /// Whether the handshake goes on while the program already has the flow.
    pub(crate) fn is_pending(&self) -> bool {
        self.cold.fast_open.pending && self.hot.state == State::SynReceived
    }

    /// Whether this is a passive open that no program has seen.
    pub(crate) fn is_unseen(&self) -> bool {
        self.hot.state == State::SynReceived
            && self.cold.listener.is_some()
            && !self.cold.fast_open.pending
    }

    /// Bytes of text that the SYN which is sent now carries: the first one only.
    pub(crate) fn syn_text(&self) -> u32 {
        let first = self.hot.state == State::SynSent && self.hot.snd_nxt == self.hot.iss;
        if !first {
            return 0;
        }
        let written = self.hot.tx_end.distance_from(self.hot.iss.add(1));
        written.min(self.cold.fast_open.room)
    }

    /// Our SYN or SYN,ACK is sent now for the first time: it has a timer, and tells the round-trip
    /// time.
    pub fn time_syn(&mut self) {
        self.hot.set(flags::RTT_TIMING);
        self.hot.rtt_seq = self.hot.iss.add(1);
        self.hot.rtt_stamp = self.clock.us();
        self.arm_rto();
    }

    /// A SYN or SYN,ACK went out, with `text` bytes. SND.NXT does not go back behind what was sent
    /// before.
    pub(crate) fn note_syn_sent(&mut self, text: u32) {
        let option = self.cold.fast_open.option.take();
        if let Some(option) = option {
            self.cold.fast_open.asked_experimental = Some(option.experimental);
        }
        let end = self.hot.iss.add(1).add(text);
        self.hot.snd_nxt = match self.hot.snd_nxt == self.hot.iss {
            true => end,
            false => self.hot.snd_nxt.later_of(end),
        };
        if self.cold.fast_open.pending {
            // SYN,ACK has a timer, but is not in flight beside the text behind it.
            self.hot.snd_una = self.hot.snd_una.later_of(self.hot.iss.add(1));
        }
    }

    /// A SYN that may be taken at once (RFC 7413 §4.2.2): its text is the program's, which has the
    /// flow before SYN,ACK is sent.
    pub fn accept_at_once(&mut self, syn: &Segment<'_>, listener: ListenerId) {
        self.cold.fast_open.pending = true;
        let room = self.hot.rcv_wnd_limit as usize;
        let text = &syn.payload[..syn.payload.len().min(room)];
        // Without memory it is as if it had not come.
        if !text.is_empty() && self.env.place(self.id, 0, text) {
            self.hot.rcv_nxt = self.hot.rcv_nxt.add(text.len() as u32);
            self.hot.rcv_mss = text.len().min(0xffff) as u16;
            self.cold.fast_open.syn_text_taken = true;
        }
        self.counters.passive_opens += 1;
        self.env.event(self.id, Event::Accepted(listener));
        if self.cold.fast_open.syn_text_taken {
            self.env.event(self.id, Event::Readable);
        }
    }

    /// The handshake of a flow that the program already has is over: what was sent meanwhile gets
    /// the timer.
    pub(crate) fn end_pending(&mut self) {
        if self.hot.flight_size() > 0 {
            self.arm_rto();
        }
    }

    /// SYN,ACK acknowledges our SYN and perhaps its text. What it does not is sent again at once,
    /// as text that is new (RFC 7413 §4.2.2, client): it counts as never sent.
    pub(crate) fn settle_syn_text(&mut self, syn_ack: &Segment<'_>) {
        let first = self.hot.iss.add(1);
        let text = self.hot.snd_nxt.after(first);
        let all = syn_ack.ack == self.hot.snd_nxt;
        let end = self.hot.snd_nxt;
        self.hot.snd_una = syn_ack.ack;
        self.hot.snd_nxt = syn_ack.ack;
        if !self.cold.fast_open.asks && !text {
            return;
        }
        self.cold.fast_open.syn_text_taken = text && all;
        if syn_ack.ack.after(first) {
            self.env.event(self.id, Event::Writable);
        }
        let given = syn_ack.options.fast_open();
        let asked = self.cold.fast_open.asked_experimental;
        let cookie = given.filter(|option| asked.is_some() && !option.cookie.is_request());
        self.cold.fast_open.answer = Some(Answer {
            mss: syn_ack.options.mss,
            cookie,
            asked_experimental: asked,
            text,
            repeated: self.cold.fast_open.repeated,
            lost: text && !all && cookie.is_none() && self.cold.fast_open.repeated,
        });
        self.resend_syn_text(end);
    }

    /// Sends what SYN carried, up to `end`, and SYN,ACK does not acknowledge: at once, if the
    /// windows allow it. Nagle does not count it as a small segment, nor is it timed (Karn).
    fn resend_syn_text(&mut self, end: SeqNumber) {
        let window = self.hot.snd_wnd.min(self.hot.cwnd);
        while self.hot.snd_nxt.before(end) {
            let left = end.distance_from(self.hot.snd_nxt);
            let len = left.min(u32::from(self.hot.mss));
            let fits = self.hot.flight_size() + len <= window;
            // What is left then is sent as all text is.
            if !fits || self.send_text(len).is_err() {
                break;
            }
            self.counters.retrans_segs += 1;
            self.cold.retrans += 1;
        }
        self.hot.clear(flags::SMALL_SENT);
    }

    /// Text and FIN that came with a SYN,ACK (RFC 7413 §4.2.2: a server may send before the
    /// handshake ends). The window is the one that SYN announced.
    pub(crate) fn take_syn_ack_text(&mut self, syn_ack: &Segment<'_>, ecn: Ecn) -> Fate {
        let more = !syn_ack.payload.is_empty() || syn_ack.flags.contains(TcpFlags::FIN);
        if !self.cold.fast_open.asks || !more {
            return Fate::Keep;
        }
        let mut text = *syn_ack;
        text.seq = text.seq.add(1);
        text.flags.remove(TcpFlags::SYN);
        self.cold.delivered = Delivery::default();
        self.hot.rcv_adv = self.hot.rcv_nxt.add(self.hot.rcv_wnd_limit.min(0xffff));
        let taken = self.process_text(&text, ecn);
        match taken.and_then(|()| self.check_fin(&text)) {
            Ok(()) => {
                self.hot.set(flags::ACK_OWED | flags::ACK_NOW);
                Fate::Keep
            }
            Err(fate) => fate,
        }
    }
}
