//! What an agent keeps on its node: the folder, who prepares it, and the journal in it.

use serde_json::{Value, json};

use super::{Kit, at, key};

/// Where the agent's container has the folder.
const STATE: &str = "/var/lib/autoscaler-agent";
const PODS: &str = "/spec/template/spec";

/// The pods of the agent, with these values.
fn pods(kit: &Kit, values: &[&str]) -> Value {
    let agent = key("DaemonSet", "kube-system", "autoscaler-agent");
    at(&kit.chart(values), &agent, PODS)
}

fn volume(pods: &Value) -> Value {
    let mut volumes = pods["volumes"].as_array().into_iter().flatten();
    let state = volumes.find(|volume| volume["name"] == "state");
    state.cloned().expect("a volume of the state")
}

/// Options of the agent that begin with `prefix`.
fn options(pods: &Value, prefix: &str) -> Vec<String> {
    let args = pods["containers"][0]["args"].as_array();
    let texts = args.into_iter().flatten().filter_map(Value::as_str);
    let found = texts.filter(|text| text.starts_with(prefix));
    found.map(str::to_owned).collect()
}

/// Requirement: N40
#[test]
fn folder_of_the_node_is_prepared_by_the_agents_own_image_with_one_capability() {
    let test = "folder_of_the_node_is_prepared_by_the_agents_own_image_with_one_capability";
    let Some(kit) = Kit::find(test) else { return };
    let values = [
        r#"registry="r.example/b""#,
        r#"tag="9""#,
        r#"imagePullPolicy="Always""#,
        r#"agent.resources={"limits":{"memory":"1Gi"}}"#,
        r#"agent.extraArgs=["--x"]"#,
    ];
    let pods = pods(&kit, &values);
    let (init, agent) = (&pods["initContainers"][0], &pods["containers"][0]);
    assert_eq!(pods["initContainers"].as_array().map(Vec::len), Some(1));
    for member in ["image", "imagePullPolicy", "resources"] {
        assert_eq!(init[member], agent[member], "{member}");
    }
    assert_eq!(init["image"], "r.example/b/bellows/autoscaler-agent:9");
    let user = &pods["securityContext"]["runAsUser"];
    let args = json!([
        format!("--prepare-state={STATE}"),
        format!("--state-user={user}"),
    ]);
    assert_eq!(
        init["args"], args,
        "the user of the agent, and no other option"
    );
    let mounts = json!([{"name": "state", "mountPath": STATE}]);
    assert_eq!(init["volumeMounts"], mounts);
    let security = json!({
        "runAsUser": 0, "runAsNonRoot": false, "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
    });
    assert_eq!(init["securityContext"], security);
    let security = &agent["securityContext"];
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(security.get("runAsUser"), None, "the pod's user");
}

#[test]
fn state_is_on_the_node_unless_the_values_name_no_folder() {
    let Some(kit) = Kit::find("state_is_on_the_node_unless_the_values_name_no_folder") else {
        return;
    };
    let folder = |path: &str| json!({"name": "state", "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
    assert_eq!(volume(&pods(&kit, &[])), folder(STATE));
    let other = pods(&kit, &[r#"agent.state.hostPath="/data/agent""#]);
    assert_eq!(volume(&other), folder("/data/agent"));
    // `--reuse-values` of an earlier release has no such values.
    let earlier = pods(&kit, &["agent.state=null", "agent.journal=null"]);
    assert_eq!(earlier, pods(&kit, &[]));
    let none = pods(&kit, &[r#"agent.state.hostPath="""#]);
    assert_eq!(volume(&none), json!({"name": "state", "emptyDir": {}}));
    assert_eq!(none.get("initContainers"), None);
    for wrong in ["/", "var/lib/x", "/a/../b", "/a b"] {
        let value = format!("agent.state.hostPath={wrong}");
        let error = kit.helm("template", &["--set", &value]).expect_err(wrong);
        assert!(error.contains("schema"), "{wrong}: {error}");
    }
}

#[test]
fn journal_of_an_agent_has_the_limits_of_the_values() {
    let Some(kit) = Kit::find("journal_of_an_agent_has_the_limits_of_the_values") else {
        return;
    };
    let journal = |values: &[&str]| options(&pods(&kit, values), "--journal");
    let dir = format!("--journal-dir={STATE}/journal");
    let usual = [
        dir.as_str(),
        "--journal-max-size=4Gi",
        "--journal-max-days=7",
    ];
    assert_eq!(journal(&[]), usual);
    let values = [
        r#"agent.journal.maxSize="512Mi""#,
        "agent.journal.maxDays=3",
    ];
    let smaller = [
        dir.as_str(),
        "--journal-max-size=512Mi",
        "--journal-max-days=3",
    ];
    assert_eq!(journal(&values), smaller);
    let off = pods(&kit, &["agent.journal.enabled=false"]);
    assert!(options(&off, "--journal").is_empty());
    let events = options(&off, "--events-dir");
    assert_eq!(events, [format!("--events-dir={STATE}/events")]);
    for wrong in [
        "maxSize=4G",
        "maxSize=0Gi",
        "maxDays=0",
        "maxDays=15",
        "size=1Gi",
    ] {
        let value = format!("agent.journal.{wrong}");
        let error = kit.helm("template", &["--set", &value]).expect_err(wrong);
        assert!(error.contains("schema"), "{wrong}: {error}");
    }
}
