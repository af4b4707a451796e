//! Migrations over HTTP: the whole scheduler against an API peer, whose VMs' controller is the test
//! itself, and against the embedded API server.

mod cluster;
mod support;

use std::time::{Duration, Instant};

use kube::api::{Patch, PatchParams, PostParams};
use scheduler::config::Config;
use scheduler::core::migrate::MigrationRule;
use serde_json::{Value, json};
use support::api::FakeApi;
use support::{GIB, Running, node, plain_pod, size, vm, vm_pod};

const MIGRATIONS: &str = "virtualmachinemigrations";

/// A VM on `n1` that may be migrated, and its pod.
fn put_vm(api: &FakeApi, name: &str, milli: u32, gib: u64, age: u32) {
    api.put("virtualmachines", vm(name, size(milli, gib)));
    let mut pod = vm_pod(name, size(milli, gib), Some("n1"));
    pod["metadata"]["labels"]["autoscaling.neon.tech/auto-migration-enabled"] = json!("true");
    pod["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:{age:02}Z"));
    api.put("pods", pod);
}

async fn start(api: &FakeApi, rule: MigrationRule) -> Running {
    let config = Config {
        migration: rule,
        ..Config::default()
    };
    let running = Running::start_unready(api, config).await;
    running.until("ready", |r| r.state.ready().is_ok()).await;
    running
}

fn names(api: &FakeApi) -> Vec<String> {
    let name = |object: &Value| {
        object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    api.all(MIGRATIONS).iter().map(name).collect()
}

fn reasons(api: &FakeApi) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let events = api.all("events");
    let pairs = events.iter().map(|event| {
        (
            text(&event["reason"]),
            text(&event["involvedObject"]["name"]),
        )
    });
    pairs.collect()
}

#[tokio::test]
async fn n21_n22_a_node_above_its_watermark_loses_one_vm() {
    let api = FakeApi::start().await;
    api.put("nodes", node("n1", 10_000, 64 * GIB));
    api.put("nodes", node("n2", 10_000, 64 * GIB));
    for (age, name) in (0..).zip(["old", "mid", "new"]) {
        put_vm(&api, name, 3_000, 4, age);
    }
    let running = start(&api, MigrationRule::default()).await;
    // Exactly at the watermark of 0.9: nobody has to go.
    running
        .until("counted", |r| r.reserved("n1").0 == 9_000)
        .await;
    assert_eq!(names(&api), [""; 0]);
    api.put("pods", plain_pod("more", 500, GIB, Some("n1")));
    running.until("moved", |_| !names(&api).is_empty()).await;
    assert_eq!(names(&api), ["schedplugin-old-pod"]);
    let made = api
        .get(MIGRATIONS, "default", "schedplugin-old-pod")
        .expect("is there");
    assert_eq!(made["spec"]["vmName"], "old");
    assert_eq!(
        made["metadata"]["labels"]["autoscaling.neon.tech/created-by-scheduler"],
        "true"
    );
    let told = ("MigrationTriggered".to_owned(), "old".to_owned());
    running
        .until("told", |_| reasons(&api).contains(&told))
        .await;
    running
        .until("shown", |r| {
            r.state.dump()["nodes"]["n1"]["pressure"]["accounted"]["cpu"] == 3_000
        })
        .await;
    running
        .until_metrics(&[
        r#"autoscaling_plugin_node_pressure_current{node="n1",resource="cpu",kind="logical"} 0.5"#,
        r#"autoscaling_plugin_node_pressure_current{node="n1",resource="cpu",kind="capacity"} 0.0"#,
        r#"autoscaling_plugin_migrations_begun_total{node="n1"} 1"#,
        r#"autoscaling_plugin_k8s_ops_total{op="Create",kind="VirtualMachineMigration",outcome="success"} 1"#,
        ])
        .await;
    // What is asked in vain is shown apart.
    let asked = running
        .ask("new", Some(size(3_000, 4)), size(5_000, 4))
        .await;
    assert_eq!(asked, Ok(size(3_500, 4)));
    running
        .until("shown", |r| {
            r.state.dump()["nodes"]["n1"]["pressure"]["capacity"]["cpu"] == 1_500
        })
        .await;
    running
        .until("refused", |r| {
            r.state.dump()["refused"]["default/new"]["limits"] == json!([["cpu", "no_room"]])
        })
        .await;
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn n25_a_failed_migration_is_cleaned_up_and_backs_off() {
    let api = FakeApi::start().await;
    api.put("nodes", node("n1", 10_000, 64 * GIB));
    api.put("nodes", node("n2", 10_000, 64 * GIB));
    put_vm(&api, "old", 5_000, 4, 0);
    put_vm(&api, "new", 4_500, 4, 1);
    let running = start(&api, MigrationRule::default()).await;
    running
        .until("moved", |_| names(&api) == ["schedplugin-old-pod"])
        .await;
    api.edit(MIGRATIONS, "default", "schedplugin-old-pod", |it| {
        it["status"] = json!({"phase": "Failed"});
    });
    // It is removed, and it is another's turn.
    running
        .until("moved", |_| names(&api) == ["schedplugin-new-pod"])
        .await;
    let alone =
        |r: &Running| r.state.dump()["migrations"]["left_alone"]["default/old"]["attempts"] == 1;
    running.until("left alone", alone).await;
    // Nobody else's migration is touched.
    api.put(
        MIGRATIONS,
        json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
        "metadata": {"name": "by-hand", "namespace": "default"}, "spec": {"vmName": "x"},
        "status": {"phase": "Failed"}}),
    );
    api.edit(MIGRATIONS, "default", "schedplugin-new-pod", |it| {
        it["status"] = json!({"phase": "Succeeded"});
    });
    running
        .until("cleaned up", |_| names(&api) == ["by-hand"])
        .await;
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn one_node_alone_says_that_it_is_over_budget_and_moves_nobody() {
    let api = FakeApi::start().await;
    api.put("nodes", node("n1", 4_000, 64 * GIB));
    put_vm(&api, "old", 3_000, 4, 0);
    put_vm(&api, "new", 3_000, 4, 1);
    let running = start(&api, MigrationRule::default()).await;
    let told = ("NodeOverBudget".to_owned(), "n1".to_owned());
    running
        .until("told", |_| reasons(&api).contains(&told))
        .await;
    // The event may be there before the state is shown.
    running
        .until("shown", |r| {
            r.state.dump()["nodes"]["n1"]["pressure"]["logical"]["cpu"] == 2_400
        })
        .await;
    assert_eq!(names(&api), [""; 0]);
    running.stop().await.expect("ends well");
}

/// The embedded API server knows the kind, its schema and its deletion with a precondition.
#[tokio::test(flavor = "multi_thread")]
async fn n21_n25_the_embedded_api_server_takes_and_loses_migrations() {
    let cluster = cluster::Cluster::start().await;
    cluster.node(40).await;
    let second = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}});
    let nodes = cluster.api("Node");
    let second = serde_json::from_value(second).expect("is an object");
    nodes
        .create(&PostParams::default(), &second)
        .await
        .expect("is created");
    let roomy = json!({"status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "100"}}});
    let params = PatchParams::default();
    nodes
        .patch_status("n2", &params, &Patch::Merge(roomy))
        .await
        .expect("has a status");
    cluster.vm("pg").await;
    let label =
        json!({"metadata": {"labels": {"autoscaling.neon.tech/auto-migration-enabled": "true"}}});
    let pods = cluster.api("Pod");
    pods.patch("pg-pod", &params, &Patch::Merge(label))
        .await
        .expect("is labelled");
    let filler = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "filler", "namespace": "default"},
        "spec": {"nodeName": cluster::NODE, "containers": [{"name": "c", "image": "i",
            "resources": {"requests": {"cpu": "9", "memory": "1Gi"}}}]}});
    let filler = serde_json::from_value(filler).expect("is an object");
    pods.create(&PostParams::default(), &filler)
        .await
        .expect("is created");

    let replica = cluster
        .replica_with("alone", &["--takeover-wait-ms", "0"])
        .await;
    replica.until_ready().await;
    let migrations = cluster.api("VirtualMachineMigration");
    let end = Instant::now() + cluster::PATIENCE;
    let made = loop {
        if let Some(made) = migrations
            .get_opt("schedplugin-pg-pod")
            .await
            .expect("is served")
        {
            break made;
        }
        assert!(Instant::now() < end, "never made:\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(made.data["spec"]["vmName"], "pg");
    assert_eq!(made.data["spec"]["maxBandwidth"], "1Gi");
    let failed = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    migrations
        .patch_status("schedplugin-pg-pod", &params, &failed)
        .await
        .expect("fails");
    let end = Instant::now() + cluster::PATIENCE;
    while migrations
        .get_opt("schedplugin-pg-pod")
        .await
        .expect("is served")
        .is_some()
    {
        assert!(
            Instant::now() < end,
            "never cleaned up:\n{}",
            cluster.logs()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
