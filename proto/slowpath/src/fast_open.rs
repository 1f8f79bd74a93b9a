//! Fast Open (RFC 7413) in one flow (connection): the option and the data of the SYN, and the
//! answer of the peer. The engine keeps the cookies.

use tidelane_flow::{
    Driver, EngineConfig, Event, ListenerId, SocketOptions, State, Traffic, flags,
};
use tidelane_wire::{Ecn, FastOpenOption, IpAddress, Segment, SeqNumber, TcpFlags};

use crate::{Outcome, SlowPath, delivered_data::DeliveredData, rmss::rmss};

/// Bytes of a SYN with data that stay free for TCP options (as in Linux). A middlebox may add
/// options, and the packet must not exceed the path MTU.
const OPTION_SPACE: u32 = 40;

/// State of Fast Open in one flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastOpen {
    /// Fast Open option of the first SYN or SYN,ACK. Retransmissions carry no Fast Open option.
    pub option: Option<FastOpenOption>,
    /// Bytes of data that the first SYN may carry.
    pub room: u32,
    /// True if the first SYN carries a Fast Open option or may carry data.
    pub offered: bool,
    /// True if the first SYN is delayed until the application writes data for it.
    pub held: bool,
    /// True if the application got the flow before the handshake was complete. The value stays true
    /// after the handshake.
    pub accepted_early: bool,
    /// True while the flow counts against the listener's limit of pending Fast Open requests
    /// (TCP_FASTOPEN), until the flow leaves SYN-RECEIVED or the listener is closed.
    pub counts_as_pending: bool,
    /// True if the SYN was retransmitted.
    pub syn_retransmitted: bool,
    /// True if the application writes more data as soon as the connection is established. The ACK
    /// of the SYN,ACK is then delayed, so that this data carries the ACK.
    pub more_follows: bool,
    /// Form of the Fast Open option in our SYN: true for the experimental form, false for the
    /// standard form. `None` if our SYN had no Fast Open option.
    pub asked_experimental: Option<bool>,
    /// TCPI_OPT_SYN_DATA. In an active open, true if our SYN carried data and the peer acknowledged
    /// all of this data. In a passive open, true if the flow took data from the peer's SYN.
    pub syn_data_acked: bool,
    /// The server's answer, until the engine has stored the answer in the cookie cache.
    pub answer: Option<FastOpenAnswer>,
}

/// The server's answer to a SYN with Fast Open, for the cookie cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenAnswer {
    /// MSS in bytes that the server announced; `None` if its SYN,ACK had no MSS option.
    pub mss: Option<u16>,
    /// Fast Open option with the cookie that the server granted. `None` if the server granted no
    /// cookie.
    pub cookie: Option<FastOpenOption>,
    /// Form of the Fast Open option in our SYN: true for the experimental form, false for the
    /// standard form. `None` if our SYN had no Fast Open option.
    pub asked_experimental: Option<bool>,
    /// True if the SYN carried data.
    pub data: bool,
    /// True if the SYN was retransmitted, without option and data.
    pub syn_retransmitted: bool,
    /// True if the server answered only the retransmitted SYN, which carried no data. The SYN with
    /// data or its answer was lost.
    pub syn_data_lost: bool,
}

/// Returns the number of data bytes that fit into a SYN to `peer`. `mss` is the MSS that the peer
/// announced most recently, or `None` if no MSS of the peer is known.
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

impl<E: Driver> SlowPath<'_, E> {
    /// Returns true if data and FIN may be sent. An accepted Fast Open SYN allows both in
    /// SYN-RECEIVED (RFC 7413 §4.2.2).
    pub(crate) fn may_send(&self) -> bool {
        self.hot.state.sends() || self.is_fast_open_pending()
    }

    /// Returns true if the SYN is delayed and the application has not written data for the SYN yet.
    pub(crate) fn is_syn_held(&self) -> bool {
        self.cold.fast_open.held && self.hot.tx_end == self.hot.iss.add(1)
    }

    /// Returns true if the application has the flow while the handshake is still going on.
    pub(crate) fn is_fast_open_pending(&self) -> bool {
        self.cold.fast_open.accepted_early && self.hot.state == State::SynReceived
    }

    /// Returns true if the flow is a passive open in SYN-RECEIVED that the application does not
    /// have yet.
    pub(crate) fn is_half_open_passive(&self) -> bool {
        self.hot.state == State::SynReceived
            && self.cold.listener.is_some()
            && !self.cold.fast_open.accepted_early
    }

    /// Returns the number of data bytes for the SYN that is sent now. Only the first SYN carries
    /// data.
    pub(crate) fn syn_data_len(&self) -> u32 {
        let first = self.hot.state == State::SynSent && self.hot.snd_nxt == self.hot.iss;
        if !first {
            return 0;
        }
        let written = self.hot.tx_end.distance_from(self.hot.iss.add(1));
        written.min(self.cold.fast_open.room)
    }

    /// Starts the retransmission timer and the RTT measurement when our SYN or SYN,ACK is sent for
    /// the first time.
    pub fn start_syn_timer(&mut self) {
        self.hot.set(flags::RTT_TIMING);
        self.hot.rtt_seq = self.hot.iss.add(1);
        self.hot.rtt_stamp = self.clock.us();
        self.arm_rto();
    }

    /// Updates SND.NXT and the Fast Open state after a SYN or SYN,ACK with `data` bytes of data. A
    /// retransmission does not move SND.NXT back.
    pub(crate) fn note_syn_sent(&mut self, data: u32) {
        let option = self.cold.fast_open.option.take();
        if let Some(option) = option {
            self.cold.fast_open.asked_experimental = Some(option.experimental);
        }
        let end = self.hot.iss.add(1).add(data);
        self.hot.snd_nxt = match self.hot.snd_nxt == self.hot.iss {
            true => end,
            false => self.hot.snd_nxt.later_of(end),
        };
        if data > 0 {
            self.hot.traffic.begin_busy(self.clock.us());
        }
        if self.cold.fast_open.accepted_early {
            // The retransmission timer runs for the SYN,ACK, too, but FlightSize counts only the
            // data after the SYN,ACK.
            self.hot.snd_una = self.hot.snd_una.later_of(self.hot.iss.add(1));
        }
    }

    /// Accepts a SYN with a valid cookie (RFC 7413 §4.2.2), or a SYN at a listener that needs no
    /// cookie. The application gets the flow and the data of the SYN before the SYN,ACK is sent.
    pub fn accept_fast_open(&mut self, syn: &Segment<'_>, listener: ListenerId) {
        self.cold.fast_open.accepted_early = true;
        self.hot.traffic = Traffic::after_syn(self.clock.ms);
        let room = self.hot.rcv_wnd_limit as usize;
        let data = &syn.payload[..syn.payload.len().min(room)];
        // If there is no memory for the data, the SYN,ACK does not acknowledge the data. The client
        // then retransmits the data.
        if !data.is_empty() && self.driver.place(self.id, 0, data) {
            self.hot.rcv_nxt = self.hot.rcv_nxt.add(data.len() as u32);
            self.hot.rcv_mss = data.len().min(0xffff) as u16;
            self.cold.fast_open.syn_data_acked = true;
            self.hot.traffic.on_syn_data();
        }
        self.counters.passive_opens += 1;
        self.driver.event(self.id, Event::Accepted(listener));
        if self.cold.fast_open.syn_data_acked {
            self.driver.event(self.id, Event::READABLE);
        }
    }

    /// Handles the end of the handshake of a flow that the application already has. From here on,
    /// the retransmission timer covers the data that was sent during the handshake.
    pub(crate) fn end_fast_open_pending(&mut self) {
        if self.hot.flight_size() > 0 {
            self.arm_rto();
        }
    }

    /// Handles the first acknowledgment of our SYN. The acknowledgment may cover data of the SYN,
    /// too. Moves SND.NXT back to the first unacknowledged byte, and retransmits the data from
    /// there without delay (RFC 7413 §4.2.2, client). If our SYN offered Fast Open, stores the
    /// server's answer for the cookie cache.
    pub(crate) fn on_syn_data_acked(&mut self, syn_ack: &Segment<'_>) {
        let first = self.hot.iss.add(1);
        let data = self.hot.snd_nxt.after(first);
        let all = syn_ack.ack == self.hot.snd_nxt;
        let end = self.hot.snd_nxt;
        self.hot.snd_una = syn_ack.ack;
        self.hot.snd_nxt = syn_ack.ack;
        let acked = syn_ack.ack.distance_from(first);
        self.hot.traffic.note_acked(acked);
        self.hot.traffic.end_busy(&self.clock);
        if !self.cold.fast_open.offered && !data {
            return;
        }
        self.cold.fast_open.syn_data_acked = data && all;
        if syn_ack.ack.after(first) {
            self.driver.event(self.id, Event::WRITABLE);
        }
        let given = syn_ack.options.fast_open();
        let asked = self.cold.fast_open.asked_experimental;
        let cookie = given.filter(|option| asked.is_some() && !option.cookie.is_request());
        self.cold.fast_open.answer = Some(FastOpenAnswer {
            mss: syn_ack.options.mss,
            cookie,
            asked_experimental: asked,
            data,
            syn_retransmitted: self.cold.fast_open.syn_retransmitted,
            syn_data_lost: data
                && !all
                && cookie.is_none()
                && self.cold.fast_open.syn_retransmitted,
        });
        self.retransmit_syn_data(end);
    }

    /// Retransmits the data of the SYN from SND.NXT up to `end`, as far as the peer's window and
    /// cwnd allow. A small last segment does not count for Nagle's algorithm. The scoreboard (the
    /// record of unacknowledged transmissions) marks the data as retransmitted, so that the data
    /// gives no RTT sample (Karn) and counts in `tcpi_retrans` (as in Linux).
    fn retransmit_syn_data(&mut self, end: SeqNumber) {
        let window = self.hot.snd_wnd.min(self.hot.cwnd);
        if self.hot.snd_nxt.before(end) {
            self.ensure_scoreboard();
        }
        while self.hot.snd_nxt.before(end) {
            let left = end.distance_from(self.hot.snd_nxt);
            let len = left.min(u32::from(self.hot.mss));
            let fits = self.hot.flight_size() + len <= window;
            // Data that does not fit is sent later, as new data.
            if !fits || self.send_new_data(len).is_err() {
                break;
            }
            self.counters.retrans_segs += 1;
            self.cold.retrans.add(len);
            let (start, now_us) = (self.hot.snd_nxt.sub(len), self.clock.us());
            self.ensure_scoreboard().on_retransmit(start, len, now_us);
        }
        self.hot.clear(flags::SMALL_SENT);
    }

    /// Handles data and a FIN in a SYN,ACK. A server may send both before the handshake is complete
    /// (RFC 7413 §4.2.2). Ignores both if our SYN did not offer Fast Open. The receive window is
    /// the unscaled window that our SYN announced.
    pub(crate) fn receive_syn_ack_data(&mut self, syn_ack: &Segment<'_>, ecn: Ecn) -> Outcome {
        let more = !syn_ack.payload.is_empty() || syn_ack.flags.contains(TcpFlags::FIN);
        if !self.cold.fast_open.offered || !more {
            return Outcome::Keep;
        }
        let mut data = *syn_ack;
        data.seq = data.seq.add(1);
        data.flags.remove(TcpFlags::SYN);
        self.cold.delivered = DeliveredData::default();
        self.hot.rcv_adv = self.hot.rcv_nxt.add(self.hot.rcv_wnd_limit.min(0xffff));
        let taken = self.process_text(&data, ecn);
        match taken.and_then(|()| self.check_fin(&data)) {
            Ok(()) => {
                self.hot.set(flags::ACK_OWED | flags::ACK_NOW);
                Outcome::Keep
            }
            Err(outcome) => outcome,
        }
    }
}
