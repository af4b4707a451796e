//! `docs/install-cluster.md` in a real cluster with two nodes: every command of it, by a person's
//! shell. The guest of the page is the same one from the moment it runs, whatever is upgraded,
//! uninstalled and installed again.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cluster::{Cluster, Lifetime, helm_or_skip, nodes_or_skip, pack_all};
use bellows_tests::pages::sections;
use bellows_tests::patience::wait_for;
use bellows_tests::{bellows_bin, checkout, guest_or_skip};
use serde_json::Value;

const NAME: &str = "every_command_of_the_install_page_works_and_guests_stay";
const PAGE: &str = "docs/install-cluster.md";
/// Longest time of a section. One boots a guest by emulation, most wait for components on a busy
/// machine.
const SECTION: Duration = Duration::from_secs(400);
/// Longest time until a check has the expected result.
const PATIENCE: Duration = Duration::from_secs(240);
/// Checks that must pass after the installation. The others depend on the machine.
const WELL: [&str; 16] = [
    "Kubernetes",
    "kinds",
    "admission",
    "webhook",
    "your rights",
    "controller's rights",
    "scheduler's rights",
    "agent's rights",
    "kernels",
    "room",
    "runner image",
    "controller",
    "scheduler",
    "agents",
    "controller's Lease",
    "scheduler's Lease",
];
/// The exit code of a check that misses something.
const MISSING: i32 = 69;

struct World {
    cluster: Cluster,
    dir: tempfile::TempDir,
}

impl World {
    /// A program as a person would start it in the checkout.
    fn command(&self, program: &str) -> Result<Command> {
        let path = std::env::var("PATH")?;
        let bin = self.dir.path().join("bin");
        let mut command = Command::new(program);
        command
            .current_dir(checkout())
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("KUBECONFIG", self.cluster.plane().kubeconfig())
            .env("HOME", self.dir.path())
            .stdin(Stdio::null());
        Ok(command)
    }

    async fn run(&self, title: &str, script: &str) -> Result<()> {
        let mut bash = tokio::process::Command::from(self.command("bash")?);
        bash.args(["-c", &format!("set -euxo pipefail\n{script}")])
            .kill_on_drop(true);
        let ended = tokio::time::timeout(SECTION, bash.status()).await;
        let status = ended.with_context(|| format!("{title} does not end"))??;
        ensure!(status.success(), "a command of {title} failed");
        Ok(())
    }

    fn check(&self) -> Result<(Output, Value)> {
        let mut check = self.command("kubectl")?;
        let output = check.args(["bellows", "check", "-o", "json"]).output()?;
        let found =
            serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))?;
        Ok((output, found))
    }

    /// Identifies the guest of the page: its pod and the container in it, which ends with the
    /// guest.
    fn guest(&self) -> Result<Option<String>> {
        let args = ["get", "pods", "-l", "vm.neon.tech/name=pg", "-o", "json"];
        let pods: Value = serde_json::from_str(&self.cluster.plane().ask(&args)?)?;
        let pods = pods["items"].as_array().context("a list")?;
        ensure!(pods.len() < 2, "{} pods", pods.len());
        let Some(pod) = pods.first() else {
            return Ok(None);
        };
        let container = &pod["status"]["containerStatuses"][0];
        ensure!(container["state"]["running"].is_object(), "{container}");
        let id = container["containerID"].as_str().context("an id")?;
        Ok(Some(format!("{} {id}", pod["metadata"]["uid"])))
    }

    fn explain(&self) -> String {
        let plane = self.cluster.plane();
        let ask = |args: &[&str]| plane.ask(args).unwrap_or_else(|error| format!("{error:#}"));
        let pods = ask(&["get", "pods", "-A", "-o", "wide"]);
        pods + &ask(&["get", "events", "-A", "--sort-by=.lastTimestamp"])
    }
}

/// Requirement: N47
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_of_the_install_page_works_and_guests_stay() {
    if !guest_or_skip(NAME) {
        return;
    }
    let (Some((programs, kit)), Some(helm)) = (nodes_or_skip(NAME), helm_or_skip(NAME)) else {
        return;
    };
    let (dir, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let archives = pack_all(&programs, images.path()).unwrap();
    // Directory that the page's commands are found in.
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for (name, program) in [
        ("kubectl", programs.path("kubectl")),
        ("kubectl-bellows", bellows_bin()),
        ("helm", helm),
    ] {
        std::os::unix::fs::symlink(program, bin.join(name)).unwrap();
    }
    let cluster = Cluster::start(programs, &kit, dir.path(), 2, &archives, Lifetime::WithUs);
    let cluster = cluster.await.unwrap();
    let world = World { cluster, dir };
    if let Err(error) = follow(&world).await {
        panic!("{error:#}\n{}", world.explain());
    }
}

async fn follow(world: &World) -> Result<()> {
    let page = std::fs::read_to_string(checkout().join(PAGE))?;
    let sections = sections(&page, "sh cluster");
    ensure!(sections.len() > 4, "{} sections", sections.len());
    let mut guest = None;
    for (title, script) in &sections {
        world.run(title, script).await?;
        match title.as_str() {
            "Install" => all_is_well(world).await?,
            "Uninstall" => all_is_missing(world).await?,
            _ => {}
        }
        let now = world.guest()?;
        ensure!(
            guest.is_none() || guest == now,
            "after {title} it is another guest"
        );
        guest = now;
    }
    ensure!(guest.is_some(), "there never was a guest");
    Ok(())
}

fn item<'a>(found: &'a Value, name: &str) -> &'a Value {
    let mut items = found["items"].as_array().into_iter().flatten();
    items
        .find(|item| item["name"] == name)
        .unwrap_or(&Value::Null)
}

/// Waits until a check is as it should be.
async fn checked(world: &World, what: &str, holds: impl Fn(&Output, &Value) -> bool) -> Result<()> {
    wait_for(what, PATIENCE, || async {
        let (output, found) = world.check().map_err(|error| format!("{error:#}"))?;
        if holds(&output, &found) {
            Ok(())
        } else {
            Err(format!("{} {found}", output.status))
        }
    })
    .await
}

async fn all_is_well(world: &World) -> Result<()> {
    checked(world, "a check that finds all well", |output, found| {
        let is_ok = |name: &&str| item(found, name)["verdict"] == "ok";
        output.status.success() && WELL.iter().all(is_ok)
    })
    .await
}

/// The parts go when their pods have gone; the kinds stay.
async fn all_is_missing(world: &World) -> Result<()> {
    checked(world, "a check that misses the parts", |output, found| {
        let is_missing = |name: &str| {
            let item = item(found, name);
            item["verdict"] == "missing" && item["fix"].is_string()
        };
        output.status.code() == Some(MISSING)
            && is_missing("agents")
            && is_missing("agent's rights")
            && item(found, "kinds")["verdict"] == "ok"
    })
    .await
}
