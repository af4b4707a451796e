//! The whole controller between an API server and a runner's socket.

mod support;

use protocol::trace::Stage;
use serde_json::{Value, json};
use support::api::FakeApi;
use support::runner::FakeRunner;
use support::{Controller, vm};

fn ask(api: &FakeApi, name: &str, cpu: &str, slots: i64, revision: i64) {
    api.edit("virtualmachines", name, |vm| {
        vm["spec"]["guest"]["cpus"]["use"] = json!(cpu);
        vm["spec"]["guest"]["memorySlots"]["use"] = json!(slots);
        vm["spec"]["targetRevision"] = json!({
            "revision": {"value": revision, "flags": 1}, "updatedAt": "2026-11-21T10:00:05Z",
        });
    });
}

async fn running(api: &FakeApi, state_dir: &std::path::Path, name: &str) -> (String, FakeRunner) {
    let pod = api.wait_pod(name).await;
    let runner = FakeRunner::start(state_dir, &pod, 250, 1);
    api.run_pod(&pod);
    api.wait_vm("a first size", name, |vm| {
        vm["status"]["phase"] == "Running" && vm["status"]["cpus"] == "250m"
    })
    .await;
    (pod, runner)
}

fn revision(vm: &Value) -> Option<i64> {
    vm["status"]["currentRevision"]["revision"]["value"].as_i64()
}

/// Requirement: N17
#[tokio::test]
async fn vm_object_becomes_running_pod_and_is_resized() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    let (pod, runner) = running(&api, dir.path(), "one").await;
    let object = api.get("virtualmachines", "one").expect("it exists");
    assert_eq!(
        object["metadata"]["finalizers"],
        json!(["vm.neon.tech/finalizer"])
    );
    assert_eq!(object["spec"]["cpuScalingMode"], "QmpScaling");
    assert_eq!(object["status"]["podIP"], "127.9.1.1");
    assert_eq!(object["status"]["node"], "here");
    let secret = api
        .get("secrets", "ssh-neonvm-one")
        .expect("the SSH secret");
    assert_eq!(secret["type"], "kubernetes.io/ssh-auth");
    assert_eq!(
        secret["metadata"]["ownerReferences"][0]["uid"],
        object["metadata"]["uid"]
    );

    ask(&api, "one", "1500m", 3, 7);
    let order = runner.wait_order(1).await;
    assert_eq!(
        (order.cpu.0, order.memory.0 >> 30, order.trace.revision),
        (1500, 3, 7)
    );
    let usage =
        api.get("pods", &pod).expect("the pod")["metadata"]["annotations"]["vm.neon.tech/usage"]
            .clone();
    assert_eq!(
        usage, r#"{"cpu":"1500m","memory":"3Gi"}"#,
        "said before it was ordered"
    );
    api.wait_phase("one", "Scaling").await;
    runner.finish();
    let done = api
        .wait_vm("the new size", "one", |vm| revision(vm) == Some(7))
        .await;
    assert_eq!(done["status"]["phase"], "Running");
    assert_eq!(
        (&done["status"]["cpus"], &done["status"]["memorySize"]),
        (&json!("1500m"), &json!("3Gi"))
    );
    assert_eq!(runner.orders().len(), 1, "the whole change is one order");
    api.wait("an event", |api| {
        api.list("events")
            .into_iter()
            .find(|event| event["reason"] == "Scaled")
    })
    .await;
    controller.stop().await;
}

#[tokio::test]
async fn resize_stages_are_recorded() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    let (_, runner) = running(&api, dir.path(), "one").await;
    ask(&api, "one", "500m", 1, 3);
    runner.wait_order(1).await;
    runner.finish();
    api.wait_vm("the new size", "one", |vm| revision(vm) == Some(3))
        .await;
    // The last stage ends with the answer to that write, which may still be on its way.
    let stages = async {
        loop {
            let records = controller.stages.snapshot();
            let stages: Vec<Stage> = records
                .iter()
                .filter(|record| record.trace.revision == 3 && record.trace.vm == "default/one")
                .map(|record| record.stage)
                .collect();
            if stages.contains(&Stage::Status) {
                return stages;
            }
            tokio::task::yield_now().await;
        }
    };
    let stages = tokio::time::timeout(support::DEADLINE, stages)
        .await
        .expect("in time");
    assert_eq!(
        stages,
        [
            Stage::Controller,
            Stage::Qmp,
            Stage::GuestVisible,
            Stage::Status
        ]
    );
    controller.stop().await;
}

/// The watch of pods selects by that label. It sends `DELETED` for a pod that loses the label.
#[tokio::test]
async fn pod_that_loses_its_label_keeps_its_guest() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    let (pod, runner) = running(&api, dir.path(), "one").await;
    let key = "vm.neon.tech/name";
    let name_of = |api: &FakeApi| {
        api.get("pods", &pod)?["metadata"]["labels"][key]
            .as_str()
            .map(str::to_owned)
    };
    api.edit("pods", &pod, |pod| {
        let labels = pod["metadata"]["labels"].as_object_mut();
        labels.expect("labels").remove(key);
    });
    api.wait("the label", name_of).await;
    // The same of one that is marked as another VM's.
    api.edit("pods", &pod, |pod| {
        pod["metadata"]["labels"][key] = json!("other")
    });
    api.wait("the label", |api| name_of(api).filter(|name| name == "one"))
        .await;
    ask(&api, "one", "500m", 1, 4);
    runner.wait_order(1).await;
    runner.finish();
    let done = api
        .wait_vm("the new size", "one", |vm| revision(vm) == Some(4))
        .await;
    assert_eq!(done["status"]["podName"], json!(pod));
    assert_eq!(done["status"]["restartCount"], 0);
    assert_eq!(api.list("pods").len(), 1);
    // Its end is heard of as ever.
    api.delete("pods", &pod, false);
    let next = api.wait_vm("another pod", "one", |vm| {
        let name = vm["status"]["podName"].as_str().unwrap_or_default();
        !name.is_empty() && name != pod
    });
    assert_eq!(next.await["status"]["restartCount"], 1);
    controller.stop().await;
}

#[tokio::test]
async fn approval_on_vm_is_copied_to_its_pod() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    let (pod, _runner) = running(&api, dir.path(), "one").await;
    let key = "internal.autoscaling.neon.tech/resources-approved";
    api.edit("virtualmachines", "one", |vm| {
        vm["metadata"]["annotations"] = json!({ key: r#"{"vCPUs":1,"mem":"4Gi"}"# });
    });
    api.wait("the pod's annotation", |api| {
        let pod = api.get("pods", &pod)?;
        pod["metadata"]["annotations"].get(key).cloned()
    })
    .await;
    controller.stop().await;
}

#[tokio::test]
async fn next_controller_finishes_interrupted_resize() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    let (pod, runner) = running(&api, dir.path(), "one").await;
    ask(&api, "one", "2", 4, 9);
    runner.wait_order(1).await;
    controller.kill().await;
    runner.finish();
    let controller = Controller::start(&api, dir.path());
    let done = api
        .wait_vm("the new size", "one", |vm| revision(vm) == Some(9))
        .await;
    assert_eq!(
        (&done["status"]["cpus"], &done["status"]["memorySize"]),
        (&json!(2), &json!("4Gi"))
    );
    assert_eq!(done["status"]["restartCount"], 0);
    assert_eq!(done["status"]["podName"], json!(pod));
    assert_eq!(api.list("pods").len(), 1);
    assert_eq!(
        runner.orders().len(),
        1,
        "what is held is not ordered again"
    );
    controller.stop().await;
}

#[tokio::test]
async fn next_controller_creates_one_pod_with_the_stored_name() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.refuse("POST /api/v1/namespaces/default/pods", 1_000_000, 500);
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    api.wait_vm("a name", "one", |vm| vm["status"]["podName"].is_string())
        .await;
    controller.kill().await;
    let named = api.get("virtualmachines", "one").expect("it exists")["status"]["podName"].clone();
    api.take_all_back();
    let controller = Controller::start(&api, dir.path());
    let pod = api.wait_pod("one").await;
    assert_eq!(json!(pod), named);
    assert_eq!(api.list("pods").len(), 1);
    controller.stop().await;
}

#[tokio::test]
async fn restarted_runner_is_found_again() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    let (pod, runner) = running(&api, dir.path(), "one").await;
    let mut state = runner.kill();
    ask(&api, "one", "750m", 2, 5);
    api.wait("the pod's annotation", |api| {
        let usage = api.get("pods", &pod)?["metadata"]["annotations"]["vm.neon.tech/usage"].clone();
        (usage == r#"{"cpu":"750m","memory":"2Gi"}"#).then_some(())
    })
    .await;
    state.generation = 1;
    let runner = FakeRunner::resume(dir.path(), &pod, state);
    let order = runner.wait_order(1).await;
    assert_eq!(order.cpu.0, 750);
    runner.finish();
    api.wait_vm("the new size", "one", |vm| revision(vm) == Some(5))
        .await;
    controller.stop().await;
}

#[tokio::test]
async fn conflicts_and_absent_api_server_only_delay() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.refuse(
        "PATCH /apis/vm.neon.tech/v1/namespaces/default/virtualmachines/one",
        6,
        409,
    );
    api.refuse("POST /api/v1/namespaces/default/pods", 2, 500);
    api.refuse("GET /api/v1/namespaces/default/secrets", 1, 503);
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    let (_, runner) = running(&api, dir.path(), "one").await;
    api.set_down(true);
    ask(&api, "one", "1", 2, 6);
    let before = api.lines().len();
    api.wait_calls(before + 2).await;
    assert!(runner.orders().is_empty(), "nobody could tell it");
    api.set_down(false);
    runner.wait_order(1).await;
    runner.finish();
    api.wait_vm("the new size", "one", |vm| revision(vm) == Some(6))
        .await;
    assert_eq!(api.list("pods").len(), 1);
    controller.stop().await;
}

#[tokio::test]
async fn one_bad_object_hurts_itself_only() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    for (name, path, value) in [
        ("bad-spec", "/spec/guest", json!("not an object")),
        ("bad-cpu", "/spec/guest/cpus/use", json!({"x": 1})),
        ("bad-phase", "/status", json!({"phase": "Sleeping"})),
    ] {
        let mut object = vm(name);
        object["status"] = json!({});
        *object.pointer_mut(path).expect("a place") = value;
        api.create("virtualmachines", object);
    }
    api.create("virtualmachines", vm("good"));
    let controller = Controller::start(&api, dir.path());
    let (_, _runner) = running(&api, dir.path(), "good").await;
    let dump = controller.state.dump();
    assert_eq!(dump[0]["controllerName"], "virtualmachine");
    let unreadable = dump[0]["unreadable"].as_object().expect("a list");
    let names: Vec<&str> = unreadable.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["default/bad-cpu", "default/bad-phase", "default/bad-spec"]
    );
    assert_eq!(dump[0]["vms"]["default/good"]["phase"], "Running");
    api.wait("an event about it", |api| {
        let events = api.list("events");
        events.into_iter().find(|event| {
            event["reason"] == "Unreadable" && event["involvedObject"]["name"] == "bad-cpu"
        })
    })
    .await;
    // Mended, it is taken up.
    api.edit("virtualmachines", "bad-phase", |object| {
        object["status"] = json!({})
    });
    api.wait_pod("bad-phase").await;
    controller.stop().await;
}

#[tokio::test]
async fn deleted_pod_is_replaced_and_counted() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    let (first, runner) = running(&api, dir.path(), "one").await;
    runner.kill();
    api.delete("pods", &first, false);
    api.wait_vm("another pod", "one", |vm| {
        let pod = vm["status"]["podName"].as_str();
        vm["status"]["restartCount"] == 1 && pod.is_some_and(|pod| !pod.is_empty() && pod != first)
    })
    .await;
    let (_, _runner) = running(&api, dir.path(), "one").await;
    assert_eq!(api.list("pods").len(), 1);
    controller.stop().await;
}

#[tokio::test]
async fn deleted_vm_is_removed_after_its_pod() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    let (pod, _runner) = running(&api, dir.path(), "one").await;
    api.delete("virtualmachines", "one", true);
    api.wait("the pod's deletion", |api| {
        api.get("pods", &pod)?["metadata"]
            .get("deletionTimestamp")
            .cloned()
    })
    .await;
    assert!(
        api.get("virtualmachines", "one").is_some(),
        "the finalizer holds it"
    );
    api.delete("pods", &pod, false);
    api.wait("the end", |api| {
        api.get("virtualmachines", "one").is_none().then_some(())
    })
    .await;
    api.create("virtualmachines", vm("one"));
    assert_ne!(
        api.wait_pod("one").await,
        pod,
        "the next of its name is another VM"
    );
    controller.stop().await;
}

#[tokio::test]
async fn object_deleted_while_unwatched_is_forgotten() {
    let (api, dir) = (
        FakeApi::start().await,
        tempfile::tempdir().expect("a directory"),
    );
    api.create("virtualmachines", vm("one"));
    let controller = Controller::start(&api, dir.path());
    let (_, _runner) = running(&api, dir.path(), "one").await;
    let known = |name: &str| controller.state.dump()[0]["vms"].get(name).is_some();
    assert!(known("default/one"));
    // The server loses its history: the watch cannot go on from where it was.
    api.refuse("WATCH /apis/vm.neon.tech/v1/virtualmachines", 1, 410);
    api.set_down(true);
    api.delete("virtualmachines", "one", false);
    api.create("virtualmachines", vm("two"));
    api.set_down(false);
    api.wait_pod("two").await;
    let forgotten = async {
        while known("default/one") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(support::DEADLINE, forgotten)
        .await
        .expect("forgotten in time");
    controller.stop().await;
}
