//! A whole rollout: from its start to its end, and the writes that it takes.

use std::time::{Duration, Instant};

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use fleet::{Location, Metrics, Params, Pulses};
use fleet_store::{Programs, deployment_object, environment_object, revision_object};
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, EnvironmentSpec, Resolved, RevisionData, Rollout,
};
use protocol::parts::PartName;
use serde_json::{Map, Value, json};
use test_api::TestApi;
use tokio_util::sync::CancellationToken;

use crate::played;

/// Time after which a rollout counts as stuck.
const PATIENCE: Duration = Duration::from_secs(3_600);
/// Time in which nothing is to be written.
const IDLE: Duration = Duration::from_secs(70);

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

fn put_rollout(api: &TestApi, sha256: String) {
    let spec = EnvironmentSpec {
        rollout: Rollout {
            min_healthy_percent: 90,
            max_in_flight: 1_000,
            trial_seconds: 20,
            ..Rollout::default()
        },
        ..EnvironmentSpec::of_release(PartName::Monitor, "1.1.0")
    };
    let environment = environment_object("default", "m", &spec);
    let resolved = Resolved {
        version: "1.1.0".to_owned(),
        sha256,
        bundle: String::new(),
    };
    let data = RevisionData { spec, resolved };
    api.put(
        "controllerrevisions",
        revision_object(&environment, 1, &data),
    );
    api.put("fleetenvironments", environment);
    let deployment = DeploymentSpec {
        environment: "m".to_owned(),
        revision: "m-r1".to_owned(),
        kind: DeploymentKind::User,
        instances: Vec::new(),
        rollback_of: String::new(),
        reason: String::new(),
        stop: false,
        tick: None,
    };
    let mut deployment = deployment_object("default", "m-d", &deployment);
    deployment["metadata"]["creationTimestamp"] = json!("2026-01-05T12:00:00Z");
    api.put("fleetdeployments", deployment);
}

fn writes(api: &TestApi) -> usize {
    let of = |verb| api.count(verb, |_| true);
    of("PUT ") + of("PATCH ") + of("POST ")
}

pub(crate) async fn figures(guests: usize) -> Map<String, Value> {
    let folder = tempfile::tempdir().expect("a folder");
    let api = TestApi::start().await;
    played::serve_page().await;
    for number in 0..guests {
        played::serve(folder.path(), &format!("vm-{number}"));
        api.put("virtualmachines", vm(number));
    }
    let content = b"a program".to_vec();
    let programs = Programs::of_state_dir(folder.path());
    let sha256 = programs.keep_content(&content).expect("kept");
    put_rollout(&api, sha256);
    let token = CancellationToken::new();
    let params = Params {
        client: api.client(),
        clock: Clock::new(),
        state_dir: folder.path().to_owned(),
        stages: StageLog::new(16),
        metrics: Metrics::default(),
        journal: None,
        location: Location::Machine,
        pulses: Pulses::default(),
        schedules: false,
    };
    let begun = Instant::now();
    let driver = tokio::spawn(fleet::run(params, token.clone()));
    let ended = loop {
        let deployment = api.get("fleetdeployments", "default", "m-d");
        let status = deployment.expect("it is there")["status"].clone();
        if status["endedAt"].is_string() {
            break status;
        }
        assert!(begun.elapsed() < PATIENCE, "{status}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let took = begun.elapsed();
    assert_eq!(ended["state"], "Complete", "{ended}");
    let of_rollout = writes(&api);
    tokio::time::sleep(IDLE).await;
    let idle = writes(&api) - of_rollout;
    token.cancel();
    driver.await.expect("it ends");
    let count = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    [
        ("rollout_s".to_owned(), json!(took.as_secs_f64())),
        (
            "writes_per_guest".to_owned(),
            json!(count(of_rollout) / count(guests)),
        ),
        ("idle_writes".to_owned(), json!(count(idle))),
    ]
    .into_iter()
    .collect()
}
