//! `tidelane stat --users`: prints the resources of the service (`tidelaned`) that each user holds,
//! and the user's limits.

use std::{collections::BTreeMap, fs};

use serde::Deserialize;

/// The service's answer to the request `users`.
#[derive(Deserialize, Debug)]
pub struct Answer {
    users: Vec<User>,
}

/// A user whose programs have, or had, resources of the service.
#[derive(Deserialize, Debug)]
struct User {
    uid: u32,
    /// Usage by the name of the resource, such as `ports`.
    resources: BTreeMap<String, Line>,
}

/// A user's usage of one resource.
#[derive(Deserialize, Debug)]
struct Line {
    /// Present usage.
    used: u64,
    /// Limit of the user. `None` if the user has no limit.
    limit: Option<u64>,
    /// Number of requests that the limit refused.
    refused: u64,
}

/// Returns the table of users. If `all` is false, a resource has a line only if the user holds some
/// of the resource, or if the limit has refused a request of the user.
pub fn table(answer: &Answer, all: bool) -> String {
    let names = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut text = format!(
        "{:<16} {:<20} {:>12} {:>12} {:>10}\n",
        "User", "Resource", "Used", "Limit", "Refused"
    );
    for user in &answer.users {
        let name = name_of(user.uid, &names);
        let shown = |line: &Line| all || line.used != 0 || line.refused != 0;
        for (resource, line) in user.resources.iter().filter(|(_, line)| shown(line)) {
            let limit = line.limit.map_or("-".to_owned(), |limit| limit.to_string());
            let Line { used, refused, .. } = line;
            text += &format!("{name:<16} {resource:<20} {used:>12} {limit:>12} {refused:>10}\n");
        }
    }
    text
}

/// Returns the name of a user, or the user id if the user has no name. `passwd` is the text of
/// `/etc/passwd`.
fn name_of(uid: u32, passwd: &str) -> String {
    let of_user = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    of_user.unwrap_or_else(|| uid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_resources_are_left_out_by_default() {
        let answer = r#"{"users":[{"uid":4000000000,"resources":{
            "ports":{"used":0,"limit":5,"refused":0},
            "contexts":{"used":3,"limit":null,"refused":0},
            "listeners":{"used":0,"limit":7,"refused":2}}}]}"#;
        let answer: Answer = serde_json::from_str(answer).expect("an answer");
        let text = table(&answer, false);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0], ["4000000000", "contexts", "3", "-", "0"]);
        assert_eq!(lines[1], ["4000000000", "listeners", "0", "7", "2"]);
        assert_eq!(lines.len(), 2);
        assert_eq!(table(&answer, true).lines().count(), 4);
    }

    #[test]
    fn users_have_their_names() {
        let passwd = "root:x:0:0::/:/bin/sh\nwww:x:33:33::/:/bin/false\n";
        assert_eq!(name_of(33, passwd), "www");
        assert_eq!(name_of(34, passwd), "34");
    }
}
