//! The format of `specs/rfcNNNN.toml`.
//!
//! ```toml
//! title = "Computing TCP's Retransmission Timer"
//!
//! [[requirement]]
//! id = "5.3"                    # clause, or the RFC's own id of the requirement: MUST-18
//! level = "MUST"                # MUST, SHOULD or MAY; a "MUST NOT" is a MUST
//! text = "An ACK of new data restarts the timer"
//! code = ["proto/fastpath/src/lib.rs:restart_timer"]
//! test = ["rfc6298/5.3-restart-on-ack.pkt", "proto/engine/tests/rfc/rfc6298.rs:section_5_3"]
//! lacks = "..."                 # the missing part; the requirement counts as missing
//! exception = "..."             # the reason not to implement it; excludes code, test and lacks
//! ```

use std::{collections::BTreeSet, fmt};

use serde::Deserialize;

/// Requirement level (RFC 2119).
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// MUST and MUST NOT; also the steps of an algorithm in an RFC without these keywords.
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

/// Implementation status of a requirement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Implemented, and a test proves it.
    Met,
    /// Not implemented, for a reason that the file states.
    Excepted,
    /// Implemented without a test.
    Untested,
    /// Implemented in part, with or without a test.
    Partial,
    /// A MAY that is not implemented.
    Unused,
    /// A MUST or SHOULD that is not implemented.
    Missing,
}

impl Status {
    /// Returns true if the requirement needs no further work.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Met | Self::Excepted | Self::Unused)
    }
}

impl fmt::Display for Status {
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

/// One requirement of an RFC.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Clause of the RFC, or the RFC's id of the requirement. Unique within the RFC.
    pub id: String,
    /// Requirement level (RFC 2119).
    pub level: Level,
    /// Text of the requirement, paraphrased.
    pub text: String,
    /// Code that implements the requirement: `path:symbol`.
    #[serde(default)]
    pub code: Vec<String>,
    /// Tests of the requirement: `path:function`, or a conformance script `rfcNNNN/name.pkt`.
    #[serde(default)]
    pub test: Vec<String>,
    /// The part that is not implemented.
    #[serde(default)]
    pub lacks: Option<String>,
    /// The reason not to implement the requirement.
    #[serde(default)]
    pub exception: Option<String>,
}

impl Requirement {
    /// Returns the status that follows from the level and from the fields that are present.
    pub fn status(&self) -> Status {
        match (self.code.is_empty(), self.test.is_empty()) {
            _ if self.exception.is_some() => Status::Excepted,
            (true, _) if self.level == Level::May => Status::Unused,
            (true, _) => Status::Missing,
            _ if self.lacks.is_some() => Status::Partial,
            (false, true) => Status::Untested,
            (false, false) => Status::Met,
        }
    }

    /// Returns the text of `exception` or `lacks`, if there is one.
    pub fn why(&self) -> Option<&str> {
        self.exception.as_deref().or(self.lacks.as_deref())
    }

    /// Returns a description of the first empty field or contradiction between fields, if there is
    /// one.
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

/// The list of requirements of one RFC: the content of one file.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Number of the RFC, from the name of the file.
    #[serde(skip)]
    pub rfc: u32,
    /// Title of the RFC, possibly shortened.
    pub title: String,
    /// The requirements, in the order of the RFC.
    #[serde(rename = "requirement")]
    pub requirements: Vec<Requirement>,
}

impl Spec {
    /// Parses the text of the file at `path`. Fails with a message for the user.
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

    /// Returns the number of requirements whose status and level `wanted` accepts.
    pub fn count(&self, wanted: impl Fn(&Status, Level) -> bool) -> usize {
        let wanted = |r: &&Requirement| wanted(&r.status(), r.level);
        self.requirements.iter().filter(wanted).count()
    }

    /// Returns the number of requirements that need further work (not [`Status::is_settled`]).
    pub fn unsettled(&self) -> usize {
        self.count(|status, _| !status.is_settled())
    }
}
