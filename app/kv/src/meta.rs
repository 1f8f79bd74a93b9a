//! The key and the flags of a meta command of memcached's protocol.

use crate::{
    base64::{self, DecodedKey, KEY_LEN_MAX},
    clock::{Expiry, Second},
    kv::Kv,
    number::{parse_i32, parse_u32, parse_u64},
    tokens::Tokens,
};

/// Limit of the words of a meta command, including the command and the key.
const WORDS_MAX: usize = 19;

pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";

/// The key of a meta command.
#[derive(Debug)]
pub struct Key<'a> {
    text: &'a [u8],
    /// The decoded key if `text` is base64.
    decoded: Option<DecodedKey>,
}

impl<'a> Key<'a> {
    /// Returns a key that is sent as text.
    pub fn from_text(text: &'a [u8]) -> Self {
        Self {
            text,
            decoded: None,
        }
    }

    /// Returns a key that is sent in base64. Returns `None` if the text is not base64 of a key.
    pub fn from_base64(text: &'a [u8]) -> Option<Self> {
        let decoded = Some(base64::decode(text)?);
        Some(Self { text, decoded })
    }

    /// Returns the bytes of the key, decoded if the client sent the key in base64.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.decoded {
            Some(decoded) => decoded.as_bytes(),
            None => self.text,
        }
    }

    /// Returns true if the key was sent in base64.
    pub fn is_binary(&self) -> bool {
        self.decoded.is_some()
    }
}

/// The flags of a meta command, and its key.
#[derive(Debug)]
pub struct Flags<'a> {
    pub key: Key<'a>,
    /// N: expiry with which the command creates the item if no item has the key.
    pub vivify: Option<Expiry>,
    /// T: new expiry of the item.
    pub ttl: Option<Expiry>,
    /// R: if the item expires before this second, the answer asks the client to renew the item.
    pub recache: Option<Expiry>,
    /// v: the answer contains the value.
    pub has_value: bool,
    /// u: the command does not count as an access to the item.
    pub is_no_use: bool,
    /// True if one of the flags T, N, R, l and h is present. The command then records the access to
    /// the item only after the command has written the answer.
    pub is_used_late: bool,
    /// q: `mg` omits the answer to a miss. The other commands omit the answer to a success, but
    /// `ma` still answers if it has created the item.
    pub is_quiet: bool,
    /// F: flags of the client.
    pub client_flags: u32,
    /// C: CAS number (the version of an item, for compare-and-swap) that the item must have.
    pub cas: Option<u64>,
    /// M: mode of the command.
    pub mode: Option<u8>,
    /// J: initial number of an item that the command creates.
    pub initial: u64,
    /// D: amount of the increment or decrement.
    pub delta: u64,
    /// I: `md` marks the item as stale and does not delete the item. If the CAS number of an `ms`
    /// is lower than the CAS number of the item, `ms` stores the value as stale.
    pub is_invalidating: bool,
}

/// Checks the number of words and the length of the key. `too_many` is the error for too many
/// words.
pub fn check_words(tokens: &Tokens<'_>, too_many: &'static str) -> Result<(), &'static str> {
    if tokens.len() < 2 {
        return Err("ERROR");
    }
    if tokens.get(1).len() > KEY_LEN_MAX {
        return Err(BAD_FORMAT);
    }
    if tokens.len() > WORDS_MAX {
        return Err(too_many);
    }
    Ok(())
}

impl<'a> Flags<'a> {
    /// Parses the flags of a command: the words from `start` on.
    ///
    /// # Errors
    ///
    /// The error is the answer to the client. The first unknown or duplicate flag ends the parsing
    /// and selects the answer. Otherwise, the last flag with a wrong argument selects the answer,
    /// except that F selects the answer only if no other argument is wrong.
    pub fn parse(
        (kv, now): (&Kv, Second),
        tokens: &Tokens<'a>,
        start: usize,
    ) -> Result<Self, &'static str> {
        let mut flags = Self {
            key: Key::from_text(tokens.get(1)),
            vivify: None,
            ttl: None,
            recache: None,
            has_value: false,
            is_no_use: false,
            is_used_late: false,
            is_quiet: false,
            client_flags: 0,
            cas: None,
            mode: None,
            initial: 0,
            delta: 1,
            is_invalidating: false,
        };
        let mut seen = 0u128;
        let mut result = Ok(());
        for word in tokens.from(start) {
            let (name, argument) = (word[0], &word[1..]);
            if name >= 127 || seen & 1 << name != 0 {
                return Err("CLIENT_ERROR duplicate flag");
            }
            seen |= 1 << name;
            match flags.read((kv, now), name, argument) {
                Ok(true) => {}
                Ok(false) => return Err("CLIENT_ERROR invalid flag"),
                // A wrong argument of F keeps the error of an earlier flag.
                Err(None) => result = result.and(Err(BAD_FORMAT)),
                Err(Some(text)) => result = Err(text),
            }
        }
        result.map(|()| flags)
    }

    /// Parses one flag. Returns `Ok(false)` for an unknown flag. `Err(None)` keeps the error of an
    /// earlier flag, and stands for `BAD_FORMAT` if there is no earlier error.
    fn read(
        &mut self,
        (kv, now): (&Kv, Second),
        name: u8,
        argument: &[u8],
    ) -> Result<bool, Option<&'static str>> {
        let expiry = || match parse_i32(argument) {
            Some(exptime) => Ok(Some(kv.clock.expiry(now, exptime))),
            None => Err(Some(BAD_TOKEN)),
        };
        self.is_used_late |= matches!(name, b'N' | b'T' | b'R' | b'l' | b'h');
        match name {
            b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => {}
            b'b' => {
                let error = Some("CLIENT_ERROR error decoding key");
                self.key = Key::from_base64(self.key.text).ok_or(error)?;
            }
            b'N' => self.vivify = expiry()?,
            b'T' => self.ttl = expiry()?,
            b'R' => self.recache = expiry()?,
            b'v' => self.has_value = true,
            b'u' => self.is_no_use = true,
            b'q' => self.is_quiet = true,
            b'F' => self.client_flags = parse_u32(argument).ok_or(None)?,
            b'C' => self.cas = Some(parse_u64(argument).ok_or(Some(BAD_TOKEN))?),
            b'M' => match argument {
                &[mode] => self.mode = Some(mode),
                _ => return Err(Some("CLIENT_ERROR incorrect length for M token")),
            },
            b'J' => {
                let error = Some("CLIENT_ERROR invalid numeric initial value");
                self.initial = parse_u64(argument).ok_or(error)?;
            }
            b'D' => {
                let error = Some("CLIENT_ERROR invalid numeric delta value");
                self.delta = parse_u64(argument).ok_or(error)?;
            }
            b'I' => self.is_invalidating = true,
            _ => return Ok(false),
        }
        Ok(true)
    }
}
