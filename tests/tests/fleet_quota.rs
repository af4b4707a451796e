//! A namespace may have as many environments of the fleet as its quota says, in a real control
//! plane. Its quota controller counts them.

use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Result, ensure};
use bellows_tests::bellows_bin;
use bellows_tests::cluster::{ControlPlane, Lifetime, Tier, cluster_or_skip};
use bellows_tests::patience::wait_for;
use serde_json::{Value, json};

/// The controller looks for new kinds every 30 s. It counts a quota anew every 5 min.
const PATIENCE: Duration = Duration::from_secs(180);
const TENANT: &str = "tenant";
const NEIGHBOUR: &str = "neighbour";
const QUOTA: &str = "count/fleetenvironments.fleet.bellows.dev";
const MOST: usize = 50;

fn object(kind: &str, name: &str, namespace: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "fleet.bellows.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": namespace}, "spec": spec,
    })
}

fn environments() -> Value {
    let spec = json!({"part": "monitor", "source": {"channel": "stable"}});
    let names = (1..=MOST).map(|number| format!("e{number}"));
    let items = names.map(|name| object("FleetEnvironment", &name, TENANT, spec.clone()));
    json!({"apiVersion": "v1", "kind": "List", "items": items.collect::<Vec<_>>()})
}

fn used(plane: &ControlPlane) -> Result<String> {
    let path = format!("jsonpath={{.status.used.{}}}", QUOTA.replace('.', "\\."));
    plane.ask(&["get", "resourcequota", "fleet", "-n", TENANT, "-o", &path])
}

/// Makes the quota until the controller, which knows its kind by then, counts it at once.
async fn until_counted(plane: &ControlPlane) -> Result<()> {
    let hard = format!("--hard={QUOTA}={MOST}");
    wait_for("that the quota is counted", PATIENCE, || async {
        let again = [
            "delete",
            "quota",
            "fleet",
            "-n",
            TENANT,
            "--ignore-not-found",
        ];
        let make = ["create", "quota", "fleet", &hard, "-n", TENANT];
        let made = plane.ask(&again).and_then(|_| plane.ask(&make));
        made.map_err(|error| format!("{error:#}"))?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        match used(plane) {
            Ok(text) if text == "0" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// The command that makes an environment, as a tenant gives it. Its selector has no other's VMs.
fn create(plane: &ControlPlane, namespace: &str, name: &str) -> Result<Output> {
    let mut command = Command::new(bellows_bin());
    command.args(["fleet", "env", "create", name, "-n", namespace]);
    command.args(["--part", "monitor", "--channel", "stable"]);
    let selector = format!("for={name}");
    command.args(["--selector", &selector, "--kubeconfig"]);
    Ok(command.arg(plane.kubeconfig()).output()?)
}

async fn until_used(plane: &ControlPlane, count: usize) -> Result<()> {
    let what = format!("that the quota counts {count}");
    wait_for(&what, PATIENCE, || async {
        match used(plane) {
            Ok(text) if text == count.to_string() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Requirement: B47
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quota_of_a_namespace_refuses_the_51st_environment() -> Result<()> {
    let Some(programs) = cluster_or_skip("quota_of_a_namespace_refuses_the_51st_environment")
    else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let plane = ControlPlane::start(programs, dir.path(), Tier::Full, Lifetime::WithUs).await?;
    plane.install_kinds()?;
    for namespace in [TENANT, NEIGHBOUR] {
        plane.namespace(namespace).await?;
        let channel = json!({
            "url": "https://releases.example/", "name": "stable",
            "root": r#"{"signed": {"_type": "root"}}"#,
        });
        let channel = object("FleetChannel", "stable", namespace, channel);
        plane.apply(&channel.to_string())?;
    }
    until_counted(&plane).await?;
    plane.apply(&environments().to_string())?;
    until_used(&plane, MOST).await?;

    let refused = create(&plane, TENANT, "e51")?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(1), "{refused:?}");
    for part in [
        "exceeded quota: fleet",
        &format!("limited: {QUOTA}={MOST}"),
        "kubectl describe quota -n tenant",
    ] {
        ensure!(said.contains(part), "no {part:?} in {said}");
    }
    let count = plane.ask(&["get", "fleetenvironments", "-n", TENANT, "-o", "name"])?;
    ensure!(count.lines().count() == MOST, "{count}");
    // The quota is that namespace's alone.
    let other = create(&plane, NEIGHBOUR, "e51")?;
    ensure!(other.status.success(), "{other:?}");

    plane.ask(&["delete", "fleetenvironment", "e1", "-n", TENANT])?;
    wait_for("place for another", PATIENCE, || async {
        match create(&plane, TENANT, "e51") {
            Ok(made) if made.status.success() => Ok(()),
            made => Err(format!("{made:?}")),
        }
    })
    .await
}
