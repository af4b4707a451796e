//! What a kube-scheduler is response, on the whole core, with calls answered by hand.

mod waiting;

use protocol::core::Core as _;
use protocol::permit::NamespacedName;

use super::*;
use crate::core::Core;
use crate::core::amount::Both;
use crate::core::event::{Event, NO_ROOM_MESSAGE};
use crate::core::fixtures::{self, MS, important, pod};
use crate::core::pod_requests::PodView;

/// A core that serves a kube-scheduler, with these nodes of 40 GiB.
fn core(nodes: &[(&str, u64)]) -> Core {
    let mut config = crate::config::Config::default();
    config.ignored_namespaces.insert("spare".into());
    let mut core = fixtures::core(config.settings(false, true), nodes);
    assert_eq!(core.poll_action(MS(0)), None, "nobody waits from before");
    core
}

/// What is to be done, without remarks about pods that these tests put on their nodes by hand.
fn actions(core: &mut Core, at: u64) -> Vec<Action> {
    let all = std::iter::from_fn(|| core.poll_action(MS(at)));
    all.filter(|action| !matches!(action, Action::WarnOnPod { .. }))
        .collect()
}

/// Asks, and wants an answer at once.
fn request(core: &mut Core, at: u64, request: ExtenderRequest) -> ExtenderResponse {
    core.handle(MS(at), Event::ExtenderRequest(7, request));
    let mut got = actions(core, at);
    match (got.pop(), got.is_empty()) {
        (
            Some(Action::RespondExtender {
                request_id: 7,
                response,
            }),
            true,
        ) => response,
        other => panic!("{other:?} after {got:?}"),
    }
}

fn bind(name: &str, node: &str) -> ExtenderRequest {
    ExtenderRequest::Bind {
        pod: NamespacedName {
            namespace: "d".into(),
            name: name.into(),
        },
        uid: format!("uid-{name}"),
        node: node.into(),
        strict: true,
    }
}

/// Asks for a binding, and wants it posted; its call.
fn posted(core: &mut Core, at: u64, name: &str, node: &str) -> CallId {
    core.handle(MS(at), Event::ExtenderRequest(7, bind(name, node)));
    match actions(core, at).as_slice() {
        [Action::Bind { id, node: to, .. }] if to == node => *id,
        other => panic!("{other:?}"),
    }
}

/// A binding has ended so; what follows.
fn ended(core: &mut Core, at: u64, id: CallId, outcome: BindOutcome) -> Vec<Action> {
    core.handle(MS(at), Event::BindDone(id, outcome));
    actions(core, at)
}

fn read_call(actions: &[Action]) -> CallId {
    match actions {
        [Action::ReadPod { id, .. }] => *id,
        other => panic!("{other:?}"),
    }
}

fn was_read(core: &mut Core, at: u64, id: CallId, seen: PodReadOutcome) -> Vec<Action> {
    core.handle(MS(at), Event::PodRead(id, seen));
    actions(core, at)
}

fn told(result: Result<(), Unbound>) -> Vec<Action> {
    let response = ExtenderResponse::Bound(result);
    vec![Action::RespondExtender {
        request_id: 7,
        response,
    }]
}

fn reserved(core: &Core, node: &str) -> u128 {
    assert_eq!(core.ledger().audit(), Ok(()));
    core.ledger().load(node).reserved.cpu
}

fn names(nodes: &[&str]) -> Vec<String> {
    nodes.iter().map(|node| (*node).to_owned()).collect()
}

fn filtered(core: &mut Core, pod: PodView, nodes: &[&str]) -> Vec<Result<(), Unfit>> {
    let (pod, nodes) = (Box::new(pod), names(nodes));
    match request(
        core,
        1,
        ExtenderRequest::Filter {
            pod,
            nodes: nodes.clone(),
        },
    ) {
        ExtenderResponse::Filtered(verdicts) => {
            let order: Vec<String> = verdicts.iter().map(|(node, _)| node.clone()).collect();
            assert_eq!(order, nodes);
            verdicts.into_iter().map(|(_, verdict)| verdict).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn filter_names_what_is_wrong_with_each_node() {
    let mut core = core(&[("a", 10), ("b", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("busy", 9, "a")));
    let verdicts = filtered(&mut core, pod("x", 2, ""), &["b", "a", "new"]);
    let missing = Both::new(1_000, 0);
    let expected = [Ok(()), Err(Unfit::NoRoom(missing)), Err(Unfit::UnknownNode)];
    assert_eq!(verdicts, expected);
    assert_eq!(
        expected[1].clone().expect_err("no room").to_string(),
        NO_ROOM_MESSAGE
    );
    let foreign = PodView {
        scheduler_name: "default-scheduler".into(),
        ..pod("y", 1, "")
    };
    let verdicts = filtered(&mut core, foreign, &["b"]);
    assert_eq!(verdicts, [Err(Unfit::ForeignScheduler)]);
}

#[test]
fn filter_counts_ignored_namespaces_and_preemption_takes_them_first() {
    let mut core = core(&[("a", 10)]);
    for (namespace, name, priority) in [("spare", "s", 5), ("d", "low", 1), ("d", "high", 9)] {
        let view = important(namespace, name, 3, "a", priority);
        core.handle(MS(0), Event::PodApplied(view));
    }
    let wants = |cpu| important("d", "x", cpu, "", 7);
    assert!(filtered(&mut core, wants(1), &["a"])[0].is_ok());
    assert!(filtered(&mut core, wants(2), &["a"])[0].is_err());
    let mut victims_for = |cpu, given: &[&str]| {
        let victims = BTreeMap::from([("a".to_owned(), names(given)), ("new".to_owned(), vec![])]);
        let pod = Box::new(wants(cpu));
        match request(&mut core, 1, ExtenderRequest::Preempt { pod, victims }) {
            ExtenderResponse::Preempted(kept) => kept.get("a").cloned(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(victims_for(4, &["uid-low"]), Some(names(&["uid-low"])));
    assert_eq!(victims_for(4, &[]), Some(names(&["uid-s"])));
    assert_eq!(victims_for(7, &[]), Some(names(&["uid-s", "uid-low"])));
    assert_eq!(victims_for(8, &[]), None, "the rest is more important");
    assert_eq!(
        victims_for(4, &["uid-none"]),
        Some(names(&["uid-none", "uid-s"]))
    );
}

#[test]
fn pods_of_another_node_are_no_victims() {
    let mut core = core(&[("a", 10), ("b", 10)]);
    for (name, node, priority) in [("low", "a", 1), ("lower", "b", 0)] {
        let view = important("d", name, 8, node, priority);
        core.handle(MS(0), Event::PodApplied(view));
    }
    let pod = Box::new(important("d", "x", 4, "", 7));
    let victims = BTreeMap::from([("a".to_owned(), vec![])]);
    let response = request(&mut core, 1, ExtenderRequest::Preempt { pod, victims });
    let kept = BTreeMap::from([("a".to_owned(), names(&["uid-low"]))]);
    assert_eq!(response, ExtenderResponse::Preempted(kept));
}

#[test]
fn prioritize_gives_the_score_of_each_node() {
    let mut core = core(&[("a", 10), ("b", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("busy", 6, "b")));
    let nodes = names(&["a", "b", "new"]);
    let pod = Box::new(pod("x", 2, ""));
    let response = request(&mut core, 1, ExtenderRequest::Prioritize { pod, nodes });
    let ExtenderResponse::Scored(scores) = response else {
        panic!("{response:?}")
    };
    let of = |at: usize| scores[at].1;
    assert!(of(1) > of(0), "nearer to the peak: {scores:?}");
    assert_eq!(of(2), 0);
}

#[test]
fn before_the_lists_are_there_nothing_is_said() {
    let mut core = Core::new(crate::config::Config::default().settings(false, true));
    let response = request(&mut core, 0, bind("x", "a"));
    assert_eq!(response, ExtenderResponse::NotReady);
}

#[test]
fn a_binding_holds_its_room_from_the_check_on() {
    let mut core = core(&[("a", 10)]);
    for name in ["x", "y"] {
        core.handle(MS(0), Event::PodApplied(pod(name, 6, "")));
    }
    let id = posted(&mut core, 1, "x", "a");
    assert_eq!(reserved(&core, "a"), 6_000);
    // Its filter was before the first one's bind; the ledger is what counts.
    let refused = request(&mut core, 1, bind("y", "a"));
    let ExtenderResponse::Bound(Err(Unbound::Unfit(unfit))) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(unfit, Unfit::NoRoom(Both::new(2_000, 0)));
    assert_eq!(ended(&mut core, 2, id, BindOutcome::Bound), told(Ok(())));
    assert_eq!(reserved(&core, "a"), 6_000, "held until it is seen");
    core.handle(MS(3), Event::PodApplied(pod("x", 6, "a")));
    assert_eq!(reserved(&core, "a"), 6_000);
    assert_eq!(
        request(&mut core, 4, bind("x", "a")),
        ExtenderResponse::Bound(Ok(()))
    );
    assert!(core.is_drained() && core.poll_deadline().is_none());
}

#[test]
fn a_lenient_binding_goes_over_the_total_and_nothing_else() {
    let mut core = core(&[("a", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 11, "")));
    let lenient = |node: &str| match bind("x", node) {
        ExtenderRequest::Bind { pod, uid, node, .. } => ExtenderRequest::Bind {
            pod,
            uid,
            node,
            strict: false,
        },
        other => other,
    };
    let refused = ExtenderResponse::Bound(Err(Unbound::Unfit(Unfit::UnknownNode)));
    assert_eq!(request(&mut core, 1, lenient("new")), refused);
    core.handle(MS(1), Event::ExtenderRequest(7, lenient("a")));
    assert!(matches!(actions(&mut core, 1)[0], Action::Bind { .. }));
    assert_eq!(reserved(&core, "a"), 11_000);
}

#[test]
fn a_refused_binding_gives_its_room_back() {
    let mut core = core(&[("a", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 6, "")));
    let id = posted(&mut core, 1, "x", "a");
    let outcome = BindOutcome::Refused("no such pod".into());
    let refused = told(Err(Unbound::Refused("no such pod".into())));
    assert_eq!(ended(&mut core, 2, id, outcome), refused);
    assert_eq!(reserved(&core, "a"), 0);
    assert!(core.is_drained());
    assert!(
        ended(&mut core, 3, id, BindOutcome::Bound).is_empty(),
        "told once"
    );
}

#[test]
fn a_pod_that_is_not_seen_yet_is_waited_for() {
    let mut core = core(&[("a", 10)]);
    core.handle(MS(0), Event::ExtenderRequest(7, bind("x", "a")));
    assert!(actions(&mut core, 0).is_empty());
    assert_eq!(core.poll_deadline(), Some(MS(1000)));
    core.handle(MS(5), Event::PodApplied(pod("x", 6, "")));
    assert!(matches!(actions(&mut core, 5)[..], [Action::Bind { .. }]));

    core.handle(MS(10), Event::ExtenderRequest(7, bind("y", "a")));
    assert!(actions(&mut core, 1009).is_empty());
    assert_eq!(actions(&mut core, 1010), told(Err(Unbound::UnknownPod)));
}

#[test]
fn after_a_conflict_the_pod_is_read_and_what_is_true_is_told() {
    for (seen, expected, held) in [
        (
            PodReadOutcome::Pod(Box::new(pod("x", 6, "a"))),
            Ok(()),
            (6_000, 0),
        ),
        (
            PodReadOutcome::Pod(Box::new(pod("x", 6, "b"))),
            Err(Unbound::Elsewhere("b".into())),
            (0, 6_000),
        ),
        (PodReadOutcome::Gone, Err(Unbound::UnknownPod), (0, 0)),
        (
            PodReadOutcome::Pod(Box::new(pod("x", 6, ""))),
            Err(Unbound::Refused(
                "the pod changed or is being deleted".into(),
            )),
            (0, 0),
        ),
    ] {
        let mut core = core(&[("a", 10), ("b", 10)]);
        core.handle(MS(0), Event::PodApplied(pod("x", 6, "")));
        let id = posted(&mut core, 1, "x", "a");
        let read = read_call(&ended(&mut core, 2, id, BindOutcome::Conflict));
        assert_eq!(was_read(&mut core, 3, read, seen), told(expected));
        assert_eq!((reserved(&core, "a"), reserved(&core, "b")), held);
        assert!(core.is_drained());
    }
}

#[test]
fn an_unclear_binding_keeps_its_room_until_a_late_read_proves_that_it_failed() {
    let mut core = core(&[("a", 10), ("b", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 6, "")));
    let id = posted(&mut core, 1, "x", "a");
    let unclear = || BindOutcome::Unclear("no answer".into());
    let read = read_call(&ended(&mut core, 1000, id, unclear()));
    let free = || PodReadOutcome::Pod(Box::new(pod("x", 6, "")));
    let answer = was_read(&mut core, 1001, read, free());
    assert_eq!(answer, told(Err(Unbound::Unclear("no answer".into()))));
    assert_eq!(reserved(&core, "a"), 6_000, "it may land yet");
    let held = Unfit::HeldBy("a".into());
    let verdicts = filtered(&mut core, pod("x", 6, ""), &["a", "b"]);
    assert_eq!(verdicts, [Ok(()), Err(held.clone())]);
    let refused = ExtenderResponse::Bound(Err(Unbound::Unfit(held)));
    assert_eq!(request(&mut core, 1100, bind("x", "b")), refused);

    assert_eq!(core.poll_deadline(), Some(MS(3000)));
    assert!(actions(&mut core, 2999).is_empty());
    let proof = read_call(&actions(&mut core, 3000));
    assert_eq!(reserved(&core, "a"), 6_000);
    assert!(was_read(&mut core, 3001, proof, free()).is_empty());
    assert_eq!(reserved(&core, "a"), 0);
    assert!(core.is_drained() && core.poll_deadline().is_none());
}

#[test]
fn an_unclear_binding_is_repeated_where_it_was_and_ends_when_it_is_seen() {
    let mut core = core(&[("a", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 6, "")));
    let id = posted(&mut core, 1, "x", "a");
    let unclear = BindOutcome::Unclear("no answer".into());
    let read = read_call(&ended(&mut core, 10, id, unclear));
    let lost = PodReadOutcome::Unclear("no answer either".into());
    assert_eq!(was_read(&mut core, 11, read, lost).len(), 1);
    let again = posted(&mut core, 20, "x", "a");
    // The refusal of the second says nothing of the first.
    let refused = BindOutcome::Refused("no".into());
    assert_eq!(ended(&mut core, 30, again, refused).len(), 1);
    assert_eq!(reserved(&core, "a"), 6_000);
    core.handle(MS(40), Event::PodApplied(pod("x", 6, "a")));
    assert_eq!(reserved(&core, "a"), 6_000);
    assert!(core.is_drained() && core.poll_deadline().is_none());
}

/// Calls of the parts share one name space. The ids of the extender's begin at a bound.
#[test]
fn calls_for_one_binding_have_rising_ids_of_the_extender() {
    let mut core = core(&[("a", 4)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 2, "")));
    let post = posted(&mut core, 1, "x", "a");
    let read = read_call(&ended(&mut core, 2, post, BindOutcome::Conflict));
    assert!(FIRST_CALL < post && post < read, "{post} {read}");
}

#[test]
fn one_binding_of_a_pod_at_a_time() {
    let mut core = core(&[("a", 10)]);
    core.handle(MS(0), Event::PodApplied(pod("x", 6, "")));
    let id = posted(&mut core, 1, "x", "a");
    let busy = ExtenderResponse::Bound(Err(Unbound::Busy));
    assert_eq!(request(&mut core, 2, bind("x", "a")), busy);
    assert_eq!(ended(&mut core, 3, id, BindOutcome::Bound), told(Ok(())));
}
