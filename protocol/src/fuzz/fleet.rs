//! Objects of the fleet as people write them.

use serde_json::{Value, json};

use crate::fleet::{
    ChannelSpec, DeploymentSpec, EnvironmentSpec, FleetKind, InstanceSpec, KEY_WINDOWS,
    check_version, parse_windows, validate_create, validate_update,
};

/// A new state of an object of any kind. A refusal names a member of the spec. An accepted spec is
/// accepted again in the form in which it is written, and may follow itself.
pub fn fleet_object(data: &[u8]) {
    windows(data);
    let Ok(object) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    for kind in FleetKind::ALL {
        let result = validate_create(kind.as_str(), &object);
        for error in result.as_ref().err().into_iter().flatten() {
            assert!(error.field.starts_with("spec"), "{error:?}");
            assert!(error.message.starts_with(".spec"), "{error:?}");
        }
        if result.is_err() {
            continue;
        }
        let again = json!({"spec": written(kind, &object)});
        assert_eq!(validate_create(kind.as_str(), &again), Ok(()));
        assert_eq!(validate_update(kind.as_str(), &again, &again), Ok(()));
    }
}

/// An annotation with windows. Accepted ones are accepted again as they are written.
fn windows(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match parse_windows(text, 60) {
        Ok(windows) => {
            let again = serde_json::to_string(&windows).expect("windows are JSON");
            assert_eq!(parse_windows(&again, 60), Ok(windows));
        }
        Err(problem) => assert!(problem.starts_with(KEY_WINDOWS), "{problem}"),
    }
}

fn written(kind: FleetKind, object: &Value) -> Value {
    let value = match kind {
        FleetKind::Environment => {
            let spec = EnvironmentSpec::of_object(object).expect("it was accepted");
            let version = spec.source.version();
            assert!(version.is_none_or(|version| check_version(version).is_ok()));
            assert!(spec.rollout.min_healthy_percent < 100);
            serde_json::to_value(spec)
        }
        FleetKind::Deployment => {
            serde_json::to_value(DeploymentSpec::of_object(object).expect("it was accepted"))
        }
        FleetKind::Channel => {
            serde_json::to_value(ChannelSpec::of_object(object).expect("it was accepted"))
        }
        FleetKind::Instance => {
            serde_json::to_value(InstanceSpec::of_object(object).expect("it was accepted"))
        }
    };
    value.expect("a spec is JSON")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_seed_of_the_fleet_holds() {
        test_seeds::hold(&[("fleet_object", fleet_object)]);
    }

    fn any_object() -> impl Strategy<Value = String> {
        let number = "(-?[0-9]{1,4}|null|\"1\")";
        let limit = "(minHealthyPercent|maxInFlight|trialSeconds|retries|x)";
        let version = "(1\\.2\\.3|v1\\.2\\.3|1\\.2|1\\.2\\.3-rc\\.1|1\\.2\\.3\\+b|.{0,4})";
        let member = format!(
            "(\"part\":\"(monitor|guestd|x)\"|\"source\":\\{{\"release\":\\{{\"version\":\"{version}\"\\}}\\}}|\"rollout\":\\{{\"{limit}\":{number}\\}}|\"environment\":\"m?\"|\"revision\":\"m-r[0-9x]\"|\"kind\":\"(User|Rollback)\"|\"stop\":(true|false))"
        );
        let text = format!("\\{{\"spec\":\\{{({member},){{0,4}}{member}\\}}\\}}");
        proptest::string::string_regex(&text).expect("a pattern")
    }

    proptest! {
        /// Requirement: R17
        #[test]
        fn annotations_with_windows_hold(
            days in "(\"Mon\"|\"Sun\"|\"Mon\",\"Tue\"|\"x\"|)",
            start in "(0[0-9]:[0-9]{2}|[0-9:]{0,6})",
            minutes in -5_i64..1500,
            zone in "(UTC|Europe/Berlin|Asia/Kathmandu|.{0,8})",
        ) {
            let text = format!(
                "[{{\"days\":[{days}],\"start\":\"{start}\",\"minutes\":{minutes},\"timeZone\":{}}}]",
                serde_json::Value::from(zone)
            );
            windows(text.as_bytes());
        }

        #[test]
        fn objects_hold(text in any_object(), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            fleet_object(text.as_bytes());
            fleet_object(&bytes);
        }
    }
}
