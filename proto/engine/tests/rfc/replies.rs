//! Tests of the IP fields of segments that the engine sends without a flow (its full state of a
//! connection): RSTs for unknown connections, ACKs in TIME-WAIT, and SYN cookies. The engine
//! chooses the fields by the rules of Linux. A rig is one TCP engine, with the test as its peer.

use tidelane_engine::{EngineConfig, IpFields, IpOptions, SocketOptions, TcpFlags, TcpOptions};

use crate::rig::{ACK, RST, Rig, SYN, ack, data, syn};

const FIN: TcpFlags = TcpFlags::FIN;

const fn fields(traffic_class: u8, hop_limit: u8) -> IpFields {
    IpFields {
        traffic_class,
        hop_limit,
    }
}

/// Returns socket options with a DiffServ field and a TTL.
fn chosen() -> SocketOptions {
    SocketOptions {
        ip: IpOptions {
            v4: fields(0x48, 9),
            ..IpOptions::default()
        },
        ..SocketOptions::default()
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        ip: IpOptions {
            v4: fields(0, 55),
            ..IpOptions::default()
        },
        ..EngineConfig::default()
    }
}

#[test]
fn rfc1122_section_3_2_1_7_the_default_ttl_is_configured() {
    let mut rig = Rig::listening(config(), chosen());
    rig.key.local.port = 81;
    assert_eq!(rig.push(syn(TcpOptions::NONE))[0].flags, RST | ACK);
    assert_eq!(rig.push(ack(1, 1))[0].flags, RST);
    assert_eq!(rig.driver.replies, [fields(0, 55); 2]);
}

#[test]
fn time_wait_keeps_the_diffserv_field_of_its_connection() {
    let mut rig = Rig::established_with(config(), chosen(), TcpOptions::NONE);
    rig.close();
    rig.push(ack(1, 2).with(ACK | FIN));
    assert!(rig.flow_id().is_none());
    assert_eq!(
        rig.driver.replies,
        [],
        "the flow itself answers the first FIN"
    );
    let again = rig.push(ack(1, 2).with(ACK | FIN));
    assert_eq!((again[0].flags, again[0].ack), (ACK, 2));
    assert_eq!(rig.driver.replies, [fields(0x48, 55)]);
}

#[test]
fn a_cookie_has_the_header_of_its_listener() {
    let one = EngineConfig {
        half_open_max: 1,
        ..config()
    };
    let mut rig = Rig::listening(one, chosen());
    assert_eq!(rig.push(syn(TcpOptions::NONE))[0].flags, SYN | ACK);
    assert_eq!(
        rig.driver.replies,
        [],
        "the first SYN makes a half-open connection, not a cookie"
    );
    rig.key.peer.port += 1;
    assert_eq!(rig.push(syn(TcpOptions::NONE))[0].flags, SYN | ACK);
    assert_eq!(rig.driver.replies, [fields(0x48, 9)]);
    rig.push(data(1, 1, 10));
    assert_eq!(rig.events().len(), 2, "accepted, and readable");
}
