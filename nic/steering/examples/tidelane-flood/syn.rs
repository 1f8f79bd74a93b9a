//! SYNs with the options of a Linux SYN, each from a pseudo-random address and port. Two runs with
//! the same arguments send the same sequence of SYNs.

use std::net::SocketAddr;

use tidelane_wire::{
    Ecn, Endpoint, HeaderTemplate, IpAddress, MacAddress, SegmentHeader, SeqNumber, TcpFlags,
    TcpOptions, Timestamps, checksum, emit_tcp, write_tcp_checksum,
};

/// Lowest source port. Clients usually use no lower ports.
const PORT_FIRST: u16 = 1024;

/// Generator of the SYNs of a flood.
pub struct SynSource {
    /// Link addresses of the source and of the destination.
    macs: (MacAddress, MacAddress),
    to: Endpoint,
    /// The first of `hosts` consecutive source addresses.
    first: IpAddress,
    hosts: u32,
    /// State of the random number generator.
    state: u64,
    /// Number of SYNs so far. The number is also the TSval of the most recent SYN.
    count: u32,
}

/// Parses a link address such as `02:00:5e:00:53:01`.
pub fn parse_mac(text: &str) -> Result<MacAddress, String> {
    let bytes: Result<Vec<u8>, _> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16))
        .collect();
    let bytes = bytes.ok().and_then(|bytes| bytes.try_into().ok());
    bytes
        .map(MacAddress)
        .ok_or_else(|| format!("{text:?} is no link address"))
}

impl SynSource {
    /// Creates a generator of SYNs to the address and port `to`. The source addresses are `hosts`
    /// consecutive addresses, which begin with `first`. `macs` are the link addresses of the source
    /// and of the destination.
    pub fn new(
        macs: (MacAddress, MacAddress),
        to: SocketAddr,
        (first, hosts): (IpAddress, u32),
    ) -> Result<Self, String> {
        let to = Endpoint::new(to.ip().into(), to.port());
        if first.is_v4() != to.addr.is_v4() {
            return Err(format!("{first} and {} are of two versions", to.addr));
        }
        Ok(Self {
            macs,
            to,
            first,
            hosts,
            state: 0x9e37_79b9_7f4a_7c15,
            count: 0,
        })
    }

    /// Returns a pseudo-random number (Marsaglia's xorshift64*).
    fn random(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Writes the next SYN into `frame`. Returns the length of the frame.
    pub fn write(&mut self, frame: &mut [u8]) -> usize {
        let random = self.random();
        let host = u128::from((random >> 32) as u32 % self.hosts);
        let from = IpAddress((u128::from_be_bytes(self.first.0) + host).to_be_bytes());
        let template = HeaderTemplate::new(self.macs.0, self.macs.1, from, self.to.addr)
            .expect("both addresses are of one version");
        self.count = self.count.wrapping_add(1);
        let header = SegmentHeader {
            src_port: (random as u16).max(PORT_FIRST),
            dst_port: self.to.port,
            seq: SeqNumber(self.random() as u32),
            ack: SeqNumber(0),
            flags: TcpFlags::SYN,
            wnd: 64_240,
            urgent: 0,
            options: TcpOptions {
                mss: Some(1460),
                wscale: Some(7),
                sack_permitted: true,
                timestamps: Some(Timestamps {
                    tsval: self.count,
                    tsecr: 0,
                }),
                ..TcpOptions::NONE
            },
        };
        let tcp_start = template.headers_len();
        let tcp_len = header.len();
        template.write(frame, tcp_len as u16, Ecn::NotEct, self.count as u16);
        let tcp = &mut frame[tcp_start..tcp_start + tcp_len];
        emit_tcp(tcp, &header);
        let pseudo = template.pseudo_header(tcp_len as u16);
        write_tcp_checksum(tcp, pseudo, checksum::sum(&[]));
        tcp_start + tcp_len
    }
}
