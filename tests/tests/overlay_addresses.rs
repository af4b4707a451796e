//! Overlay addresses of VMs: the controller and IPPool objects on an API server, ours and
//! Kubernetes' own.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bellows_tests::api::{Api, Flavour, attachment_kind};
use bellows_tests::patience::wait_for;
use bellows_tests::process::Process;
use bellows_tests::program;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const POOL: &str = "neonvm-10.100.0.0-16";

struct Scene {
    api: Api,
}

impl Scene {
    fn apply(&self, object: &Value) {
        let file = self.api.file("object.json", &object.to_string()).unwrap();
        self.api.kubectl(&["apply", "-f", &file]).unwrap();
    }

    fn set(api: Api) -> Self {
        let scene = Self { api };
        scene.api.add_kind(&attachment_kind()).unwrap();
        let config = json!({
            "cniVersion": "0.3.1", "name": "overlay", "type": "bridge",
            "ipam": {"network_name": "neonvm", "ipRanges": [
                {"range": "10.100.0.0/16", "range_start": "10.100.128.1"},
            ]},
        });
        scene.apply(&json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "overlay-ipam", "namespace": scene.api.namespace},
            "spec": {"config": config.to_string()},
        }));
        scene
    }

    fn controller(&self, dir: &Path) -> Process {
        let namespace = self.api.namespace.as_str();
        let mut command = Command::new(program("neonvm-controller"));
        command
            .args(["--runner-image", "runner:test", "--listen", "127.0.0.1:0"])
            .args([
                "--nad-ipam-name",
                "overlay-ipam",
                "--nad-ipam-namespace",
                namespace,
            ])
            .args([
                "--nad-runner-name",
                "overlay-for-vms",
                "--nad-runner-namespace",
                namespace,
            ])
            .arg("--state-dir")
            .arg(dir)
            .env("KUBECONFIG", self.api.for_the_controller(dir).unwrap());
        let log = File::create(dir.join("controller.log")).unwrap();
        Process::start(&mut command, log).unwrap()
    }

    fn make(&self, name: &str) {
        let mut vm = self.api.vm(name);
        vm["spec"]["extraNetwork"] = json!({"enable": true});
        self.apply(&vm);
    }

    fn get(&self, kind: &str, name: &str) -> Result<Value, String> {
        let text = self.api.kubectl(&["get", kind, name, "-o", "json"]);
        let text = text.map_err(|error| format!("{error:#}"))?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    /// The VM has this address, and a pod that is annotated for multus.
    async fn has(&self, name: &str, address: &str) {
        let given = wait_for("an address", PATIENCE, || async {
            let vm = self.get("neonvm", name)?;
            let status = &vm["status"];
            let as_due = status["extraNetIP"] == address && status["extraNetMask"] == "255.255.0.0";
            let pod = status["podName"].as_str().unwrap_or_default();
            if !as_due || pod.is_empty() {
                return Err(status.to_string());
            }
            let pod = self.get("pod", pod)?;
            let networks = &pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"];
            Ok(networks.as_str().unwrap_or_default().to_owned())
        });
        let expected = format!("{}/overlay-for-vms@net1", self.api.namespace);
        assert_eq!(given.await.unwrap(), expected);
    }

    /// Waits until the pool holds these addresses, by their last numbers.
    async fn held(&self, expected: &[(&str, &str)]) {
        let namespace = &self.api.namespace;
        let expected: Vec<(String, String)> = expected
            .iter()
            .map(|(offset, vm)| ((*offset).to_owned(), format!("{namespace}/{vm}")))
            .collect();
        let is = wait_for("the pool", PATIENCE, || async {
            let pool = self.get("ippool", POOL)?;
            let all = pool["spec"]["allocations"].as_object();
            let all = all.into_iter().flatten();
            let held: Vec<(String, String)> = all
                .map(|(offset, by)| {
                    let id = by["id"].as_str().unwrap_or_default();
                    (offset.clone(), id.to_owned())
                })
                .collect();
            (held == expected).then_some(()).ok_or(pool.to_string())
        });
        is.await.unwrap();
    }
}

async fn from_address_to_address(flavour: Flavour, test: &str) {
    let Some(api) = Api::start_or_skip(flavour, test).await.unwrap() else {
        return;
    };
    let scene = Scene::set(api);
    let dir = tempfile::tempdir().unwrap();
    let _controller = scene.controller(dir.path());
    scene.make("one");
    scene.has("one", "10.100.128.1").await;
    scene.make("two");
    scene.has("two", "10.100.128.2").await;
    scene.held(&[("32769", "one"), ("32770", "two")]).await;
    let delete = ["delete", "neonvm", "one", "--timeout=60s"];
    scene.api.kubectl(&delete).unwrap();
    scene.held(&[("32770", "two")]).await;
    scene.make("three");
    scene.has("three", "10.100.128.1").await;
    scene.held(&[("32769", "three"), ("32770", "two")]).await;
}

/// Requirement: N17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vms_get_overlay_addresses_on_our_server() {
    let test = "vms_get_overlay_addresses_on_our_server";
    from_address_to_address(Flavour::Embedded, test).await;
}

/// Requirement: N17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vms_get_overlay_addresses_on_kubernetes() {
    let test = "vms_get_overlay_addresses_on_kubernetes";
    from_address_to_address(Flavour::Kubernetes, test).await;
}
