//! The extender over HTTP, as a kube-scheduler asks it: the JSON of each verb, and everything that
//! is refused.

mod support;

use serde_json::{Value, json};
use support::api::FakeApi;
use support::{GIB, Running, node, plain_pod, request, size, vm, vm_pod};

/// Two nodes of 4 CPU and 16 GiB, `busy` on the first with all but one CPU.
async fn site() -> (FakeApi, Running) {
    let api = FakeApi::start().await;
    for name in ["n1", "n2"] {
        api.put("nodes", node(name, 4_000, 16 * GIB));
    }
    api.put("pods", plain_pod("busy", 3_000, GIB, Some("n1")));
    let running = Running::start_beside(&api).await;
    (api, running)
}

impl Running {
    /// Posts to a verb; status and body of the answer.
    async fn verb(&self, verb: &str, body: impl Into<reqwest::Body>) -> (u16, String) {
        let url = format!("http://{}/{verb}", self.extender);
        let answer = self.http.post(url).body(body).send().await;
        let answer = answer.expect("is answered");
        let status = answer.status().as_u16();
        (status, answer.text().await.expect("reads"))
    }

    async fn asked(&self, verb: &str, body: &Value) -> Value {
        let (status, text) = self.verb(verb, body.to_string()).await;
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("is JSON")
    }
}

fn question(pod: &Value) -> Value {
    json!({"Pod": pod, "Nodes": null, "NodeNames": ["n1", "n2", "n3"]})
}

fn binding(api: &FakeApi, pod: &str, to: &str) -> Value {
    let pod = api.get("pods", "default", pod).expect("is there");
    json!({"PodName": pod["metadata"]["name"], "PodNamespace": "default",
        "PodUID": pod["metadata"]["uid"], "Node": to})
}

#[tokio::test]
async fn each_verb_speaks_as_kube_scheduler_does() {
    let (api, running) = site().await;
    api.put("pods", plain_pod("x", 2_000, GIB, None));
    let pod = api.get("pods", "default", "x").expect("is there");
    let filtered = running.asked("filter", &question(&pod)).await;
    let expected = json!({"NodeNames": ["n2"], "FailedNodes": {"n1": "Not enough resources for Pod"},
        "FailedAndUnresolvableNodes": {"n3": "the node is not known yet"}, "Error": ""});
    assert_eq!(filtered, expected);

    let scored = running.asked("prioritize", &question(&pod)).await;
    let scores: Vec<(&str, i64)> = scored
        .as_array()
        .expect("is a list")
        .iter()
        .map(|part| {
            let host = part["Host"].as_str().expect("is text");
            (host, part["Score"].as_i64().expect("is a number"))
        })
        .collect();
    let hosts: Vec<&str> = scores.iter().map(|(host, _)| *host).collect();
    assert_eq!(hosts, ["n1", "n2", "n3"]);
    assert_eq!((scores[0].1, scores[2].1), (0, 0), "{scores:?}");
    assert!((1..=10).contains(&scores[1].1), "{scores:?}");

    let busy = api.get("pods", "default", "busy").expect("is there");
    let victims = json!({"Pods": [{"UID": busy["metadata"]["uid"]}], "NumPDBViolations": 1});
    let question = json!({"Pod": pod, "NodeNameToVictims": null,
        "NodeNameToMetaVictims": {"n1": victims.clone(), "n3": {"Pods": null, "NumPDBViolations": 0}}});
    let kept = running.asked("preempt", &question).await;
    assert_eq!(kept, json!({"NodeNameToMetaVictims": {"n1": victims}}));

    let bound = running.asked("bind", &binding(&api, "x", "n2")).await;
    assert_eq!(bound, json!({"Error": ""}));
    let pod = api.get("pods", "default", "x").expect("is there");
    assert_eq!(pod["spec"]["nodeName"], "n2");
    let again = running.asked("bind", &binding(&api, "x", "n2")).await;
    assert_eq!(again, json!({"Error": ""}), "it is there already");
    running
        .until_metrics(&[
        r#"extension_calls_total{method="Bind",desired_availability_zone="",ignored_namespace="false"} 2"#,
        r#"extension_calls_total{method="Filter",desired_availability_zone="",ignored_namespace="false"} 1"#,
        ])
        .await;
    running.stop().await.expect("drains");
}

/// A binding and a grant are checked against one ledger: whichever comes second sees the first.
#[tokio::test]
async fn a_binding_and_a_permit_never_take_the_same_room() {
    let (api, running) = site().await;
    api.put("virtualmachines", vm("pg", size(1_000, 1)));
    api.put("pods", vm_pod("pg", size(1_000, 1), None));
    api.put("pods", plain_pod("x", 3_000, GIB, None));
    let bound = running.asked("bind", &binding(&api, "pg-pod", "n2")).await;
    assert_eq!(bound, json!({"Error": ""}));
    running
        .until("seen there", |running| {
            let dump = running.state.dump();
            dump["pods"]["default/pg-pod"]["entry"]["view"]["node"] == "n2"
        })
        .await;
    let permit = running.ask("pg", None, size(2_000, 1)).await;
    assert_eq!(permit, Ok(size(2_000, 1)));
    let refused = running.asked("bind", &binding(&api, "x", "n2")).await;
    assert_eq!(refused, json!({"Error": "Not enough resources for Pod"}));
    let pod = api.get("pods", "default", "x").expect("is there");
    assert!(pod["spec"]["nodeName"].is_null(), "{pod}");
    let line = r#"extension_call_fails_total{method="Bind",desired_availability_zone="",ignored_namespace="false",status="Unschedulable"} 1"#;
    running.until_metrics(&[line]).await;
    running.stop().await.expect("drains");
}

/// The deployed plugin crashes at a VM's pod without sizes, and divides by an over-commit factor of
/// zero.
#[tokio::test]
async fn pods_of_vms_without_sizes_fit_nowhere_and_break_nothing() {
    let (api, running) = site().await;
    for (name, annotations) in [
        ("bare", json!({})),
        ("garbled", json!({"vm.neon.tech/resources": "{"})),
        (
            "factor",
            json!({"vm.neon.tech/overcommit": r#"{"cpu":0,"memory":"0"}"#}),
        ),
    ] {
        let mut object = vm_pod(name, size(250, 1), None);
        let notes = &mut object["metadata"]["annotations"];
        if name == "factor" {
            notes["vm.neon.tech/overcommit"] = annotations["vm.neon.tech/overcommit"].clone();
        } else {
            *notes = annotations;
        }
        api.put("pods", object);
        let name = format!("{name}-pod");
        let pod = api.get("pods", "default", &name).expect("is there");
        let filtered = running.asked("filter", &question(&pod)).await;
        assert_eq!(filtered["NodeNames"], json!([]), "{name}: {filtered}");
        let unresolvable = &filtered["FailedAndUnresolvableNodes"];
        for on in ["n1", "n2"] {
            assert!(unresolvable[on].is_string(), "{name}: {filtered}");
        }
        let (status, _) = running.verb("prioritize", question(&pod).to_string()).await;
        assert_eq!(status, 200, "{name}");
        let bound = running.asked("bind", &binding(&api, &name, "n2")).await;
        assert_ne!(bound, json!({"Error": ""}), "{name}");
        let pod = api.get("pods", "default", &name).expect("is there");
        assert!(pod["spec"]["nodeName"].is_null(), "{pod}");
    }
    api.put("pods", plain_pod("x", 1_000, GIB, None));
    let bound = running.asked("bind", &binding(&api, "x", "n2")).await;
    assert_eq!(bound, json!({"Error": ""}));
    running.stop().await.expect("drains");
}

/// As the deployed plugin: what is there is bound all the same, and counted.
#[tokio::test]
async fn where_bindings_are_not_strict_a_full_node_takes_a_pod_and_it_is_counted() {
    let api = FakeApi::start().await;
    let mut full = node("n1", 4_000, 16 * GIB);
    full["metadata"]["labels"] = json!({"zone": "a"});
    api.put("nodes", full);
    api.put("pods", plain_pod("busy", 3_000, GIB, Some("n1")));
    let mut config = scheduler::config::Config {
        strict_bind: false,
        ..scheduler::config::Config::default()
    };
    config.node_metric_labels = [("az".to_owned(), "zone".to_owned())].into();
    let running = Running::start_beside_with(&api, config).await;
    for (name, milli) in [("fits", 1_000), ("over", 2_000)] {
        api.put("pods", plain_pod(name, milli, GIB, None));
        let bound = running.asked("bind", &binding(&api, name, "n1")).await;
        assert_eq!(bound, json!({"Error": ""}), "{name}");
        let pod = api.get("pods", "default", name).expect("is there");
        assert_eq!(pod["spec"]["nodeName"], "n1");
    }
    let line = r#"autoscaling_plugin_reserve_should_deny_total{node="n1",az="a",ignored_namespace="false"} 1"#;
    running.until_metrics(&[line]).await;
    running.stop().await.expect("drains");
}

#[tokio::test]
async fn before_the_lists_are_there_every_verb_is_503() {
    let api = FakeApi::start().await;
    api.set_lists_hang(true);
    let running = Running::start_unready(&api, scheduler::config::Config::default()).await;
    let mut pod = plain_pod("x", 1_000, GIB, None);
    pod["metadata"]["uid"] = json!("u");
    let preemption = json!({"Pod": pod, "NodeNameToMetaVictims": {}});
    let binding = json!({"PodName": "x", "PodNamespace": "default", "PodUID": "u", "Node": "n1"});
    for (verb, body) in [
        ("filter", question(&pod)),
        ("prioritize", question(&pod)),
        ("preempt", preemption),
        ("bind", binding),
    ] {
        let (status, text) = running.verb(verb, body.to_string()).await;
        assert_eq!(status, 503, "{verb}: {text}");
    }
    api.set_lists_hang(false);
    running.stop().await.expect("drains");
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_and_hurts_nobody() {
    let (api, running) = site().await;
    let whole = json!({"Pod": plain_pod("x", 1, 1, None), "Nodes": {"items": []}}).to_string();
    let nameless = json!({"Pod": {"metadata": 7}, "NodeNames": []}).to_string();
    for (verb, body, words) in [
        ("filter", String::new(), "bad JSON"),
        ("filter", "[]".into(), "bad JSON"),
        ("filter", whole.clone(), "set nodeCacheCapable"),
        ("prioritize", whole, "set nodeCacheCapable"),
        ("filter", nameless.clone(), "not readable"),
        ("preempt", nameless, "set nodeCacheCapable"),
        ("bind", r#"{"PodName":1}"#.into(), "bad JSON"),
    ] {
        let (status, text) = running.verb(verb, body.clone()).await;
        assert_eq!(status, 400, "{verb} {body}: {text}");
        assert!(text.contains(words), "{verb} {body}: {text}");
    }
    let long = vec![b' '; scheduler::MAX_EXTENDER_BODY_BYTES + 1];
    let (status, text) = running.verb("filter", long).await;
    assert_eq!((status, text.contains("too long")), (400, true), "{text}");
    let (status, _) = running.verb("nothing", "").await;
    assert_eq!(status, 404);
    let url = format!("http://{}/filter", running.extender);
    let answer = running.http.get(url).send().await.expect("is answered");
    assert_eq!(answer.status(), 405);
    // The permit server has no such paths, and the extender grants nothing.
    let body = request("pg", None, size(250, 1)).to_string();
    assert_eq!(running.verb("", body).await.0, 404);
    api.put("pods", plain_pod("x", 1_000, GIB, None));
    let bound = running.asked("bind", &binding(&api, "x", "n2")).await;
    assert_eq!(bound, json!({"Error": ""}));
    running.stop().await.expect("drains");
}
