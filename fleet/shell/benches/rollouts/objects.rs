//! Objects of a fleet: VMs, an environment, its revisions and deployments.

use std::path::Path;
use std::time::Instant;

use fleet_store::{Programs, deployment_object, environment_object, revision_object};
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, EnvironmentSpec, Resolved, RevisionData, Rollout,
};
use protocol::parts::PartName;
use serde_json::{Value, json};
use test_api::TestApi;

use crate::played::{self, Tries};

/// An API server, guests and an environment.
pub(crate) struct Fleet {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) api: TestApi,
    pub(crate) tries: Tries,
    spec: EnvironmentSpec,
    environment: Value,
}

impl Fleet {
    pub(crate) async fn start(guests: usize) -> Self {
        let spec = EnvironmentSpec {
            rollout: Rollout {
                min_healthy_percent: 90,
                max_in_flight: 1_000,
                trial_seconds: 20,
                ..Rollout::default()
            },
            ..EnvironmentSpec::of_release(PartName::Monitor, "1.1.0")
        };
        let fleet = Self {
            folder: tempfile::tempdir().expect("a folder"),
            api: TestApi::start().await,
            tries: Tries::default(),
            environment: environment_object("default", "m", &spec),
            spec,
        };
        for number in 0..guests {
            played::serve(fleet.path(), &format!("vm-{number}"), &fleet.tries);
            fleet.api.put("virtualmachines", vm(number));
        }
        fleet
            .api
            .put("fleetenvironments", fleet.environment.clone());
        fleet
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Begins a deployment of a new program. Returns its name and its begin.
    pub(crate) fn deploy(&self, number: i64) -> (String, Instant) {
        let programs = Programs::of_state_dir(self.path());
        let content = format!("program {number}");
        let resolved = Resolved {
            version: "1.1.0".to_owned(),
            sha256: programs.keep_content(content.as_bytes()).expect("kept"),
            bundle: String::new(),
        };
        let spec = self.spec.clone();
        let data = RevisionData { spec, resolved };
        let revision = revision_object(&self.environment, number, &data);
        self.api.put("controllerrevisions", revision);
        let spec = DeploymentSpec::new("m", format!("m-r{number}"), DeploymentKind::User);
        let name = format!("m-d{number}");
        let mut deployment = deployment_object("default", &name, &spec);
        let created = format!("2026-01-05T12:{:02}:{:02}Z", number / 60, number % 60);
        deployment["metadata"]["creationTimestamp"] = json!(created);
        let begun = Instant::now();
        self.api.put("fleetdeployments", deployment);
        (name, begun)
    }

    pub(crate) fn stop(&self, deployment: &str) {
        self.api
            .edit("fleetdeployments", "default", deployment, |object| {
                object["spec"]["stop"] = json!(true);
            });
    }

    /// Status of a deployment that has ended.
    pub(crate) fn ended(&self, deployment: &str) -> Option<Value> {
        let object = self.api.get("fleetdeployments", "default", deployment)?;
        let status = object["status"].clone();
        status["endedAt"].is_string().then_some(status)
    }
}

fn vm(number: usize) -> Value {
    let name = format!("vm-{number}");
    json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"guest": {
            "cpus": {"min": "250m", "max": 1, "use": "250m"},
            "memorySlotSize": "1Gi", "memorySlots": {"min": 1, "max": 4, "use": 1},
            "rootDisk": {"image": "image"},
        }},
        "status": {
            "phase": "Running", "podName": name, "podIP": played::PAGE_ADDRESS,
            "node": format!("node-{number}"),
        },
    })
}
