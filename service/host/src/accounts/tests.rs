//! Tests of the accounts of users. A ledger counts the resources of one core (polling thread). An
//! account counts the units of one user in one ledger. A charge is a number of units that an
//! account holds.
//!
//! A ledger reserves an eighth of the capacity of each resource for root. A user's units may not
//! exceed the units that are still free outside this reserve. A single user can therefore take half
//! of the other seven eighths, because then as many units are free as the user holds. Root may hold
//! at most seven times as many units as remain free. Therefore neither a user nor root can take all
//! free units. Only an unlimited user can ([`User::unlimited`]).

use std::sync::Arc;

use super::*;

fn user(id: u32) -> Arc<User> {
    Arc::new(User::new(UserId(id), Weight::User))
}

/// The resource of the tests.
const RESOURCE: Resource = Resource::Connections;

/// Takes units of `RESOURCE` one by one until the account refuses a unit.
fn take_all(account: &Arc<Account>) -> Vec<Charge> {
    std::iter::from_fn(|| account.charge(RESOURCE, 1).ok()).collect()
}

#[test]
fn names_and_codes_go_both_ways() {
    for resource in Resource::ALL.iter().copied() {
        assert_eq!(Resource::named(resource.name()), Some(resource));
        assert_eq!(Resource::from_code(resource.code()), Some(resource));
        assert_eq!(Resource::ALL[resource.index()], resource);
    }
    assert_eq!(Resource::named("nothing"), None);
    assert_eq!(Resource::from_code(0), None);
    assert_eq!(Resource::from_code(u32::MAX), None);
}

#[test]
fn dropped_charges_free_their_units() {
    let mut ledger = Ledger::default();
    let user = user(7);
    user.set_limit(RESOURCE, 3);
    let account = ledger.account(&user);
    let held = take_all(&account);
    assert_eq!(
        (held.len(), user.used(RESOURCE), ledger.used(RESOURCE)),
        (3, 3, 3)
    );
    let refused = account.charge(RESOURCE, 1).unwrap_err();
    assert_eq!(refused.to_string(), "limit: connections of user 7 (3)");
    drop(held);
    assert_eq!((user.used(RESOURCE), ledger.used(RESOURCE)), (0, 0));
    assert_eq!(account.used(RESOURCE), 0);
    assert_eq!(take_all(&account).len(), 3);
    let line = user.lines().find(|line| line.resource == RESOURCE).unwrap();
    assert_eq!((line.used, line.limit, line.refused), (0, 3, 3));
}

#[test]
fn a_limit_holds_for_all_cores_together() {
    let mut cores = [Ledger::default(), Ledger::default()];
    let user = user(7);
    user.set_limit(RESOURCE, 5);
    let accounts = cores.each_mut().map(|core| core.account(&user));
    let first = accounts[0].charge(RESOURCE, 4).unwrap();
    assert_eq!(take_all(&accounts[1]).len(), 1);
    drop(first);
    assert_eq!(take_all(&accounts[1]).len(), 5);
}

#[test]
fn each_further_user_finds_free_units() {
    let mut ledger = Ledger::default();
    ledger.set_capacity(RESOURCE, 1024);
    let mut all = Vec::new();
    let mut before = 1024;
    for id in 1..=9 {
        let held = take_all(&ledger.account(&user(id)));
        assert!(
            (1..=before / 2 + 1).contains(&held.len()),
            "{id}: {}",
            held.len()
        );
        before = held.len();
        all.push(held);
    }
    let root = Arc::new(User::new(UserId::ROOT, Weight::Root));
    assert!(!take_all(&ledger.account(&root)).is_empty());
    all.clear();
    assert_eq!(ledger.used(RESOURCE), 0);
    assert_eq!(take_all(&ledger.account(&user(1))).len(), 448);
    assert_eq!(take_all(&ledger.account(&root)).len(), 896);
    let unlimited = Arc::new(User::unlimited());
    assert_eq!(take_all(&ledger.account(&unlimited)).len(), 1024);
}

#[test]
fn a_charge_that_does_not_fit_changes_nothing() {
    let mut ledger = Ledger::default();
    ledger.set_capacity(RESOURCE, 100);
    let user = user(7);
    let account = ledger.account(&user);
    for impossible in [45, 101, u64::MAX] {
        // The charge is refused because of the ledger's capacity, not because of the user's limit.
        // In this case, the error's `limit` is the account's usage, 0.
        assert_eq!(account.charge(RESOURCE, impossible).unwrap_err().limit, 0);
        assert_eq!((user.used(RESOURCE), ledger.used(RESOURCE)), (0, 0));
    }
    let mut charge = account.charge(RESOURCE, 40).unwrap();
    assert!(charge.grow(5).is_err());
    charge.grow(4).unwrap();
    assert_eq!((charge.units(), ledger.used(RESOURCE)), (44, 44));
    charge.shrink(20);
    assert_eq!((charge.units(), user.used(RESOURCE)), (24, 24));
    charge.shrink(u64::MAX);
    assert_eq!((charge.units(), user.used(RESOURCE)), (0, 0));
}

#[test]
fn an_account_is_removed_with_its_last_reference() {
    let mut ledger = Ledger::default();
    let user = user(7);
    let charge = ledger.account(&user).charge(RESOURCE, 1).unwrap();
    assert!(Arc::ptr_eq(charge.account(), &ledger.account(&user)));
    drop(charge);
    // Two `User` objects have different accounts, even if their uids are equal.
    let other = self::user(7);
    let held = ledger.account(&user);
    assert!(Arc::ptr_eq(ledger.account(&other).user(), &other));
    assert!(Arc::ptr_eq(held.user(), &user));
}
