//! Reading of configuration files: what ships, each group of our own, and the problems.

use super::*;
use crate::core::migrate::MigrationMode;
use serde_json::json;

fn shipped() -> Value {
    serde_json::to_value(Config::default()).expect("encodes")
}

#[test]
fn what_ships_reads_back_and_absent_optionals_are_empty() {
    assert_eq!(Config::parse(&shipped().to_string()), Ok(Config::default()));
    let mut short = shipped();
    for key in ["nodeMetricLabels", "ignoredNamespaces"] {
        short.as_object_mut().expect("object").remove(key);
    }
    short["scoring"]
        .as_object_mut()
        .expect("object")
        .remove("randomize");
    let config = Config::parse(&short.to_string()).expect("is valid");
    assert!(!config.scoring.randomize && config.ignored_namespaces.is_empty());
}

#[test]
fn fairness_is_ours_off_by_default_and_checked() {
    assert!(!shipped().to_string().contains("fairness"));
    let mut file = shipped();
    file["fairness"] = json!({"sharing": true, "vmGrowthPerSecond": {"vCPUs": "500m", "mem": "1Gi"},
        "burstSeconds": 4});
    let config = Config::parse(&file.to_string()).expect("is valid");
    let fairness = config.settings(false, true).rules.fairness;
    assert!(fairness.sharing && !fairness.is_off());
    assert_eq!(fairness.vm_growth_per_second.cpu.0, 500);
    assert_eq!(Config::parse(&config.to_pretty_json()), Ok(config));
    file["fairness"] = json!({"share": true});
    let error = Config::parse(&file.to_string()).expect_err("is bad");
    assert!(error.0[0].starts_with("fairness must be an object of sharing"));
}

#[test]
fn migration_is_ours_and_the_deployed_rule_can_be_had() {
    assert!(!shipped().to_string().contains("migration"));
    let mut file = shipped();
    file["migration"] = json!({"mode": "deployed", "backoffSeconds": 5});
    let config = Config::parse(&file.to_string()).expect("is valid");
    let rule = config.settings(false, true).migration;
    assert_eq!(
        (rule.mode, rule.backoff_seconds),
        (MigrationMode::Deployed, 5)
    );
    assert_eq!(rule.max_per_node, MigrationRule::default().max_per_node);
    assert_eq!(Config::parse(&config.to_pretty_json()), Ok(config));
    for bad in [
        json!({"mode": "some"}),
        json!({"maxPerNode": -1}),
        json!({"cap": 1}),
        json!(7),
    ] {
        file["migration"] = bad;
        let error = Config::parse(&file.to_string()).expect_err("is bad");
        assert!(
            error.0[0].starts_with("migration must be an object of mode"),
            "{error}"
        );
    }
}

#[test]
fn overcommit_bounds_are_ours_and_a_deployed_file_has_the_defaults() {
    assert!(!shipped().to_string().contains("overcommit"));
    let mut file = shipped();
    let bounds = |file: &Value| -> Result<_, ConfigError> {
        Ok(Config::parse(&file.to_string())?
            .settings(false, true)
            .rules
            .overcommit)
    };
    assert_eq!(bounds(&file), Ok(OvercommitPolicy::default()));
    file["overcommit"] = json!({"max": {"memory": 1}, "namespaces": {"a": {"memory": "1500m"}}});
    let policy = bounds(&file).expect("is valid");
    assert_eq!(policy.of("a").mem, 1500);
    assert_eq!(policy.of("b").mem, 1000);
    let config = Config::parse(&file.to_string()).expect("is valid");
    assert_eq!(Config::parse(&config.to_pretty_json()), Ok(config));
    file["overcommit"] = json!({"max": {"cpu": 0.9}});
    let error = Config::parse(&file.to_string()).expect_err("is bad");
    assert!(error.0[0].starts_with("overcommit must be an object of max"));
}

#[test]
fn keys_match_whatever_their_case() {
    let text = shipped()
        .to_string()
        .replace("watermark", "WaterMark")
        .replace("scorePeak", "scorepeak");
    assert_eq!(Config::parse(&text), Ok(Config::default()));
    let twice = shipped()
        .to_string()
        .replacen('{', r#"{"WATERMARK":0.5,"#, 1);
    let error = Config::parse(&twice).expect_err("is ambiguous");
    assert_eq!(error.0, ["watermark is given more than once"]);
}

#[test]
fn all_problems_are_reported_at_once() {
    let bad = json!({"watermark": 1.5, "scoring": {"minUsageScore": -0.1, "maxUsageScore": "x", "randomise": true},
        "schedulerName": "", "reconcileWorkers": 0, "logSuccessiveFailuresThreshold": 1.5,
        "startupEventHandlingTimeoutSeconds": -1, "k8sCRUDTimeoutSeconds": null, "patchRetryWaitSeconds": 1,
        "nodeMetricLabels": ["a"], "ignoredNamespaces": "kube-system", "extra": 1});
    let error = Config::parse(&bad.to_string()).expect_err("is bad");
    let expected = [
        "watermark must be a number above 0 and at most 1, not 1.5",
        "schedulerName must be a text that is not empty, not \"\"",
        "reconcileWorkers must be a whole number above 0, not 0",
        "logSuccessiveFailuresThreshold must be a whole number above 0, not 1.5",
        "startupEventHandlingTimeoutSeconds must be a whole number above 0, not -1",
        "k8sCRUDTimeoutSeconds is missing",
        "nodeMetricLabels must be a map of texts, not [\"a\"]",
        "ignoredNamespaces must be a list of texts, not \"kube-system\"",
        "extra is not known",
        "scoring.minUsageScore must be a number between 0 and 1, not -0.1",
        "scoring.maxUsageScore must be a number between 0 and 1, not \"x\"",
        "scoring.scorePeak is missing",
        "scoring.randomise is not known",
    ];
    assert_eq!(error.0, expected);
    for text in ["", "[]", "{", "null", "7"] {
        assert!(Config::parse(text).is_err(), "{text:?}");
    }
    assert!(Config::parse("{}").expect_err("is empty").0.len() >= 8);
}
