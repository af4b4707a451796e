//! Policies and made-up states of agents before one look, or many.

use policy_contract::tally::{Counts, Evidence, HourReport, NodeAlarms, Tally, VersionReport};
use policy_controller::core::reconcile::{NodeReport, Outcome, look, spec_of};
use proptest::prelude::*;
use protocol::policy::{Fault, ScalingPolicyStatus, Stage};
use protocol::time::WallTime;
use serde_json::{Value, json};

const HOUR: i64 = 3_600_000_000;

fn hour(number: i64) -> WallTime {
    WallTime(number * HOUR)
}

/// A source for each version.
fn source(version: u8) -> String {
    format!("return function(i) return std.hold('v{version}') end")
}

fn policy(version: u8, gate: Value) -> Value {
    json!({
        "metadata": {"name": "db", "generation": version},
        "spec": {"source": source(version), "gate": gate},
    })
}

fn digest(version: u8) -> String {
    let spec = spec_of(&policy(version, json!({}))).expect("a spec");
    spec.digest().to_string()
}

fn tiny(promote: &str) -> Value {
    json!({"promote": promote, "hours": 0, "decisions": 0, "vms": 0, "canaryHours": 0})
}

/// A node that follows a version, and what it says of it.
fn node(version: u8, change: impl FnOnce(&mut VersionReport)) -> NodeReport {
    let mut report = VersionReport {
        policy: "db".to_owned(),
        digest: digest(version),
        has_journal: true,
        ..VersionReport::default()
    };
    report.running.vms.insert("a/b".to_owned());
    change(&mut report);
    NodeReport {
        node: "n".to_owned(),
        versions: Some(vec![report]),
    }
}

fn quiet(version: u8) -> NodeReport {
    node(version, |_| {})
}

/// An hour that was judged, with a VM in canary.
fn judged(from: WallTime) -> HourReport {
    let vms = ["a/b".to_owned()];
    let tally = Tally {
        vm_hours: 1.0,
        unit_hours: 4.0,
        ..Tally::default()
    };
    HourReport {
        from,
        is_whole: true,
        counts: Counts {
            answers: 360,
            vms: vms.clone().into(),
            decided: vms.into(),
            ..Counts::default()
        },
        judged: Some(Evidence {
            hours: 1,
            candidate: tally,
            live: tally,
            canary: tally,
            canary_vms: [("a/b".to_owned(), tally)].into(),
            ..Evidence::default()
        }),
        ..HourReport::default()
    }
}

/// A policy's object over looks, as the API server keeps it.
struct World {
    object: Value,
    notices: Vec<String>,
}

impl World {
    fn new(gate: Value) -> Self {
        Self {
            object: policy(1, gate),
            notices: Vec::new(),
        }
    }

    fn apply(&mut self, version: u8) {
        self.object["spec"]["source"] = source(version).into();
    }

    fn look(&mut self, nodes: &[NodeReport], now: WallTime) -> Outcome {
        let outcome = look(&self.object, nodes, now).expect("a status");
        if let Some(status) = &outcome.status {
            self.object["status"] = serde_json::to_value(status).expect("JSON");
        }
        let notices = outcome.notices.iter();
        self.notices.extend(notices.map(|one| one.message.clone()));
        outcome
    }

    fn status(&self) -> ScalingPolicyStatus {
        ScalingPolicyStatus::of_object(&self.object).expect("a status")
    }

    /// Digests of live version, candidate and its stage.
    fn versions(&self) -> (Option<String>, Option<(String, Option<Stage>)>) {
        let status = self.status();
        (
            status.live.map(|version| version.digest),
            status
                .candidate
                .map(|version| (version.digest, version.stage)),
        )
    }

    fn condition(&self, name: &str) -> (String, String, String) {
        let status = self.status();
        let one = status.condition_of(name).expect(name);
        (one.status.clone(), one.reason.clone(), one.message.clone())
    }

    fn promote(&mut self, version: u8, now: WallTime) {
        let mut status = self.status();
        status.promote(&digest(version), now);
        self.object["status"] = serde_json::to_value(status).expect("JSON");
    }
}

fn shadow(version: u8) -> Option<(String, Option<Stage>)> {
    Some((digest(version), Some(Stage::Shadow)))
}

fn canary(version: u8) -> Option<(String, Option<Stage>)> {
    Some((digest(version), Some(Stage::Canary)))
}

/// Requirement: V07
#[test]
fn v07_good_version_comes_by_itself_to_canary_and_then_to_all_vms() {
    let mut world = World::new(tiny("auto"));
    world.look(&[], hour(10));
    assert_eq!(world.versions(), (None, canary(1)), "no figure was wanted");
    world.look(&[quiet(1)], hour(11));
    let (_, reason, text) = world.condition("Promotable");
    assert_eq!(reason, "CanaryIsEmpty", "{text}");
    let with_hour = node(1, |report| report.hours.push(judged(hour(10))));
    world.look(std::slice::from_ref(&with_hour), hour(11));
    assert_eq!(world.versions(), (Some(digest(1)), None));
    world.look(&[with_hour], hour(11));
    assert_eq!(world.condition("Promotable").1, "NoCandidate");
    assert_eq!(world.notices, Vec::<String>::new());
}

/// Requirement: V07
#[test]
fn v07_stages_are_an_hour_apart_and_a_person_is_waited_for() {
    let mut world = World::new(tiny("ask"));
    let seen = [node(1, |report| report.hours.push(judged(hour(9))))];
    world.look(&seen, hour(10));
    assert_eq!(world.versions(), (None, shadow(1)));
    let (status, reason, text) = world.condition("Promotable");
    assert_eq!((&*status, &*reason), ("True", "Ready"), "{text}");
    assert!(text.contains("canary may begin; hours 0"), "{text}");
    world.promote(1, hour(10));
    world.apply(2);
    world.look(&[quiet(2)], hour(10));
    let (_, reason, text) = world.condition("Promotable");
    assert_eq!(reason, "TooSoon", "{text}");
    world.look(&[quiet(2)], hour(11));
    assert_eq!(world.condition("Promotable").0, "True");
}

/// Requirement: V07
#[test]
fn v07_missing_evidence_is_named_with_its_numbers_and_hours_count_once() {
    let mut world = World::new(json!({"hours": 2, "decisions": 800, "vms": 1}));
    world.look(&[quiet(1)], hour(10));
    let text = world.condition("Promotable").2;
    assert!(text.contains("hours 0 of 2; decisions 0 of 800"), "{text}");
    let first = node(1, |report| report.hours.push(judged(hour(10))));
    for _ in 0..3 {
        world.look(std::slice::from_ref(&first), hour(11));
    }
    let text = world.condition("Promotable").2;
    assert!(
        text.ends_with("hours 1 of 2; decisions 360 of 800"),
        "{text}"
    );
    let both = node(1, |report| {
        report.hours = vec![judged(hour(10)), judged(hour(11))];
        report.running.answers = 100;
    });
    world.look(&[both], hour(12));
    assert_eq!(world.condition("Promotable").0, "True");
    // A controller that starts again reads the same.
    let again = node(1, |report| report.hours.push(judged(hour(11))));
    world.look(&[again], hour(12));
    let text = world.condition("Promotable").2;
    assert!(text.ends_with("decisions 720 of 800"), "{text}");
}

/// Requirement: V07
#[test]
fn v07_hour_waits_for_every_node_and_is_lost_without_one() {
    let mut world = World::new(json!({"hours": 1, "decisions": 0, "vms": 1}));
    world.look(&[], hour(10));
    let is_judged = node(1, |report| report.hours.push(judged(hour(10))));
    let waits = node(1, |report| {
        report.hours.push(HourReport {
            judged: None,
            ..judged(hour(10))
        });
    });
    let away = NodeReport {
        node: "m".to_owned(),
        versions: None,
    };
    let short = |world: &World| world.condition("Promotable").2.contains("hours 0 of 1");
    for other in [&waits, &away] {
        world.look(&[is_judged.clone(), other.clone()], hour(11));
        assert!(short(&world), "{other:?}");
    }
    let late = WallTime(hour(11).0 + HOUR / 2);
    world.look(&[is_judged.clone(), waits], late);
    assert!(
        short(&world),
        "an hour that a node did not judge never counts"
    );
    let mut other = World::new(json!({"hours": 1, "decisions": 0, "vms": 1}));
    other.look(&[], hour(10));
    other.look(&[is_judged], hour(11));
    assert_eq!(other.condition("Promotable").0, "True");
}

/// Requirement: V07
#[test]
fn v07_nothing_is_promoted_without_journal_or_agent() {
    let mut world = World::new(tiny("auto"));
    let without = node(1, |report| report.has_journal = false);
    world.look(&[without], hour(10));
    assert_eq!(world.versions(), (None, shadow(1)));
    let (status, _, text) = world.condition("JournalMissing");
    assert_eq!(
        (&*status, &*text),
        ("True", "node n: the agent keeps no journal")
    );
    let away = NodeReport {
        node: "m".to_owned(),
        versions: None,
    };
    world.look(&[quiet(1), away], hour(10));
    assert_eq!(world.condition("Promotable").1, "AgentMissing");
    assert_eq!(world.condition("JournalMissing").0, "False");
    world.look(&[quiet(1)], hour(10));
    assert_eq!(world.versions(), (None, canary(1)));
}

fn faulty(version: u8) -> NodeReport {
    node(version, |report| {
        report.alarms.faults_in_a_row = 3;
        report.running.faults.insert(Fault::Steps, 3);
        report.problem = Some("steps: too many".to_owned());
    })
}

/// Requirement: V04, V07
#[test]
fn v07_version_that_faults_is_taken_back_at_once_and_banned_for_a_day() {
    let mut world = World::new(tiny("auto"));
    world.promote(1, hour(9));
    world.apply(2);
    world.look(&[quiet(2)], hour(10));
    world.look(&[quiet(2)], hour(11));
    assert_eq!(world.versions(), (Some(digest(1)), canary(2)));
    let outcome = world.look(&[faulty(2)], hour(11));
    assert_eq!(world.versions(), (Some(digest(1)), shadow(2)));
    let (status, reason, text) = world.condition("Demoted");
    assert_eq!((&*status, &*reason), ("True", "Faults"), "{text}");
    assert!(text.contains("3 faults in a row"), "{text}");
    assert_eq!(outcome.notices.len(), 1);
    assert_eq!(world.condition("Loaded").0, "False");
    let until = WallTime(hour(11).0 + 24 * HOUR);
    for now in [hour(12), WallTime(until.0 - 1)] {
        world.look(&[quiet(2)], now);
        assert_eq!(world.versions().1, shadow(2));
        assert_eq!(world.condition("Promotable").1, "Banned");
    }
    world.look(&[quiet(2)], until);
    assert_eq!(world.versions().1, canary(2));
    assert_eq!(world.notices.len(), 1, "{:?}", world.notices);
}

/// Requirement: V07
#[test]
fn v07_live_version_that_harms_gives_way_to_the_one_before() {
    let mut world = World::new(tiny("ask"));
    world.promote(1, hour(1));
    world.apply(2);
    world.promote(2, hour(3));
    world.look(&[faulty(2)], hour(3));
    assert_eq!(world.versions(), (Some(digest(1)), shadow(2)));
    assert_eq!(world.notices.len(), 1);
    world.apply(3);
    world.look(&[quiet(3)], hour(4));
    world.apply(2);
    world.look(&[quiet(2)], hour(5));
    assert_eq!(
        world.versions(),
        (Some(digest(1)), shadow(2)),
        "it is banned"
    );
}

#[test]
fn version_that_decided_before_is_put_back_at_once() {
    let mut world = World::new(json!({}));
    world.promote(1, hour(1));
    world.apply(2);
    world.promote(2, hour(2));
    world.look(&[quiet(2)], hour(2));
    world.apply(1);
    world.look(&[quiet(1)], hour(2));
    assert_eq!(world.versions(), (Some(digest(1)), None));
    world.apply(2);
    world.look(&[faulty(2)], hour(2));
    assert_eq!(
        world.versions(),
        (Some(digest(1)), shadow(2)),
        "it has a fault"
    );
}

/// Requirement: V34
#[test]
fn v34_loaded_says_which_limits_were_cut() {
    let mut world = World::new(json!({}));
    world.promote(1, hour(1));
    let mut report = quiet(1);
    let versions = report.versions.as_mut().expect("an answer");
    versions[0].cut_limits = vec!["maxUnits is 99, and 16 holds".to_owned()];
    world.look(&[report], hour(2));
    let (status, reason, text) = world.condition("Loaded");
    assert_eq!((&*status, &*reason), ("True", "LimitsCut"));
    assert!(text.contains("maxUnits is 99, and 16 holds"), "{text}");
    world.look(&[quiet(1)], hour(3));
    assert_eq!(world.condition("Loaded").1, "Followed");
}

/// Requirement: V34
#[test]
fn v34_loaded_names_the_nodes_whose_files_cut_a_limit() {
    let mut world = World::new(json!({}));
    world.promote(1, hour(1));
    let on = |name: &str, held: u32| {
        let mut report = quiet(1);
        report.node = name.to_owned();
        let versions = report.versions.as_mut().expect("an answer");
        versions[0].cut_limits = vec![format!("maxUnits is 99, and {held} holds")];
        report
    };
    let nodes = [
        on("a", 16),
        on("b", 16),
        on("c", 16),
        on("d", 16),
        on("e", 8),
    ];
    world.look(&nodes, hour(2));
    assert_eq!(
        world.condition("Loaded").2,
        "agents follow it; on nodes a, b, c and 1 more maxUnits is 99, and 16 holds; \
         on node e maxUnits is 99, and 8 holds"
    );
}

#[test]
fn spec_that_no_policy_may_have_changes_no_version() {
    let mut world = World::new(json!({}));
    world.promote(1, hour(1));
    world.object["spec"]["source"] = json!("");
    world.look(&[], hour(2));
    assert_eq!(world.versions(), (Some(digest(1)), None));
    let (status, reason, _) = world.condition("Loaded");
    assert_eq!((&*status, &*reason), ("False", "Invalid"));
    world.object["status"] = json!({"live": 3});
    assert!(look(&world.object, &[], hour(3)).is_err());
}

#[derive(Debug, Clone)]
enum Act {
    Look(NodeReport),
    Apply(u8),
    Promote,
    Demote,
    Pause,
    Resume,
}

fn any_report() -> impl Strategy<Value = NodeReport> {
    (1..4_u8, 0..5_u32, 0..3_u32, any::<bool>(), 0..40_i64).prop_map(
        |(version, row, killed, has_journal, from)| {
            node(version, |report| {
                report.has_journal = has_journal;
                report.hours.push(judged(hour(from)));
                report.alarms = NodeAlarms {
                    faults_in_a_row: row,
                    out_of_memory: killed / 2,
                    ..NodeAlarms::default()
                };
            })
        },
    )
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => any_report().prop_map(Act::Look),
        2 => (1..4_u8).prop_map(Act::Apply),
        1 => Just(Act::Promote),
        1 => Just(Act::Demote),
        1 => Just(Act::Pause),
        1 => Just(Act::Resume),
    ]
}

/// What must hold of every status that anybody may read.
fn is_whole(status: &ScalingPolicyStatus) -> Result<(), String> {
    let digest_of = |version: &Option<protocol::policy::PolicyVersion>| {
        version.as_ref().map(|version| version.digest.clone())
    };
    let live = digest_of(&status.live);
    let candidate = digest_of(&status.candidate);
    if live.is_some() && live == candidate {
        return Err("a version is live and a candidate".into());
    }
    if live.is_some() && live == digest_of(&status.previous) {
        return Err("a version is live and the one before".into());
    }
    if candidate.is_none() && status.evidence.is_some() {
        return Err("evidence of no candidate".into());
    }
    let is_demoted = status.condition_of("Demoted").is_some();
    let was_demoted = status.history.iter().any(|past| past.demoted);
    if is_demoted && !was_demoted {
        return Err("a demotion without its version".into());
    }
    Ok(())
}

proptest! {
    /// Requirement: V05
    #[test]
    fn v05_every_look_leaves_a_whole_status(
        acts in prop::collection::vec((any_act(), 0..90_i64), 1..80),
    ) {
        let mut world = World::new(tiny("auto"));
        let (mut now, mut version) = (hour(0), 1);
        for (act, minutes) in acts {
            now = WallTime(now.0 + minutes * HOUR / 60);
            let mut status = world.status();
            match &act {
                Act::Look(report) => {
                    let before = world.versions();
                    let told = world.notices.len();
                    world.look(std::slice::from_ref(report), now);
                    if world.notices.len() > told {
                        prop_assert_ne!(before, world.versions());
                    }
                }
                Act::Apply(next) => {
                    version = *next;
                    world.apply(version);
                }
                Act::Promote => {
                    status.promote(&digest(version), now);
                }
                Act::Demote => {
                    status.demote("a person", now);
                }
                Act::Pause => {
                    status.pause("a person", now);
                }
                Act::Resume => {
                    status.resume();
                }
            }
            if !matches!(act, Act::Look(_)) {
                world.object["status"] = serde_json::to_value(&status).expect("JSON");
            }
            is_whole(&world.status()).map_err(TestCaseError::fail)?;
        }
    }

    /// Requirement: V05
    #[test]
    fn v05_second_look_changes_no_version(report in any_report(), version in 1..4_u8) {
        let mut world = World::new(json!({"promote": "auto"}));
        world.apply(version);
        world.look(std::slice::from_ref(&report), hour(41));
        let (versions, told) = (world.versions(), world.notices.len());
        world.look(&[report], hour(41));
        prop_assert_eq!(versions, world.versions());
        prop_assert_eq!(told, world.notices.len());
    }
}

/// Requirement: V07
#[test]
fn v07_status_has_the_figures_of_each_vm_in_canary() {
    let mut gate = tiny("auto");
    gate["canaryHours"] = 9.into();
    let mut world = World::new(gate);
    world.look(&[quiet(1)], hour(1));
    world.look(&[quiet(1)], hour(3));
    let stage = world.status().candidate.and_then(|one| one.stage);
    assert_eq!(stage, Some(Stage::Canary));
    for end in [4, 5] {
        let with_hour = node(1, |report| report.hours = vec![judged(hour(end - 1))]);
        world.look(&[with_hour], WallTime(hour(end).0 + HOUR / 60));
    }
    let evidence = world.status().evidence.expect("evidence");
    let vm = &evidence["figures"]["canaryVms"]["a/b"];
    assert_eq!(
        (&vm["vmHours"], &vm["unitHours"]),
        (&json!(2.0), &json!(8.0))
    );
}
