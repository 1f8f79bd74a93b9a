//! Base64 of binary keys (RFC 4648 §4). Like memcached's decoder, the decoder skips bytes outside
//! of the alphabet, and stops after the first group with padding.

/// Longest key in bytes, and longest base64 text of a key.
pub const KEY_LEN_MAX: usize = 250;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// A decoded key.
#[derive(Clone, Copy, Debug)]
pub struct DecodedKey {
    bytes: [u8; KEY_LEN_MAX],
    len: usize,
}

impl DecodedKey {
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns the value of a byte of the alphabet, and zero for padding. Returns `None` for any other
/// byte.
fn value_of(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        _ => return None,
    };
    Some(value.into())
}

/// Decodes a key from at most [`KEY_LEN_MAX`] bytes of base64. Returns `None` if the text is
/// longer, if the number of its alphabet and padding bytes is not a multiple of four, if the first
/// group with padding has more than two padding bytes, or if the key is empty.
pub fn decode(text: &[u8]) -> Option<DecodedKey> {
    let known = text.iter().filter(|byte| value_of(**byte).is_some());
    if text.len() > KEY_LEN_MAX || known.count() % 4 != 0 {
        return None;
    }
    let mut key = DecodedKey {
        bytes: [0; KEY_LEN_MAX],
        len: 0,
    };
    let (mut group, mut count, mut padding) = (0, 0, 0);
    for byte in text {
        let Some(value) = value_of(*byte) else {
            continue;
        };
        padding += usize::from(*byte == b'=');
        group = group << 6 | value;
        count += 1;
        if count < 4 {
            continue;
        }
        let [_, a, b, c] = u32::to_be_bytes(group);
        key.bytes[key.len..key.len + 3].copy_from_slice(&[a, b, c]);
        key.len += 3;
        if padding > 2 {
            return None;
        }
        key.len -= padding;
        if padding > 0 {
            break;
        }
        (group, count) = (0, 0);
    }
    (key.len > 0).then_some(key)
}

/// Appends the base64 of `bytes` to `out`.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for part in bytes.chunks(3) {
        let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let index = group >> (18 - 6 * at) & 63;
            out.push(match at <= part.len() as u32 {
                true => ALPHABET[index as usize],
                false => b'=',
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Option<Vec<u8>> {
        decode(text.as_bytes()).map(|key| key.as_bytes().to_vec())
    }

    #[test]
    fn the_vectors_of_rfc_4648_hold() {
        let vectors = [
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, text) in vectors {
            let mut out = Vec::new();
            encode(plain.as_bytes(), &mut out);
            assert_eq!(out, text.as_bytes());
            assert_eq!(decoded(text).as_deref(), Some(plain.as_bytes()));
        }
    }

    #[test]
    fn broken_text_is_refused_and_foreign_bytes_are_skipped() {
        for text in ["", "A", "AB", "ABC", "====", "A===", "!!!!", "Zg==A"] {
            assert_eq!(decoded(text), None, "{text}");
        }
        assert_eq!(decoded("Z-g_=="), Some(b"f".to_vec()));
        assert_eq!(decoded("Zg==Zg=="), Some(b"f".to_vec()));
        assert_eq!(decoded(&"A".repeat(252)), None);
        assert_eq!(decoded(&"A".repeat(248)), Some(vec![0; 186]));
    }

    #[test]
    fn every_short_key_survives_both_directions() {
        for len in 1..=187usize {
            let key: Vec<u8> = (0..len).map(|at| (at * 89 + len) as u8).collect();
            let mut text = Vec::new();
            encode(&key, &mut text);
            if text.len() <= KEY_LEN_MAX {
                let back = decode(&text).map(|key| key.as_bytes().to_vec());
                assert_eq!(back, Some(key));
            }
        }
    }
}
