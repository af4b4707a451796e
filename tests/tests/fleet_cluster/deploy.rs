//! Deploys the fleet by a copy of its manifests, with settings of the test.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::checkout;
use bellows_tests::cluster::is_ready;
use bellows_tests::patience::wait_for;
use serde_json::{Value, json};

use super::{FLEET, PATIENCE, SYSTEM, World};

/// Folders of the fleet's manifests.
const PARTS: [&str; 2] = ["fleet", "fleet-controller"];

impl World {
    /// Deploys the fleet with the authority of a server and these settings, and waits until both
    /// replicas run so. With `runners` or `schedules` it gets their rights, as the manifests say.
    pub(super) async fn deploy_fleet(&self, authority: &str, settings: &Value) -> Result<()> {
        let folder = tempfile::tempdir()?;
        for part in PARTS {
            copy(
                &checkout().join("deploy/chart/bellows/parts").join(part),
                &folder.path().join(part),
            )?;
        }
        let fleet = folder.path().join("fleet");
        let mut config = json!({"authorities": ["/etc/bellows-fleet/authority.pem"]});
        for (member, value) in settings.as_object().context("an object")? {
            config[member] = value.clone();
        }
        std::fs::write(fleet.join("config.json"), config.to_string())?;
        std::fs::write(fleet.join("authority.pem"), authority)?;
        let added = ["runners", "schedules"];
        let added = added.iter().filter(|one| !settings[one].is_null());
        let added: String = added.map(|one| format!("  - {one}.yaml\n")).collect();
        let added = match &*added {
            "" => String::new(),
            roles => format!("{roles}  - vms.yaml\n"),
        };
        let (rbac, file) = ("  - rbac.yaml\n", "      - config.json\n");
        let lines = [
            (rbac, format!("{rbac}{added}")),
            (file, format!("{file}      - authority.pem\n")),
        ];
        edit(&fleet.join("kustomization.yaml"), &lines)?;
        for part in PARTS {
            let part = folder.path().join(part).display().to_string();
            self.kubectl(&["apply", "-k", &part])?;
        }
        self.fleet_runs().await
    }

    /// Ends all replicas. The next deployment starts them again.
    pub(super) fn stop_fleet(&self) -> Result<()> {
        let set = format!("deployment/{FLEET}");
        self.kubectl(&["scale", &set, "-n", SYSTEM, "--replicas=0"])?;
        let label = format!("name={FLEET}");
        let wait = ["wait", "--for=delete", "pods", "-n", SYSTEM, "-l", &label];
        self.kubectl(&[&wait[..], &["--timeout=120s"]].concat())
            .map(drop)
    }

    async fn fleet_runs(&self) -> Result<()> {
        let set = format!("deployment/{FLEET}");
        let words = ["rollout", "status", &set, "-n", SYSTEM, "--timeout=300s"];
        self.kubectl(&words)?;
        let label = format!("name={FLEET}");
        wait_for("two ready replicas", PATIENCE, || async {
            let pods = self.get(&["pods", "-n", SYSTEM, "-l", &label]);
            let pods = pods.map_err(|error| format!("{error:#}"))?;
            let pods = pods["items"].as_array().cloned().unwrap_or_default();
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            if (ready, pods.len()) == (2, 2) {
                Ok(())
            } else {
                Err(format!("{ready} of {} are ready", pods.len()))
            }
        })
        .await
    }
}

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir(to)?;
    for file in std::fs::read_dir(from)? {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

/// Replaces texts of a file that are there once.
pub(super) fn edit(file: &Path, changes: &[(&str, String)]) -> Result<()> {
    let mut text = std::fs::read_to_string(file)?;
    for (from, to) in changes {
        let count = text.matches(from).count();
        ensure!(count == 1, "{}: {count} times {from:?}", file.display());
        text = text.replace(from, to);
    }
    Ok(std::fs::write(file, text)?)
}
