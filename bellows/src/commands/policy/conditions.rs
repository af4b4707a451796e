//! Conditions of a policy in words.

use policy_controller::core::reconcile::PROMOTABLE;
use protocol::policy::{PolicyCondition, ScalingPolicyStatus};
use serde_json::Value;

/// Hex digits of a digest that a condition's message begins with.
const DIGITS: usize = 8;

/// Each condition as a sentence. `candidate` is the newest version in short, unless it decides.
pub(super) fn sentences(object: &Value, candidate: Option<&str>) -> Vec<String> {
    let status = ScalingPolicyStatus::of_object(object).unwrap_or_default();
    let sentence = |one: &PolicyCondition| {
        if !is_stale(one, candidate) {
            return Some(format!("{}: {}.", words(one), one.message));
        }
        let candidate = candidate?;
        Some(format!(
            "Not judged: the gate has not looked at {candidate}."
        ))
    };
    status.conditions.iter().filter_map(sentence).collect()
}

/// Whether the gate has not looked at the policy since its newest version changed.
pub(crate) fn is_stale(condition: &PolicyCondition, candidate: Option<&str>) -> bool {
    if condition.r#type != PROMOTABLE {
        return false;
    }
    if condition.reason == "NoCandidate" {
        return candidate.is_some();
    }
    let is_digest =
        |text: &&str| text.len() == DIGITS && text.bytes().all(|c| c.is_ascii_hexdigit());
    let about = condition.message.split_once(": ").map(|(first, _)| first);
    about
        .filter(is_digest)
        .is_some_and(|about| candidate != Some(about))
}

/// What is so: a false condition is named as its contrary.
fn words(condition: &PolicyCondition) -> String {
    let name = condition.r#type.as_str();
    match (name, condition.status.as_str()) {
        ("JournalMissing", "True") => "Journal missing".to_owned(),
        ("JournalMissing", "False") => "No journal missing".to_owned(),
        (_, "True") => name.to_owned(),
        (_, "False") => format!("Not {}", name.to_lowercase()),
        (_, status) => format!("{name} {}", status.to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::object::contract_spec;
    use super::*;

    fn newest(object: &Value) -> String {
        contract_spec(object).expect("a spec").digest().short()
    }

    /// Sentences while the newest version does not decide.
    fn sentences(object: &Value) -> Vec<String> {
        super::sentences(object, Some(&newest(object)))
    }

    /// A policy whose newest version does not decide, with a condition.
    fn with(name: &str, status: &str, (reason, message): (&str, &str)) -> Value {
        let condition = json!({"type": name, "status": status, "reason": reason,
            "message": message, "lastTransitionTime": "2026-01-02T03:04:05Z"});
        json!({"spec": {"scope": "vm", "source": "return 1"},
            "status": {"conditions": [condition]}})
    }

    #[test]
    fn false_condition_is_named_as_its_contrary() {
        let loaded = with("Loaded", "False", ("NotAsked", "no program"));
        assert_eq!(sentences(&loaded), ["Not loaded: no program."]);
        let journal = with(
            "JournalMissing",
            "False",
            ("Kept", "every hour can be judged"),
        );
        assert_eq!(
            sentences(&journal),
            ["No journal missing: every hour can be judged."]
        );
        let open = with("Loaded", "Unknown", ("Waits", "no agent answers"));
        assert_eq!(sentences(&open), ["Loaded unknown: no agent answers."]);
    }

    #[test]
    fn condition_of_another_version_is_not_that_of_the_newest() {
        let plain = with(PROMOTABLE, "True", ("Ready", ""));
        let digest = newest(&plain);
        let own = format!("{digest}: canary may begin; hours 2");
        let own = with(PROMOTABLE, "True", ("Ready", &own));
        assert_eq!(
            sentences(&own),
            [format!("Promotable: {digest}: canary may begin; hours 2.")]
        );
        let stale = [format!("Not judged: the gate has not looked at {digest}.")];
        let other = with(PROMOTABLE, "True", ("Ready", "5be1a7c0: canary may begin"));
        assert_eq!(sentences(&other), stale);
        let none = ("NoCandidate", "the newest version decides");
        assert_eq!(sentences(&with(PROMOTABLE, "False", none)), stale);
        let paused = with(PROMOTABLE, "False", ("Paused", "the policy is paused"));
        assert_eq!(
            sentences(&paused),
            ["Not promotable: the policy is paused."]
        );
    }

    #[test]
    fn version_that_decides_is_not_promotable_any_more() {
        let object = with(PROMOTABLE, "True", ("Ready", "5be1a7c0: live may begin"));
        assert_eq!(super::sentences(&object, None), Vec::<String>::new());
    }
}
