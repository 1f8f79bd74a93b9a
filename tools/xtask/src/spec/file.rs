//! One `specs/rfcNNNN.toml`.
//!
//! ```toml
//! title = "Computing TCP's Retransmission Timer"
//!
//! [[requirement]]
//! id = "5.3"                    # clause, or the RFC's own name for it: MUST-18
//! level = "MUST"                # MUST, SHOULD or MAY; a "MUST NOT" is a MUST
//! text = "An ACK of new data restarts the timer"
//! code = ["proto/fastpath/src/lib.rs:restart_timer"]
//! test = ["rfc6298/5.3-restart-on-ack.pkt", "proto/engine/tests/rfc/rfc6298.rs:section_5_3"]
//! lacks = "..."                 # part of it is not done: missing in spite of code and test
//! exception = "..."             # why Tidelane should not do it; then no code and no test
//! ```

use std::{collections::BTreeSet, fmt};

use serde::Deserialize;

/// How binding a requirement is (RFC 2119).
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// MUST and MUST NOT; also what an algorithm without such words consists of.
    Must,
    /// SHOULD and SHOULD NOT.
    Should,
    /// MAY.
    May,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Must => "MUST",
            Self::Should => "SHOULD",
            Self::May => "MAY",
        })
    }
}

/// How things stand with a requirement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Done, and a test shows it.
    Met,
    /// There is a reason not to do it.
    Excepted,
    /// Done, and nothing shows it.
    Untested,
    /// A part is done.
    Partial,
    /// Not done, and need not be.
    Unused,
    /// Not done.
    Missing,
}

impl Standing {
    /// Whether nothing is left to do.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Met | Self::Excepted | Self::Unused)
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Excepted => "excepted",
            Self::Untested => "untested",
            Self::Partial => "partial",
            Self::Unused => "unused",
            Self::Missing => "missing",
        })
    }
}

/// One thing that an RFC asks for.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Clause and number, unique in its RFC.
    pub id: String,
    /// How binding it is.
    pub level: Level,
    /// What is asked for, in our words.
    pub text: String,
    /// Where it is done: `path:symbol`.
    #[serde(default)]
    pub code: Vec<String>,
    /// What shows it: `path:function`, or a conformance script `rfcNNNN/name.pkt`.
    #[serde(default)]
    pub test: Vec<String>,
    /// Which part is not done.
    #[serde(default)]
    pub lacks: Option<String>,
    /// Why it is not done and should not be.
    #[serde(default)]
    pub exception: Option<String>,
}

impl Requirement {
    /// See [`Standing`].
    pub fn standing(&self) -> Standing {
        match (self.code.is_empty(), self.test.is_empty()) {
            _ if self.exception.is_some() => Standing::Excepted,
            (true, _) if self.level == Level::May => Standing::Unused,
            (true, _) => Standing::Missing,
            _ if self.lacks.is_some() => Standing::Partial,
            (false, true) => Standing::Untested,
            (false, false) => Standing::Met,
        }
    }

    /// What is said about its being not done.
    pub fn why(&self) -> Option<&str> {
        self.exception.as_deref().or(self.lacks.as_deref())
    }

    /// What contradicts itself here.
    fn fault(&self) -> Option<&'static str> {
        let cites = !self.code.is_empty() || !self.test.is_empty();
        let blank = |text: &Option<String>| text.as_ref().is_some_and(|t| t.trim().is_empty());
        if self.id.trim().is_empty() || self.text.trim().is_empty() {
            Some("has no id or no text")
        } else if blank(&self.exception) || blank(&self.lacks) {
            Some("gives an empty reason")
        } else if self.exception.is_some() && (cites || self.lacks.is_some()) {
            Some("is an exception and cites code, tests or what it lacks")
        } else if self.code.is_empty() && !self.test.is_empty() {
            Some("cites a test and no code")
        } else {
            None
        }
    }
}

/// The requirements of one RFC.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The RFC's number, from the name of the file.
    #[serde(skip)]
    pub rfc: u32,
    /// Its title, perhaps shortened.
    pub title: String,
    /// What it asks for.
    #[serde(rename = "requirement")]
    pub requirements: Vec<Requirement>,
}

impl Spec {
    /// Reads the text of the file at `path`.
    pub fn parse(path: &str, text: &str) -> Result<Self, String> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let number = name
            .strip_prefix("rfc")
            .and_then(|n| n.strip_suffix(".toml"));
        let rfc = number
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| format!("{path}: not named rfcNNNN.toml"))?;
        let mut spec: Self = toml::from_str(text).map_err(|error| format!("{path}: {error}"))?;
        spec.rfc = rfc;
        let mut seen = BTreeSet::new();
        for requirement in &spec.requirements {
            if let Some(fault) = requirement.fault() {
                return Err(format!("{path}: {:?} {fault}", requirement.id));
            }
            if !seen.insert(requirement.id.as_str()) {
                return Err(format!("{path}: {:?} is there twice", requirement.id));
            }
        }
        Ok(spec)
    }

    /// How many requirements are as `wanted` says.
    pub fn count(&self, wanted: impl Fn(&Standing, Level) -> bool) -> usize {
        let wanted = |r: &&Requirement| wanted(&r.standing(), r.level);
        self.requirements.iter().filter(wanted).count()
    }

    /// How many are neither met nor excepted.
    pub fn missing(&self) -> usize {
        self.count(|standing, _| !standing.is_settled())
    }
}
