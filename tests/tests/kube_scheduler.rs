//! The deployed pair: an unmodified kube-scheduler and our process as its extender, against a real
//! API server. Tests create the node objects, and check where pods are bound.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bellows_tests::cluster::{ControlPlane, Lifetime, Pair, Programs, Tier, cluster_or_skip};
use bellows_tests::patience::wait_for;
use bellows_tests::process::Process;
use bellows_tests::program;
use bellows_tests::site::vm_resource;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// A Lease whose holder was killed lasts 15 s, and the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(90);

/// A control plane with the pair and nodes of 4 CPUs and 16 GiB.
struct World {
    plane: ControlPlane,
    pair: Pair,
    pods: Api<Pod>,
    vms: Api<DynamicObject>,
    _dir: tempfile::TempDir,
}

impl World {
    async fn start(programs: Programs, nodes: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let started = ControlPlane::start(programs, dir.path(), Tier::Api, Lifetime::WithUs);
        let mut plane = started.await.unwrap();
        plane.install_kinds().unwrap();
        plane.namespace("default").await.unwrap();
        for node in nodes {
            plane.node(node, 4, 16).await.unwrap();
        }
        let pair = Pair::start(&mut plane, &program("autoscale-scheduler")).unwrap();
        let client = plane.client().await.unwrap();
        Self {
            plane,
            pair,
            pods: Api::namespaced(client.clone(), "default"),
            vms: Api::namespaced_with(client, "default", &vm_resource()),
            _dir: dir,
        }
    }

    /// Creates a VM of `cpus` CPUs, and its pod as the controller creates it: without requests.
    async fn vm(&self, name: &str, cpus: u32) {
        self.vm_since(name, cpus, cpus).await;
    }

    /// Creates a VM whose pod records the size at its start.
    async fn vm_since(&self, name: &str, cpus: u32, first: u32) {
        self.vm_of_class(name, cpus, first, None).await;
    }

    /// Creates a VM of a priority class.
    async fn vm_of_class(&self, name: &str, cpus: u32, first: u32, class: Option<&str>) {
        let guest = |cpus: u32| {
            json!({"cpus": {"min": 1, "use": cpus, "max": 4}, "memorySlotSize": "1Gi",
                "memorySlots": {"min": 1, "use": cpus, "max": 8}, "rootDisk": {"image": "pg:16"}})
        };
        let labels = json!({"autoscaling.neon.tech/enabled": "true"});
        let vm = json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
            "metadata": {"name": name, "labels": labels}, "spec": {"guest": guest(cpus)}});
        let params = PostParams::default();
        let vm = serde_json::from_value(vm).unwrap();
        let vm: DynamicObject = self.vms.create(&params, &vm).await.unwrap();
        let mut guest = guest(first);
        guest.as_object_mut().unwrap().remove("rootDisk");
        let pod = json!({"metadata": {"name": name,
                "labels": {"autoscaling.neon.tech/enabled": "true", "vm.neon.tech/name": name},
                "annotations": {"vm.neon.tech/resources": guest.to_string()},
                "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": name,
                    "uid": vm.metadata.uid, "controller": true}]},
            "spec": {"schedulerName": "autoscale-scheduler", "priorityClassName": class,
                "containers": [{"name": "runner", "image": "runner"}]}});
        let pod = serde_json::from_value(pod).unwrap();
        self.pods.create(&params, &pod).await.unwrap();
    }

    /// Creates a pod without a VM that requests CPUs.
    async fn pod(&self, name: &str, cpus: u32, class: Option<&str>) {
        let pod = json!({"metadata": {"name": name},
            "spec": {"schedulerName": "autoscale-scheduler", "priorityClassName": class,
                "containers": [{"name": "work", "image": "work",
                    "resources": {"requests": {"cpu": cpus, "memory": "1Gi"}}}]}});
        let pod = serde_json::from_value(pod).unwrap();
        let params = PostParams::default();
        self.pods.create(&params, &pod).await.unwrap();
    }

    /// Waits until a pod is terminating.
    async fn ends(&self, pod: &str) {
        let what = format!("the end of {pod}");
        let found = wait_for(&what, PATIENCE, || async {
            let pod = self.pods.get(pod).await;
            let pod = pod.map_err(|error| error.to_string())?;
            let end = pod.metadata.deletion_timestamp;
            end.map(|_| ())
                .ok_or_else(|| "nobody deleted it".to_owned())
        });
        found
            .await
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()))
    }

    /// Shrinks a VM to `cpus` CPUs, as its agent writes it.
    async fn resize(&self, name: &str, cpus: u32) {
        let resources = json!({"vCPUs": cpus, "mem": format!("{cpus}Gi")}).to_string();
        let patch = json!({"metadata": {"annotations": {
                "internal.autoscaling.neon.tech/resources-requested": resources,
                "internal.autoscaling.neon.tech/resources-approved": resources}},
            "spec": {"guest": {"cpus": {"use": cpus}, "memorySlots": {"use": cpus}}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        self.vms.patch(name, &params, &patch).await.unwrap();
    }

    /// The message of a pod's condition.
    async fn condition(&self, pod: &str, kind: &str) -> Option<String> {
        let status = self.pods.get(pod).await.unwrap().status?;
        let mut conditions = status.conditions?.into_iter();
        conditions.find(|it| it.type_ == kind)?.message
    }

    async fn node_of(&self, pod: &str) -> Option<String> {
        self.pods.get(pod).await.unwrap().spec.unwrap().node_name
    }

    /// Node of a pod.
    async fn bound(&self, pod: &str) -> String {
        let what = format!("a node for {pod}");
        let found = wait_for(&what, PATIENCE, || async {
            let node = self.node_of(pod).await;
            node.ok_or_else(|| "it is bound nowhere".to_owned())
        });
        found
            .await
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()))
    }

    /// Why a pod is not bound.
    async fn refused(&self, pod: &str) -> String {
        let what = format!("a reason for {pod}");
        let found = wait_for(&what, PATIENCE, || async {
            let pod = self
                .pods
                .get(pod)
                .await
                .map_err(|error| error.to_string())?;
            let conditions = pod
                .status
                .unwrap_or_default()
                .conditions
                .unwrap_or_default();
            let mut found = conditions.into_iter().filter(|c| c.type_ == "PodScheduled");
            let message = found.find(|c| c.status == "False").and_then(|c| c.message);
            message.ok_or_else(|| "it says nothing".to_owned())
        });
        found
            .await
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()))
    }

    async fn delete(&self, pod: &str) {
        // There is no kubelet that would end it.
        let now = DeleteParams::default().grace_period(0);
        self.pods.delete(pod, &now).await.unwrap();
    }

    /// Waits until our process reports the CPUs on a node. The report may lag behind its decisions.
    async fn carries(&self, node: &str, cpu: u64) {
        let what = format!("{cpu} thousandths of a CPU on {node}");
        let shown = wait_for(&what, PATIENCE, || async {
            match self.reserved(node).await {
                shown if shown == cpu => Ok(()),
                other => Err(format!("it carries {other}")),
            }
        });
        shown
            .await
            .unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()));
    }

    /// CPUs that our process counts on a node, in thousandths.
    async fn reserved(&self, node: &str) -> u64 {
        let url = format!("http://{}/debug/state", self.pair.metrics);
        let state: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
        state["nodes"][node]["reserved"]["cpu"]
            .as_u64()
            .unwrap_or(0)
    }

    fn logs(&self) -> String {
        let log = |name: &str| {
            let path = self.plane.dir().join("log").join(format!("{name}.log"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n")
        };
        format!("{}\n{}", log("kube-scheduler"), log("autoscale-scheduler"))
    }
}

/// Requirement: N06. Two nodes accept one VM of 3 CPUs each although its pod requests nothing. The
/// third waits, with a reason in the words of the deployed plugin, and is placed when capacity
/// becomes free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_node_sends_pods_to_the_other_and_then_they_wait() {
    let test = "a_full_node_sends_pods_to_the_other_and_then_they_wait";
    let Some(programs) = cluster_or_skip(test) else {
        return;
    };
    let world = World::start(programs, &["n1", "n2"]).await;
    world.vm("a", 3).await;
    let first = world.bound("a").await;
    world.vm_since("b", 3, 1).await;
    let second = world.bound("b").await;
    assert_ne!(first, second);
    world.vm("c", 3).await;
    let why = world.refused("c").await;
    assert!(why.contains("0/2 nodes are available"), "{why}");
    assert!(why.contains("2 Not enough resources for Pod"), "{why}");
    assert_eq!(world.node_of("c").await, None);
    // The free capacity of each node suffices for this one.
    world.vm("d", 1).await;
    world.bound("d").await;
    world.delete("a").await;
    assert_eq!(world.bound("c").await, first);
    // A shrink of a VM is no event for kube-scheduler, so the waiting pod is touched.
    world.vm("e", 2).await;
    let why = world.refused("e").await;
    assert!(why.contains("2 Not enough resources for Pod"), "{why}");
    world.resize("b", 1).await;
    assert_eq!(world.bound("e").await, second);
    let message = world
        .condition("e", "autoscaling.neon.tech/room-appeared")
        .await;
    assert!(message.is_some_and(|message| message.starts_with(&format!("node {second} has room"))));
    for node in ["n1", "n2"] {
        let reserved = world.reserved(node).await;
        assert!(reserved <= 4_000, "{node} carries {reserved}");
    }
}

/// Requirement: N16. Whichever of the pair dies, pods that come meanwhile wait and are bound after,
/// and no node carries more than it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placement_continues_after_either_of_the_pair_is_killed() {
    let test = "placement_continues_after_either_of_the_pair_is_killed";
    let Some(programs) = cluster_or_skip(test) else {
        return;
    };
    let mut world = World::start(programs, &["n1", "n2"]).await;
    world.vm("a", 3).await;
    let first = world.bound("a").await;

    world.pair.kill_kubes(&mut world.plane).unwrap();
    world.vm("b", 3).await;
    world.pair.start_kubes(&mut world.plane).unwrap();
    assert_ne!(world.bound("b").await, first);

    world.pair.kill_ours();
    world.vm("c", 1).await;
    // Asked and not answered is no yes.
    let why = world.refused("c").await;
    assert!(!why.is_empty());
    assert_eq!(world.node_of("c").await, None);
    world.pair.start_ours(&world.plane).unwrap();
    world.bound("c").await;
    world.vm("d", 3).await;
    let why = world.refused("d").await;
    assert!(why.contains("Not enough resources for Pod"), "{why}");
    for node in ["n1", "n2"] {
        let reserved = world.reserved(node).await;
        assert!(
            (3_000..=4_000).contains(&reserved),
            "{node} carries {reserved}"
        );
    }
}

/// Requirement: N06. A pod of a higher priority preempts lower ones. kube-scheduler finds the
/// victim by its own rules, our process adds the VM that must end by its ledger, and no pod is
/// bound before both are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_of_higher_priority_takes_the_place_of_others_and_of_no_more_than_it_needs() {
    let test = "a_pod_of_higher_priority_takes_the_place_of_others_and_of_no_more_than_it_needs";
    let Some(programs) = cluster_or_skip(test) else {
        return;
    };
    let world = World::start(programs, &["n1"]).await;
    let class = json!({"metadata": {"name": "urgent"}, "value": 1000});
    let class: PriorityClass = serde_json::from_value(class).unwrap();
    let client = world.plane.client().await.unwrap();
    let classes: Api<PriorityClass> = Api::all(client);
    let params = PostParams::default();
    classes.create(&params, &class).await.unwrap();

    world.vm_of_class("vital", 1, 1, Some("urgent")).await;
    world.bound("vital").await;
    world.vm("lesser", 1).await;
    world.bound("lesser").await;
    world.pod("least", 2, None).await;
    world.bound("least").await;
    // By requests 2 of 4 CPUs are used, by the ledger all.
    world.pod("urgent", 3, Some("urgent")).await;
    world.ends("least").await;
    world.ends("lesser").await;
    // They stay on the node until a kubelet reports their end.
    for gone in ["least", "lesser"] {
        assert_eq!(world.node_of("urgent").await, None, "{gone} is there yet");
        let reserved = world.reserved("n1").await;
        assert!(reserved <= 4_000, "n1 carries {reserved}");
        world.delete(gone).await;
    }
    assert_eq!(world.bound("urgent").await, "n1");
    world.carries("n1", 4_000).await;
    let vital = world.pods.get("vital").await.unwrap();
    assert_eq!(vital.metadata.deletion_timestamp, None);
}

/// Requirement: N08. Permits and bindings use one ledger, even in two processes: granted capacity
/// is not given to a pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn granted_capacity_is_not_given_to_a_pod() {
    let test = "granted_capacity_is_not_given_to_a_pod";
    let Some(programs) = cluster_or_skip(test) else {
        return;
    };
    let world = World::start(programs, &["n1"]).await;
    world.vm("a", 1).await;
    world.bound("a").await;
    let unit = json!({"vCPUs": "250m", "mem": "1Gi"});
    let ask = json!({"protoVersion": 7, "pod": {"namespace": "default", "name": "a"}, "computeUnit": unit,
        "resources": {"vCPUs": 3, "mem": "3Gi"}, "lastPermit": null, "metrics": null});
    let url = format!("http://{}/", world.pair.permits);
    let permit = wait_for("a permit", PATIENCE, || async {
        let client = reqwest::Client::new();
        let answer = client.post(&url).body(ask.to_string()).send().await;
        let answer = answer.map_err(|error| error.to_string())?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| error.to_string())?;
        if status == 200 { Ok(text) } else { Err(text) }
    });
    assert_eq!(
        permit.await.unwrap(),
        r#"{"permit":{"vCPUs":3,"mem":"3Gi"}}"#
    );
    let vm = world.vms.get("a").await.unwrap();
    let notes = vm.metadata.annotations.unwrap();
    let approved = &notes["internal.autoscaling.neon.tech/resources-approved"];
    assert_eq!(approved, r#"{"vCPUs":3,"mem":"3Gi"}"#);
    world.vm("b", 2).await;
    let why = world.refused("b").await;
    assert!(why.contains("1 Not enough resources for Pod"), "{why}");
    world.carries("n1", 3_000).await;
    assert_eq!(world.node_of("b").await, None);
}

/// Kubernetes' API server reviews tokens. An agent's token is valid for the pods of its node, and
/// no other token is valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubernetes_reviews_the_tokens_of_agents() {
    let test = "kubernetes_reviews_the_tokens_of_agents";
    let Some(programs) = cluster_or_skip(test) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let started = ControlPlane::start(programs, dir.path(), Tier::Api, Lifetime::WithUs);
    let plane = started.await.unwrap();
    plane.install_kinds().unwrap();
    for namespace in ["default", "kube-system"] {
        plane.namespace(namespace).await.unwrap();
    }
    let kubectl = |args: &[&str]| {
        let output = plane.kubectl().args(args).output().unwrap();
        let problem = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "kubectl {args:?}: {problem}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    // The rights that ship are enough.
    let shipped = bellows_tests::checkout().join("deploy/scheduler");
    kubectl(&["apply", "-k", shipped.to_str().unwrap()]);
    kubectl(&["create", "serviceaccount", "agent", "-n", "kube-system"]);
    let client = plane.client().await.unwrap();
    for (node, vm) in [("n1", "here"), ("n2", "there")] {
        plane.node(node, 4, 16).await.unwrap();
        running_vm(&client, vm, node).await;
    }
    let agents: Api<Pod> = Api::namespaced(client, "kube-system");
    let agent = json!({"metadata": {"name": "agent-1"}, "spec": {"serviceAccountName": "agent", "nodeName": "n1",
        "containers": [{"name": "agent", "image": "agent"}]}});
    let agent = serde_json::from_value(agent).unwrap();
    let agent = agents.create(&PostParams::default(), &agent).await.unwrap();
    let uid = agent.metadata.uid.unwrap();

    let own = kubectl(&[
        "create",
        "token",
        "autoscale-scheduler",
        "-n",
        "kube-system",
    ]);
    let kubeconfig = dir.path().join("scheduler.kubeconfig");
    std::fs::write(&kubeconfig, plane.token_kubeconfig(&own)).unwrap();
    let log = std::fs::File::create(dir.path().join("scheduler.log")).unwrap();
    let mut command = std::process::Command::new(program("autoscale-scheduler"));
    command
        .args(["--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0"])
        .args(["--takeover-wait-ms=0", "--token-review-audience=permits"])
        .arg("--token-review-users=system:serviceaccount:kube-system:agent")
        .env("KUBECONFIG", &kubeconfig);
    let mut scheduler = Process::start(&mut command, log).unwrap();
    let said: Value = serde_json::from_str(&scheduler.first_line().unwrap()).unwrap();
    let url = format!("http://{}/", said["permits"].as_str().unwrap());
    let unit = json!({"vCPUs": "250m", "mem": "1Gi"});
    let ask = async |token: &str, vm: &str| {
        let ask = json!({"protoVersion": 7, "pod": {"namespace": "default", "name": vm}, "computeUnit": unit,
            "resources": {"vCPUs": 2, "mem": "2Gi"}, "lastPermit": null, "metrics": null});
        let asked = wait_for("an answer", PATIENCE, || async {
            let sent = reqwest::Client::new().post(&url).bearer_auth(token);
            let answer = sent.body(ask.to_string()).send().await;
            let answer = answer.map_err(|error| error.to_string())?;
            let status = answer.status().as_u16();
            let text = answer.text().await.map_err(|error| error.to_string())?;
            // 503 until everything is listed; 404 until the pod is.
            if [503, 404].contains(&status) {
                return Err(text);
            }
            let told: Value = serde_json::from_str(&text).map_err(|_| text)?;
            Ok((
                status,
                told["reason"].as_str().unwrap_or_default().to_owned(),
            ))
        });
        asked.await.unwrap()
    };
    let account = |name: &str, namespace: &str, more: &[&str]| {
        let args = ["create", "token", name, "-n", namespace];
        kubectl(&[&args[..], more].concat())
    };
    let bound = [
        "--audience=permits",
        "--bound-object-kind=Pod",
        "--bound-object-name=agent-1",
        &format!("--bound-object-uid={uid}"),
    ];
    let on_node = account("agent", "kube-system", &bound);
    assert_eq!(ask(&on_node, "here").await, (200, String::new()));
    assert_eq!(ask(&on_node, "there").await, (403, "foreign_node".into()));
    let for_api = account("agent", "kube-system", &[]);
    assert_eq!(ask(&for_api, "here").await, (401, "wrong_audience".into()));
    let other = account("default", "default", &["--audience=permits"]);
    assert_eq!(ask(&other, "here").await, (403, "forbidden".into()));
    let forged = format!("{on_node}x");
    assert_eq!(ask(&forged, "here").await, (401, "bad_token".into()));
}

/// Creates a VM of 1 CPU, and its pod on a node.
async fn running_vm(client: &kube::Client, name: &str, node: &str) {
    let guest = json!({"cpus": {"min": 1, "use": 1, "max": 4}, "memorySlotSize": "1Gi",
        "memorySlots": {"min": 1, "use": 1, "max": 8}});
    let mut spec = guest.clone();
    spec["rootDisk"] = json!({"image": "pg:16"});
    let labels = json!({"autoscaling.neon.tech/enabled": "true"});
    let vm = json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "labels": labels}, "spec": {"guest": spec}});
    let vms: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &vm_resource());
    let vm = serde_json::from_value(vm).unwrap();
    let vm: DynamicObject = vms.create(&PostParams::default(), &vm).await.unwrap();
    let pod = json!({"metadata": {"name": name,
            "labels": {"autoscaling.neon.tech/enabled": "true", "vm.neon.tech/name": name},
            "annotations": {"vm.neon.tech/resources": guest.to_string()},
            "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": name,
                "uid": vm.metadata.uid, "controller": true}]},
        "spec": {"schedulerName": "autoscale-scheduler", "nodeName": node,
            "containers": [{"name": "runner", "image": "runner"}]}});
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
}
