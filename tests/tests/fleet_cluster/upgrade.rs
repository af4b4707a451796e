//! `helm upgrade` with the chart's hook, which asks whether the new control plane understands what
//! runs.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use bellows_tests::checkout;
use serde_json::json;

use super::deploy::edit;
use super::server::Server;
use super::{FLEET, SYSTEM, VMS, World};

const RELEASE: &str = "bellows";
const NAMESPACE: &str = "neonvm-system";
const HOOK: &str = "job/bellows-fleet-preflight";
/// Version of the chart in this checkout.
const OWN: &str = "0.1.0";
/// Version of a control plane that speaks no version of the monitors' link.
const FOREIGN: &str = "9.0.0";

struct Chart<'a> {
    world: &'a World,
    helm: &'a Path,
    authority: &'a str,
}

impl Chart<'_> {
    fn helm(&self, verb: &str, chart: &Path, words: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.helm);
        command.args([verb, RELEASE]).arg(chart);
        command.args(["--namespace", NAMESPACE, "--timeout", "300s"]);
        let authority = format!("fleet.authority={}", json!(self.authority));
        command.args(["--set-json", &authority, "--set", "fleet.enabled=true"]);
        command.args(["--set", "policyController.enabled=false"]);
        command.arg("--kubeconfig");
        command.arg(self.world.cluster.plane().kubeconfig());
        command.env("HOME", self.world.cluster.plane().dir());
        Ok(command.args(words).output()?)
    }

    fn revision(&self) -> Result<String> {
        let label = format!("owner=helm,name={RELEASE},status=deployed");
        let words = [
            "get", "secrets", "-n", NAMESPACE, "-l", &label, "-o", "name",
        ];
        Ok(self.world.kubectl(&words)?.trim().to_owned())
    }
}

/// The parts that the manifests made become a release of Helm. An upgrade that guests survive
/// passes, and one to a control plane that does not understand their monitors changes nothing.
///
/// Requirement: R12
pub(super) async fn chart_asks_before_an_upgrade(
    world: &World,
    server: &Server,
    helm: &Path,
) -> Result<()> {
    let (authority, own) = (&server.authority, checkout().join("deploy/chart/bellows"));
    let chart = Chart {
        world,
        helm,
        authority,
    };
    let installed = chart.helm("install", &own, &["--take-ownership"])?;
    ensure!(installed.status.success(), "{installed:?}");

    let upgraded = chart.helm("upgrade", &own, &["--set", "mode=grow"])?;
    ensure!(upgraded.status.success(), "{upgraded:?}: all is understood");
    let before = chart.revision()?;
    ensure!(before.ends_with(".v2"), "{before}");
    let left = world.kubectl(&["get", "jobs", "-n", SYSTEM, "-o", "name"])?;
    ensure!(left.is_empty(), "{left}: the hook that passed is deleted");

    world.publisher.release_foreign(FOREIGN).await?;
    let image = |version: &str| format!("docker.io/bellows/{FLEET}:{version}");
    world.cluster.tag(&image(OWN), &image(FOREIGN))?;
    let folder = tempfile::tempdir()?;
    let foreign = folder.path().join("bellows");
    let copied = Command::new("cp")
        .arg("-r")
        .args([&own, &foreign])
        .status()?;
    ensure!(copied.success(), "cp: {copied}");
    let version = |version: &str| format!("appVersion: \"{version}\"");
    let own = version(OWN);
    edit(&foreign.join("Chart.yaml"), &[(&own, version(FOREIGN))])?;
    let refused = chart.helm("upgrade", &foreign, &["--set", "mode=observe"])?;
    ensure!(!refused.status.success(), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(said.contains("pre-upgrade hooks failed"), "{said}");
    let log = world.kubectl(&["logs", "-n", SYSTEM, HOOK])?;
    for vm in VMS {
        let named = format!("default/vm-{vm} monitor: ");
        ensure!(log.contains(&named), "{log}: {vm} is named");
    }
    ensure!(chart.revision()? == before, "{}", chart.revision()?);
    let images = "jsonpath={.items[*].spec.template.spec.containers[*].image}";
    let images = world.kubectl(&["get", "deployments", "-A", "-o", images])?;
    ensure!(!images.contains(FOREIGN), "{images}: nothing was changed");
    Ok(())
}
