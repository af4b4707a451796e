//! Questions to programs of the operator's.

use fleet_core::{Engine, World};
use protocol::fleet::{DeploymentKind, DeploymentState, Hook, HookMoment, Rollout};

use super::world::*;

fn hook(name: &str, at: HookMoment, group: &str) -> Hook {
    Hook {
        name: name.to_owned(),
        at,
        group: group.to_owned(),
        timeout_seconds: 600,
    }
}

/// Four guests, all of which may go at once.
fn asking(hooks: Vec<Hook>, groups: &[&str]) -> World {
    let rollout = Rollout {
        hooks,
        groups: groups.iter().map(|name| group(name, 0, 0)).collect(),
        min_healthy_percent: 0,
        ..Rollout::default()
    };
    let mut world = world(rollout, guests(4));
    for (number, name) in groups.iter().cycle().take(4).enumerate() {
        label(&mut world, &format!("vm-{number}"), name);
    }
    world
}

fn answer(world: &mut World, hook: &str, text: &str) {
    let answers = &mut world.deployments[0].answers;
    answers.insert(hook.to_owned(), text.to_owned());
}

/// The world after all writes of a new engine, and what it came to.
fn next(world: World, second: u64) -> (World, Done) {
    let mut engine = Engine::new(1);
    let done = run(&mut engine, world, second);
    (engine.world().expect("a world").clone(), done)
}

/// Ends all turns well.
fn settle(world: &mut World) {
    for guest in world
        .guests
        .values_mut()
        .filter(|guest| guest.is_in_flight())
    {
        let turn = guest.turn.clone().expect("a turn");
        kept(guest, "1");
        guest
            .last
            .as_mut()
            .expect("an end")
            .last
            .token
            .clone_from(&turn.token);
        guest.turn = Some(turn);
    }
}

fn state(world: &World) -> DeploymentState {
    world.deployments[0].status.state
}

/// Requirement: B51
#[test]
fn no_guest_goes_before_the_hook_has_allowed_it() {
    let world = asking(vec![hook("backup", HookMoment::Before, "")], &[]);
    let (mut world, done) = next(world, 0);
    assert_eq!((done.turns.len(), done.gate.as_str()), (0, "hook"));
    let by = world.deployments[0]
        .status
        .blocked_by
        .clone()
        .expect("a gate");
    assert!(
        by.detail.contains("hook.fleet.bellows.dev/backup"),
        "{by:?}"
    );
    // A text that is no answer is none, and the question is written once.
    for text in ["", "maybe", "allowed", "denying"] {
        answer(&mut world, "backup", text);
        let (_, done) = next(world.clone(), 300);
        assert_eq!(
            (done.turns.len(), state(&world)),
            (0, DeploymentState::Blocked)
        );
        assert_eq!(
            done.status,
            protocol::fleet::DeploymentStatus::default(),
            "no write"
        );
    }
    answer(&mut world, "backup", " allow\n");
    let (mut world, done) = next(world, 599);
    assert_eq!(done.turns.len(), 4, "{done:?}");
    // What it allowed stays allowed.
    world.deployments[0].answers.clear();
    settle(&mut world);
    let (world, _) = next(world, 700);
    assert_eq!(state(&world), DeploymentState::Complete);
}

/// Requirement: B51
#[test]
fn denial_and_silence_halt_the_deployment_and_say_so() {
    let rows = [
        ("deny", 1, "hook backup denied it"),
        (
            "deny: disk is full",
            1,
            "hook backup denied it: disk is full",
        ),
        ("", 600, "hook backup did not answer within 600 s"),
    ];
    for (text, second, said) in rows {
        let world = asking(vec![hook("backup", HookMoment::Before, "")], &[]);
        let (mut world, _) = next(world, 0);
        let (early, _) = next(world.clone(), second - 1);
        assert_eq!(state(&early), DeploymentState::Blocked, "{text}");
        answer(&mut world, "backup", text);
        let (world, done) = next(world, second);
        assert_eq!(state(&world), DeploymentState::Unhealthy, "{text}");
        assert_eq!(world.deployments[0].status.evidence, [said]);
        assert_eq!((done.turns.len(), done.has_lock), (0, false));
    }
}

/// Requirement: B51
#[test]
fn denial_after_the_turns_takes_the_release_back_and_the_way_back_asks_nobody() {
    let world = asking(vec![hook("smoke", HookMoment::After, "")], &[]);
    let (mut world, done) = next(world, 0);
    assert_eq!(done.turns.len(), 4);
    let mut complete = world.deployments[0].clone();
    complete.name = "c".to_owned();
    complete.spec.revision = "m-r0".to_owned();
    complete.created.0 -= 1;
    complete.status.state = DeploymentState::Complete;
    let mut before = world.revisions["m-r1"].clone();
    before.program.sha256 = "0".repeat(64);
    world.revisions.insert("m-r0".to_owned(), before);
    world.deployments.push(complete);
    settle(&mut world);
    let (mut world, done) = next(world, 10);
    assert_eq!(
        (state(&world), done.gate.as_str()),
        (DeploymentState::Blocked, "hook")
    );
    answer(&mut world, "smoke", "deny: errors at the front end");
    let (world, done) = next(world, 20);
    assert_eq!(state(&world), DeploymentState::Unhealthy);
    assert_eq!(done.created.len(), 1, "{done:?}");
    assert_eq!(done.created[0].kind, DeploymentKind::Rollback);
    assert_eq!(done.turns.len(), 4, "{done:?}");
}

/// Requirement: B51
#[test]
fn hooks_of_groups_are_asked_between_them_and_the_last_before_the_end() {
    use HookMoment::{After, Before};
    let hooks = vec![
        hook("begin", Before, ""),
        hook("second", Before, "b"),
        hook("first", After, "a"),
        hook("end", After, ""),
    ];
    let mut world = asking(hooks, &["a", "b"]);
    let mut order = Vec::new();
    let mut turns = Vec::new();
    for second in 0..40 {
        let (now, done) = next(world, second);
        world = now;
        turns.extend(done.turns.iter().map(|name| (order.len(), name.clone())));
        settle(&mut world);
        let status = &world.deployments[0].status;
        let asked: Vec<String> = status.hooks.iter().map(|one| one.name.clone()).collect();
        if let Some(hook) = asked.last().filter(|_| asked.len() > order.len()) {
            answer(&mut world, hook, "allow");
            order = asked;
        }
    }
    assert_eq!(order, ["begin", "second", "first", "end"]);
    let of = |count, guests: [&str; 2]| guests.map(|name| (count, name.to_owned()));
    let expected = [of(1, ["vm-0", "vm-2"]), of(3, ["vm-1", "vm-3"])].concat();
    assert_eq!(turns, expected, "a guest goes after the hooks before it");
    assert_eq!(state(&world), DeploymentState::Complete);
}

/// Requirement: B51
#[test]
fn repair_asks_no_hook() {
    let mut world = joined(4, &seen("0", protocol::parts::PartSource::Image));
    let hooks = vec![hook("backup", HookMoment::Before, "")];
    world.environment.spec.rollout.hooks.clone_from(&hooks);
    world
        .revisions
        .get_mut("m-r1")
        .expect("a revision")
        .rollout
        .hooks = hooks;
    let (_, done) = next(world, 0);
    assert_eq!(done.created.len(), 1);
    assert!(!done.turns.is_empty(), "{done:?}");
}
