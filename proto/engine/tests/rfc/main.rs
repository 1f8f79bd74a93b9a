//! Tests of the requirements of RFCs, segment by segment in virtual time. Each file covers one RFC
//! or one topic. Many test names begin with the section of the RFC, or with the number of the
//! requirement in RFC 9293, such as `must_25`. Each test uses a rig (`rig.rs`), which is one TCP
//! engine whose peer and application are played by the test. Sequence numbers are relative, as in
//! tcpdump: 0 is the SYN, and 1 is the first byte.

mod rig;

mod ecn;
mod icmp;
mod ipv6;
mod keepalive;
mod options;
mod replies;
mod reuse_port;
mod rfc2018;
mod rfc2883;
mod rfc3042;
mod rfc4821;
mod rfc4987;
mod rfc5681;
mod rfc5682;
mod rfc5961;
mod rfc6191;
mod rfc6298;
mod rfc6937;
mod rfc7323;
mod rfc7413;
mod rfc8257;
mod rfc8985;
mod rfc9293;
mod rfc9438;
mod urgent;
mod user_timeout;
