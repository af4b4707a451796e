//! Who is touched when room appears, and how often.

use super::*;
use crate::core::event::Action::RoomAppeared;

fn touch(name: &str, node: &str) -> Action {
    RoomAppeared {
        pod: NamespacedName {
            namespace: "d".into(),
            name: name.into(),
        },
        uid: format!("uid-{name}"),
        node: node.into(),
    }
}

/// A node of 10 CPUs with 9 in use, and a pod of 4 that was told that there is no room.
fn refused() -> Core {
    let mut core = core(&[("a", 10), ("b", 2)]);
    core.handle(MS(0), Event::PodApplied(pod("busy", 9, "a")));
    let verdicts = filtered(&mut core, pod("x", 4, ""), &["a", "b"]);
    assert!(verdicts.iter().all(Result::is_err));
    core
}

#[test]
fn what_a_vm_gives_back_is_told_to_the_pod_that_waits() {
    let mut core = refused();
    core.handle(MS(1), Event::PodApplied(pod("busy", 7, "a")));
    assert!(actions(&mut core, 1).is_empty(), "not enough yet");
    core.handle(MS(2), Event::PodApplied(pod("busy", 5, "a")));
    assert_eq!(actions(&mut core, 2), [touch("x", "a")]);
    core.handle(MS(3), Event::PodApplied(pod("busy", 4, "a")));
    assert!(actions(&mut core, 3).is_empty(), "once is enough");
}

#[test]
fn a_deletion_that_kube_scheduler_saw_first_is_told_when_we_see_it() {
    let mut core = refused();
    // It has seen the pod go, and asks; we have not.
    let verdicts = filtered(&mut core, pod("x", 4, ""), &["a", "b"]);
    assert!(verdicts.iter().all(Result::is_err));
    core.handle(MS(5), Event::PodDeleted("uid-busy".into()));
    assert_eq!(actions(&mut core, 5), [touch("x", "a")]);
}

#[test]
fn a_node_that_kube_scheduler_saw_first_is_told_when_we_see_it() {
    let mut core = core(&[]);
    assert_eq!(
        filtered(&mut core, pod("x", 1, ""), &["a"]),
        [Err(Unfit::UnknownNode)]
    );
    let node = fixtures::node("a", 10);
    core.handle(MS(5), Event::NodeApplied(node));
    assert_eq!(actions(&mut core, 5), [touch("x", "a")]);
}

#[test]
fn a_touch_without_a_question_is_repeated_more_and_more_rarely() {
    let mut core = refused();
    core.handle(MS(2), Event::PodDeleted("uid-busy".into()));
    assert_eq!(actions(&mut core, 2), [touch("x", "a")]);
    let mut times = vec![];
    let mut at = 2;
    while times.len() < 7 {
        let due = core.poll_deadline().expect("it is touched again");
        assert!(actions(&mut core, at).is_empty(), "not before");
        at = (due.0 - MS(0).0) / 1000;
        assert_eq!(actions(&mut core, at), [touch("x", "a")]);
        times.push(at / 1000);
    }
    assert_eq!(times, [10, 30, 70, 150, 310, 610, 910]);
    // Once it was request about, everything begins anew.
    assert_eq!(filtered(&mut core, pod("x", 4, ""), &["a"]), [Ok(())]);
    assert_eq!(core.poll_deadline(), None);
}

#[test]
fn room_that_is_gone_again_is_not_told() {
    let mut core = refused();
    core.handle(MS(2), Event::PodDeleted("uid-busy".into()));
    assert_eq!(actions(&mut core, 2), [touch("x", "a")]);
    core.handle(MS(3), Event::PodApplied(pod("other", 9, "a")));
    assert!(actions(&mut core, 20_000).is_empty());
    assert_eq!(core.poll_deadline(), None);
    core.handle(MS(21_000), Event::PodDeleted("uid-other".into()));
    assert_eq!(actions(&mut core, 21_000), [touch("x", "a")]);
}

#[test]
fn who_is_bound_or_gone_waits_no_more() {
    for event in [
        Event::PodApplied(pod("x", 4, "b")),
        Event::PodDeleted("uid-x".into()),
    ] {
        let mut core = refused();
        core.handle(MS(1), event);
        core.handle(MS(2), Event::PodDeleted("uid-busy".into()));
        // Of the node that was given too much something is said.
        let got = actions(&mut core, 2);
        assert!(!got.contains(&touch("x", "a")), "{got:?}");
    }
}

#[test]
fn whom_an_earlier_leader_refused_is_told_of_room_anywhere() {
    let config = crate::config::Config::default();
    let mut core = fixtures::core(config.settings(false, true), &[("a", 10)]);
    let foreign = PodView {
        scheduler_name: "default-scheduler".into(),
        ..pod("foreign", 1, "")
    };
    for pod in [pod("x", 4, ""), pod("large", 20, ""), foreign] {
        core.handle(MS(0), Event::PodApplied(pod));
    }
    assert_eq!(actions(&mut core, 1), [touch("x", "a")]);
    // It is not known where it was refused, so everywhere counts.
    core.handle(MS(2), Event::NodeApplied(fixtures::node("b", 40)));
    assert_eq!(actions(&mut core, 2), [touch("large", "b")]);
}

#[test]
fn on_one_machine_there_is_nobody_to_tell() {
    let config = crate::config::Config::default();
    let mut core = fixtures::core(config.settings(true, true), &[("a", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 4, "")));
    let got = actions(&mut core, 1);
    assert!(matches!(got[..], [Action::Bind { .. }]), "{got:?}");
}

#[test]
fn waiting_pods_are_in_the_state_dump() {
    let mut core = refused();
    let waiting = |core: &Core| core.snapshot(MS(9)).extender.to_string();
    assert!(waiting(&core).contains(r#""d/x":0"#), "{}", waiting(&core));
    core.handle(MS(5), Event::PodDeleted("uid-busy".into()));
    assert_eq!(actions(&mut core, 5), [touch("x", "a")]);
    assert!(waiting(&core).contains(r#""d/x":1"#), "{}", waiting(&core));
}
