//! The configuration file's rules, each with a value that breaks it.

use protocol::time::Span;
use serde_json::{Value, json};

use super::{Config, ConfigError, Seconds};
use crate::core::ScalingConfig;

/// The deployed agent's shipped file.
const SHIPPED: &str = include_str!("../../../testdata/shipped-config.json");

fn shipped() -> Value {
    serde_json::from_str(SHIPPED).expect("is JSON")
}

fn problems(config: &Value) -> Vec<String> {
    match Config::from_json(&config.to_string()) {
        Ok(_) => Vec::new(),
        Err(ConfigError::Problems(problems)) => problems.iter().map(ToString::to_string).collect(),
        Err(other) => vec![other.to_string()],
    }
}

fn set(config: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    config.pointer_mut(parent).expect("the parent is there")[key] = value;
}

#[test]
fn shipped_file_is_accepted_and_written_back_unchanged() {
    let config = Config::from_json(SHIPPED).expect("valid");
    assert_eq!(serde_json::to_value(&config).expect("encodes"), {
        let mut wanted = shipped();
        // Written in the wire's own form.
        wanted["scaling"]["computeUnit"] = json!({"vCPUs": "250m", "mem": "1Gi"});
        for key in ["cpuStableZoneRatio", "cpuMixedZoneRatio"] {
            wanted["scaling"]["defaultConfig"][key] = json!(0.0);
        }
        wanted
    });
    assert_eq!(config.metrics.system.max_age(), Some(Span::from_secs(17)));
}

#[test]
fn tls_to_monitors_is_read_and_kept() {
    let mut config = shipped();
    let tls = json!({"caFile": "/ca", "certFile": "/cert", "keyFile": "/key", "serverName": "vm-monitor"});
    set(&mut config, "/monitor/tls", tls.clone());
    let read = Config::from_json(&config.to_string()).expect("valid");
    let files = read.monitor.tls.as_ref().expect("there");
    assert_eq!(files.key_file, std::path::Path::new("/key"));
    let written = serde_json::to_value(&read).expect("encodes");
    assert_eq!(written["monitor"]["tls"], tls);
    set(&mut config, "/monitor/tls/keyFile", Value::Null);
    set(&mut config, "/monitor/tls/serverName", json!("no name"));
    assert_eq!(
        problems(&config),
        [
            "monitor.tls.serverName = \"no name\": must be a host name or an address",
            "monitor.tls.keyFile = \"\": must not be empty",
        ]
    );
}

#[test]
fn monitor_key_file_is_read_and_written_back() {
    let mut config = shipped();
    set(&mut config, "/monitor/keyFile", json!("/key"));
    let read = Config::from_json(&config.to_string()).expect("valid");
    let path = std::path::Path::new("/key");
    assert_eq!(read.monitor.key_file.as_deref(), Some(path));
    let written = serde_json::to_value(&read).expect("encodes");
    assert_eq!(written["monitor"]["keyFile"], "/key");
}

#[test]
fn scheduler_token_file_is_read_and_written_back() {
    let mut config = shipped();
    set(&mut config, "/scheduler/tokenFile", json!("/token"));
    let read = Config::from_json(&config.to_string()).expect("valid");
    let path = std::path::Path::new("/token");
    assert_eq!(read.scheduler.token_file.as_deref(), Some(path));
    let written = serde_json::to_value(&read).expect("encodes");
    assert_eq!(written["scheduler"]["tokenFile"], "/token");
    set(&mut config, "/scheduler/tokenFile", json!(""));
    let rule = "scheduler.tokenFile = \"\": must not be empty";
    assert_eq!(problems(&config), [rule]);
}

#[test]
fn tls_with_the_scheduler_is_read_and_kept_and_a_key_goes_with_its_certificate() {
    let mut config = shipped();
    for tls in [
        json!({"caFile": "/ca"}),
        json!({"caFile": "/ca", "certFile": "/cert", "keyFile": "/key", "serverName": "permits"}),
    ] {
        set(&mut config, "/scheduler/tls", tls.clone());
        let read = Config::from_json(&config.to_string()).expect("valid");
        let written = serde_json::to_value(&read).expect("encodes");
        assert_eq!(written["scheduler"]["tls"], tls);
    }
    for (tls, rule) in [
        (
            json!({}),
            "scheduler.tls.caFile = absent: must not be empty",
        ),
        (
            json!({"caFile": "/ca", "certFile": "/cert"}),
            "scheduler.tls.keyFile = absent: must be there with certFile, and not without",
        ),
        (
            json!({"caFile": "/ca", "keyFile": "/key"}),
            "scheduler.tls.keyFile = there: must be there with certFile, and not without",
        ),
    ] {
        set(&mut config, "/scheduler/tls", tls);
        assert_eq!(problems(&config), [rule]);
    }
}

#[test]
fn one_machine_file_is_valid() {
    let config = Config::one_machine().expect("valid");
    assert_eq!(config.metrics.system.between_requests, Seconds(1));
    assert_eq!(
        (config.scheduler.request_port, config.monitor.server_port),
        (10299, 10301)
    );
}

#[test]
fn one_machine_differs_from_shipped_defaults_only_in_its_hold() {
    let config = Config::one_machine().expect("valid");
    let scaling = config.scaling.default_config;
    assert_eq!(scaling.downscale_hold_seconds, 30);
    let plain = ScalingConfig {
        downscale_hold_seconds: 0,
        ..scaling
    };
    assert_eq!(plain, ScalingConfig::default());
    let shipped = Config::from_json(SHIPPED).expect("valid");
    assert_eq!(shipped.scaling.default_config.downscale_hold_seconds, 0);
}

#[test]
fn every_trap_is_named_with_key_value_and_rule() {
    let traps = [
        (
            "/monitor/serverPort",
            json!(0),
            "monitor.serverPort = 0: must be a whole number above 0",
        ),
        (
            "/monitor/serverPort",
            json!(70000),
            "monitor.serverPort = 70000: must be a port",
        ),
        (
            "/monitor/responseTimeoutSeconds",
            json!(-5),
            "monitor.responseTimeoutSeconds = -5: must be a whole",
        ),
        (
            "/monitor/responseTimeoutSeconds",
            json!(1.5),
            "monitor.responseTimeoutSeconds = 1.5: must be a whole",
        ),
        (
            "/monitor/responseTimeoutSeconds",
            json!("5"),
            "monitor.responseTimeoutSeconds = \"5\": must be a whole",
        ),
        (
            "/monitor/responseTimeoutSeconds",
            Value::Null,
            "monitor.responseTimeoutSeconds = 0: must be",
        ),
        (
            "/refereshStateIntervalSeconds",
            json!(0),
            "refereshStateIntervalSeconds = 0: must be",
        ),
        (
            "/scaling/computeUnit",
            json!({"vCPUs": 0, "mem": "1Gi"}),
            "scaling.computeUnit.vCPUs = 0: must not be 0",
        ),
        (
            "/scaling/computeUnit",
            json!({"vCPUs": 1, "mem": "lots"}),
            "scaling.computeUnit = {",
        ),
        (
            "/scaling/defaultConfig/loadAverageFractionTarget",
            json!(2.0),
            "scaling.defaultConfig.loadAverageFractionTarget = 2: must be over 0 and below 2",
        ),
        (
            "/scaling/defaultConfig/memoryUsageFractionTarget",
            json!(0),
            "scaling.defaultConfig.memoryUsageFractionTarget = 0: must be over 0 and below 1",
        ),
        (
            "/scaling/defaultConfig/memoryTotalFractionTarget",
            json!(1),
            "memoryTotalFractionTarget = 1: must be",
        ),
        (
            "/scaling/defaultConfig/lfcToMemoryRatio",
            Value::Null,
            "scaling.defaultConfig.lfcToMemoryRatio = absent: is required",
        ),
        (
            "/scaling/defaultConfig/lfcWindowSizeMinutes",
            json!(1),
            "lfcWindowSizeMinutes = 1: must be at least 2",
        ),
        (
            "/scaling/defaultConfig/lfcWindowSizeMinutes",
            json!(6),
            "lfcMinWaitBeforeDownscaleMinutes = 5: must be at least",
        ),
        (
            "/scaling/defaultConfig/cpuMixedZoneRatio",
            json!(-0.1),
            "cpuMixedZoneRatio = -0.1: must be 0 or more",
        ),
        (
            "/scaling/defaultConfig/enableLFCMetrics",
            json!("yes"),
            "enableLFCMetrics = \"yes\": must be true or false",
        ),
        (
            "/scheduler/schedulerName",
            json!(""),
            "scheduler.schedulerName = \"\": must not be empty",
        ),
        (
            "/scheduler/surprise",
            json!(true),
            "scheduler.surprise = true: is not a known key",
        ),
        ("/neonvm", json!([]), "neonvm = []: must be an object"),
        ("/metrics/lfc/port", json!(null), "metrics.lfc.port = 0"),
        ("/dumpState/port", json!(0), "dumpState.port = 0"),
        (
            "/scalingEvents/cuMultiplier",
            json!(0),
            "scalingEvents.cuMultiplier = 0: must be a number above 0",
        ),
        (
            "/billing/clients/http",
            json!({"url": ""}),
            "billing.clients.http.url = \"\": must not be empty",
        ),
        (
            "/billing/clients/http",
            json!({"url": "ftp://x"}),
            "billing.clients.http.url = ftp://x: must be an http or https address",
        ),
        (
            "/billing/clients/s3",
            json!({"bucket": "b", "region": "r", "endpoint": "minio:9000"}),
            "billing.clients.s3.endpoint = minio:9000: must be an http or https address",
        ),
        (
            "/billing/clients/azureBlob",
            json!({"endpoint": "account", "container": ""}),
            "billing.clients.azureBlob.endpoint = account: must be",
        ),
        (
            "/billing/clients/azureBlob",
            json!({"endpoint": "https://a.blob.core.windows.net", "container": ""}),
            "billing.clients.azureBlob.container = \"\": must not be empty",
        ),
        (
            "/scalingEvents/clients/http",
            json!({"url": "http://x"}),
            "scalingEvents.clients.http = {",
        ),
        (
            "/billing/clients/s3",
            json!({"bucket": "b", "region": "r", "maxBatchSize": 0}),
            "billing.clients.s3.maxBatchSize = 0: must be a whole number above 0",
        ),
        (
            "/billing/clients/carrierPigeon",
            json!({}),
            "billing.clients.carrierPigeon = {}: is not a known key",
        ),
        (
            "/scalingEvents/clients/s3",
            json!({"bucket": "b", "region": "r", "pushEverySeconds": 1, "pushRequestTimeoutSeconds": 1, "maxBatchSize": 1}),
            "scalingEvents.clients.s3.prefixInBucket = absent: must not be empty",
        ),
    ];
    for (pointer, value, wanted) in traps {
        let mut config = shipped();
        set(&mut config, pointer, value.clone());
        let got = problems(&config);
        assert!(
            got.iter().any(|problem| problem.contains(wanted)),
            "{pointer} = {value}: {got:?}"
        );
    }
}

/// Every number and text of the shipped file by itself: taken away, zero or empty, or of another
/// kind, it is named with its value and its rule. What may be zero or absent is listed.
#[test]
fn every_key_of_the_file_is_checked() {
    fn leaves(value: &Value, path: &str, found: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    leaves(value, &format!("{path}/{key}"), found);
                }
            }
            leaf => found.push((path.to_owned(), leaf.clone())),
        }
    }
    let mut found = Vec::new();
    leaves(&shipped(), "", &mut found);
    assert!(found.len() > 50, "{}", found.len());
    for (path, value) in found {
        let key = path[1..].replace('/', ".");
        let may_be_zero = key.ends_with("maxFailedRequestRate.threshold")
            || key.ends_with("Ratio") && key.contains(".cpu");
        let mut bad = vec![json!([]), json!({"a": 1})];
        match &value {
            Value::Number(_) => {
                bad.extend([json!("5"), json!(-1), json!(true)]);
                if !may_be_zero {
                    bad.push(json!(0));
                }
            }
            Value::String(_) => bad.extend([json!(7), json!("")]),
            Value::Bool(_) => bad.extend([json!("true"), json!(1)]),
            other => panic!("{key} is {other}"),
        }
        for bad in bad {
            // Sizes may be given as a number or as a text.
            if key.starts_with("scaling.computeUnit.") && [json!("5"), json!(7)].contains(&bad) {
                continue;
            }
            let mut config = shipped();
            set(&mut config, &path, bad.clone());
            let got = problems(&config);
            let named = if key.starts_with("scaling.computeUnit.") {
                "scaling.computeUnit"
            } else {
                key.as_str()
            };
            let problem = got.iter().find(|problem| problem.starts_with(named));
            let problem = problem.unwrap_or_else(|| panic!("{key} = {bad}: {got:?}"));
            let (_, rule) = problem.split_once(": ").expect("a value and a rule");
            assert!(rule.contains("must"), "{problem}");
        }
    }
}

#[test]
fn our_own_keys_may_be_left_out_and_are_checked() {
    let given = json!({
        "shrinkStep": "unit", "downscaleMarginUnits": 0.25, "downscaleHoldSeconds": 120,
        "downscaleCooldownSeconds": 300, "upscaleCooldownSeconds": 30,
    });
    let mut config = shipped();
    for (key, value) in given.as_object().expect("an object") {
        config["scaling"]["defaultConfig"][key] = value.clone();
    }
    let config = Config::from_json(&config.to_string()).expect("valid");
    let kept = serde_json::to_value(config.scaling.default_config).expect("encodes");
    for (key, value) in given.as_object().expect("an object") {
        assert_eq!(&kept[key], value, "{key}");
    }
    for (key, bad, rule) in [
        (
            "shrinkStep",
            json!("half"),
            "\"half\": must be \"unit\" or \"whole\"",
        ),
        (
            "downscaleMarginUnits",
            json!(-0.5),
            "-0.5: must be from 0 to 64 compute units",
        ),
        (
            "downscaleMarginUnits",
            json!("1"),
            "\"1\": must be a number",
        ),
        (
            "downscaleHoldSeconds",
            json!(-1),
            "-1: must be from 0 to 86400 seconds",
        ),
        (
            "downscaleHoldSeconds",
            json!(1.5),
            "1.5: must be a whole number",
        ),
        (
            "downscaleCooldownSeconds",
            json!(86_401),
            "86401: must be from 0 to 86400 seconds",
        ),
        (
            "upscaleCooldownSeconds",
            json!(true),
            "true: must be a whole number",
        ),
    ] {
        let mut config = shipped();
        config["scaling"]["defaultConfig"][key] = bad;
        let wanted = format!("scaling.defaultConfig.{key} = {rule}");
        assert_eq!(problems(&config), [wanted]);
    }
}

#[test]
fn all_problems_come_together() {
    let mut config = shipped();
    set(&mut config, "/monitor/serverPort", json!(0));
    set(&mut config, "/scheduler/requestPort", json!("x"));
    set(&mut config, "/neonvm/bogus", json!(1));
    assert_eq!(problems(&config).len(), 3, "{:?}", problems(&config));
    // With nothing given at all each required key is named.
    let got = problems(&json!({}));
    for key in [
        "scaling.computeUnit.vCPUs",
        "monitor.serverPort",
        "scheduler.schedulerName",
        "metrics.system.port",
        "neonvm.requestTimeoutSeconds",
    ] {
        assert!(
            got.iter().any(|problem| problem.starts_with(key)),
            "{key}: {got:?}"
        );
    }
    assert!(got.len() > 40, "{}", got.len());
    assert!(Config::from_json("[]").is_err() && Config::from_json("{").is_err());
}

#[test]
fn event_clients_are_checked_and_kept() {
    let mut config = shipped();
    let client = json!({"pushEverySeconds": 1, "pushRequestTimeoutSeconds": 1, "maxBatchSize": 1, "url": "http://x"});
    let clients = json!({"http": client, "s3": null});
    set(&mut config, "/billing/clients", clients.clone());
    let config = Config::from_json(&config.to_string()).expect("valid");
    assert_eq!(config.billing.clients, clients);
}

#[test]
fn config_without_dump_state_has_no_dump_server() {
    let mut config = shipped();
    config["dumpState"] = Value::Null;
    assert_eq!(
        Config::from_json(&config.to_string())
            .expect("valid")
            .dump_state,
        None
    );
}
