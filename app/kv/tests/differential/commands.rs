//! Random commands for the comparison with memcached.

/// A pseudo-random sequence (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit
    }

    /// Returns true with a probability of 1 / `of`.
    fn is_one_of(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.below(items.len())]
    }
}

/// A small set of keys, so that commands often find an item. Some keys are the base64 of other
/// keys.
const KEYS: &[&str] = &[
    "a", "b", "key", "foo", "Zm9v", "a2V5", "YQ==", "n1", "n2", "none",
];
/// Values of `exptime`: never, relative times, times in the past, and a Unix time in the future.
const EXPTIMES: &[&str] = &[
    "0",
    "0",
    "0",
    "100",
    "1000000",
    "-1",
    "2592001",
    "2147483647",
];
/// Invalid and unusual values of `exptime`. The valid values are so large that no item expires
/// during the test.
const ODD_TIMES: &[&str] = &["", "x", "1x", "+1000000", "00100", "9223372036854775808"];
/// Times of the flag R, which asks the client to renew an item that expires before this time. No
/// positive time is near an entry of `EXPTIMES`: the seconds of the two servers do not begin
/// together, so near times could give different answers.
const RENEWALS: &[&str] = &["0", "50", "5000", "2000000", "2000000000", "-1"];
/// Decimal numbers for values, amounts and client flags.
const NUMBERS: &[&str] = &["0", "1", "9", "10", "99", "18446744073709551615", "12345"];
/// Invalid and unusual numbers.
const ODD_NUMBERS: &[&str] = &[
    "",
    "x",
    "-1",
    "1x",
    "18446744073709551616",
    "+3",
    "007",
    "4294967297",
];
/// Flags that have no argument, for meta commands.
const FLAGS: &[&str] = &["k", "s", "t", "c", "f", "v", "q", "l", "h", "u", "I", "b"];

/// A source of random commands. Each command is complete, so another command may follow.
pub struct Commands {
    random: Random,
    /// CAS numbers in recent answers.
    cas: Vec<String>,
    /// The command with which the next batch begins. `None` if the next batch begins with a new
    /// random command.
    next: Option<Vec<u8>>,
}

impl Commands {
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            cas: vec!["1".into()],
            next: None,
        }
    }

    /// Returns at most `count` + 1 commands. An increment or decrement is always the first command
    /// of a batch, because memcached omits the padding of a number while an unsent answer refers to
    /// the item.
    pub fn batch(&mut self, count: usize) -> Vec<u8> {
        let mut script = self.next.take().unwrap_or_default();
        for _ in 0..count {
            let mut command = Vec::new();
            self.command(&mut command);
            let names: [&[u8]; 3] = [b"incr ", b"decr ", b"ma "];
            if !script.is_empty() && names.iter().any(|name| command.starts_with(name)) {
                self.next = Some(command);
                break;
            }
            script.extend_from_slice(&command);
        }
        script
    }

    /// Collects the CAS numbers in `answers` for later commands.
    pub fn learn(&mut self, answers: &[u8]) {
        let text = String::from_utf8_lossy(answers);
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["VALUE", _, _, _, cas] => self.cas.push(cas.into()),
                ["HD" | "VA", ..] => {
                    let found = words.iter().filter_map(|word| word.strip_prefix('c'));
                    self.cas.extend(found.map(String::from));
                }
                _ => {}
            }
        }
        let old = self.cas.len().saturating_sub(8);
        self.cas.drain(..old);
    }

    fn command(&mut self, script: &mut Vec<u8>) {
        let key = self.random.pick(KEYS);
        let line = match self.random.below(20) {
            0..4 => return self.store(script, key),
            4..7 => return self.meta_store(script, key),
            7 => format!("get {key} {}", self.random.pick(KEYS)),
            8 => format!("gets {key}"),
            9 => format!("gat {} {key}", self.random.pick(EXPTIMES)),
            10 => format!("delete {key}{}", self.noreply()),
            11 => {
                let name = self.random.pick(&["incr", "decr"]);
                format!("{name} {key} {}{}", self.number(NUMBERS), self.noreply())
            }
            12 => format!(
                "touch {key} {}{}",
                self.random.pick(EXPTIMES),
                self.noreply()
            ),
            13..16 => format!("mg {key}{}", self.flags()),
            16 => format!("md {key}{}", self.flags()),
            // memcached ignores T if the number becomes longer, so the command has N instead.
            17 => format!("ma {key}{}", self.flags().replace(" T", " N")),
            18 => format!("me {key}"),
            _ if self.random.is_one_of(8) => format!("flush_all{}", self.noreply()),
            _ => format!("gats {} {key} none", self.random.pick(EXPTIMES)),
        };
        script.extend_from_slice(line.as_bytes());
        script.extend_from_slice(b"\r\n");
    }

    fn noreply(&mut self) -> &'static str {
        if self.random.is_one_of(5) {
            " noreply"
        } else {
            ""
        }
    }

    fn number(&mut self, numbers: &[&'static str]) -> &'static str {
        match self.random.is_one_of(12) {
            true => self.random.pick(ODD_NUMBERS),
            false => self.random.pick(numbers),
        }
    }

    fn time(&mut self, times: &[&'static str]) -> &'static str {
        match self.random.is_one_of(12) {
            true => self.random.pick(ODD_TIMES),
            false => self.random.pick(times),
        }
    }

    fn cas(&mut self) -> String {
        let at = self.random.below(self.cas.len());
        self.cas[at].clone()
    }

    fn value(&mut self) -> String {
        match self.random.below(6) {
            0..3 => self.random.pick(NUMBERS).into(),
            3 => String::new(),
            4 => "value ".repeat(self.random.below(300)),
            _ => format!("{} ", self.random.pick(NUMBERS)),
        }
    }

    fn store(&mut self, script: &mut Vec<u8>, key: &str) {
        let names = ["set", "set", "add", "replace", "append", "prepend", "cas"];
        let name = self.random.pick(&names);
        let (flags, exptime) = (self.random.pick(NUMBERS), self.random.pick(EXPTIMES));
        let flags = if flags.len() > 9 { "7" } else { flags };
        let value = self.value();
        let cas = match name {
            "cas" => format!(" {}", self.cas()),
            _ => String::new(),
        };
        let line = format!(
            "{name} {key} {flags} {exptime} {}{cas}{}",
            value.len(),
            self.noreply()
        );
        self.with_value(script, &line, &value);
    }

    fn meta_store(&mut self, script: &mut Vec<u8>, key: &str) {
        let value = self.value();
        let line = format!("ms {key} {}{}", value.len(), self.flags());
        self.with_value(script, &line, &value);
    }

    /// Appends a store command. The value may be longer than the announced length.
    fn with_value(&mut self, script: &mut Vec<u8>, line: &str, value: &str) {
        let surplus = if self.random.is_one_of(30) { "xyz" } else { "" };
        script.extend_from_slice(format!("{line}\r\n{value}{surplus}\r\n").as_bytes());
    }

    /// Returns flags of a meta command.
    fn flags(&mut self) -> String {
        let mut flags = String::new();
        for _ in 0..self.random.below(6) {
            let flag = match self.random.below(16) {
                0 => format!("T{}", self.time(EXPTIMES)),
                1 => format!("N{}", self.time(EXPTIMES)),
                2 => format!("R{}", self.time(RENEWALS)),
                3 => format!("C{}", self.cas()),
                4 => format!("F{}", self.number(&["0", "1", "4294967295"])),
                5 => format!(
                    "M{}",
                    self.random
                        .pick(&["S", "E", "A", "P", "R", "I", "D", "+", "-"])
                ),
                6 => format!("D{}", self.number(NUMBERS)),
                7 => format!("J{}", self.number(NUMBERS)),
                8 => format!("O{}", "x".repeat(self.random.below(34))),
                _ => self.random.pick(FLAGS).into(),
            };
            flags += " ";
            flags += &flag;
        }
        flags
    }
}

/// Returns random bytes in short lines, most of which begin with the name of a command.
pub fn garbage(random: &mut Random) -> Vec<u8> {
    const NAMES: &[&str] = &[
        "get ", "mg ", "incr ", "delete ", "touch ", "gat ", "md ", "ma ", "", "",
    ];
    let mut script = Vec::new();
    for _ in 0..20 {
        script.extend_from_slice(random.pick(NAMES).as_bytes());
        for _ in 0..random.below(40) {
            let byte = match random.below(4) {
                0 => b' ',
                1 => b'0' + random.below(10) as u8,
                _ => random.below(256) as u8,
            };
            script.push(byte);
        }
        script.extend_from_slice(b"\r\n");
    }
    script
}
