//! The whole scheduler against an API peer: many VMs at once, restarts, placement, events, broken
//! objects and watches.

mod support;

use std::path::PathBuf;
use std::time::Duration;

use protocol::units::Resources;
use scheduler::config::Config;
use serde_json::{Value, json};
use support::api::{FakeApi, Fault};
use support::{GIB, Running, approved, node, plain_pod, size, vm, vm_pod};
use test_api::Call;

/// VMs of 250m / 1Gi each, bound to `n1`, which has the given totals.
async fn vms(count: u32, milli_cpu: u64, mem: u64) -> (FakeApi, Vec<String>) {
    let api = FakeApi::start().await;
    api.put("nodes", node("n1", milli_cpu, mem));
    let names: Vec<String> = (0..count).map(|at| format!("vm{at}")).collect();
    for name in &names {
        api.put("virtualmachines", vm(name, size(250, 1)));
        api.put("pods", vm_pod(name, size(250, 1), Some("n1")));
    }
    (api, names)
}

#[tokio::test]
async fn n08_a_node_with_three_units_left_permits_three_of_four() {
    let (api, names) = vms(2, 2_000, 8 * GIB).await;
    // Four units are taken, then all but three.
    api.put("pods", plain_pod("filler", 750, 3 * GIB, Some("n1")));
    let running = Running::start(&api).await;
    for name in &names {
        assert_eq!(
            running.ask(name, None, size(250, 1)).await,
            Ok(size(250, 1))
        );
    }
    assert_eq!(
        running.ask("vm0", Some(size(250, 1)), size(1250, 5)).await,
        Ok(size(1000, 4))
    );
    assert_eq!(approved(&api, "vm0"), Some(size(1000, 4)));
    assert_eq!(
        running.ask("vm1", Some(size(250, 1)), size(500, 2)).await,
        Ok(size(250, 1)),
        "now it is full"
    );
    // What one gives back the other may have.
    assert_eq!(
        running.ask("vm0", Some(size(1000, 4)), size(500, 4)).await,
        Ok(size(500, 4))
    );
    assert_eq!(
        running.ask("vm1", Some(size(250, 1)), size(1000, 2)).await,
        Ok(size(750, 1))
    );
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn n06_parallel_requests_of_many_vms_never_overcommit() {
    let (total_cpu, total_mem) = (10_100, 41 * GIB);
    let (api, names) = vms(24, total_cpu, total_mem).await;
    let running = std::sync::Arc::new(Running::start(&api).await);
    let asks = (0_u32..).zip(&names).map(|(at, name)| {
        let (running, name) = (running.clone(), name.clone());
        tokio::spawn(async move {
            let mut permit = running
                .ask(&name, None, size(250, 1))
                .await
                .expect("has it");
            for round in 0..12_u32 {
                let units = (at * 7 + round * 5) % 9 + 1;
                let wish = Resources::new(250 * units, u64::from(units) * GIB);
                let got = running
                    .ask(&name, Some(permit), wish)
                    .await
                    .expect("is answered");
                assert!(!got.has_field_above(wish) && !got.has_field_below(permit.field_min(wish)));
                permit = got;
            }
            permit
        })
    });
    let mut sum = (0_u64, 0_u64);
    for ask in asks.collect::<Vec<_>>() {
        let permit = ask.await.expect("does not fail");
        sum = (sum.0 + u64::from(permit.cpu.0), sum.1 + permit.mem.0);
    }
    assert!(sum.0 <= total_cpu && sum.1 <= total_mem, "{sum:?}");
    assert!(
        sum.0 > total_cpu / 2,
        "the test does not reach the limit: {sum:?}"
    );
    let written: Vec<Resources> = names
        .iter()
        .filter_map(|name| approved(&api, name))
        .collect();
    let cpu: u64 = written.iter().map(|size| u64::from(size.cpu.0)).sum();
    assert_eq!(cpu, sum.0, "what is permitted is what is written");
    running.until("settled", |r| r.reserved("n1") == sum).await;
    // The node was full.
    running
        .until_metrics(&[r#"permit_limits_total{resource="cpu",limit="no_room"}"#])
        .await;
}

#[tokio::test]
async fn n16_a_restart_between_any_two_messages_gives_no_room_away() {
    // Where the first process is when it dies: before it wrote, while its write is under way, after
    // it was written but before it could say so, and after it said so.
    for fault in [
        Some(Fault::Refuse(500)),
        Some(Fault::Swallow),
        Some(Fault::Apply),
        None,
    ] {
        let (api, _) = vms(2, 1_500, 6 * GIB).await;
        let first = Running::start(&api).await;
        for name in ["vm0", "vm1"] {
            assert_eq!(first.ask(name, None, size(250, 1)).await, Ok(size(250, 1)));
        }
        api.set_fault(fault.unwrap_or(Fault::None));
        let told = first.ask("vm0", Some(size(250, 1)), size(1000, 4)).await;
        assert_eq!(told.is_ok(), fault.is_none(), "{fault:?}");
        first.kill().await;
        api.set_fault(Fault::None);
        let second = Running::start(&api).await;
        // The agent of vm0 knows only what it was told; the other one asks first.
        let other = second
            .ask("vm1", Some(size(250, 1)), size(1000, 4))
            .await
            .expect("is answered");
        let last = told.unwrap_or(size(250, 1));
        let own = second
            .ask("vm0", Some(last), size(1000, 4))
            .await
            .expect("is answered");
        assert!(
            !own.has_field_below(last),
            "{fault:?}: what was told stands"
        );
        assert!(
            own.cpu.0 + other.cpu.0 <= 1_500 && own.mem.0 + other.mem.0 <= 6 * GIB,
            "{fault:?}"
        );
        let written = fault.is_none() || fault == Some(Fault::Apply);
        assert_eq!(
            other,
            if written { size(500, 2) } else { size(1000, 4) },
            "{fault:?}"
        );
        second.stop().await.expect("ends well");
    }
}

#[tokio::test]
async fn a_write_of_unclear_fate_is_settled_and_its_room_not_given_twice() {
    for fault in [Fault::Swallow, Fault::Apply] {
        let (api, _) = vms(2, 1_250, 5 * GIB).await;
        let running = Running::start(&api).await;
        for name in ["vm0", "vm1"] {
            running.ask(name, None, size(250, 1)).await.expect("has it");
        }
        api.set_fault(fault);
        let lost = running.ask("vm0", Some(size(250, 1)), size(1000, 4)).await;
        assert_eq!(lost, Err((500, "failed to patch VM object".into())));
        api.set_fault(Fault::None);
        // All room is spoken for by what may have been written.
        assert_eq!(
            running.ask("vm1", Some(size(250, 1)), size(1000, 4)).await,
            Ok(size(250, 1))
        );
        running
            .until("written", |_| approved(&api, "vm0") == Some(size(1000, 4)))
            .await;
        let again = running.ask("vm0", Some(size(250, 1)), size(1000, 4)).await;
        assert_eq!(again, Ok(size(1000, 4)));
        running.stop().await.expect("ends well");
    }
}

#[tokio::test]
async fn changes_by_others_are_met_by_deciding_again() {
    let (api, _) = vms(1, 4_000, 16 * GIB).await;
    let running = Running::start(&api).await;
    let mut permit = running
        .ask("vm0", None, size(250, 1))
        .await
        .expect("has it");
    for units in 2..12 {
        // The watch has not brought this yet when the request comes.
        api.edit("virtualmachines", "default", "vm0", |vm| {
            vm["status"] = json!({"restartCount": units})
        });
        let wish = Resources::new(250 * units, u64::from(units) * GIB);
        permit = running
            .ask("vm0", Some(permit), wish)
            .await
            .expect("is permitted");
        assert_eq!(permit, wish);
    }
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn pods_of_ours_are_bound_and_those_without_room_are_told_so() {
    let api = FakeApi::start().await;
    api.put("nodes", node("small", 1_000, 4 * GIB));
    api.put("nodes", node("big", 2_000, 8 * GIB));
    api.put("pods", plain_pod("filler", 1_000, 4 * GIB, Some("big")));
    let running = Running::start(&api).await;
    let bound = |name: &str| {
        let pod = api.get("pods", "default", name).expect("is there");
        pod["spec"]["nodeName"].as_str().map(str::to_owned)
    };
    api.put("virtualmachines", vm("pg", size(1000, 4)));
    api.put("pods", vm_pod("pg", size(1000, 4), None));
    running.until("bound", |_| bound("pg-pod").is_some()).await;
    let mut foreign = plain_pod("foreign", 100, GIB, None);
    foreign["spec"]["schedulerName"] = json!("default-scheduler");
    api.put("pods", foreign);
    api.put("pods", plain_pod("second", 1_000, 4 * GIB, None));
    running.until("bound", |_| bound("second").is_some()).await;
    assert_ne!(bound("pg-pod"), bound("second"));

    api.put("pods", plain_pod("third", 500, GIB, None));
    let condition = || {
        let pod = api.get("pods", "default", "third").expect("is there");
        pod.pointer("/status/conditions/0")
            .cloned()
            .unwrap_or_default()
    };
    running
        .until("told", |_| condition()["reason"] == "Unschedulable")
        .await;
    assert_eq!(condition()["type"], "PodScheduled");
    assert_eq!(condition()["status"], "False");
    assert_eq!(condition()["message"], "Not enough resources for Pod");
    let events = || -> Vec<Value> {
        api.all("events")
            .into_iter()
            .filter(|event| event["reason"] == "FailedScheduling")
            .collect()
    };
    running.until("an event", |_| !events().is_empty()).await;
    assert_eq!(events()[0]["involvedObject"]["name"], "third");
    assert_eq!(events()[0]["message"], "Not enough resources for Pod");
    assert_eq!(events()[0]["type"], "Warning");
    assert_eq!(bound("third"), None);
    // Room appears.
    api.delete("pods", "default", "filler");
    running.until("bound", |_| bound("third").is_some()).await;
    assert_eq!(bound("foreign"), None, "not ours to place");
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn a_denied_increase_is_told_on_the_vm_once() {
    let (api, _) = vms(1, 300, 8 * GIB).await;
    let running = Running::start(&api).await;
    running
        .ask("vm0", None, size(250, 1))
        .await
        .expect("has it");
    for _ in 0..3 {
        assert_eq!(
            running.ask("vm0", Some(size(250, 1)), size(500, 1)).await,
            Ok(size(250, 1))
        );
    }
    running
        .until("an event", |_| !api.all("events").is_empty())
        .await;
    let event = &api.all("events")[0];
    assert_eq!(event["reason"], "ScaleUpDenied");
    assert_eq!(event["involvedObject"]["kind"], "VirtualMachine");
    assert_eq!(event["involvedObject"]["name"], "vm0");
    let text = "not enough for the increase on node n1: asked 500m CPU / 1Gi, held 250m CPU / 1Gi, \
        permitted 250m CPU / 1Gi (cpu: no_room, room 50)";
    assert_eq!(event["message"], text);
    // One more denial, so that a second event would have had its time.
    running
        .ask("vm0", Some(size(250, 1)), size(750, 1))
        .await
        .expect("is answered");
    running
        .until("recorded", |_| {
            let vm = api
                .get("virtualmachines", "default", "vm0")
                .expect("is there");
            vm.to_string().contains("750m")
        })
        .await;
    assert_eq!(api.all("events").len(), 1);
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn until_the_lists_are_there_it_is_not_ready() {
    let (api, _) = vms(1, 4_000, 16 * GIB).await;
    api.set_lists_hang(true);
    let running = Running::start_unready(&api, Config::default()).await;
    assert_eq!(
        running.ask("vm0", None, size(250, 1)).await,
        Err((503, "not ready".into()))
    );
    let (status, text) = running.get("/readyz").await;
    assert_eq!(status, 503);
    assert_eq!(text, "not listed yet: nodes, pods, virtualmachines\n");
    assert_eq!(running.get("/healthz").await.0, 200);
    api.set_lists_hang(false);
    running.until("ready", |r| r.state.ready().is_ok()).await;
    assert_eq!(running.get("/readyz").await, (200, "ok\n".into()));
    assert_eq!(
        running.ask("vm0", None, size(250, 1)).await,
        Ok(size(250, 1))
    );
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn n42_one_bad_object_hurts_itself_only() {
    let (api, _) = vms(1, 24_000, 90 * GIB).await;
    let mut pod = vm_pod("bad", size(250, 1), Some("n1"));
    pod["metadata"]["annotations"]["vm.neon.tech/overcommit"] = json!(r#"{"cpu":"many"}"#);
    api.put("pods", pod);
    let mut broken = vm("bad", size(250, 1));
    broken["spec"] = json!("nonsense");
    api.put("virtualmachines", broken);
    let mut node = node("n2", 1, 1);
    node["status"]["allocatable"]["cpu"] = json!([]);
    api.put("nodes", node);
    api.put("pods", plain_pod("lost", 1_000, GIB, Some("n9")));
    let running = Running::start(&api).await;
    assert_eq!(
        running.ask("vm0", None, size(250, 1)).await,
        Ok(size(250, 1))
    );
    // The bad pod counts at the most its annotation lets it be.
    running
        .until("counted", |r| r.reserved("n1") == (16_250, 65 * GIB))
        .await;
    assert_eq!(
        running
            .ask("vm0", Some(size(250, 1)), size(16_000, 64))
            .await,
        Ok(size(8_000, 26))
    );
    let bad = running.ask("bad", None, size(250, 1)).await;
    assert_eq!(bad, Err((500, "failed to extract state from pod".into())));
    for kind in ["Nodes", "Pods", "VirtualMachines"] {
        let line = format!("autoscaling_plugin_unreadable_objects_total{{kind=\"{kind}\"}} 1");
        running.until_metrics(&[&line]).await;
    }
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn a_watch_that_is_too_old_lists_anew_and_notices_what_is_gone() {
    let (api, _) = vms(2, 4_000, 16 * GIB).await;
    let running = Running::start(&api).await;
    running
        .until("counted", |r| r.reserved("n1").0 == 500)
        .await;
    // A watch that opens later does not hear that it is too old.
    let open = || api.count("WATCH /api/v1/pods", Call::is_done);
    running.until("watched", |_| open() == 1).await;
    api.delete("pods", "default", "vm1-pod");
    api.delete("virtualmachines", "default", "vm1");
    api.put("virtualmachines", vm("vm2", size(750, 3)));
    api.put("pods", vm_pod("vm2", size(750, 3), Some("n1")));
    api.expire_watches();
    running
        .until("counted", |r| r.reserved("n1").0 == 1_000)
        .await;
    assert_eq!(
        running.ask("vm1", None, size(250, 1)).await,
        Err((404, "pod not found".into()))
    );
    assert_eq!(
        running.ask("vm2", None, size(750, 3)).await,
        Ok(size(750, 3))
    );
    running
        .until_metrics(&[r#"watchers_relist_requests_total{watcher_instance="Pods"}"#])
        .await;
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn n45_the_state_and_the_metrics_show_every_vm_and_node() {
    let (api, _) = vms(1, 4_000, 16 * GIB).await;
    api.edit("nodes", "", "n1", |node| {
        node["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "a"})
    });
    let mut config = Config::default();
    config
        .node_metric_labels
        .insert("zone".into(), "topology.kubernetes.io/zone".into());
    config
        .node_metric_labels
        .insert("pool".into(), "example.com/pool".into());
    let running = Running::start_unready(&api, config).await;
    running.until("ready", |r| r.state.ready().is_ok()).await;
    running
        .ask("vm0", None, size(250, 1))
        .await
        .expect("has it");
    running
        .ask("vm0", Some(size(250, 1)), size(1000, 4))
        .await
        .expect("is permitted");
    running.post("x").await;
    let shown = |r: &Running| r.state.dump()["vms"]["default/vm0"]["view"]["approved_text"].clone();
    running
        .until("shown", |r| shown(r) == r#"{"vCPUs":1,"mem":"4Gi"}"#)
        .await;
    let (status, text) = running.get("/debug/state").await;
    let dump: Value = serde_json::from_str(&text).expect("is JSON");
    assert_eq!((status, &dump["ready"]), (200, &json!(true)));
    assert_eq!(
        dump["nodes"]["n1"]["watermark"],
        json!({"cpu": 3600, "mem": (16 * GIB) * 9 / 10})
    );
    assert_eq!(
        dump["pods"]["default/vm0-pod"]["counted"],
        json!({"vCPUs": 1, "mem": "4Gi"})
    );

    running
        .until_metrics(&[
        r#"autoscaling_plugin_node_cpu_resources_current{node="n1",pool="",zone="a",field="Total"} 4.0"#,
        r#"autoscaling_plugin_node_cpu_resources_current{node="n1",pool="",zone="a",field="Reserved"} 1.0"#,
        r#"autoscaling_plugin_node_cpu_resources_current{node="n1",pool="",zone="a",field="Committed"} 1.0"#,
        r#"autoscaling_plugin_node_cpu_resources_current{node="n1",pool="",zone="a",field="Migrating"} 0.0"#,
        r#"autoscaling_plugin_node_cpu_resources_current{node="n1",pool="",zone="a",field="Watermark"} 3.6"#,
        r#"autoscaling_plugin_node_mem_resources_current{node="n1",pool="",zone="a",field="Reserved"} 4294967296.0"#,
        r#"autoscaling_plugin_resource_requests_total{code="200"} 2"#,
        r#"autoscaling_plugin_resource_requests_total{code="400"} 1"#,
        r#"autoscaling_plugin_resource_requests_results_total{code="200",node="n1"} 2"#,
        r#"autoscaling_plugin_k8s_ops_total{op="Patch",kind="VirtualMachine",outcome="success"} 2"#,
        r#"autoscaling_plugin_watchers_alive_current{watcher_instance="Nodes"} 1.0"#,
        r#"autoscaling_plugin_permit_decisions_total{resource="cpu",outcome="granted"} 1"#,
        ])
        .await;
    // New labels replace the old series.
    api.edit("nodes", "", "n1", |node| {
        node["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "b"})
    });
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let (_, metrics) = running.get("/metrics").await;
        if metrics.contains(r#"zone="b""#) && !metrics.contains(r#"zone="a""#) {
            break;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "the old ones stay in\n{metrics}"
        );
    }
    running.stop().await.expect("ends well");
}

/// The value of a series on the metrics page.
async fn metric(running: &Running, name: &str) -> Option<f64> {
    let (_, page) = running.get("/metrics").await;
    let line = page.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// Waits until a series has a value.
async fn until_metric(running: &Running, name: &str, value: f64) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let got = metric(running, name).await;
        if got == Some(value) {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{name} is {got:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A pod whose container may use up to `limit` and requests `request`.
fn bursting(name: &str, request: &str, limit: &str) -> Value {
    let mut pod = plain_pod(name, 0, 0, Some("n1"));
    pod["spec"]["schedulerName"] = json!("default-scheduler");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": request, "memory": "1Gi"}, "limits": {"cpu": limit, "memory": "1Gi"}});
    pod
}

#[tokio::test]
async fn n42_plain_pods_are_counted_by_requests_and_those_that_may_use_more_are_told() {
    let (api, _) = vms(1, 4_000, 16 * GIB).await;
    api.put("pods", bursting("old", "250m", "2"));
    let running = Running::start(&api).await;
    let remarked = "autoscaling_plugin_remarked_pods_current{remark=\"requests_below_limits\"}";
    until_metric(&running, remarked, 1.0).await;
    api.put("pods", bursting("even", "500m", "500m"));
    api.put("pods", bursting("bursts", "750m", "1"));
    until_metric(&running, remarked, 2.0).await;
    running
        .until("counted", |r| r.reserved("n1") == (1_750, 4 * GIB))
        .await;
    running
        .until("told", |_| !api.all("events").is_empty())
        .await;
    let events = api.all("events");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["reason"], "RequestsBelowLimits");
    assert_eq!(events[0]["involvedObject"]["name"], "bursts");
    let said = |r: &Running, pod: &str| r.state.dump()["pods"][pod]["remarks"].clone();
    running
        .until("shown", |r| {
            said(r, "default/old") == json!(["requests_below_limits"])
        })
        .await;
    assert_eq!(said(&running, "default/even"), json!(null));
    // A pod that has ended takes nothing, and nothing is to be said of it.
    api.edit("pods", "default", "bursts", |pod| {
        pod["status"] = json!({"phase": "Succeeded"})
    });
    running
        .until("counted", |r| r.reserved("n1") == (1_000, 3 * GIB))
        .await;
    until_metric(&running, remarked, 1.0).await;
    running.stop().await.expect("ends well");
}

/// The expression of an alert, from the rules of the chart.
fn alert_expression(alert: &str) -> String {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from);
    let rules = package.join("../deploy/chart/bellows/rules/bellows.yaml");
    let rules = std::fs::read_to_string(rules).expect("reads");
    let (_, rule) = rules
        .split_once(&format!("- alert: {alert}\n"))
        .expect("the rule ships");
    let expression = rule.trim_start().strip_prefix("expr: ");
    let expression = expression.and_then(|rest| rest.lines().next());
    expression.expect("an expression").to_owned()
}

#[tokio::test]
async fn n43_a_pod_put_on_a_node_by_hand_is_counted_and_told() {
    let (api, _) = vms(1, 4_000, 16 * GIB).await;
    let running = Running::start(&api).await;
    let unpermitted = "autoscaling_plugin_remarked_pods_current{remark=\"unpermitted\"}";
    // The alert that ships fires on this series, which is 0 before and 2 below.
    assert_eq!(
        alert_expression("BellowsPodsUnpermitted"),
        format!("max({unpermitted}) > 0")
    );
    until_metric(&running, unpermitted, 0.0).await;
    // What we place ourselves is no news.
    api.put("pods", plain_pod("asked", 1_000, GIB, None));
    running
        .until("placed", |r| r.reserved("n1").0 == 1_250)
        .await;
    // A VM's pod and a pod of ours with spec.nodeName set, beyond what the node has.
    api.put("virtualmachines", vm("byhand", size(2_000, 4)));
    api.put("pods", vm_pod("byhand", size(2_000, 4), Some("n1")));
    api.put("pods", plain_pod("plain", 2_000, GIB, Some("n1")));
    // Another scheduler's pod is its affair.
    let mut foreign = plain_pod("foreign", 100, GIB, Some("n1"));
    foreign["spec"]["schedulerName"] = json!("default-scheduler");
    api.put("pods", foreign);
    until_metric(&running, unpermitted, 2.0).await;
    running
        .until("counted", |r| r.reserved("n1").0 == 5_350)
        .await;
    running
        .until("told", |_| api.all("events").len() == 3)
        .await;
    for event in api.all("events") {
        if event["involvedObject"]["kind"] == "Node" {
            assert_eq!(event["reason"], "NodeOverBudget");
            continue;
        }
        assert_eq!(event["reason"], "UnpermittedPod");
        let name = event["involvedObject"]["name"]
            .as_str()
            .expect("is text")
            .to_owned();
        assert!(["byhand-pod", "plain"].contains(&name.as_str()), "{name}");
    }
    running
        .until("shown", |r| {
            r.state.dump()["pods"]["default/plain"]["remarks"] == json!(["unpermitted"])
        })
        .await;
    // The node is over-full: nothing more is granted on it, and nothing is taken back.
    let had = Some(size(250, 1));
    assert_eq!(
        running.ask("vm0", None, size(250, 1)).await,
        Ok(size(250, 1))
    );
    assert_eq!(
        running.ask("vm0", had, size(500, 1)).await,
        Ok(size(250, 1))
    );
    api.delete("pods", "default", "plain");
    until_metric(&running, unpermitted, 1.0).await;
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn with_sharing_on_the_room_that_appears_goes_to_the_smallest_that_waits() {
    // Three VMs of a unit; room for three units more.
    let (api, _) = vms(3, 1_500, 16 * GIB).await;
    let mut config = Config::default();
    config.fairness.sharing = true;
    let running = Running::start_unready(&api, config).await;
    running.until("ready", |r| r.state.ready().is_ok()).await;
    let one = size(250, 1);
    for vm in ["vm0", "vm1", "vm2"] {
        assert_eq!(running.ask(vm, None, one).await, Ok(one));
    }
    // Nobody else wants more yet, so the first is given all of it.
    let all = size(1_000, 1);
    assert_eq!(running.ask("vm0", Some(one), size(2_000, 1)).await, Ok(all));
    for vm in ["vm1", "vm2"] {
        assert_eq!(running.ask(vm, Some(one), size(500, 1)).await, Ok(one));
    }
    // Two units are given back. Their giver wants them again, but it is the largest, and told so.
    let less = size(500, 1);
    assert_eq!(running.ask("vm0", Some(all), less).await, Ok(less));
    assert_eq!(
        running.ask("vm0", Some(less), size(2_000, 1)).await,
        Ok(less)
    );
    let line = "autoscaling_plugin_permit_limits_total{resource=\"cpu\",limit=\"fair_share\"} 1";
    running.until_metrics(&[line]).await;
    // Those that waited are met, and then nothing is left.
    for vm in ["vm1", "vm2"] {
        assert_eq!(
            running.ask(vm, Some(one), size(500, 1)).await,
            Ok(size(500, 1))
        );
    }
    assert_eq!(running.ask("vm0", Some(less), size(750, 1)).await, Ok(less));
    running.stop().await.expect("ends well");
}
