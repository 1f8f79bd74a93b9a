//! The objects of the key-value client: requests, expected answers, and the order of requests.

/// A request for one object. The number is the object's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Stores the object.
    Set(usize),
    /// Reads the object.
    Get(usize),
}

/// The bytes of all requests and answers, in memcached's text protocol. A key always has the same
/// value, so that each answer is known in advance.
#[derive(Debug)]
pub struct Items(Vec<Item>);

/// The requests for one object, and the answer that contains its value.
#[derive(Debug)]
struct Item {
    /// The request that stores the object.
    set: Vec<u8>,
    /// The request that reads the object.
    get: Vec<u8>,
    /// The answer to the request that reads the object.
    value: Vec<u8>,
}

/// The answer to a request that stores an object.
const STORED: &[u8] = b"STORED\r\n";

impl Items {
    /// Makes `count` objects with values of `len` bytes.
    pub fn new(count: usize, len: usize) -> Self {
        Self((0..count).map(|index| Item::new(index, len)).collect())
    }

    /// Returns the bytes to send for a request.
    pub fn request(&self, operation: Operation) -> &[u8] {
        match operation {
            Operation::Set(index) => &self.0[index].set,
            Operation::Get(index) => &self.0[index].get,
        }
    }

    /// Returns the expected answer to a request.
    pub fn answer(&self, operation: Operation) -> &[u8] {
        match operation {
            Operation::Set(_) => STORED,
            Operation::Get(index) => &self.0[index].value,
        }
    }
}

impl Item {
    fn new(index: usize, len: usize) -> Self {
        let key = format!("load-{index:010}");
        let value: Vec<u8> = (0..len)
            .map(|at| (at.wrapping_mul(7) ^ (at / 251) ^ index.wrapping_mul(31)) as u8)
            .collect();
        let set = [
            format!("set {key} 0 0 {len}\r\n").as_bytes(),
            &value,
            b"\r\n",
        ]
        .concat();
        let head = format!("VALUE {key} 0 {len}\r\n");
        Self {
            set,
            get: format!("get {key}\r\n").into_bytes(),
            value: [head.as_bytes(), &value, b"\r\nEND\r\n"].concat(),
        }
    }
}

/// A reproducible random sequence of requests (xorshift64*).
#[derive(Debug)]
pub struct Mix {
    /// State of the random number generator.
    state: u64,
    /// Number of objects.
    keys: u64,
    /// Percentage of requests that store an object.
    set_percent: u64,
}

impl Mix {
    /// Returns a sequence of requests for `keys` objects. On average, `set_percent` percent of the
    /// requests store an object. The other requests read an object.
    pub fn new(keys: usize, set_percent: u8) -> Self {
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
            keys: keys as u64,
            set_percent: set_percent.into(),
        }
    }

    /// Returns a random number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        ((self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) * bound) >> 32
    }

    /// Returns the next request.
    pub fn next(&mut self) -> Operation {
        let index = self.below(self.keys) as usize;
        if self.below(100) < self.set_percent {
            Operation::Set(index)
        } else {
            Operation::Get(index)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_have_the_protocols_form() {
        let items = Items::new(2, 3);
        let set = items.request(Operation::Set(1));
        assert!(set.starts_with(b"set load-0000000001 0 0 3\r\n"));
        let value = &set[set.len() - 5..set.len() - 2];
        let get = b"get load-0000000001\r\n";
        assert_eq!(items.request(Operation::Get(1)), get);
        let answer = [b"VALUE load-0000000001 0 3\r\n", value, b"\r\nEND\r\n"].concat();
        assert_eq!(items.answer(Operation::Get(1)), answer);
        assert_eq!(items.answer(Operation::Set(1)), b"STORED\r\n");
        let other = items.answer(Operation::Get(0));
        assert_ne!(&other[27..30], value, "two keys have the same value");
    }

    #[test]
    fn a_mix_has_its_share_of_sets_and_reaches_every_key() {
        let mut mix = Mix::new(50, 10);
        let mut counts = [0; 50];
        let mut sets = 0;
        for _ in 0..100_000 {
            match mix.next() {
                Operation::Set(index) => {
                    sets += 1;
                    counts[index] += 1;
                }
                Operation::Get(index) => counts[index] += 1,
            }
        }
        assert!((9_500..=10_500).contains(&sets), "{sets} sets");
        assert!(
            counts.iter().all(|count| (1_700..2_300).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn a_mix_can_have_only_sets_or_only_gets() {
        let (mut sets, mut gets) = (Mix::new(5, 100), Mix::new(5, 0));
        for _ in 0..1000 {
            assert!(matches!(sets.next(), Operation::Set(0..5)));
            assert!(matches!(gets.next(), Operation::Get(0..5)));
        }
    }
}
