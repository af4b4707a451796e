//! The gate before versions of sets, hour by hour, by the reports of the core.

use policy_controller::core::reconcile::{NodeReport, look};
use protocol::policy::Stage;

use super::*;

/// Rounds of an hour.
const HOUR: u32 = 360;
/// Rounds between two looks of the gate.
const LOOK: u32 = 6;

/// A candidate beside the counts of two members, with its gate.
fn candidate(gate: &Value) -> Rig {
    let mut rig = Rig::new(Role::Shadow);
    rig.objects.policies[0]["spec"]["gate"] = gate.clone();
    rig.objects.policies[0]["spec"]["feeds"] = json!([]);
    rig
}

impl Rig {
    /// One look of the gate.
    fn look(&mut self) {
        let wall = WallTime(i64::try_from(self.now.0).expect("small"));
        let nodes = [
            NodeReport {
                node: "policy-controller".to_owned(),
                versions: Some(self.core.version_reports()),
            },
            // An agent that does not answer is not asked about sets.
            NodeReport {
                node: "n1".to_owned(),
                versions: None,
            },
        ];
        let outcome = look(&self.objects.policies[0], &nodes, wall).expect("a status");
        if let Some(status) = outcome.status {
            self.objects.policies[0]["status"] = serde_json::to_value(status).expect("JSON");
        }
    }

    /// Rounds, with a look each minute.
    fn rounds(&mut self, count: u32) {
        for number in 0..count {
            self.next();
            if number % LOOK == 0 {
                self.look();
            }
        }
    }

    fn status(&self) -> ScalingPolicyStatus {
        ScalingPolicyStatus::of_object(&self.objects.policies[0]).expect("a status")
    }

    /// Status, reason and text of the condition `Promotable`.
    fn promotable(&self) -> (String, String, String) {
        let status = self.status();
        let one = status.condition_of("Promotable").expect("the condition");
        (one.status.clone(), one.reason.clone(), one.message.clone())
    }
}

fn gate(promote: &str) -> Value {
    json!({"promote": promote, "hours": 2, "decisions": 800, "vms": 2})
}

/// Requirement: V07
#[test]
fn v07_candidate_of_sets_is_promotable_by_its_own_hours_and_says_what_is_not_judged() {
    let mut rig = candidate(&gate("ask"));
    rig.answer(&json!({"sets": {"web": {"count": 2}}}));
    rig.rounds(HOUR);
    let (status, reason, text) = rig.promotable();
    assert_eq!((&*status, &*reason), ("False", "Hours"), "{text}");
    assert!(text.contains("of 2; decisions"), "{text}");
    assert!(text.contains(". There is no model of sets"), "{text}");
    rig.rounds(3 * HOUR);
    let (status, reason, text) = rig.promotable();
    assert_eq!((&*status, &*reason), ("True", "Ready"), "{text}");
    assert!(text.contains("live may begin; hours 3"), "{text}");
    assert!(
        text.contains("members 2, unit-hours 6.0 (live 6.0, the sets had 6.0)"),
        "{text}"
    );
    assert!(text.contains("are not judged"), "{text}");
    assert_eq!(rig.status().live, None, "a person is waited for");
    // What decides now is no candidate, and its last answer is known to it.
    let digest = rig.status().candidate.expect("a candidate").digest;
    let mut status = rig.status();
    status.promote(&digest, WallTime(i64::try_from(rig.now.0).expect("small")));
    rig.objects.policies[0]["status"] = serde_json::to_value(status).expect("JSON");
    rig.next();
    let last = rig.questions.last().expect("a question");
    assert_eq!(last.role, Role::Live);
    assert!(last.input.old.is_some());
}

/// Requirement: V07
#[test]
fn v07_candidate_of_sets_decides_by_itself_unless_it_wants_fewer_members() {
    for (count, comes) in [(2, true), (1, false)] {
        let mut rig = candidate(&gate("auto"));
        rig.answer(&json!({"sets": {"web": {"count": count}}}));
        rig.rounds(3 * HOUR + 2 * LOOK);
        let status = rig.status();
        assert_eq!(status.live.is_some(), comes, "{status:?}");
        let stage = status.candidate.map(|one| one.stage);
        assert_ne!(stage, Some(Some(Stage::Canary)), "sets have no canary");
        if !comes {
            let (is_true, _, text) = rig.promotable();
            assert_eq!(is_true, "True", "a person may begin it");
            assert!(text.contains("a person begins it"), "{text}");
        }
    }
}

/// Requirement: V07
#[test]
fn v07_candidate_of_sets_that_is_costly_late_or_away_is_held() {
    let late = End::Fault(Fault::Late, "no answer in 50 ms".into());
    let away = End::NotAsked("bellows-policy is missing".into());
    for (end, reason) in [
        (None, "UnitHours"),
        (Some(late), "Faults"),
        (Some(away), "Hours"),
    ] {
        let mut rig = candidate(&gate("auto"));
        rig.answer(&json!({"sets": {"web": {"count": 4}}}));
        if let Some(end) = end {
            rig.answer(&json!({"sets": {"web": {"count": 2}}}));
            let good = std::mem::replace(&mut rig.shadow, end);
            rig.rounds(30);
            if reason == "Faults" {
                rig.shadow = good;
            }
        }
        rig.rounds(3 * HOUR);
        let (status, why, text) = rig.promotable();
        assert_eq!((&*status, &*why), ("False", reason), "{text}");
        assert_eq!(rig.status().live, None);
    }
}

/// Requirement: V07
#[test]
fn v07_canary_of_an_older_status_counts_as_shadow_for_sets() {
    let mut rig = candidate(&gate("ask"));
    let digest = digest_of(&rig.objects.policies[0]);
    let mut status = ScalingPolicyStatus::default();
    status.begin_canary(&digest, WallTime(0));
    rig.objects.policies[0]["status"] = serde_json::to_value(status).expect("JSON");
    rig.answer(&json!({"sets": {"web": {"count": 5}}}));
    let actions = rig.next();
    assert_eq!(set_changes(&actions), 0, "it decides about no set");
    rig.look();
    let (_, reason, text) = rig.promotable();
    assert_eq!(reason, "Hours", "{text}");
}

/// Requirement: V07
#[test]
fn v07_version_of_sets_that_is_not_asked_is_not_loaded() {
    let mut rig = candidate(&gate("ask"));
    rig.shadow = End::NotAsked("bellows-policy is missing".into());
    rig.next();
    rig.look();
    // The first look makes the candidate, the second one looks at its reports.
    rig.look();
    let status = rig.status();
    let loaded = status.condition_of("Loaded").expect("the condition");
    assert_eq!((&*loaded.status, &*loaded.reason), ("False", "NotAsked"));
    assert!(
        loaded.message.contains("bellows-policy is missing"),
        "{loaded:?}"
    );
    rig.answer(&json!({}));
    rig.next();
    rig.look();
    let status = rig.status();
    let loaded = status.condition_of("Loaded").expect("the condition");
    assert_eq!(loaded.status, "True", "{loaded:?}");
}
