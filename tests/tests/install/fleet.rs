//! Rollouts in a cluster: the switch of the chart, its values and the rights of the account.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Key, Kit, at, key, plainly};

const NAME: &str = "bellows-fleet";
const SYSTEM: &str = "kube-system";

/// Requirement: R26
#[test]
fn fleet_is_installed_by_one_switch_and_changes_nothing_without_it() {
    let Some(kit) = Kit::find("fleet_is_installed_by_one_switch_and_changes_nothing_without_it")
    else {
        return;
    };
    let args = ["--kube-version", "1.34.4"];
    let usual = kit.helm("template", &args).expect("renders");
    let off = [&args[..], &["--set", "fleet.enabled=false"]].concat();
    assert_eq!(kit.helm("template", &off).expect("renders"), usual);
    assert!(!usual.contains("name: bellows-fleet\n"), "it is off");

    let wanted: BTreeMap<Key, Value> = plainly(kit.plain("fleet"));
    assert_eq!(wanted.len(), 15, "{:?}", wanted.keys());
    let mut made = plainly(kit.chart(&["fleet.enabled=true"]));
    made.retain(|_, object| object["metadata"]["annotations"]["helm.sh/hook"].is_null());
    for (key, object) in &wanted {
        assert_eq!(made.remove(key).as_ref(), Some(object), "{key:?}");
    }
    let mut others = plainly(kit.chart(&[]));
    // A new template of agents restarts no pod by itself.
    let agents = key("DaemonSet", SYSTEM, "autoscaler-agent");
    let by_fleet = plainly(kit.plain("agent-by-fleet"));
    others.insert(agents.clone(), by_fleet[&agents].clone());
    assert_eq!(made, others, "all else stays");
    let strategy = &made[&agents]["spec"]["updateStrategy"];
    assert_eq!(strategy, &json!({"type": "OnDelete"}));
}

/// Requirement: R26
#[test]
fn values_of_the_fleet_reach_its_manifests() {
    let Some(kit) = Kit::find("values_of_the_fleet_reach_its_manifests") else {
        return;
    };
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let authority = format!("fleet.authority={}", json!(pem));
    let key_pem = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
    let image_key = format!("fleet.images.key={}", json!(key_pem));
    let made = kit.chart(&[
        "fleet.enabled=true",
        &authority,
        &image_key,
        r#"fleet.config={"allowDevKeys":true,"stuckSeconds":60}"#,
        "fleet.replicas=3",
        r#"registry="r.example""#,
        r#"networkPolicy.vmNamespaces=["default"]"#,
        r#"monitoring={"podMonitors":{"enabled":true}}"#,
    ]);
    let map = key("ConfigMap", SYSTEM, "bellows-fleet-config");
    assert_eq!(at(&made, &map, "/data/authority.pem"), pem);
    assert_eq!(at(&made, &map, "/data/images.pem"), key_pem);
    let config = at(&made, &map, "/data/config.json");
    let config: Value = serde_json::from_str(config.as_str().expect("a text")).expect("JSON");
    let expected = json!({
        "allowDevKeys": true, "stuckSeconds": 60,
        "authorities": ["/etc/bellows-fleet/authority.pem"],
        "images": {"key": "/etc/bellows-fleet/images.pem"},
    });
    assert_eq!(config, expected);
    let deployment = key("Deployment", SYSTEM, NAME);
    assert_eq!(at(&made, &deployment, "/spec/replicas"), 3);
    let image = at(&made, &deployment, "/spec/template/spec/containers/0/image");
    assert_eq!(image, "r.example/bellows/bellows-fleet:0.1.0");
    assert!(made.contains_key(&key("PodMonitor", SYSTEM, NAME)));
    let policy = &made[&key("NetworkPolicy", "default", "bellows-vms")];
    let rules = policy["spec"]["ingress"].as_array().expect("rules");
    let is_fleet = |rule: &&Value| rule["from"][0]["podSelector"]["matchLabels"]["name"] == NAME;
    let rule = rules.iter().find(is_fleet).expect("it is let in");
    assert_eq!(rule["ports"], json!([{"port": 9100}, {"port": 25183}]));

    for wrong in [
        "fleet.enabled=maybe",
        "fleet.authority=no certificate",
        "fleet.images.key=no key",
        "fleet.images.log=none",
        "fleet.config.stuckSeconds=24",
        "fleet.config.allowdevkeys=true",
        "fleet.replicas=0",
        "fleet.channel=stable",
        "fleet.preflight=maybe",
    ] {
        let error = kit.helm("template", &["--set", wrong]).expect_err(wrong);
        assert!(error.contains("schema"), "{wrong}: {error}");
    }
}

/// Requirement: R12
#[test]
fn upgrade_of_the_chart_asks_first_whether_the_control_plane_understands_what_runs() {
    let test = "upgrade_of_the_chart_asks_first_whether_the_control_plane_understands_what_runs";
    let Some(kit) = Kit::find(test) else {
        return;
    };
    let hooks = |values: &[&str]| -> BTreeMap<Key, Value> {
        let mut made = kit.chart(values);
        made.retain(|_, object| !object["metadata"]["annotations"]["helm.sh/hook"].is_null());
        made
    };
    assert!(hooks(&[]).is_empty(), "the fleet is off");
    assert!(hooks(&["fleet.enabled=true", "fleet.preflight=false"]).is_empty());
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let authority = format!("fleet.authority={}", json!(pem));
    let made = hooks(&[
        "fleet.enabled=true",
        &authority,
        "fleet.config.allowDevKeys=true",
    ]);
    assert_eq!(made.len(), 5, "{:?}", made.keys());
    for object in made.values() {
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/hook"], "pre-upgrade", "{object}");
    }
    let name = "bellows-fleet-preflight";
    let job = key("Job", SYSTEM, name);
    let container = at(&made, &job, "/spec/template/spec/containers/0");
    assert_eq!(container["image"], "bellows/bellows-fleet:0.1.0");
    let args = json!([
        "--config=/etc/bellows-fleet/config.json",
        "preflight",
        "--control-plane=0.1.0",
    ]);
    assert_eq!(container["args"], args);
    let rules = at(&made, &job, "/spec/podFailurePolicy/rules/0");
    let answers = json!({"containerName": "preflight", "operator": "In", "values": [1, 64]});
    assert_eq!(rules["action"], "FailJob");
    assert_eq!(rules["onExitCodes"], answers, "an answer is final");
    let map = key("ConfigMap", SYSTEM, name);
    assert_eq!(at(&made, &map, "/data/authority.pem"), pem);
    let config = at(&made, &map, "/data/config.json");
    let config: Value = serde_json::from_str(config.as_str().expect("a text")).expect("JSON");
    assert_eq!(config["allowDevKeys"], true);
    assert_eq!(
        config["authorities"],
        json!(["/etc/bellows-fleet/authority.pem"])
    );
    let rules = at(&made, &key("ClusterRole", "", name), "/rules");
    let allowed = json!([{
        "apiGroups": ["fleet.bellows.dev"], "resources": ["fleetinstances", "fleetchannels"],
        "verbs": ["list"],
    }]);
    assert_eq!(rules, allowed);
}

/// Roles of a setting, and the policy that bounds what they may change, as far as they are there.
fn of_setting(made: &BTreeMap<Key, Value>, name: &str) -> Vec<Key> {
    let policy = "bellows-fleet-vms";
    let keys = [
        ("ClusterRole", name),
        ("ClusterRoleBinding", name),
        ("ValidatingAdmissionPolicy", policy),
        ("ValidatingAdmissionPolicyBinding", policy),
    ];
    let keys = keys.map(|(kind, name)| key(kind, "", name));
    keys.into_iter()
        .filter(|key| made.contains_key(key))
        .collect()
}

/// Requirement: R19
#[test]
fn right_to_write_schedules_comes_with_its_setting() {
    let Some(kit) = Kit::find("right_to_write_schedules_comes_with_its_setting") else {
        return;
    };
    let name = "bellows-fleet-schedules";
    assert_eq!(of_setting(&kit.chart(&["fleet.enabled=true"]), name), []);
    let made = kit.chart(&["fleet.enabled=true", "fleet.config.schedules=true"]);
    assert_eq!(of_setting(&made, name).len(), 4, "{:?}", made.keys());
    let rules = at(&made, &key("ClusterRole", "", name), "/rules");
    let patch = json!([{
        "apiGroups": ["vm.neon.tech"], "resources": ["virtualmachines"], "verbs": ["patch"],
    }]);
    assert_eq!(rules, patch);
    let runners = key("ClusterRole", "", "bellows-fleet-runners");
    assert!(!made.contains_key(&runners), "it may not name an image");
}

/// Requirement: R36
#[test]
fn rights_to_move_guests_come_with_their_settings() {
    let Some(kit) = Kit::find("rights_to_move_guests_come_with_their_settings") else {
        return;
    };
    let of_moves = |made: &BTreeMap<Key, Value>| of_setting(made, "bellows-fleet-runners");
    assert_eq!(of_moves(&kit.chart(&["fleet.enabled=true"])), []);
    let image = format!("r.example/runner@sha256:{}", "0a".repeat(32));
    let runners = json!({"image": image, "version": "1.2.3"});
    let made = kit.chart(&[
        "fleet.enabled=true",
        &format!("fleet.config.runners={runners}"),
    ]);
    assert_eq!(of_moves(&made).len(), 4, "{:?}", made.keys());
    let map = key("ConfigMap", SYSTEM, "bellows-fleet-config");
    let config = at(&made, &map, "/data/config.json");
    let config: Value = serde_json::from_str(config.as_str().expect("a text")).expect("JSON");
    assert_eq!(config["runners"], runners);
    for wrong in ["runner:1", "runner@sha256:0a", ""] {
        let set = format!(r#"fleet.config.runners={{"image":"{wrong}","version":"1.2.3"}}"#);
        let error = kit
            .helm("template", &["--set-json", &set])
            .expect_err(wrong);
        assert!(error.contains("schema"), "{wrong}: {error}");
    }
}

/// Requirement: R35
#[test]
fn port_of_join_scripts_is_open_only_with_their_settings() {
    let Some(kit) = Kit::find("port_of_join_scripts_is_open_only_with_their_settings") else {
        return;
    };
    let service = key("Service", SYSTEM, "bellows-fleet-join");
    let policy = key("NetworkPolicy", SYSTEM, "bellows-fleet-join");
    let off = kit.chart(&["fleet.enabled=true"]);
    assert!(!off.contains_key(&service) && !off.contains_key(&policy));
    let join = json!({
        "suiteUrl": "https://packages.example/", "suiteKey": "a2V5",
        "channels": {"stable": "https://releases.example/"},
    });
    let mut on = kit.chart(&["fleet.enabled=true", &format!("fleet.config.join={join}")]);
    assert_eq!(at(&on, &service, "/spec/ports/0/port"), 7781);
    assert_eq!(at(&on, &service, "/spec/selector"), json!({"name": NAME}));
    let ingress = at(&on, &policy, "/spec/ingress").clone();
    assert_eq!(ingress, json!([{"ports": [{"port": 7781}]}]));
    let map = key("ConfigMap", SYSTEM, "bellows-fleet-config");
    let config = at(&on, &map, "/data/config.json");
    let config: Value = serde_json::from_str(config.as_str().expect("a text")).expect("JSON");
    assert_eq!(config["join"], join);
    on.retain(|key, _| *key != service && *key != policy);
    let kinds = |made: &BTreeMap<Key, Value>| made.keys().cloned().collect::<Vec<_>>();
    assert_eq!(kinds(&on), kinds(&off), "nothing else comes with them");
    for wrong in ["http://a.example", "https://a'b", ""] {
        let mut bad = join.clone();
        bad["channels"]["stable"] = json!(wrong);
        let set = format!("fleet.config.join={bad}");
        let error = kit.helm("template", &["--set-json", &set]);
        let error = error.expect_err(wrong);
        assert!(error.contains("schema"), "{wrong}: {error}");
    }
}
