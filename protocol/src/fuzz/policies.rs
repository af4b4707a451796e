//! Objects `ScalingPolicy` and `VirtualMachineSet` as people write them.

use serde_json::Value;

use crate::policy::{
    KIND, Limits, MAX_REPLICAS, MAX_SOURCE_BYTES, Rates, SET_KIND, ScalingPolicySpec, VmSet,
    check_template, validate,
};
use crate::time::Span;

/// A new state of an object. A refusal names a member of the spec and a rule. An accepted spec has
/// a source of bounded length, its JSON is accepted too, and limits are never looser than a
/// ceiling.
pub fn policy_object(data: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let refusal = validate(KIND, &object).err();
    for error in refusal.iter().flatten() {
        assert!(error.field.starts_with("spec"), "{error:?}");
        assert!(error.message.starts_with('.'), "{error:?}");
    }
    let Ok(spec) = ScalingPolicySpec::of_object(&object) else {
        assert!(refusal.is_some());
        return;
    };
    assert_eq!(spec.check().is_err(), refusal.is_some());
    if refusal.is_some() {
        return;
    }
    assert!(spec.source.len() <= MAX_SOURCE_BYTES);
    assert!(spec.params.values().all(|value| value.is_finite()));
    let again = serde_json::json!({ "spec": spec });
    assert_eq!(validate(KIND, &again), Ok(()));
    let read = ScalingPolicySpec::of_object(&again).expect("it prints");
    // The reader of JSON may miss the last bit of a parameter.
    assert!(spec.params.keys().eq(read.params.keys()));
    let params = spec.params.clone();
    assert_eq!(ScalingPolicySpec { params, ..read }, spec);
    bounded(spec.limits);
}

/// A new state of a set. A refusal names a field and a rule. An accepted set has bounded numbers
/// and a template that the controller takes, and its JSON is accepted too.
pub fn set_object(data: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    let refusal = validate(SET_KIND, &object).err();
    for error in refusal.iter().flatten() {
        assert!(error.message.starts_with('.'), "{error:?}");
        assert!(!error.field.is_empty(), "{error:?}");
    }
    if refusal.is_some() {
        return;
    }
    let Ok(set) = serde_json::from_value::<VmSet>(object) else {
        // Its metadata is none.
        return;
    };
    assert!(set.spec.replicas <= MAX_REPLICAS);
    for rate in [set.spec.rates.grow, set.spec.rates.decline] {
        let period = Rates::period(rate);
        assert!(period >= Span::from_millis(10) && period <= Span::from_secs(1_001));
    }
    assert_eq!(check_template(&set.spec.template), Ok(()));
    let again = serde_json::to_value(&set).expect("it prints");
    assert_eq!(validate(SET_KIND, &again), Ok(()));
}

fn bounded(limits: Limits) {
    let ceiling = Limits {
        max_units: Some(8),
        shrink_units_per_minute: Some(4),
        vms_shrunk_at_once_percent: Some(20),
        fallback_after_seconds: Some(600),
        members_per_answer: Some(9),
    };
    let both = limits.within(ceiling);
    assert_eq!(both, ceiling.within(limits));
    assert_eq!(both.within(ceiling), both);
    assert!(both.max_units.is_some_and(|units| units <= 8));
    let wait = both.fallback_after_seconds;
    assert!(wait.is_some_and(|wait| (0..=600).contains(&wait)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_seed_of_policies_holds() {
        test_seeds::hold(&[("policy_object", policy_object)]);
        let read = |name: &str| {
            let seed = std::fs::read(format!("../fuzz/seeds/policy_object/{name}")).expect(name);
            serde_json::from_slice::<Value>(&seed).expect(name)
        };
        assert_eq!(validate(KIND, &read("full")), Ok(()));
        assert!(validate(KIND, &read("feed_twice")).is_err());
    }

    #[test]
    fn every_seed_of_sets_holds() {
        test_seeds::hold(&[("set_object", set_object)]);
        let read = |name: &str| {
            let seed = std::fs::read(format!("../fuzz/seeds/set_object/{name}")).expect(name);
            serde_json::from_slice::<Value>(&seed).expect(name)
        };
        assert_eq!(validate(SET_KIND, &read("full")), Ok(()));
        assert!(validate(SET_KIND, &read("privileged")).is_err());
    }

    fn any_set() -> impl Strategy<Value = String> {
        let number = "(-?[0-9]{1,4}(\\.[0-9])?(e[0-9]{1,2})?|null|\"1\")";
        let word = "([a-z]{1,3}|\\.\\.|/|)";
        let cpus = format!("\\{{\"min\":{number},\"use\":{number},\"max\":{number}\\}}");
        let disk =
            format!("\\{{\"name\":\"{word}\",\"mountPath\":\"/{word}\",\"emptyDisk\":\\{{\\}}\\}}");
        let spec = format!(
            "\\{{\"guest\":\\{{\"cpus\":{cpus},\"memorySlots\":{cpus},\"rootDisk\":\\{{\"image\":\"{word}\"\\}}\\}}(,\"disks\":\\[{disk}\\])?(,\"initScript\":\"{word}\")?\\}}"
        );
        let text = format!(
            "\\{{\"metadata\":\\{{\"name\":\"{word}\"\\}},\"spec\":\\{{\"replicas\":{number},(\"rates\":\\{{\"(grow|decline|x)\":{number}\\}},)?(\"kv\":\\{{\"{word}\":\"{word}\"\\}},)?(\"version\":{number},)?(\"priority\":{number},)?(\"commands\":\\[\"{word}\"\\],)?\"template\":\\{{\"spec\":({spec}|{number})\\}}\\}}\\}}"
        );
        proptest::string::string_regex(&text).expect("a pattern")
    }

    fn any_spec() -> impl Strategy<Value = String> {
        let word = "([a-z0-9_]{1,4}|[A-Z ]{0,2}|\\*|load1|pressure|estimate|lfc_hits|feed:a)";
        let number = "(-?[0-9]{1,5}(\\.[0-9]{1,3})?(e[0-9]{1,3})?|null|\"1\")";
        let feed = format!(
            "\\{{\"name\":\"{word}\",\"port\":{number},\"metric\":\"{word}\"(,\"url\":\"x\")?\\}}"
        );
        let limit = "(maxUnits|shrinkUnitsPerMinute|vmsShrunkAtOncePercent|fallbackAfterSeconds|x)";
        let member = format!(
            "(\"params\":\\{{(\"{word}\":{number})?\\}}|\"(series|namespaces)\":\\[(\"{word}\",)?\"{word}\"\\]|\"feeds\":\\[({feed},)?{feed}\\]|\"limits\":\\{{\"{limit}\":{number}\\}}|\"scope\":\"(vm|set|{word})\")"
        );
        let text = format!(
            "\\{{\"spec\":\\{{(\"source\":\"(return 1|\\\\u001b|)\",)?({member},){{0,4}}{member}\\}}\\}}"
        );
        proptest::string::string_regex(&text).expect("a pattern")
    }

    proptest! {
        #[test]
        fn policies_hold(text in any_spec(), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            policy_object(text.as_bytes());
            policy_object(&bytes);
        }

        #[test]
        fn sets_hold(text in any_set(), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            set_object(text.as_bytes());
            set_object(&bytes);
        }
    }
}
