//! Evaluation and formatting of terms: the integer expressions over the fields of `tcp_info` in the
//! assertions of scripts.

use std::fmt;

use crate::{
    ast::{BinaryOp, Term, UnaryOp},
    tcp_info::TcpInfo,
};

/// Constants that terms may name in addition to the fields of `tcp_info`.
const CONSTANTS: [(&str, i64); 23] = [
    ("True", 1),
    ("False", 0),
    ("TCP_CA_Open", 0),
    ("TCP_CA_Disorder", 1),
    ("TCP_CA_CWR", 2),
    ("TCP_CA_Recovery", 3),
    ("TCP_CA_Loss", 4),
    ("TCP_ESTABLISHED", 1),
    ("TCP_SYN_SENT", 2),
    ("TCP_SYN_RECV", 3),
    ("TCP_FIN_WAIT1", 4),
    ("TCP_FIN_WAIT2", 5),
    ("TCP_TIME_WAIT", 6),
    ("TCP_CLOSE", 7),
    ("TCP_CLOSE_WAIT", 8),
    ("TCP_LAST_ACK", 9),
    ("TCP_LISTEN", 10),
    ("TCP_CLOSING", 11),
    ("TCPI_OPT_TIMESTAMPS", 1),
    ("TCPI_OPT_SACK", 2),
    ("TCPI_OPT_WSCALE", 4),
    ("TCPI_OPT_ECN", 8),
    ("TCPI_OPT_ECN_SEEN", 16),
];

impl Term {
    /// Evaluates the term. Fails with a message if a name is unknown, if a divisor is zero, or if a
    /// quotient overflows.
    pub fn value(&self, info: &TcpInfo) -> Result<i64, String> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Name(name) => {
                let constant = CONSTANTS.iter().find(|(known, _)| known == name);
                match constant {
                    Some((_, value)) => Ok(*value),
                    None => info
                        .field(name)
                        .ok_or(format!("{name} is not a field of tcp_info")),
                }
            }
            Self::Unary(op, inside) => {
                let value = inside.value(info)?;
                Ok(match op {
                    UnaryOp::Not => i64::from(value == 0),
                    UnaryOp::Negate => value.wrapping_neg(),
                })
            }
            Self::Binary(op, left, right) => op
                .apply(left.value(info)?, right.value(info)?)
                .ok_or(format!("{self}: division by zero")),
        }
    }
}

impl BinaryOp {
    /// Applies the operator to `a` and `b`. Returns `None` if the divisor is zero or the quotient
    /// overflows.
    fn apply(self, a: i64, b: i64) -> Option<i64> {
        Some(match self {
            Self::Or => i64::from(a != 0 || b != 0),
            Self::And => i64::from(a != 0 && b != 0),
            Self::Equal => i64::from(a == b),
            Self::NotEqual => i64::from(a != b),
            Self::Less => i64::from(a < b),
            Self::LessEqual => i64::from(a <= b),
            Self::Greater => i64::from(a > b),
            Self::GreaterEqual => i64::from(a >= b),
            Self::BitAnd => a & b,
            Self::BitOr => a | b,
            Self::Plus => a.wrapping_add(b),
            Self::Minus => a.wrapping_sub(b),
            Self::Times => a.wrapping_mul(b),
            Self::Divide => a.checked_div_euclid(b)?,
            Self::Modulo => a.checked_rem_euclid(b)?,
        })
    }

    /// Returns the operator as scripts write it.
    fn text(self) -> &'static str {
        match self {
            Self::Or => "or",
            Self::And => "and",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::BitAnd => "&",
            Self::BitOr => "|",
            Self::Plus => "+",
            Self::Minus => "-",
            Self::Times => "*",
            Self::Divide => "/",
            Self::Modulo => "%",
        }
    }
}

impl UnaryOp {
    /// Returns the operator as scripts write it.
    fn text(self) -> &'static str {
        match self {
            Self::Not => "not",
            Self::Negate => "-",
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
            Self::Unary(op, inside) => write!(f, "{} {inside}", op.text()),
            Self::Binary(op, left, right) => write!(f, "({left} {} {right})", op.text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ast::Action, parse};

    /// Returns true if `condition` holds for a connection in ESTABLISHED whose cwnd is 10 segments.
    fn holds(condition: &str) -> bool {
        let text = format!("+0 %{{ assert {condition} }}%");
        let script = parse::parse(&text).unwrap();
        let Action::Assert(found) = &script.events[0].action else {
            panic!("not an assertion");
        };
        let mut bytes = vec![0; 300];
        // tcpi_state and tcpi_snd_cwnd.
        bytes[0] = 1;
        bytes[80] = 10;
        found[0].condition.value(&TcpInfo::new(bytes)).unwrap() != 0
    }

    /// The test does not check the precedence of `&` and `|`, or the precedence of `and` over `or`.
    /// All operands of `//` and `%` are positive.
    #[test]
    fn operators_bind_as_in_python() {
        assert!(holds("tcpi_snd_cwnd == 10"));
        assert!(holds("1 + 2 * 3 == 7 and not 1 == 2"));
        assert!(holds("0 or 1 and 0 or 1"));
        assert!(!holds("not 0 and 0"));
        assert!(holds("5 <= tcpi_snd_cwnd <= 10"));
        assert!(!holds("5 <= tcpi_snd_cwnd < 10"));
        assert!(holds("tcpi_state == TCP_ESTABLISHED and (7 & 2) == 2"));
        assert!(holds(
            "7 // 2 == 3 and 7 % 4 == 3 and -1 < 0 and 10 - 3 - 2 == 5"
        ));
    }

    #[test]
    fn an_unknown_field_of_tcp_info_is_an_error() {
        let script = parse::parse("+0 %{ assert tcpi_colour == 1 }%").unwrap();
        let Action::Assert(found) = &script.events[0].action else {
            panic!("not an assertion");
        };
        let error = found[0].condition.value(&TcpInfo::new(vec![0; 300]));
        assert_eq!(
            error,
            Err("tcpi_colour is not a field of tcp_info".to_owned())
        );
    }
}
