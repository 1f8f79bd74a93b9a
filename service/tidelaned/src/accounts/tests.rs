//! Tests of the accounts of users, their limits and their message rates.

use tidelane_host::accounts::Charge;
use tidelane_time::Duration;

use super::*;

const NOBODY: u32 = 65_534;
const NOW: Instant = Instant(1_000_000_000_000);

/// Returns the accounts for the section `[limits]` with the content `text`.
fn accounts(text: &str) -> Accounts {
    let limits: LimitsConfig = toml::from_str(text).expect("a section");
    let number_of = |name: &str| (name == "nobody").then_some(NOBODY);
    Accounts::new(limits.resolve(number_of).expect("known users"), 4096)
}

/// Charges single units of `resource` until the account can take no more.
fn take_all(account: &Arc<Account>, resource: Resource) -> Vec<Charge> {
    std::iter::from_fn(|| account.charge(resource, 1).ok()).collect()
}

#[test]
fn limits_are_those_of_the_file_or_else_the_defaults() {
    let mut accounts = accounts(
        "connections = 7\nports = 1\n[user.nobody]\nconnections = 3\n[user.0]\nlisteners = 5\n",
    );
    let limits = |uid| {
        let account = accounts.of(uid);
        let of = |resource| account.user().limit(resource);
        [
            of(Resource::Connections),
            of(Resource::Ports),
            of(Resource::Listeners),
        ]
    };
    let [someone, nobody, root] = [1000, NOBODY, 0].map(limits);
    assert_eq!(someone, [7, 1, 4096]);
    assert_eq!(nobody, [3, 1, 4096]);
    assert_eq!(root, [u64::MAX, 65_536, 5]);
}

#[test]
fn new_limits_hold_at_once_and_take_nothing_away() {
    let mut accounts = accounts("");
    let account = accounts.of(NOBODY);
    let held = account.charge(Resource::Contexts, 10).expect("ten");
    accounts.set_limits(toml::from_str("contexts = 5").expect("a section"));
    assert!(account.charge(Resource::Contexts, 1).is_err());
    assert_eq!(held.units(), 10);
    drop(held);
    assert_eq!(take_all(&account, Resource::Contexts).len(), 5);
}

#[test]
fn mistakes_in_the_file_are_named() {
    let error = |text| toml::from_str::<LimitsConfig>(text).expect_err("a mistake");
    let unknown = error("conections = 5").to_string();
    assert!(
        unknown.contains("conections") && unknown.contains("half_open"),
        "{unknown}"
    );
    let unknown = error("[user.nobody]\nport = 5").to_string();
    assert!(unknown.contains("\"port\""), "{unknown}");
    error("ports = -1");
    error("ports = \"many\"");
    let section: LimitsConfig = toml::from_str("[user.who]\nports = 5").expect("a section");
    let error = section.resolve(|_| None).expect_err("nobody of that name");
    assert_eq!(
        error.to_string(),
        "[limits.user.who]: there is no user of this name"
    );
}

/// Each of 100 users takes as many registrations as it can get. Root still gets 100 registrations.
#[test]
fn one_user_s_registrations_leave_room_for_others() {
    let mut accounts = accounts("");
    for uid in 1000..1100 {
        let taken = take_all(&accounts.of(uid), Resource::Registrations);
        std::mem::forget(taken);
    }
    assert!(accounts.of(0).charge(Resource::Registrations, 100).is_ok());
}

#[test]
fn messages_beyond_the_rate_wait_and_are_not_dropped() {
    let mut accounts = accounts("messages_per_second = 100");
    let user = accounts.of(NOBODY).user().clone();
    let mut now = NOW;
    let mut taken = 0;
    while accounts.message_due(&user, now).is_none() {
        accounts.pay(&user, now, 1);
        taken += 1;
    }
    assert_eq!(taken, 100);
    // Another user does not have to wait.
    let other = accounts.of(1000).user().clone();
    assert_eq!(accounts.message_due(&other, now), None);
    // Within the next five seconds, the user gets 500 more tokens.
    while now < NOW + Duration::from_secs(5) {
        now = accounts.message_due(&user, now).unwrap_or(now);
        assert_eq!(accounts.message_due(&user, now), None);
        accounts.pay(&user, now, 1);
        taken += 1;
    }
    assert!((595..=605).contains(&taken), "{taken}");
}

#[test]
fn an_expensive_message_delays_later_messages() {
    let mut accounts = accounts("messages_per_second = 100");
    let user = accounts.of(NOBODY).user().clone();
    assert_eq!(accounts.message_due(&user, NOW), None);
    accounts.pay(&user, NOW, 300);
    let due = accounts.message_due(&user, NOW).expect("a debt");
    assert_eq!(due, NOW + Duration::from_millis(2010));
    assert_eq!(accounts.message_due(&user, due), None);
}

#[test]
fn a_payment_before_the_first_message_counts() {
    let mut accounts = accounts("messages_per_second = 100");
    let user = accounts.of(NOBODY).user().clone();
    accounts.pay(&user, NOW, 300);
    let due = accounts.message_due(&user, NOW).expect("a debt");
    assert_eq!(due, NOW + Duration::from_millis(2010));
}

#[test]
fn users_without_resources_are_forgotten() {
    let mut accounts = accounts("");
    let held = accounts.of(NOBODY).charge(Resource::Ports, 1);
    for uid in 0..10 * USERS_KEPT as u32 {
        accounts.of(uid);
    }
    assert!(accounts.users().count() <= USERS_KEPT + 1);
    assert!(accounts.users().any(|user| user.id() == UserId(NOBODY)));
    drop(held);
}
