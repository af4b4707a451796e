//! Our components on the objects of a real Kubernetes: it accepts the controller's pods, its
//! kube-scheduler and our extender place them, and a permit reaches the pod from the VM. Without a
//! kubelet nothing runs.

use std::process::Command;
use std::time::Duration;

use bellows_tests::cluster::{ControlPlane, Lifetime, Pair, Tier, cluster_or_skip};
use bellows_tests::patience::wait_for;
use bellows_tests::process::Process;
use bellows_tests::program;
use bellows_tests::site::vm_resource;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(90);
const APPROVED: &str = "internal.autoscaling.neon.tech/resources-approved";

/// Waits until the only pod of the VM is as it should be.
async fn pod_that(
    pods: &Api<Pod>,
    what: &str,
    holds: impl Fn(&Pod) -> bool,
    log: impl Fn() -> String,
) -> Pod {
    let found = wait_for(what, PATIENCE, || async {
        let mine = ListParams::default().labels("vm.neon.tech/name=pg");
        let list = pods.list(&mine).await.map_err(|error| error.to_string())?;
        let mut found = list.items.into_iter();
        let pod = found.next().ok_or_else(|| "there is no pod".to_owned())?;
        if holds(&pod) {
            Ok(pod)
        } else {
            Err(format!("{:?} {:?}", pod.metadata.annotations, pod.status))
        }
    });
    found
        .await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", log()))
}

/// Requirement: N17. From the VM's object to a placed pod, from a permit to the pod's annotation,
/// and away again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controller_and_the_scheduler_work_on_a_real_kubernetes() {
    let test = "the_controller_and_the_scheduler_work_on_a_real_kubernetes";
    let Some(programs) = cluster_or_skip(test) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let started = ControlPlane::start(programs, dir.path(), Tier::Api, Lifetime::WithUs);
    let mut plane = started.await.unwrap();
    plane.install_kinds().unwrap();
    plane.namespace("default").await.unwrap();
    plane.node("n1", 4, 16).await.unwrap();
    let pair = Pair::start(&mut plane, &program("autoscale-scheduler")).unwrap();
    let log_path = dir.path().join("log/controller.log");
    let mut command = Command::new(program("neonvm-controller"));
    command
        .args(["--runner-image", "runner:test", "--listen", "127.0.0.1:0"])
        .args(["--leader-elect", "--lease-namespace", "kube-system"])
        .arg("--state-dir")
        .arg(dir.path().join("runners"))
        .env("KUBECONFIG", plane.kubeconfig());
    let _controller =
        Process::start(&mut command, std::fs::File::create(&log_path).unwrap()).unwrap();
    let log = || {
        let text = std::fs::read_to_string(&log_path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    };

    let client = plane.client().await.unwrap();
    let vms: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &vm_resource());
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let vm = json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": "pg", "labels": {"autoscaling.neon.tech/enabled": "true"}},
        "spec": {"schedulerName": "autoscale-scheduler", "guest": {
            "cpus": {"min": "250m", "use": 1, "max": 4}, "memorySlots": {"min": 1, "use": 1, "max": 8},
            "rootDisk": {"image": "pg:16"}, "ports": [{"port": 5432}]}}});
    let vm = serde_json::from_value(vm).unwrap();
    vms.create(&PostParams::default(), &vm).await.unwrap();
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let pod = pod_that(&pods, "a placed pod", |pod| node(pod).is_some(), log).await;
    assert_eq!(node(&pod).as_deref(), Some("n1"));
    let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.name.as_str()),
        ("VirtualMachine", "pg")
    );

    let name = pod.metadata.name.clone().unwrap();
    let url = format!("http://{}/", pair.permits);
    let ask = json!({"protoVersion": 7, "pod": {"namespace": "default", "name": name},
        "computeUnit": {"vCPUs": "250m", "mem": "1Gi"}, "resources": {"vCPUs": 2, "mem": "4Gi"},
        "lastPermit": null, "metrics": null});
    let answer = reqwest::Client::new().post(&url).body(ask.to_string());
    let answer = answer.send().await.unwrap();
    let permit: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert_eq!(permit, json!({"permit": {"vCPUs": 2, "mem": "4Gi"}}));
    let approved = r#"{"vCPUs":2,"mem":"4Gi"}"#;
    let noted = |pod: &Pod| {
        let notes = pod.metadata.annotations.as_ref();
        notes.and_then(|notes| notes.get(APPROVED).cloned())
    };
    let has_it = |pod: &Pod| noted(pod).as_deref() == Some(approved);
    pod_that(&pods, "the permit on the pod", has_it, log).await;

    let vm = vms.get("pg").await.unwrap();
    assert_eq!(vm.data["status"]["podName"], json!(name));
    assert_eq!(vm.data["status"]["phase"], "Pending", "nothing runs it");

    vms.delete("pg", &DeleteParams::default()).await.unwrap();
    let gone = wait_for("an end of the VM", PATIENCE, || async {
        // A kubelet would end the pod, and Kubernetes' controllers the objects that the VM owns.
        let now = DeleteParams::default().grace_period(0);
        let _ended = pods.delete(&name, &now).await;
        match vms.get_opt("pg").await.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(vm) => Err(format!("{:?}", vm.metadata.finalizers)),
        }
    });
    gone.await
        .unwrap_or_else(|error| panic!("{error:#}\n{}", log()));
}
