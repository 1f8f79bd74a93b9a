//! Parses the system calls of a script.

use super::{Parsed, cursor::Cursor};
use crate::ast::{CallSpec, Expr};

/// Parses a call. The caller has already parsed the time at which the call starts. If the call
/// blocks, the text continues with `...` and the time of return.
pub fn call(cursor: &mut Cursor<'_>) -> Parsed<CallSpec> {
    let until = match cursor.eat("...") {
        true => {
            cursor.eat("+");
            Some(cursor.need_time()?)
        }
        false => None,
    };
    let name = cursor
        .need_word("a system call, <, >, ` or %{ after a time")?
        .to_owned();
    cursor.need("(")?;
    let mut arguments = Vec::new();
    while !cursor.eat(")") {
        if !arguments.is_empty() && !cursor.eat(",") {
            return cursor.error("\",\" or \")\" after an argument");
        }
        arguments.push(expression(cursor)?);
    }
    cursor.need("=")?;
    let result = expression(cursor)?;
    let errno = match cursor.peek().is_some_and(|c| c == 'E') {
        true => Some(cursor.need_word("the name of an error")?.to_owned()),
        false => None,
    };
    if cursor.eat("(") {
        // Skip the description of the error in parentheses.
        cursor.need_until(")")?;
    }
    Ok(CallSpec {
        until,
        name,
        arguments,
        result,
        errno,
    })
}

/// Parses one operand, or several operands that are joined by `|`.
fn expression(cursor: &mut Cursor<'_>) -> Parsed<Expr> {
    let first = operand(cursor)?;
    let mut parts = vec![first];
    while cursor.eat("|") {
        parts.push(operand(cursor)?);
    }
    Ok(match parts.len() {
        1 => parts.remove(0),
        _ => Expr::Or(parts),
    })
}

/// Parses an argument or a result that contains no `|`, or one of the parts between `|`.
fn operand(cursor: &mut Cursor<'_>) -> Parsed<Expr> {
    let what = "an argument: a number, a name, \"text\", [list], {fields} or ...";
    if cursor.eat("...") {
        return Ok(Expr::Any);
    }
    match cursor.peek() {
        Some('"') => {
            cursor.take(1);
            Ok(Expr::Text(cursor.need_until("\"")?.to_owned()))
        }
        Some('[') => list(cursor),
        Some('{') => fields(cursor),
        Some('-') => {
            cursor.eat("-");
            let number = cursor.need_number("a number", i64::MAX as u64)?;
            Ok(Expr::Number(-(number as i64)))
        }
        Some(c) if c.is_ascii_digit() => {
            let number = cursor.need_number("a number", i64::MAX as u64)?;
            Ok(Expr::Number(number as i64))
        }
        _ => Ok(Expr::Word(cursor.need_word(what)?.to_owned())),
    }
}

/// Parses a list: `[a, b]`.
fn list(cursor: &mut Cursor<'_>) -> Parsed<Expr> {
    cursor.eat("[");
    let mut parts = Vec::new();
    while !cursor.eat("]") {
        if !parts.is_empty() && !cursor.eat(",") {
            return cursor.error("\",\" or \"]\" in a list");
        }
        parts.push(expression(cursor)?);
    }
    Ok(Expr::List(parts))
}

/// Parses a structure: `{name=value, ...}`.
fn fields(cursor: &mut Cursor<'_>) -> Parsed<Expr> {
    cursor.eat("{");
    let mut parts = Vec::new();
    while !cursor.eat("}") {
        if !parts.is_empty() && !cursor.eat(",") {
            return cursor.error("\",\" or \"}\" after a field");
        }
        let name = cursor.need_word("the name of a field")?.to_owned();
        cursor.need("=")?;
        parts.push((name, expression(cursor)?));
    }
    Ok(Expr::Struct(parts))
}
