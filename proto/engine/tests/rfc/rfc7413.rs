//! Tests of TCP Fast Open (RFC 7413), server and client. A rig is one TCP engine, with the test as
//! its peer. A flow is a connection. A Fast Open request is a SYN whose flow the application gets
//! before the handshake is complete. The request is pending until the handshake ends.

use tidelane_engine::{
    Advance, CloseCause, Duration, Endpoint, EngineConfig, Event, FastOpenCookie, FastOpenKeys,
    FastOpenOption, FastOpenPolicy, FastOpenRequest, FlowId, FlowRoute, IcmpErrorKind, ListenerId,
    SocketOptions, State, TcpFlags, TcpOptions,
};

use crate::rig::{ACK, In, LINK, Out, RST, Rig, SYN, ack, data, spans, syn};

const PSH: TcpFlags = TcpFlags::PSH;

/// Returns a configuration with the Fast Open policy `bits`, in the format of Linux's
/// `tcp_fastopen`: 0x1 for clients, 0x2 for servers, 0x4 for clients without a cookie, 0x200 for
/// servers without a cookie, and 0x400 for every listener.
fn config(bits: u32) -> EngineConfig {
    EngineConfig {
        fast_open: FastOpenPolicy::from_bits(bits),
        ..EngineConfig::default()
    }
}

/// Returns a rig with a listener that allows `places` pending requests. `bits` is the policy (see
/// [`config`]).
fn server_with(bits: u32, places: u32) -> (Rig, ListenerId) {
    let options = SocketOptions::default();
    let mut rig = Rig::listening(config(bits), options);
    let id = ListenerId(0);
    rig.engine.set_fast_open_qlen_max(id, places);
    (rig, id)
}

fn server() -> Rig {
    server_with(2, 3).0
}

fn option(cookie: FastOpenCookie) -> FastOpenOption {
    FastOpenOption {
        cookie,
        experimental: false,
    }
}

/// Returns a SYN with `len` bytes of data. `cookie` is a cookie or a cookie request.
fn fast_syn(cookie: FastOpenCookie, len: usize) -> In {
    let mut options = TcpOptions {
        mss: Some(1000),
        ..TcpOptions::NONE
    };
    assert!(options.set_fast_open(option(cookie)));
    In {
        len,
        ..syn(options)
    }
}

/// Returns the cookie that the server grants its peer.
fn cookie_of(rig: &mut Rig) -> FastOpenCookie {
    let port = rig.key.peer.port;
    rig.key.peer.port = 1;
    let answer = rig.push(fast_syn(FastOpenCookie::REQUEST, 0))[0];
    assert_eq!(answer.flags, SYN | ACK);
    rig.push(ack(1, 0).with(RST));
    assert_eq!(rig.engine.flows().count(), 0);
    rig.key.peer.port = port;
    rig.events();
    answer.options.fast_open().unwrap().cookie
}

/// Returns a server whose application has a flow before the handshake is complete.
fn pending() -> Rig {
    let mut rig = server();
    let cookie = cookie_of(&mut rig);
    rig.push(fast_syn(cookie, 100));
    rig
}

fn id(rig: &Rig) -> FlowId {
    rig.flow_id().expect("a flow")
}

#[test]
fn section_4_2_2_a_valid_cookie_delivers_data_at_once() {
    let mut rig = server();
    let cookie = cookie_of(&mut rig);
    let answer = rig.push(fast_syn(cookie, 100));
    assert_eq!(answer.len(), 1);
    assert_eq!((answer[0].flags, answer[0].ack), (SYN | ACK, 101));
    assert_eq!(answer[0].options.fast_open(), None);
    assert_eq!(rig.driver.placed, [(0, 100)]);
    let events = rig.events();
    assert_eq!(
        events,
        [Event::Accepted(ListenerId(0)), Event::READABLE],
        "wrong events, or wrong order"
    );
    let flow = rig.engine.flow(id(&rig)).unwrap();
    assert_eq!((flow.state(), flow.rx_head()), (State::SynReceived, 100));
    assert!(rig.info().syn_data && rig.info().fast_open_pending);

    // The application answers before the handshake is complete. The peer's ACK covers the SYN,ACK
    // and the answer.
    let reply = rig.write(2500);
    assert_eq!(spans(&reply), [(1, 1000), (1001, 1000), (2001, 500)]);
    assert!(reply.iter().all(|out| out.ack == 101));
    rig.wait_ms(10);
    rig.push(ack(101, 2501));
    assert_eq!(rig.info().state, State::Established);
    assert_eq!((rig.info().flight_size, rig.info().bytes_acked), (0, 2500));
    assert!(!rig.info().fast_open_pending);
    let events = rig.events();
    assert!(
        !events.contains(&Event::Accepted(ListenerId(0))),
        "accepted twice"
    );
    assert_eq!(rig.wait_ms(5000), [], "a timer still runs");
    assert_eq!(rig.engine.counters().passive_opens, 1);
}

#[test]
fn section_4_2_2_without_a_valid_cookie_the_handshake_is_ordinary() {
    let mut rig = server();
    let good = cookie_of(&mut rig);
    let wrong = FastOpenCookie::new(&[9; 8]).unwrap();
    let answer = rig.push(fast_syn(wrong, 100))[0];
    assert_eq!((answer.flags, answer.ack), (SYN | ACK, 1));
    assert_eq!(answer.options.fast_open(), Some(option(good)));
    assert_eq!((rig.events(), rig.driver.placed.len()), (vec![], 0));
    rig.push(data(1, 1, 100).with(ACK | PSH));
    assert!(rig.events().contains(&Event::Accepted(ListenerId(0))));
    assert!(!rig.info().syn_data);
}

#[test]
fn section_4_1_1_the_experiment_is_answered_in_its_own_form() {
    let mut rig = server();
    let mut opening = fast_syn(FastOpenCookie::REQUEST, 0);
    let experimental = true;
    let cookie = FastOpenCookie::REQUEST;
    opening.options.set_fast_open(FastOpenOption {
        cookie,
        experimental,
    });
    let given = rig.push(opening)[0].options.fast_open().unwrap();
    assert!(given.experimental && !given.cookie.is_request());
}

#[test]
fn data_is_accepted_only_if_policy_and_listener_allow_it() {
    for (bits, places) in [(1, 3), (2, 0), (0x202, 0), (0x401, 3), (0, 3)] {
        let (mut rig, _) = server_with(bits, places);
        let answer = rig.push(fast_syn(FastOpenCookie::REQUEST, 100))[0];
        assert_eq!(answer.ack, 1, "{bits:x} {places}");
        assert_eq!(answer.options.fast_open(), None, "{bits:x} {places}");
    }
    let mss = Some(1000);
    let plain = In {
        len: 100,
        ..syn(TcpOptions {
            mss,
            ..TcpOptions::NONE
        })
    };
    // The policy allows data without a cookie. At the first listener, the backlog limits the
    // pending requests. At the second listener, the application has set the limit.
    let mut everywhere = Rig::listening(config(0x602), SocketOptions::default());
    assert_eq!(everywhere.push(plain)[0].ack, 101);
    let (mut rig, _) = server_with(0x202, 1);
    assert_eq!(rig.push(plain)[0].ack, 101);
    // The listener's socket option TCP_FASTOPEN_NO_COOKIE allows data without a cookie, too.
    let (mut rig, listener) = server_with(2, 1);
    assert_eq!(rig.push(plain)[0].ack, 1);
    rig.engine.set_fast_open_without_cookie(listener, true);
    rig.key.peer.port += 1;
    assert_eq!(rig.push(plain)[0].ack, 101);
}

#[test]
fn cookies_of_the_backup_key_are_valid_and_replaced() {
    let mut rig = server();
    let old = [1; 16];
    let mut keys = FastOpenKeys {
        primary: old,
        backup: None,
    };
    rig.engine.set_fast_open_keys(None, keys);
    let cookie = cookie_of(&mut rig);
    keys = FastOpenKeys {
        primary: [2; 16],
        backup: Some(old),
    };
    rig.engine.set_fast_open_keys(Some(ListenerId(0)), keys);
    let answer = rig.push(fast_syn(cookie, 100))[0];
    let new = answer.options.fast_open().unwrap().cookie;
    assert_eq!(answer.ack, 101);
    assert_ne!(new, cookie);
}

#[test]
fn section_5_1_pending_requests_are_bounded() {
    let mut rig = server();
    let cookie = cookie_of(&mut rig);
    let opens = |rig: &mut Rig, port| {
        rig.key.peer.port = port;
        rig.push(fast_syn(cookie, 100))[0].ack == 101
    };
    assert_eq!(
        [1, 2, 3, 4].map(|port| opens(&mut rig, port)),
        [true, true, true, false]
    );
    assert_eq!(rig.engine.counters().fast_open_overflows, 1);
    // A request does not count against the limit once its handshake is complete.
    rig.key.peer.port = 3;
    rig.push(fast_syn(cookie, 100));
    rig.push(ack(101, 1));
    assert!(opens(&mut rig, 5));
    // A request that was reset counts for another minute.
    rig.push(ack(101, 1).with(RST | ACK));
    assert!(!opens(&mut rig, 6));
    rig.wait_ms(61_000);
    assert!(opens(&mut rig, 7));
}

#[test]
fn section_5_1_a_request_counts_while_its_syn_ack_is_retransmitted() {
    let (mut rig, _) = server_with(2, 1);
    let cookie = cookie_of(&mut rig);
    rig.push(fast_syn(cookie, 100));
    let again = rig.wait_ms(3_500);
    assert!(again.len() >= 2, "{again:?}");
    // Neither the retransmissions of the SYN,ACK nor a duplicate of the SYN ends the request.
    rig.push(fast_syn(cookie, 100));
    rig.key.peer.port += 1;
    assert_eq!(rig.push(fast_syn(cookie, 100))[0].ack, 1);
    // A request that is reset after retransmissions counts for another minute, too.
    rig.key.peer.port -= 1;
    rig.push(ack(101, 1).with(RST | ACK));
    rig.key.peer.port += 2;
    assert_eq!(rig.push(fast_syn(cookie, 100))[0].ack, 1);
    rig.wait_ms(61_000);
    rig.key.peer.port += 1;
    assert_eq!(rig.push(fast_syn(cookie, 100))[0].ack, 101);
}

#[test]
fn section_5_1_a_request_that_times_out_does_not_count_for_another_minute() {
    let (mut rig, _) = server_with(2, 1);
    let cookie = cookie_of(&mut rig);
    rig.push(fast_syn(cookie, 100));
    while rig.info().state == State::SynReceived {
        rig.wait_ms(1000);
    }
    assert!(rig.events().contains(&Event::Closed(CloseCause::TimedOut)));
    rig.key.peer.port += 1;
    assert_eq!(rig.push(fast_syn(cookie, 100))[0].ack, 101);
}

#[test]
fn section_5_1_a_closed_request_counts_until_its_handshake_ends() {
    for ends_by_reset in [false, true] {
        let (mut rig, _) = server_with(2, 1);
        let cookie = cookie_of(&mut rig);
        let opens = |rig: &mut Rig, port| {
            rig.key.peer.port = port;
            rig.push(fast_syn(cookie, 100))[0].ack == 101
        };
        assert!(opens(&mut rig, 1));
        let (flow, iss) = (id(&rig), rig.iss);
        rig.engine.rx_advance(flow, 100).unwrap();
        rig.engine.close(rig.now, flow, &mut rig.driver);
        assert_eq!(rig.batch_end()[0].flags, TcpFlags::FIN | ACK);
        assert!(!opens(&mut rig, 2));
        (rig.key.peer.port, rig.iss) = (1, iss);
        if ends_by_reset {
            rig.push(ack(101, 1).with(RST | ACK));
            assert!(!opens(&mut rig, 3));
            rig.wait_ms(61_000);
        } else {
            rig.push(ack(101, 2));
        }
        assert!(opens(&mut rig, 4));
    }
}

#[test]
fn keys_of_an_unknown_listener_have_no_effect() {
    let mut rig = server();
    let cookie = cookie_of(&mut rig);
    let keys = FastOpenKeys {
        primary: [1; 16],
        backup: None,
    };
    rig.engine.set_fast_open_keys(Some(ListenerId(1)), keys);
    let address = Endpoint::new(rig.key.local.addr, rig.key.local.port + 1);
    let other = rig.engine.listen(address, 8, SocketOptions::default());
    assert_eq!(other, Ok(ListenerId(1)));
    rig.engine.set_fast_open_qlen_max(ListenerId(1), 1);
    rig.key.local.port += 1;
    let answer = rig.push(fast_syn(cookie, 100))[0];
    assert_eq!(answer.ack, 101, "the cookie of the engine's keys is valid");
}

#[test]
fn a_reset_during_the_handshake_leaves_the_data_readable() {
    let mut rig = pending();
    rig.events();
    assert_eq!(rig.push(ack(101, 0).with(RST)), []);
    assert_eq!(rig.events(), [Event::Closed(CloseCause::Reset)]);
    let flow = rig.engine.flow(id(&rig)).unwrap();
    assert_eq!((flow.state(), flow.rx_head()), (State::Closed, 100));
    let reset = rig.push(ack(101, 1));
    assert_eq!(
        (reset.len(), reset[0].flags),
        (1, RST),
        "a closed flow took the segment"
    );
}

#[test]
fn an_unreachable_client_ends_a_pending_flow_but_keeps_its_data() {
    let mut rig = pending();
    rig.events();
    assert_eq!(rig.icmp(5000, IcmpErrorKind::HostUnreachable), []);
    assert_eq!(rig.events(), [], "the quoted data was never sent");
    rig.icmp(0, IcmpErrorKind::HostUnreachable);
    assert_eq!(rig.events(), [Event::Closed(CloseCause::HostUnreachable)]);
    assert_eq!(rig.engine.flow(id(&rig)).unwrap().rx_head(), 100);
}

#[test]
fn syn_ack_is_retransmitted_and_the_flow_ends_without_an_answer() {
    let mut rig = pending();
    rig.write(100);
    let again = rig.wait_ms(1100);
    assert_eq!(spans(&again), [(0, 0)], "only the SYN,ACK");
    assert_eq!((again[0].flags, again[0].ack), (SYN | ACK, 101));
    // A retransmitted SYN gets the SYN,ACK again, and the application's data stays in flight.
    rig.wait_ms(600);
    let cookie = FastOpenCookie::REQUEST;
    assert_eq!(rig.push(fast_syn(cookie, 100))[0].ack, 101);
    assert_eq!(rig.info().flight_size, 100);
    // After the handshake, the retransmission timer covers the data.
    rig.push(ack(101, 1));
    let text = rig.wait_ms(4000);
    assert_eq!(spans(&text)[0], (1, 100));

    let mut rig = pending();
    rig.events();
    rig.wait_ms(200_000);
    assert_eq!(rig.events(), [Event::Closed(CloseCause::TimedOut)]);
}

#[test]
fn a_program_may_close_before_the_handshake_ends() {
    // Without unread data, close sends a FIN. The ACK of the FIN completes the handshake, too.
    let mut rig = pending();
    let flow = id(&rig);
    let read = Advance {
        rx_read: 100,
        tx_head: 0,
        tx_room: 1000,
    };
    rig.engine.advance(flow, &read).unwrap();
    rig.engine.close(rig.now, flow, &mut rig.driver);
    let fin = rig.batch_end();
    assert_eq!((fin[0].flags, fin[0].seq), (TcpFlags::FIN | ACK, 1));
    rig.push(ack(101, 2));
    assert_eq!(rig.info().state, State::FinWait2);
    // With unread data, close sends a RST (RFC 2525 §2.17).
    let mut rig = pending();
    rig.engine.close(rig.now, id(&rig), &mut rig.driver);
    let reset = rig.batch_end();
    assert_eq!((reset[0].flags, reset[0].seq), (RST | ACK, 1));
    assert_eq!(rig.engine.flows().count(), 0);
}

#[test]
fn a_listener_that_ends_leaves_accepted_flows_alone() {
    let mut rig = pending();
    rig.engine.unlisten(rig.now, ListenerId(0), &mut rig.driver);
    assert_eq!(rig.batch_end(), []);
    rig.push(ack(101, 1));
    assert_eq!(rig.info().state, State::Established);
}

#[test]
fn the_window_of_syn_ack_is_less_by_the_unread_data() {
    let (mut rig, _) = server_with(0x202, 1);
    let answer = rig.push(fast_syn(FastOpenCookie::REQUEST, 1000))[0];
    let quota = rig.engine.flow(id(&rig)).unwrap().rx_window();
    assert_eq!(u32::from(answer.wnd) + 1000, quota);
}

/// Opens a connection, and writes `len` bytes before the SYN is sent. Returns the SYN.
fn open(rig: &mut Rig, request: FastOpenRequest, len: u32) -> Out {
    rig.key.local.port += 1;
    let mtu = rig.driver.mtu;
    let route = FlowRoute { link: LINK, mtu };
    let ends = (rig.key.local, rig.key.peer);
    let how = (SocketOptions::default(), request);
    let flow = rig
        .engine
        .open_fast(rig.now, ends, route, how, &mut rig.driver)
        .unwrap();
    rig.engine.tx_advance(flow, len).unwrap();
    let sent = rig.batch_end();
    assert_eq!(sent.len(), 1, "one SYN");
    sent[0]
}

/// Returns the number of data bytes that a SYN to the peer may carry, or `None` if the SYN may
/// carry no data.
fn room(rig: &Rig) -> Option<u32> {
    let (options, request) = (SocketOptions::default(), FastOpenRequest::default());
    let peer = rig.key.peer.addr;
    let engine = &rig.engine;
    engine.fast_open_room(rig.now, peer, rig.driver.mtu, &options, request)
}

/// Returns a SYN,ACK that acknowledges up to `acknowledged`, with or without a cookie.
fn syn_ack(acknowledged: u32, cookie: Option<&[u8]>) -> In {
    let mut options = TcpOptions {
        mss: Some(1040),
        ..TcpOptions::NONE
    };
    if let Some(cookie) = cookie {
        options.set_fast_open(option(FastOpenCookie::new(cookie).unwrap()));
    }
    In {
        ack: acknowledged,
        ..syn(options).with(SYN | ACK)
    }
}

/// Returns a client that has a cookie.
fn client() -> Rig {
    let mut rig = Rig::listening(config(1), SocketOptions::default());
    rig.key.local.port = 999;
    let first = open(&mut rig, FastOpenRequest::default(), 0);
    assert!(first.options.fast_open().unwrap().cookie.is_request());
    assert_eq!(room(&rig), None);
    rig.push(syn_ack(1, Some(&[5; 8])));
    let flow = id(&rig);
    rig.engine.abort(rig.now, flow, &mut rig.driver);
    rig.batch_end();
    rig.events();
    rig
}

#[test]
fn section_4_2_1_a_client_with_a_cookie_sends_data_in_syn() {
    let mut rig = client();
    assert_eq!(room(&rig), Some(1000), "not the MSS less option space");
    let first = open(&mut rig, FastOpenRequest::default(), 700);
    assert_eq!((first.flags, first.seq, first.len), (SYN, 0, 700));
    let cookie = first.options.fast_open().unwrap().cookie;
    assert_eq!(cookie.as_slice(), [5; 8]);
    rig.wait_ms(20);
    let answer = rig.push(syn_ack(701, None));
    assert_eq!((answer[0].flags, answer[0].seq), (ACK, 701));
    let info = rig.info();
    assert!(info.syn_data && info.flight_size == 0);
    assert_eq!((info.bytes_acked, info.srtt.as_millis()), (700, 20));
    assert_eq!(rig.wait_ms(5000), []);
    let events = rig.events();
    assert_eq!(events, [Event::Connected, Event::WRITABLE]);
    assert_eq!(rig.engine.counters().fast_open_active, 1);
}

#[test]
fn data_that_syn_ack_does_not_acknowledge_is_retransmitted_at_once() {
    let mut rig = client();
    open(&mut rig, FastOpenRequest::default(), 3000);
    // The MSS is 1040, and the SYN carried 1000 bytes.
    let again = rig.push(syn_ack(101, None));
    assert_eq!(spans(&again)[0], (101, 900));
    assert_eq!(again.last().map(|out| out.seq + out.len), Some(3001));
    assert!(!rig.info().syn_data);
    assert_eq!(rig.info().bytes_acked, 100);
    rig.push(ack(1, 3001));
    assert_eq!(rig.info().flight_size, 0);
    assert_eq!(rig.engine.counters().fast_open_active_fails, 1);
    // A SYN,ACK that acknowledges unsent data gets a RST (RFC 9293 §3.10.7.3).
    let mut rig = client();
    open(&mut rig, FastOpenRequest::default(), 100);
    assert_eq!(rig.push(syn_ack(102, None))[0].flags, RST);
    assert_eq!(rig.info().state, State::SynSent);
}

#[test]
fn syn_is_retransmitted_without_data_and_option() {
    let mut rig = client();
    open(&mut rig, FastOpenRequest::default(), 500);
    let again = rig.wait_ms(1100);
    assert_eq!((again.len(), again[0].len), (1, 0));
    assert_eq!(again[0].options.fast_open(), None);
    let text = rig.push(syn_ack(1, None));
    assert_eq!(spans(&text), [(1, 500)]);
    // Fast Open to this server pauses after the loss of two consecutive SYNs with data.
    rig.push(ack(1, 501));
    assert_eq!(room(&rig), Some(1000));
    open(&mut rig, FastOpenRequest::default(), 500);
    rig.wait_ms(1100);
    rig.push(syn_ack(1, None));
    assert_eq!(room(&rig), None, "section 4.1.3.1");
    let plain = open(&mut rig, FastOpenRequest::default(), 500);
    assert_eq!((plain.len, plain.options.fast_open()), (0, None));
}

#[test]
fn a_lower_path_mtu_retransmits_syn_without_data() {
    let mut rig = client();
    open(&mut rig, FastOpenRequest::default(), 2000);
    let mtu = 640;
    let again = rig.icmp(0, IcmpErrorKind::FragmentationNeeded { mtu });
    assert_eq!((again.len(), again[0].flags, again[0].len), (1, SYN, 0));
    assert_eq!(again[0].options.mss, Some(600));
    let text = rig.push(syn_ack(1, None));
    assert_eq!(spans(&text)[..2], [(1, 600), (601, 400)]);
}

#[test]
fn data_in_syn_ack_is_accepted() {
    let mut rig = client();
    open(&mut rig, FastOpenRequest::default(), 100);
    let answer = In {
        len: 1400,
        ..syn_ack(101, None)
    };
    let sent = rig.push(answer);
    assert_eq!((sent.len(), sent[0].ack), (1, 1401));
    assert_eq!(rig.driver.placed, [(0, 1400)]);
    assert!(rig.events().contains(&Event::READABLE));

    let mut rig = client();
    open(&mut rig, FastOpenRequest::default(), 100);
    let all = answer.with(SYN | ACK | TcpFlags::FIN);
    assert_eq!(rig.push(all)[0].ack, 1402);
    assert_eq!(rig.info().state, State::CloseWait);
}

/// With `more_follows`, the engine delays the ACK of the SYN,ACK, so that following data can carry
/// the ACK. The test sends no further data, and checks the delayed ACK.
#[test]
fn data_that_follows_the_open_carries_the_ack() {
    let mut rig = client();
    let request = FastOpenRequest {
        more_follows: true,
        ..FastOpenRequest::default()
    };
    open(&mut rig, request, 1000);
    assert_eq!(rig.push(syn_ack(1001, None)), []);
    let late = rig.wait_ms(100);
    assert_eq!((late.len(), late[0].flags), (1, ACK), "no delayed ACK");
}

#[test]
fn data_is_sent_without_a_cookie_by_policy_or_socket_option() {
    let request = FastOpenRequest {
        without_cookie: true,
        ..FastOpenRequest::default()
    };
    for (bits, request) in [(5, FastOpenRequest::default()), (1, request)] {
        let mut rig = Rig::listening(config(bits), SocketOptions::default());
        rig.key.local.port = 999;
        let first = open(&mut rig, request, 100);
        assert_eq!((first.len, first.options.fast_open()), (100, None));
        // The client does not store a cookie that it did not request.
        rig.push(syn_ack(101, Some(&[5; 8])));
        assert!(rig.info().syn_data);
        rig.engine
            .set_fast_open_policy(FastOpenPolicy::from_bits(1));
        assert_eq!(room(&rig), None);
    }
}

#[test]
fn simultaneous_open_with_data() {
    let mut rig = client();
    open(&mut rig, FastOpenRequest::default(), 300);
    let crossing = fast_syn(FastOpenCookie::new(&[8; 8]).unwrap(), 200);
    let answer = rig.push(crossing)[0];
    assert_eq!((answer.flags, answer.ack, answer.len), (SYN | ACK, 1, 0));
    let text = rig.push(ack(1, 1));
    assert_eq!(spans(&text), [(1, 300)], "the data was not retransmitted");
    rig.wait_ms(10);
    rig.push(ack(1, 301));
    assert_eq!(rig.info().flight_size, 0);
    assert_eq!(rig.wait_ms(Duration::from_secs(5).as_millis()), []);
}
