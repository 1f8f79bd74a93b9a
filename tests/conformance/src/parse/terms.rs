//! Parses the conditions of a `%{ }%` block, such as `assert a == b and c, shown`. If a condition
//! does not hold, the message of the failure shows the value of the term after the comma.
//!
//! packetdrill passes these blocks to Python. This parser supports only the integer operators that
//! scripts use. Unlike in Python, `&` and `|` have the same precedence.

use super::{Parsed, cursor::Cursor};
use crate::ast::{Assertion, BinaryOp, Term, UnaryOp};

/// The comparison operators. A longer operator comes before a shorter operator that is its prefix.
const COMPARISONS: [(&str, BinaryOp); 6] = [
    ("==", BinaryOp::Equal),
    ("!=", BinaryOp::NotEqual),
    ("<=", BinaryOp::LessEqual),
    (">=", BinaryOp::GreaterEqual),
    ("<", BinaryOp::Less),
    (">", BinaryOp::Greater),
];

/// Parses a block, which starts with `%{`.
pub fn block(cursor: &mut Cursor<'_>) -> Parsed<Vec<Assertion>> {
    cursor.take(1);
    if !cursor.is_next("{") {
        return cursor.error("\"%{\"");
    }
    cursor.take(1);
    let start = cursor.position();
    let inside = cursor.need_until("}%")?;
    let mut inner = Cursor::within(inside, start);
    let mut found = Vec::new();
    loop {
        inner.skip_blanks();
        while inner.eat(";") {}
        if inner.is_at_end() {
            return Ok(found);
        }
        found.push(assertion(&mut inner)?);
    }
}

/// Parses `assert condition` or `assert condition, term`.
fn assertion(cursor: &mut Cursor<'_>) -> Parsed<Assertion> {
    if !cursor.eat_word("assert") {
        return cursor.error("\"assert\"");
    }
    let at = cursor.position();
    let condition = disjunction(cursor)?;
    let shown = match cursor.eat(",") {
        true => Some(disjunction(cursor)?),
        false => None,
    };
    Ok(Assertion {
        at,
        text: condition.to_string(),
        condition,
        shown,
    })
}

fn binary(op: BinaryOp, left: Term, right: Term) -> Term {
    Term::Binary(op, Box::new(left), Box::new(right))
}

/// Parses terms joined by `or`.
fn disjunction(cursor: &mut Cursor<'_>) -> Parsed<Term> {
    let mut left = conjunction(cursor)?;
    while cursor.eat_word("or") {
        left = binary(BinaryOp::Or, left, conjunction(cursor)?);
    }
    Ok(left)
}

/// Parses terms joined by `and`.
fn conjunction(cursor: &mut Cursor<'_>) -> Parsed<Term> {
    let mut left = negation(cursor)?;
    while cursor.eat_word("and") {
        left = binary(BinaryOp::And, left, negation(cursor)?);
    }
    Ok(left)
}

/// Parses `not` and its operand, or a comparison.
fn negation(cursor: &mut Cursor<'_>) -> Parsed<Term> {
    match cursor.eat_word("not") {
        true => Ok(Term::Unary(UnaryOp::Not, Box::new(negation(cursor)?))),
        false => comparison(cursor),
    }
}

/// Parses comparisons. A chain such as `a < b <= c` means `a < b and b <= c`.
fn comparison(cursor: &mut Cursor<'_>) -> Parsed<Term> {
    let mut left = bits(cursor)?;
    let mut chain = None;
    while let Some((text, op)) = COMPARISONS.iter().find(|(text, _)| cursor.is_next(text)) {
        cursor.eat(text);
        let right = bits(cursor)?;
        let link = binary(*op, left, right.clone());
        chain = Some(match chain {
            None => link,
            Some(before) => binary(BinaryOp::And, before, link),
        });
        left = right;
    }
    Ok(chain.unwrap_or(left))
}

/// Parses terms joined by `&` or `|`.
fn bits(cursor: &mut Cursor<'_>) -> Parsed<Term> {
    let mut left = sum(cursor)?;
    loop {
        let op = match cursor.peek() {
            Some('&') => BinaryOp::BitAnd,
            Some('|') => BinaryOp::BitOr,
            _ => return Ok(left),
        };
        cursor.take(1);
        cursor.skip_blanks();
        left = binary(op, left, sum(cursor)?);
    }
}

/// Parses terms joined by `+` or `-`.
fn sum(cursor: &mut Cursor<'_>) -> Parsed<Term> {
    let mut left = product(cursor)?;
    loop {
        let op = match cursor.peek() {
            Some('+') => BinaryOp::Plus,
            Some('-') => BinaryOp::Minus,
            _ => return Ok(left),
        };
        cursor.take(1);
        cursor.skip_blanks();
        left = binary(op, left, product(cursor)?);
    }
}

/// Parses terms joined by `*`, `/`, `//` or `%`. Both `/` and `//` are the integer division.
fn product(cursor: &mut Cursor<'_>) -> Parsed<Term> {
    let mut left = atom(cursor)?;
    loop {
        let (text, op) = match cursor.peek() {
            Some('*') => ("*", BinaryOp::Times),
            Some('%') => ("%", BinaryOp::Modulo),
            Some('/') if cursor.is_next("//") => ("//", BinaryOp::Divide),
            Some('/') => ("/", BinaryOp::Divide),
            _ => return Ok(left),
        };
        cursor.take(text.len());
        cursor.skip_blanks();
        left = binary(op, left, atom(cursor)?);
    }
}

/// Parses a number, a name, a negative term, or a term in parentheses.
fn atom(cursor: &mut Cursor<'_>) -> Parsed<Term> {
    if cursor.eat("(") {
        let inside = disjunction(cursor)?;
        cursor.need(")")?;
        return Ok(inside);
    }
    if cursor.eat("-") {
        return Ok(Term::Unary(UnaryOp::Negate, Box::new(atom(cursor)?)));
    }
    let what = "a number, a field of tcp_info or (";
    if cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
        let number = cursor.need_number(what, i64::MAX as u64)?;
        return Ok(Term::Number(number as i64));
    }
    Ok(Term::Name(cursor.need_word(what)?.to_owned()))
}
