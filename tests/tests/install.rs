//! The chart without a cluster: it renders the plain manifests and refuses bad values, and its
//! rules and dashboards use existing metrics. `install_cluster` installs it.

#[path = "install/agent_state.rs"]
mod agent_state;
#[path = "install/alerts.rs"]
mod alerts;
#[path = "install/fleet.rs"]
mod fleet;
#[path = "install/policies.rs"]
mod policies;
#[path = "install/scaling_policies.rs"]
mod scaling_policies;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use bellows_tests::checkout;
use bellows_tests::cluster::{Programs, cluster_or_skip, helm_or_skip};
use serde_json::{Value, json};

/// Kind, namespace, name.
type Key = (String, String, String);

struct Kit {
    helm: PathBuf,
    programs: Programs,
}

impl Kit {
    fn find(test: &str) -> Option<Self> {
        Some(Self {
            helm: helm_or_skip(test)?,
            programs: cluster_or_skip(test)?,
        })
    }

    fn helm(&self, verb: &str, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.helm);
        command.arg(verb).arg(chart()).args(args);
        let output = command.output().expect("helm runs");
        let text = String::from_utf8(output.stdout).expect("text");
        if output.status.success() {
            Ok(text)
        } else {
            Err(text + &String::from_utf8_lossy(&output.stderr))
        }
    }

    /// The objects of the chart, with these values.
    fn chart(&self, values: &[&str]) -> BTreeMap<Key, Value> {
        let set = values.iter().flat_map(|value| ["--set-json", value]);
        // The version that the plain manifests name.
        let args: Vec<&str> = ["--kube-version", "1.34.4"]
            .into_iter()
            .chain(set)
            .collect();
        objects(&self.helm("template", &args).expect("renders"))
    }

    /// The objects of a folder of the plain manifests.
    fn plain(&self, part: &str) -> BTreeMap<Key, Value> {
        let mut command = Command::new(self.programs.path("kubectl"));
        let output = command
            .arg("kustomize")
            .arg(checkout().join("deploy").join(part))
            .output();
        let output = output.expect("kubectl runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        objects(&String::from_utf8(output.stdout).expect("text"))
    }
}

fn chart() -> PathBuf {
    checkout().join("deploy/chart/bellows")
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
}

/// Reads documents; each has a key of its own.
fn objects(text: &str) -> BTreeMap<Key, Value> {
    let mut all = BTreeMap::new();
    for document in text.split("\n---").filter(|text| text.contains("kind:")) {
        let object = yaml(document.trim_start_matches("---"));
        let field = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or("")
                .to_owned()
        };
        let key = (
            field("/kind"),
            field("/metadata/namespace"),
            field("/metadata/name"),
        );
        assert!(
            all.insert(key.clone(), object).is_none(),
            "{key:?} is there twice"
        );
    }
    all
}

/// Removes allowed differences: the suffix of a config map's name, with which kustomize rolls out a
/// change, the chart's checksum, and the annotation that makes Helm keep an object.
fn plainly(objects: BTreeMap<Key, Value>) -> BTreeMap<Key, Value> {
    let short = |name: &str| match name.rsplit_once('-') {
        Some((front, end)) if front.ends_with("-config") && end.len() == 10 => front.to_owned(),
        _ => name.to_owned(),
    };
    let change = |((kind, namespace, name), mut object): (Key, Value)| {
        let name = short(&name);
        object["metadata"]["name"] = name.clone().into();
        drop_annotation(&mut object["metadata"], "helm.sh/resource-policy");
        if let Some(template) = object.pointer_mut("/spec/template/metadata") {
            drop_annotation(template, "checksum/config");
        }
        let volumes = object.pointer_mut("/spec/template/spec/volumes");
        for volume in volumes.and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(map) = volume.pointer_mut("/configMap/name") {
                *map = short(map.as_str().expect("a name")).into();
            }
        }
        if kind == "ConfigMap" {
            for file in object["data"].as_object_mut().expect("files").values_mut() {
                *file = yaml(file.as_str().expect("a text"));
            }
        }
        ((kind, namespace, name), object)
    };
    objects.into_iter().map(change).collect()
}

fn drop_annotation(metadata: &mut Value, key: &str) {
    let Some(annotations) = metadata
        .get_mut("annotations")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    annotations.remove(key);
    if annotations.is_empty() {
        metadata
            .as_object_mut()
            .expect("metadata")
            .remove("annotations");
    }
}

#[test]
fn chart_with_default_values_equals_the_plain_manifests() {
    let Some(kit) = Kit::find("chart_with_default_values_equals_the_plain_manifests") else {
        return;
    };
    let mut wanted = BTreeMap::new();
    for part in ["crds", "controller", "scheduler", "agent", "policies"] {
        wanted.extend(kit.plain(part));
    }
    let (made, wanted) = (plainly(kit.chart(&[])), plainly(wanted));
    let keys = |all: &BTreeMap<Key, Value>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&made), keys(&wanted));
    for (key, object) in &wanted {
        assert_eq!(&made[key], object, "{key:?}");
    }
    let config = &made[&key("ConfigMap", "kube-system", "autoscaler-agent-config")];
    let mode = config.pointer("/data/config.json/scaling/defaultConfig/mode");
    assert_eq!(mode, Some(&json!("observe")), "who installs is safe");
}

fn key(kind: &str, namespace: &str, name: &str) -> Key {
    (kind.into(), namespace.into(), name.into())
}

/// Value at a pointer of an object.
fn at(objects: &BTreeMap<Key, Value>, of: &Key, pointer: &str) -> Value {
    objects[of].pointer(pointer).cloned().unwrap_or_default()
}

#[test]
fn values_of_the_controller_reach_its_manifest() {
    let Some(kit) = Kit::find("values_of_the_controller_reach_its_manifest") else {
        return;
    };
    let made = kit.chart(&[
        r#"registry="r.example/b""#,
        r#"tag="9""#,
        r#"imagePullSecrets=[{"name":"pull"}]"#,
        r#"controller={"namespace":"vms","replicas":3,"deviceLimits":true,"extraArgs":["--x"],"nodeSelector":{"a":"b"}}"#,
    ]);
    let plain = key("Deployment", "neonvm-system", "neonvm-controller");
    let plain_args = at(
        &kit.chart(&[]),
        &plain,
        "/spec/template/spec/containers/0/args",
    );
    let texts = plain_args.as_array().into_iter().flatten();
    let mut args: Vec<&str> = texts.filter_map(Value::as_str).collect();
    args.retain(|arg| *arg != "--no-device-limits");
    let runner = args
        .iter_mut()
        .find(|arg| arg.starts_with("--runner-image="));
    *runner.expect("it is said") = "--runner-image=r.example/b/bellows/neonvm-runner:9";
    args.push("--x");
    let image = "r.example/b/bellows/neonvm-controller:9";
    let controller = key("Deployment", "vms", "neonvm-controller");
    for (pointer, wanted) in [
        ("/spec/replicas", json!(3)),
        ("/spec/template/spec/containers/0/image", json!(image)),
        ("/spec/template/spec/containers/0/args", json!(args)),
        ("/spec/template/spec/nodeSelector", json!({"a": "b"})),
        (
            "/spec/template/spec/imagePullSecrets",
            json!([{"name": "pull"}]),
        ),
    ] {
        assert_eq!(at(&made, &controller, pointer), wanted, "{pointer}");
    }
    let binding = key("ClusterRoleBinding", "", "neonvm-controller");
    assert_eq!(at(&made, &binding, "/subjects/0/namespace"), "vms");
}

#[test]
fn overlay_is_installed_on_request() {
    let Some(kit) = Kit::find("overlay_is_installed_on_request") else {
        return;
    };
    let made = plainly(kit.chart(&["overlay.enabled=true"]));
    let wanted = plainly(kit.plain("overlay"));
    assert_eq!(wanted.len(), 6);
    for (key, object) in &wanted {
        assert_eq!(&made[key], object, "{key:?}");
    }
    // The controller's configuration names it.
    let controller = key("Deployment", "neonvm-system", "neonvm-controller");
    let args = at(&made, &controller, "/spec/template/spec/containers/0/args");
    for option in [
        "--nad-ipam-name=overlay-ipam",
        "--nad-ipam-namespace=neonvm-system",
        "--nad-runner-name=overlay-for-vms",
        "--nad-runner-namespace=neonvm-system",
    ] {
        let mut args = args.as_array().into_iter().flatten();
        assert!(args.any(|arg| arg == option), "{option}");
    }
    // It may only read nodes and change links.
    let rights = at(
        &made,
        &key("ClusterRole", "", "neonvm-vxlan-controller"),
        "/rules",
    );
    assert_eq!(
        rights,
        json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}])
    );
    let pods = key("DaemonSet", "neonvm-system", "neonvm-vxlan-controller");
    let first = "/spec/template/spec/containers/0/securityContext/capabilities";
    assert_eq!(
        at(&made, &pods, first),
        json!({"drop": ["ALL"], "add": ["NET_ADMIN"]})
    );
}

/// The scraper that docs/install-cluster.md admits.
const PROMETHEUS: &str =
    r#"{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}"#;

#[test]
fn values_of_the_others_reach_their_manifests() {
    let Some(kit) = Kit::find("values_of_the_others_reach_their_manifests") else {
        return;
    };
    let usual = kit.chart(&[]);
    let made = kit.chart(&[
        r#"mode="full""#,
        r#"scheduler.config={"watermark":0.8}"#,
        r#"scheduler.kubeScheduler={"image":"k.example/ks","tag":"v1"}"#,
        r#"agent.resources={"requests":{"cpu":"1"}}"#,
        "networkPolicy.enabled=false",
        r#"networkPolicy.vmNamespaces=["default"]"#,
        &format!("networkPolicy.prometheus=[{PROMETHEUS}]"),
        "crds.install=false",
        r#"monitoring={"podMonitors":{"enabled":true},"rules":{"enabled":true},"dashboards":{"enabled":true}}"#,
    ]);
    let first = "/spec/template/spec/containers/0";
    let scheduler = key("Deployment", "kube-system", "autoscale-scheduler");
    assert_eq!(
        at(&made, &scheduler, &format!("{first}/image")),
        "k.example/ks:v1"
    );
    let checksum = "/spec/template/metadata/annotations/checksum~1config";
    assert_ne!(
        at(&made, &scheduler, checksum),
        at(&usual, &scheduler, checksum),
        "a change is rolled out"
    );
    let agent = key("DaemonSet", "kube-system", "autoscaler-agent");
    assert_eq!(
        at(&made, &agent, &format!("{first}/resources")),
        json!({"requests": {"cpu": "1"}})
    );
    let config = key("ConfigMap", "kube-system", "autoscaler-agent-config");
    let config = at(&made, &config, "/data/config.json");
    let config: Value = serde_json::from_str(config.as_str().expect("a text")).expect("JSON");
    assert_eq!(config["scaling"]["defaultConfig"]["mode"], "full");
    let kinds = |kind: &str| made.keys().filter(|(of, ..)| of == kind).count();
    let counts = [
        "CustomResourceDefinition",
        "NetworkPolicy",
        "PodMonitor",
        "PrometheusRule",
    ]
    .map(kinds);
    assert_eq!(counts, [0, 1, 5, 1]);
    assert!(made.contains_key(&key("ConfigMap", "default", "bellows-dashboards")));
    let policy = &made[&key("NetworkPolicy", "default", "bellows-vms")];
    let rules = policy["spec"]["ingress"].as_array().expect("rules");
    let prometheus: Value = serde_json::from_str(PROMETHEUS).expect("JSON");
    let of_prometheus = rules.iter().find(|rule| rule["from"][0] == prometheus);
    let ports = of_prometheus.expect("Prometheus is let in")["ports"].clone();
    assert_eq!(
        ports,
        json!([{"port": 9100}, {"port": 25183}]),
        "metrics, not the monitor"
    );
}

#[test]
fn permits_of_the_chart_need_a_token_unless_that_is_switched_off() {
    let Some(kit) = Kit::find("permits_of_the_chart_need_a_token_unless_that_is_switched_off")
    else {
        return;
    };
    let words = |values: &[&str]| {
        let scheduler = key("Deployment", "kube-system", "autoscale-scheduler");
        let command = "/spec/template/spec/containers/1/command";
        at(&kit.chart(values), &scheduler, command).to_string()
    };
    let (usual, open) = (words(&[]), words(&["scheduler.tokenReview=false"]));
    assert!(
        usual.contains("--token-review-audience=permits")
            && usual.contains("serviceaccount:kube-system:autoscaler-agent")
            && !usual.contains("--permits-for-anyone"),
        "{usual}"
    );
    assert!(
        open.contains("--permits-for-anyone") && !open.contains("--token-review"),
        "{open}"
    );
    let agent = key("DaemonSet", "kube-system", "autoscaler-agent");
    let mounts = at(
        &kit.chart(&[]),
        &agent,
        "/spec/template/spec/containers/0/volumeMounts",
    );
    assert!(
        mounts.to_string().contains("/var/run/secrets/permits"),
        "{mounts}"
    );
}

#[test]
fn chart_lints_and_refuses_invalid_values() {
    let Some(kit) = Kit::find("chart_lints_and_refuses_invalid_values") else {
        return;
    };
    kit.helm("lint", &["--strict"]).expect("lints");
    for (value, wanted) in [
        ("mode=off", "mode"),
        ("controler.replicas=3", "controler"),
        ("controller.replicas=0", "replicas"),
        ("agent.image=UPPER CASE", "image"),
        ("networkPolicy.enabled=maybe", "enabled"),
        ("networkPolicy.prometheus[0]=monitoring", "prometheus"),
    ] {
        let error = kit.helm("template", &["--set", value]).expect_err(value);
        assert!(
            error.contains("schema") && error.contains(wanted),
            "{value}: {error}"
        );
    }
}

/// Requirement: N49
#[test]
fn the_policies_open_what_is_served_and_nothing_else() {
    let Some(kit) = Kit::find("the_policies_open_what_is_served_and_nothing_else") else {
        return;
    };
    let made = kit.chart(&["fleet.enabled=true"]);
    for (kind, namespace, name) in [
        ("Deployment", "neonvm-system", "neonvm-controller"),
        ("Deployment", "kube-system", "autoscale-scheduler"),
        ("DaemonSet", "kube-system", "autoscaler-agent"),
        ("Deployment", "kube-system", "policy-controller"),
        ("Deployment", "kube-system", "bellows-fleet"),
    ] {
        let (pods, policy) = (
            &made[&key(kind, namespace, name)],
            &made[&key("NetworkPolicy", namespace, name)],
        );
        assert_eq!(
            policy["spec"]["podSelector"], pods["spec"]["selector"],
            "{name}"
        );
        let containers = pods["spec"]["template"]["spec"]["containers"]
            .as_array()
            .into_iter()
            .flatten();
        let served: BTreeSet<u64> = containers
            .flat_map(|one| numbers(&one["ports"], "containerPort"))
            .collect();
        let rules = policy["spec"]["ingress"].as_array().expect("rules");
        let open: BTreeSet<u64> = rules
            .iter()
            .flat_map(|rule| numbers(&rule["ports"], "port"))
            .collect();
        assert_eq!(open, served, "{name}");
        for rule in rules
            .iter()
            .filter(|rule| numbers(&rule["ports"], "port").contains(&10299))
        {
            assert_eq!(
                rule["from"][0]["podSelector"]["matchLabels"]["name"],
                "autoscaler-agent"
            );
        }
    }
}

fn numbers(list: &Value, field: &str) -> Vec<u64> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|one| one[field].as_u64()).collect()
}

/// Names of metrics that queries may use. The agent's are in its golden file with their kinds. Of
/// policies and the others only the registered names are known, and the suffixes of their series.
fn metric_names() -> BTreeSet<String> {
    let read = |path: &str| std::fs::read_to_string(checkout().join(path)).expect(path);
    let mut names = BTreeSet::new();
    for line in read("agent/testdata/metrics.txt").lines() {
        let mut words = line.split_whitespace();
        let (name, kind) = (words.next().unwrap_or_default(), words.next());
        match kind {
            Some("histogram") => {
                names.extend(["bucket", "sum", "count"].map(|end| format!("{name}_{end}")))
            }
            _ => drop(names.insert(name.to_owned())),
        }
    }
    for (path, prefix) in [
        ("scheduler/src/shell/metrics.rs", "autoscaling_plugin_"),
        ("neonvm-shim/controller/src/shell/metrics.rs", ""),
        ("neonvm-shim/controller/src/shell/set_metrics.rs", ""),
        ("neonvm-shim/runner/src/shell/metrics.rs", ""),
        ("fleet/shell/src/metrics.rs", ""),
        ("fleet/controller/src/main.rs", ""),
    ] {
        // Words of that kind between quotation marks.
        for word in read(path).split('"').skip(1).step_by(2) {
            let is_name = word.contains('_')
                && word
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            if is_name {
                names.extend(
                    ["", "_total", "_bucket", "_sum", "_count"]
                        .map(|end| format!("{prefix}{word}{end}")),
                );
            }
        }
    }
    let policies = read("agent/src/shell/policy/metrics.rs");
    for registered in policies.split("name(\"").skip(1) {
        let word = registered.split('"').next().unwrap_or_default();
        names.extend(["", "_total"].map(|end| format!("autoscaling_agent_policy_{word}{end}")));
    }
    names
}

/// The metrics of an expression: each name before a brace or a bracket.
fn metrics_of(expression: &str) -> Vec<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    for (at, _) in expression.match_indices(['{', '[']) {
        let before = &expression[..at];
        let start = before.rfind(|c: char| !is_word(c)).map_or(0, |at| at + 1);
        if start < at {
            found.push(before[start..].to_owned());
        }
    }
    found
}

/// All texts of these members at any depth.
fn texts<'a>(value: &'a Value, members: &[&str], found: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                match value.as_str() {
                    Some(text) if members.contains(&name.as_str()) => found.push(text),
                    _ => texts(value, members, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| texts(value, members, found)),
        _ => {}
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn rules_and_dashboards_speak_of_metrics_that_exist() {
    let known = metric_names();
    assert!(known.len() > 100, "{} names", known.len());
    let rules = yaml(&read(&chart().join("rules/bellows.yaml")));
    let board: Value =
        serde_json::from_str(&read(&chart().join("dashboards/bellows.json"))).expect("JSON");
    let mut expressions = Vec::new();
    texts(&rules, &["expr"], &mut expressions);
    let alerts = expressions.len();
    texts(&board, &["expr", "query"], &mut expressions);
    assert!(alerts > 5 && expressions.len() > alerts + 10);
    for expression in expressions.into_iter().filter(|text| *text != "prometheus") {
        let metrics = metrics_of(expression);
        assert!(
            !metrics.is_empty(),
            "write {{}} behind the metric: {expression}"
        );
        for metric in metrics {
            assert!(
                known.contains(&metric),
                "{metric} does not exist: {expression}"
            );
        }
    }
}

#[test]
fn every_alert_is_explained() {
    let page = read(&checkout().join("docs/install-cluster.md"));
    assert!(page.contains(PROMETHEUS));
    let rules = yaml(&read(&chart().join("rules/bellows.yaml")));
    let mut alerts = Vec::new();
    texts(&rules, &["alert"], &mut alerts);
    assert!(!alerts.is_empty());
    for alert in alerts {
        assert!(page.contains(&format!("| `{alert}` |")), "{alert}");
    }
}

/// NeonVM's roles for people keep their names, so that existing bindings stay valid.
#[test]
fn viewers_and_editors_of_a_namespace_have_the_same_rights_on_its_vms() {
    let kinds = chart().join("parts/crds");
    let applied = yaml(&read(&kinds.join("kustomization.yaml")));
    let mut files = applied["resources"].as_array().into_iter().flatten();
    assert!(files.any(|file| file == "roles.yaml"));
    let made = objects(&read(&kinds.join("roles.yaml")));
    assert_eq!(made.len(), 8);
    let provider = &made[&key("ClusterRole", "", "bellows-capacitywish-provider-role")];
    assert!(
        provider["metadata"].get("labels").is_none(),
        "no role includes it"
    );
    let writes = &provider["rules"][1];
    assert_eq!(writes["resources"], json!(["capacitywishes/status"]));
    assert_eq!(writes["verbs"], json!(["get", "update", "patch"]));
    assert_eq!(
        provider["rules"][0]["verbs"],
        json!(["get", "list", "watch"])
    );
    let privileged = &made[&key("ClusterRole", "", "neonvm-virtualmachine-privileged-role")];
    assert!(
        privileged["metadata"].get("labels").is_none(),
        "no role includes it"
    );
    assert_eq!(privileged["rules"][0]["verbs"], json!(["use-privileged"]));
    let read_only = json!(["get", "list", "watch"]);
    let all = json!([
        "get", "list", "watch", "create", "update", "patch", "delete"
    ]);
    let label = |to: &str| format!("rbac.authorization.k8s.io/aggregate-to-{to}");
    for kind in ["virtualmachine", "virtualmachinemigration"] {
        for (person, verbs, into) in [
            ("editor", &all, &["edit", "admin"][..]),
            ("viewer", &read_only, &["view"]),
        ] {
            let role = &made[&key("ClusterRole", "", &format!("neonvm-{kind}-{person}-role"))];
            let labels: BTreeMap<String, &str> =
                into.iter().map(|to| (label(to), "true")).collect();
            assert_eq!(role["metadata"]["labels"], json!(labels), "{kind} {person}");
            let rule = |resource: String, verbs: &Value| json!({"apiGroups": ["vm.neon.tech"], "resources": [resource], "verbs": verbs});
            assert_eq!(
                role["rules"],
                json!([
                    rule(format!("{kind}s"), verbs),
                    rule(format!("{kind}s/status"), &json!(["get"])),
                ]),
                "{kind} {person}"
            );
        }
    }
}

#[test]
fn metrics_are_found_in_expressions() {
    let found = metrics_of(r#"sum by (a) (rate(x_total[5m])) > 0 or absent(y:z{b="c"})"#);
    assert_eq!(found, ["x_total", "y:z"]);
    assert!(metrics_of("up > 0").is_empty());
}
