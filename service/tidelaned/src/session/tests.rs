//! Tests of sessions (connected programs) that have registered. The tests use `Scene`, a service
//! with two cores (polling threads), from the tests of mux ports.

use tidelane_host::accounts::Resource;

use super::{
    ports::tests::{ALICE, Program, Scene},
    *,
};

/// Registers a program. Maps and seals the memory that the program and the service share, and
/// returns the memory.
fn register(scene: &mut Scene, program: &mut Program) -> ProgramRegion {
    let answer = scene.ask(program, &new_message(message::REGISTER), &[]);
    let (answer, descriptors) = answer.expect("the session goes on");
    assert_eq!(answer.refusal, 0);
    let memories = std::array::from_fn(|n| descriptors[n].as_fd());
    ProgramRegion::map(memories, answer.region_len).expect("it can be mapped")
}

/// Asks for a context (the rings of a thread) with this number. Returns the refusal, 0 for none.
fn refusal_of_context(scene: &mut Scene, program: &mut Program, number: u32) -> u32 {
    let bell = Doorbell::new().expect("a descriptor");
    let request = Message {
        context: number,
        ..new_message(message::CONTEXT)
    };
    let answer = scene.ask(program, &request, &[bell.fd()]);
    answer.expect("the session goes on").0.refusal
}

#[test]
fn a_context_on_some_cores_stays_charged() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let mut program = scene.connect(ALICE);
    let _region = register(&mut scene, &mut program);
    let account = scene.shared.accounts.of(ALICE);
    let used = || [Resource::Contexts, Resource::Descriptors].map(|what| account.user().used(what));
    let before = used();
    assert_eq!(refusal_of_context(&mut scene, &mut program, 0), 0);
    assert_eq!(used(), [before[0] + 1, before[1] + 2]);
    // Context number 0 is in use on both cores, so a second request fails and costs nothing.
    let again = refusal_of_context(&mut scene, &mut program, 0);
    assert_eq!(
        (again, used()),
        (refusal::LIMIT, [before[0] + 1, before[1] + 2])
    );
    // Core 1 loses the program, so only core 0 adds the next context.
    let id = program
        .session
        .as_ref()
        .and_then(|session| session.program(1));
    scene.links[1]
        .host()
        .remove_program(now(), id.expect("it is registered"));
    let partly = refusal_of_context(&mut scene, &mut program, 1);
    assert_eq!(
        (partly, used()),
        (refusal::LIMIT, [before[0] + 2, before[1] + 4])
    );
    scene.end(&mut program);
    assert_eq!(used(), [0, 0]);
}

#[test]
fn a_forked_child_is_alive_after_its_first_message() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    if !sys::has_peer_pidfd() {
        return eprintln!("skipped: needs Linux 6.5");
    }
    let mut program = scene.connect(ALICE);
    let _region = register(&mut scene, &mut program);
    let answer = scene.ask(&mut program, &new_message(message::INHERIT), &[]);
    let (answer, mut descriptors) = answer.expect("the session goes on");
    assert_eq!((answer.refusal, descriptors.len()), (0, 1));
    // This process stands for the child, too.
    let session = program
        .session
        .as_mut()
        .and_then(|session| session.children.pop());
    let session = session.expect("a child");
    assert!(!session.peer.is_alive(), "alive before a message");
    let mut child = Program {
        socket: descriptors.remove(0),
        session: Some(session),
    };
    for _ in 0..2 {
        let probed = scene.ask(&mut child, &new_message(message::PROBE), &[]);
        assert!(probed.is_some());
        let session = child.session.as_ref().expect("it is open");
        assert!(session.peer.is_alive());
    }
    scene.end(&mut child);
    scene.end(&mut program);
}
