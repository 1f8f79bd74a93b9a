//! Tests of the access policy, with made-up programs (peers).

use std::path::Path;

use super::*;

fn here() -> NetNs {
    NetNs::current().expect("a namespace")
}

/// Returns the identity of another namespace. Any file serves as the namespace's file.
fn elsewhere() -> NetNs {
    NetNs::at(Path::new("/proc/self/status")).expect("a file")
}

fn peer(uid: u32, gid: u32, groups: &[u32]) -> Peer {
    Peer {
        pid: None,
        pidfd: None,
        uid,
        gid,
        groups: groups.to_vec(),
        namespace: here(),
    }
}

fn names() -> Names {
    Names::parse("www:x:33:33::/:\n", "www:x:33:\ntidelane:x:900:\n")
}

fn policy(toml: &str) -> AccessPolicy {
    let config: AccessConfig = toml::from_str(toml).expect("a table");
    AccessPolicy::of(&config, &names(), here())
        .expect("known names")
        .0
}

#[test]
fn by_default_root_and_the_group_are_admitted() {
    let policy = policy("");
    assert_eq!(policy.admits(&peer(0, 0, &[])), Ok(()));
    assert_eq!(policy.admits(&peer(1000, 900, &[])), Ok(()));
    assert_eq!(policy.admits(&peer(1000, 1000, &[4, 900])), Ok(()));
    assert_eq!(policy.admits(&peer(33, 33, &[4])), Err(Denial::User));
    assert_eq!(
        policy.socket(),
        runtime::SocketPermissions::group(Some(Gid::from_raw(900)))
    );
}

#[test]
fn a_program_in_another_namespace_is_refused_even_as_root() {
    let mut root = peer(0, 0, &[900]);
    root.namespace = elsewhere();
    assert_eq!(policy("").admits(&root), Err(Denial::Namespace));
    let all_users = "users = ['*']\ngroups = ['*']";
    assert_eq!(policy(all_users).admits(&root), Err(Denial::Namespace));
    assert_eq!(policy("namespaces = ['*']").admits(&root), Ok(()));
    assert_eq!(
        policy("namespaces = ['/proc/self/status']").admits(&root),
        Ok(())
    );
}

#[test]
fn an_admitted_namespace_admits_no_user() {
    let mut user = peer(33, 33, &[]);
    user.namespace = elsewhere();
    assert_eq!(
        policy("namespaces = ['*']").admits(&user),
        Err(Denial::User)
    );
    let both = "namespaces = ['*']\nusers = ['www']";
    assert_eq!(policy(both).admits(&user), Ok(()));
}

#[test]
fn users_and_groups_are_admitted_by_name_and_number() {
    for toml in [
        "users = ['www']",
        "users = [33]",
        "groups = ['www']",
        "groups = [7, 33]",
    ] {
        let policy = policy(toml);
        assert_eq!(policy.admits(&peer(33, 33, &[])), Ok(()), "{toml}");
        assert_eq!(
            policy.admits(&peer(34, 34, &[])),
            Err(Denial::User),
            "{toml}"
        );
        assert_eq!(policy.socket().mode.as_raw_mode(), 0o666, "{toml}");
    }
}

#[test]
fn without_the_group_only_root() {
    let policy = AccessPolicy::new(here(), None);
    assert!(policy.is_root_only());
    assert_eq!(policy.admits(&peer(0, 0, &[])), Ok(()));
    assert_eq!(policy.admits(&peer(1000, 900, &[])), Err(Denial::User));
    assert_eq!(policy.socket(), runtime::SocketPermissions::group(None));
}

#[test]
fn an_unknown_user_is_an_error_and_a_missing_namespace_is_reported() {
    let config: AccessConfig = toml::from_str("users = ['w3']").expect("a table");
    assert!(AccessPolicy::of(&config, &names(), here()).is_err());
    let config = "namespaces = ['/run/netns/there-is-none-of-that-name']";
    let config: AccessConfig = toml::from_str(config).expect("a table");
    let (policy, missing) = AccessPolicy::of(&config, &names(), here()).expect("no names");
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert_eq!(policy.admits(&peer(0, 0, &[])), Ok(()));
}

#[test]
fn an_invalid_access_section_is_refused() {
    for bad in [
        "users = [-1]",
        "users = 'www'",
        "user = []",
        "groups = [4294967295]",
    ] {
        assert!(toml::from_str::<AccessConfig>(bad).is_err(), "{bad}");
    }
}
