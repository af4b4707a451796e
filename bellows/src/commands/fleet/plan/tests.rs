use std::collections::BTreeMap;

use fleet_core::{Environment, ImageCheck, PartFacts, Returned, Revision};
use protocol::fleet::{EnvironmentSpec, EnvironmentStatus, Resolved, Rollout};
use protocol::parts::{PartSource, PartState};
use serde_json::json;

use super::*;

fn guest(node: &str, sha256: &str) -> Guest {
    Guest {
        node: node.to_owned(),
        is_enrolled: true,
        boot: String::new(),
        observed: Observed::Seen(PartFacts {
            state: PartState {
                version: "1.0.0".to_owned(),
                sha256: sha256.to_owned(),
                from: PartSource::Image,
                phase: PartPhase::Settled,
                left_s: 0,
                token: String::new(),
                reason: String::new(),
                starts: 1,
                resident_bytes: 0,
            },
            returned: Returned::Ended,
        }),
        ..Guest::default()
    }
}

fn world(guests: &[(&str, Guest)], rollout: Rollout) -> World {
    let spec = json!({"spec": {"part": "monitor", "source": {"release": {"version": "1.1.0"}}}});
    let program = Resolved {
        version: "1.1.0".to_owned(),
        sha256: "new".to_owned(),
        bundle: String::new(),
    };
    let named = guests.iter().cloned();
    let revision = Revision {
        rollout,
        program,
        image: ImageCheck::default(),
    };
    World {
        environment: Environment {
            name: "m".to_owned(),
            spec: EnvironmentSpec::of_object(&spec).expect("a spec"),
            status: EnvironmentStatus::default(),
            is_deleted: false,
            has_finalizer: false,
        },
        revisions: [("m-r1".to_owned(), revision)].into(),
        deployments: Vec::new(),
        guests: named
            .map(|(name, guest)| (name.to_owned(), guest))
            .collect::<BTreeMap<_, _>>(),
        is_critical: false,
    }
}

fn rollout(min_healthy_percent: u32, max_per_node: u32) -> Rollout {
    Rollout {
        min_healthy_percent,
        max_per_node,
        ..Rollout::default()
    }
}

fn batches(plan: &Plan) -> Vec<Vec<&str>> {
    let mut all = Vec::new();
    for batch in &plan.batches {
        let mut names: Vec<&str> = batch.iter().map(String::as_str).collect();
        names.sort_unstable();
        all.push(names);
    }
    all
}

/// Requirement: B22
#[test]
fn plan_keeps_the_budget_of_the_engine() {
    let guests = ["vm-a", "vm-b", "vm-c"].map(|name| (name, guest("n", "old")));
    let plan = of(world(&guests, rollout(66, 3)), "m-r1", WallTime(0)).expect("a plan");
    assert_eq!(batches(&plan), [["vm-a"], ["vm-b"], ["vm-c"]]);
    assert_eq!(
        (plan.matches, plan.settled_healthy, plan.required),
        (3, 3, 2)
    );
    assert_eq!(plan.trial_seconds, 180);
    assert_eq!((plan.left.as_slice(), &plan.blocked_by), (&[][..], &None));
    let plan = of(world(&guests, rollout(0, 2)), "m-r1", WallTime(0)).expect("a plan");
    assert_eq!(
        batches(&plan),
        [vec!["vm-a", "vm-b"], vec!["vm-c"]],
        "two of a node"
    );
}

#[test]
fn plan_names_the_gate_of_each_guest_that_has_no_turn() {
    let mut guests = [
        ("vm-done", guest("n", "new")),
        ("vm-out", guest("n", "old")),
        ("vm-lost", guest("n", "old")),
        ("vm-sized", guest("n", "old")),
        ("vm-old", guest("n", "old")),
    ];
    guests[1].1.is_enrolled = false;
    guests[2].1.observed = Observed::Unreachable;
    guests[3].1.gate = Some(Gate::Resizing);
    guests[4].1.observed = Observed::Unmanaged("no parts".to_owned());
    let plan = of(world(&guests, rollout(0, 9)), "m-r1", WallTime(0)).expect("a plan");
    assert!(plan.batches.is_empty());
    let gates: BTreeMap<&str, &str> = plan
        .left
        .iter()
        .map(|one| (one.instance.as_str(), one.gate.as_str()))
        .collect();
    let expected = [
        ("vm-done", "done"),
        ("vm-lost", "unreachable"),
        ("vm-old", "unmanaged"),
        ("vm-out", "opted-out"),
        ("vm-sized", "resizing"),
    ];
    assert_eq!(gates, expected.into());
    assert!(plan.blocked_by.is_some());
}

#[test]
fn plan_of_an_unknown_revision_is_none() {
    let guests = [("vm-a", guest("n", "old"))];
    assert_eq!(of(world(&guests, rollout(0, 1)), "m-r2", WallTime(0)), None);
}
