//! The bytes of a stream as a function of the run's seed, the connection, the direction and the
//! position. A receiver can verify any byte independently of the preceding bytes.

/// Length in bytes of the header at the start of a client's stream. The header identifies the
/// connection.
pub const HEADER_LEN: u64 = 16;
/// Constant that separates the hashes in the header and in the tags from other hashes of the seed.
const HEADER_KEY: u64 = 0x7469_6465_6c61_6e65;
/// First byte of every tag.
const TAG_MARK: u8 = 0xa7;
/// Distance between two tags in a stream, in bytes.
const TAG_EVERY: usize = 8;

/// The last four bytes of every eight bytes of a stream, except in the header. A tag contains a
/// mark, eight bits of a hash of the run's seed, and the low 16 bits of the connection's number, so
/// that a part of a stream can be recognised anywhere in memory.
type Tag = [u8; 4];

fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn tag(seed: u64, id: u32) -> Tag {
    let [high, low] = (id as u16).to_be_bytes();
    [TAG_MARK, mix(seed ^ HEADER_KEY) as u8, high, low]
}

/// Searches `bytes` for parts of streams at all offsets. Returns the numbers of the connections to
/// which these parts belong. Two consecutive tags identify a part, so parts of less than 19 bytes
/// may be missed. The header, which has no tags, is always missed. A connection appears once for
/// each pair of consecutive tags. The numbers of the run's connections must fit in 16 bits.
pub fn connections_in(seed: u64, bytes: &[u8]) -> impl Iterator<Item = u32> {
    let [mark, run, ..] = tag(seed, 0);
    let windows = bytes.windows(TAG_EVERY + size_of::<Tag>());
    windows.filter_map(move |window| {
        let is_piece = window[0] == mark
            && window[1] == run
            && window[..size_of::<Tag>()] == window[TAG_EVERY..];
        is_piece.then(|| u16::from_be_bytes([window[2], window[3]]).into())
    })
}

/// The bytes of one direction of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    /// Seed of the bytes between the tags.
    key: u64,
    tag: Tag,
    /// The header of a client's stream. `None` for a server's stream.
    header: Option<[u8; HEADER_LEN as usize]>,
}

impl Content {
    /// Returns the stream of the client of connection `id`: a header, and then pseudorandom bytes
    /// with tags.
    pub fn of_client(seed: u64, id: u32) -> Self {
        let name = u64::from(id);
        let mut header = [0; HEADER_LEN as usize];
        header[..8].copy_from_slice(&name.to_le_bytes());
        header[8..].copy_from_slice(&mix(seed ^ name ^ HEADER_KEY).to_le_bytes());
        Self {
            key: mix(seed ^ (name << 1)),
            tag: tag(seed, id),
            header: Some(header),
        }
    }

    /// Returns the stream of the server of connection `id`: pseudorandom bytes with tags.
    pub fn of_server(seed: u64, id: u32) -> Self {
        Self {
            key: mix(seed ^ (u64::from(id) << 1 | 1)),
            tag: tag(seed, id),
            header: None,
        }
    }

    /// Returns the connection that a header identifies. Returns `None` for an invalid header.
    pub fn parse_header(seed: u64, header: &[u8; HEADER_LEN as usize]) -> Option<u32> {
        let id = u32::try_from(u64::from_le_bytes(header[..8].try_into().ok()?)).ok()?;
        (Self::of_client(seed, id).header.as_ref() == Some(header)).then_some(id)
    }

    /// Fills `into` with the bytes of the stream from position `pos` on.
    pub fn fill(&self, pos: u64, into: &mut [u8]) {
        let mut at = 0;
        while at < into.len() {
            let here = pos + at as u64;
            let mut word = mix(self.key.wrapping_add(here / 8)).to_le_bytes();
            word[4..].copy_from_slice(&self.tag);
            let start = (here % 8) as usize;
            let len = (8 - start).min(into.len() - at);
            into[at..at + len].copy_from_slice(&word[start..start + len]);
            at += len;
        }
        if let Some(header) = &self.header {
            for (offset, byte) in into.iter_mut().enumerate() {
                match header.get((pos + offset as u64) as usize) {
                    Some(of_header) => *byte = *of_header,
                    None => break,
                }
            }
        }
    }

    /// Compares `bytes` with the stream from position `pos` on. Returns the position of the first
    /// wrong byte, or `None` if all bytes are right. `scratch` is working memory, which the caller
    /// can use for many calls.
    pub fn first_mismatch(&self, pos: u64, bytes: &[u8], scratch: &mut Vec<u8>) -> Option<u64> {
        scratch.resize(bytes.len(), 0);
        self.fill(pos, scratch);
        if bytes == &scratch[..] {
            return None;
        }
        let at = bytes.iter().zip(scratch.iter()).position(|(a, b)| a != b)?;
        Some(pos + at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_bytes() {
        for content in [Content::of_client(7, 3), Content::of_server(7, 3)] {
            let mut whole = [0; 100];
            content.fill(0, &mut whole);
            for cut in 0..100 {
                let mut rest = vec![0; 100 - cut];
                content.fill(cut as u64, &mut rest);
                assert_eq!(rest, whole[cut..]);
            }
        }
    }

    #[test]
    fn only_an_intact_header_identifies_its_connection() {
        let mut bytes = [0; HEADER_LEN as usize];
        Content::of_client(1, 9).fill(0, &mut bytes);
        assert_eq!(Content::parse_header(1, &bytes), Some(9));
        assert_eq!(Content::parse_header(2, &bytes), None);
        bytes[3] ^= 1;
        assert_eq!(Content::parse_header(1, &bytes), None);
    }

    /// Checks parts of 24 bytes that lie after the header.
    #[test]
    fn a_connection_is_identified_by_any_part_of_its_stream() {
        for content in [Content::of_client(7, 300), Content::of_server(7, 300)] {
            for (pos, place) in (17..60).zip(0..) {
                let mut memory = [0; 100];
                content.fill(pos, &mut memory[place..][..24]);
                assert!(connections_in(7, &memory).all(|id| id == 300));
                assert!(connections_in(7, &memory).count() >= 1, "position {pos}");
                assert_eq!(connections_in(8, &memory).count(), 0);
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let content = Content::of_server(1, 1);
        let mut bytes = [0; 64];
        content.fill(5, &mut bytes);
        assert_eq!(content.first_mismatch(5, &bytes, &mut Vec::new()), None);
        bytes[20] ^= 0x10;
        assert_eq!(content.first_mismatch(5, &bytes, &mut Vec::new()), Some(25));
    }
}
