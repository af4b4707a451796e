//! Placement on the whole core, with its bindings answered by hand.

use protocol::core::Core as _;
use protocol::permit::NamespacedName;

use super::*;
use crate::core::Core;
use crate::core::event::Event;
use crate::core::fixtures::{self, MS, pod};
use crate::core::view::{NodeView, PodView};

fn core(nodes: &[(&str, u64)]) -> Core {
    fixtures::core(crate::config::Config::default().settings(true, true), nodes)
}

fn actions(core: &mut Core, at: u64) -> Vec<Action> {
    std::iter::from_fn(|| core.poll_action(MS(at))).collect()
}

/// The bindings among actions: pod, node, call.
fn binds(actions: &[Action]) -> Vec<(String, String, CallId)> {
    let binds = actions.iter().filter_map(|action| match action {
        Action::Bind { id, pod, node, .. } => Some((pod.name.clone(), node.clone(), *id)),
        _ => None,
    });
    binds.collect()
}

fn told(actions: &[Action]) -> usize {
    actions
        .iter()
        .filter(|action| matches!(action, Action::Unschedulable { .. }))
        .count()
}

fn reserved(core: &Core, node: &str) -> u128 {
    core.ledger().load(node).reserved.cpu
}

#[test]
fn a_pod_goes_to_the_best_node_and_its_room_is_held_at_once() {
    let mut core = core(&[("a", 10), ("b", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("busy", 5, "b")));
    core.handle(MS(0), Event::PodApplied(pod("x", 2, "")));
    let got = actions(&mut core, 0);
    assert_eq!(binds(&got)[0].1, "b", "nearer to the peak");
    assert_eq!(reserved(&core, "b"), 7_000);
    core.handle(MS(1), Event::BindDone(binds(&got)[0].2, BindOutcome::Bound));
    assert_eq!(reserved(&core, "b"), 7_000);
    core.handle(MS(2), Event::PodApplied(pod("x", 2, "b")));
    assert_eq!(reserved(&core, "b"), 7_000);
    assert!(actions(&mut core, 60_000).is_empty(), "it is done");
    assert_eq!(core.ledger().audit(), Ok(()));
}

#[test]
fn only_pods_that_are_ours_and_free_are_placed() {
    let mut core = core(&[("a", 10)]);
    for view in [
        PodView {
            scheduler_name: "default-scheduler".into(),
            ..pod("foreign", 1, "")
        },
        PodView {
            terminal: true,
            ..pod("ended", 1, "")
        },
        PodView {
            deleting: true,
            ..pod("leaving", 1, "")
        },
        pod("bound", 1, "a"),
    ] {
        core.handle(MS(0), Event::PodApplied(view));
    }
    // Of the one that came bound this is said, and nothing is done about any.
    let said = actions(&mut core, 0);
    let is_remark =
        |action: &Action| matches!(action, Action::WarnOnPod { pod, .. } if pod.name == "bound");
    assert!(said.len() == 1 && said.iter().all(is_remark), "{said:?}");
    core.handle(
        MS(0),
        Event::NodeApplied(NodeView {
            cordoned: true,
            ..core.ledger().node("a").expect("is there").clone()
        }),
    );
    core.handle(MS(0), Event::PodApplied(pod("x", 1, "")));
    let got = actions(&mut core, 0);
    assert_eq!(
        (binds(&got).len(), told(&got)),
        (0, 1),
        "a cordoned node takes nothing new"
    );
}

#[test]
fn n08_two_pods_never_share_the_last_room() {
    let mut core = core(&[("a", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 6, "")));
    core.handle(MS(0), Event::PodApplied(pod("y", 6, "")));
    let got = actions(&mut core, 0);
    assert_eq!((binds(&got).len(), told(&got)), (1, 1));
    assert_eq!(reserved(&core, "a"), 6_000);
}

#[test]
fn a_pod_without_room_is_told_once_and_placed_when_room_appears() {
    let mut core = core(&[("a", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("busy", 8, "a")));
    core.handle(MS(0), Event::PodApplied(pod("x", 6, "")));
    let got = actions(&mut core, 0);
    let message = got.iter().find_map(|action| match action {
        Action::Unschedulable { message, .. } => Some(message.as_str()),
        _ => None,
    });
    assert_eq!(message, Some("Not enough resources for Pod"));
    let mut at = 0;
    while at < 50_000 {
        at += 1_000;
        assert!(actions(&mut core, at).is_empty(), "quiet at {at} ms");
    }
    assert_eq!(
        told(&actions(&mut core, 75_000)),
        1,
        "and again after a while"
    );
    core.handle(MS(75_001), Event::PodDeleted("uid-busy".into()));
    assert_eq!(
        binds(&actions(&mut core, 75_001)).len(),
        1,
        "at once, without waiting for the pause"
    );
}

#[test]
fn a_refused_binding_gives_the_room_back_and_is_tried_again() {
    let mut core = core(&[("a", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 6, "")));
    let id = binds(&actions(&mut core, 0))[0].2;
    core.handle(
        MS(1),
        Event::BindDone(id, BindOutcome::Refused("no".into())),
    );
    assert_eq!(reserved(&core, "a"), 0);
    let at = core.poll_deadline().expect("will try again");
    assert!(at > MS(1) && at <= MS(10_000));
    assert_eq!(binds(&actions(&mut core, 10_000)).len(), 1);
}

#[test]
fn an_unclear_binding_keeps_its_room_and_is_repeated_on_the_same_node_only() {
    let mut core = core(&[("a", 10), ("b", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 6, "")));
    let first = binds(&actions(&mut core, 0))[0].clone();
    core.handle(
        MS(1),
        Event::BindDone(first.2, BindOutcome::Unclear("time-out".into())),
    );
    // The other node would be the better one now.
    core.handle(MS(1), Event::PodApplied(pod("busy", 2, "b")));
    for round in 1..6 {
        let got = binds(&actions(&mut core, round * 20_000));
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].1, first.1);
        assert_eq!(reserved(&core, &first.1), 6_000);
        // Even a refusal proves nothing about the first attempt.
        let outcome = if round % 2 == 0 {
            BindOutcome::Conflict
        } else {
            BindOutcome::Refused("no".into())
        };
        core.handle(MS(round * 20_000), Event::BindDone(got[0].2, outcome));
    }
    core.handle(MS(200_000), Event::PodApplied(pod("x", 6, &first.1)));
    assert!(actions(&mut core, 300_000).is_empty());
}

#[test]
fn pods_are_placed_oldest_first() {
    let mut core = core(&[("a", 10)]);
    let older = WallTime::parse("2025-01-01T00:00:00Z").expect("parses");
    core.handle(MS(0), Event::PodApplied(pod("a-new", 6, "")));
    core.handle(
        MS(0),
        Event::PodApplied(PodView {
            created: older,
            ..pod("z-old", 6, "")
        }),
    );
    assert_eq!(binds(&actions(&mut core, 0))[0].0, "z-old");
}

#[test]
fn a_pod_deleted_while_it_waits_or_is_bound_is_forgotten() {
    let mut core = core(&[("a", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 6, "")));
    let id = binds(&actions(&mut core, 0))[0].2;
    core.handle(MS(1), Event::PodDeleted("uid-x".into()));
    core.handle(
        MS(2),
        Event::BindDone(id, BindOutcome::Unclear("time-out".into())),
    );
    assert_eq!(reserved(&core, "a"), 0);
    assert!(actions(&mut core, 100_000).is_empty());
    let name = NamespacedName {
        namespace: "d".into(),
        name: "x".into(),
    };
    assert!(core.ledger().pod_named(&name).is_none());
}
