//! The parser of scripts: a recursive-descent parser over characters.
//!
//! The parser has no tokenizer, because the meaning of a character depends on the context. For
//! example, `.` is a control bit, a decimal point, or a part of `...`.

use crate::ast::{Action, Event, Script, Time};

mod arguments;
mod cursor;
mod defines;
mod packet;
mod terms;
#[cfg(test)]
mod tests;

use cursor::Cursor;
pub use cursor::{ParseError, Parsed};
pub use defines::expand;

/// Parses the text of a script. Fails with the position of the first syntax error.
pub fn parse(text: &str) -> Parsed<Script> {
    let mut cursor = Cursor::new(text);
    let mut script = Script::default();
    cursor.skip_blanks();
    while cursor.eat("--") {
        let name = cursor
            .take_while(|c| c != '=' && !c.is_ascii_whitespace())
            .to_owned();
        let mut value = String::new();
        if cursor.eat("=") {
            value = cursor.take_while(|c| !c.is_ascii_whitespace()).to_owned();
            cursor.skip_blanks();
        }
        script.options.push((name, value));
    }
    if cursor.is_next("`") {
        let at = cursor.position();
        script.events.push(Event {
            at,
            time: Time::Absolute(0),
            action: Action::Settings(settings(&mut cursor)?),
        });
    }
    while !cursor.is_at_end() {
        script.events.push(event(&mut cursor)?);
    }
    script.remarks = cursor.remarks;
    Ok(script)
}

/// Parses an event: its time and its action.
fn event(cursor: &mut Cursor<'_>) -> Parsed<Event> {
    let at = cursor.position();
    let time = time(cursor)?;
    let what_at = cursor.position();
    let action = match cursor.peek() {
        Some('<') => {
            cursor.eat("<");
            Action::Inject(packet::packet(cursor, true)?)
        }
        Some('>') => {
            cursor.eat(">");
            Action::Expect(packet::packet(cursor, false)?)
        }
        Some('`') => Action::Settings(settings(cursor)?),
        Some('%') => Action::Assert(terms::block(cursor)?),
        _ => Action::Call(arguments::call(cursor)?),
    };
    let is_expectation = matches!(action, Action::Expect(_));
    if !is_expectation && !matches!(time, Time::Absolute(_) | Time::Relative(_)) {
        return Err(ParseError {
            at: what_at,
            message: "only a packet that the stack sends can have a range of times or *".to_owned(),
        });
    }
    Ok(Event { at, time, action })
}

/// Parses the time of an event.
fn time(cursor: &mut Cursor<'_>) -> Parsed<Time> {
    if cursor.eat("*") {
        return Ok(Time::Any);
    }
    let relative = cursor.eat("+");
    if !relative
        && !cursor
            .peek()
            .is_some_and(|c| c.is_ascii_digit() || c == '.')
    {
        return cursor.error("an event: a time (1.5, +0, *), then a call, <, >, ` or %{");
    }
    let from = cursor.need_time()?;
    if !cursor.eat("~") {
        return Ok(match relative {
            true => Time::Relative(from),
            false => Time::Absolute(from),
        });
    }
    if relative {
        cursor.need("+")?;
    }
    let at = cursor.position();
    let to = cursor.need_time()?;
    if to < from {
        return Err(ParseError {
            at,
            message: "the range of times is backwards".to_owned(),
        });
    }
    Ok(match relative {
        true => Time::RelativeRange(from, to),
        false => Time::AbsoluteRange(from, to),
    })
}

/// Parses a block of shell commands between backquotes. Only `sysctl` is permitted, and no shell
/// runs. Returns the name and the value of each sysctl. The names are relative to `net.ipv4`.
fn settings(cursor: &mut Cursor<'_>) -> Parsed<Vec<(String, String)>> {
    cursor.take(1);
    let mut found = Vec::new();
    loop {
        cursor.take_while(|c| c.is_ascii_whitespace() || c == ';');
        if cursor.eat("`") {
            return Ok(found);
        }
        if !cursor.eat_word("sysctl") {
            return cursor.error("\"sysctl\" or a closing `");
        }
        while cursor.is_next("-") {
            cursor.take_while(|c| !c.is_ascii_whitespace());
            cursor.skip_blanks();
        }
        if !cursor.eat("net.ipv4.") {
            return cursor.error("a name that starts with net.ipv4.");
        }
        let name = cursor.need_word("a sysctl")?.to_owned();
        cursor.need("=")?;
        let value = match cursor.eat("\"") {
            true => cursor.need_until("\"")?,
            false => cursor.take_while(|c| !c.is_ascii_whitespace() && c != '`' && c != ';'),
        };
        found.push((name, value.to_owned()));
    }
}
