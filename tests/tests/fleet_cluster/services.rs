//! The fleet moves the controller's Deployment to another image. The webhook answers all the time.
//! An image that never becomes ready is put back, and the image of another writer is left alone.

use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cluster::is_ready;
use bellows_tests::explained;
use serde_json::{Value, json};

use super::images::Images;
use super::{CHANNEL, PATIENCE, PROGRAM, ROLLOUT, World, deployment, in_namespace, rights, vm};

const CONTROLLER: &str = "neonvm-controller";
const NAMESPACE: &str = "neonvm-system";
const ENVIRONMENT: &str = "controllers";
const WEBHOOK: &str = "neonvm-webhook-service";
const REPLICAS: usize = 3;
/// Most pods: 134 percent of three, rounded down.
const MOST: usize = 4;
/// Fewest ready endpoints: one of three may be away.
const FEWEST: usize = 2;
const GOOD: &str = "0.1.1";
const BAD: &str = "0.1.2";

fn environment() -> Value {
    json!({
        "apiVersion": "fleet.bellows.dev/v1alpha1",
        "kind": "FleetEnvironment",
        "metadata": {"name": ENVIRONMENT, "namespace": NAMESPACE},
        "spec": {
            "type": "Service",
            "part": "controller",
            "source": {"channel": CHANNEL},
            "rollout": {
                "minHealthyPercent": 66, "trialSeconds": 20, "retries": 0, "maxFailedPercent": 0,
            },
            "service": {"maxActivePercent": 134, "progressSeconds": 180},
        },
    })
}

/// What was seen of the controller during a rollout.
#[derive(Debug, Default)]
struct Samples {
    taken: usize,
    most_pods: usize,
    fewest_endpoints: Option<usize>,
    /// Failures of the webhook.
    refusals: Vec<String>,
}

impl World {
    /// Pods of the controller that are not to end.
    fn controllers(&self) -> Result<Vec<Value>> {
        let label = format!("name={CONTROLLER}");
        let pods = self.get(&["pods", "-n", NAMESPACE, "-l", &label])?;
        let mut pods = pods["items"].as_array().cloned().unwrap_or_default();
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        Ok(pods)
    }

    fn endpoints(&self) -> Result<usize> {
        let label = format!("kubernetes.io/service-name={WEBHOOK}");
        let slices = self.get(&["endpointslices", "-n", NAMESPACE, "-l", &label])?;
        let slices = slices["items"].as_array().into_iter().flatten();
        let all = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        Ok(all.filter(|one| one["conditions"]["ready"] == true).count())
    }

    fn controller_image(&self) -> Result<String> {
        let set = self.get(&["deployment", CONTROLLER, "-n", NAMESPACE])?;
        let image = &set["spec"]["template"]["spec"]["containers"][0]["image"];
        Ok(image.as_str().context("an image")?.to_owned())
    }

    /// Whether all replicas are ready, of an image if one is given.
    fn controllers_run(&self, digest: Option<&str>) -> Result<bool> {
        let pods = self.controllers()?;
        let runs = |pod: &&Value| {
            let image = pod["spec"]["containers"][0]["image"].as_str();
            let is_it = digest.is_none_or(|digest| image.is_some_and(|it| it.ends_with(digest)));
            is_ready(pod) && is_it
        };
        Ok(pods.len() == REPLICAS && pods.iter().filter(runs).count() == REPLICAS)
    }

    fn sample(&self, samples: &Mutex<Samples>) -> Result<()> {
        let (pods, endpoints) = (self.controllers()?.len(), self.endpoints()?);
        // The API server asks the webhook about it, and keeps nothing.
        let object = vm("asked").to_string();
        let asked = self.cluster.plane().dry_run(&object);
        let mut samples = samples.lock().map_err(|_| anyhow::anyhow!("a panic"))?;
        samples.taken += 1;
        samples.most_pods = samples.most_pods.max(pods);
        let fewest = samples.fewest_endpoints.unwrap_or(endpoints).min(endpoints);
        samples.fewest_endpoints = Some(fewest);
        if let Err(error) = asked {
            samples.refusals.push(format!("{error:#}"));
        }
        Ok(())
    }

    /// Waits for a deployment's end, and takes samples meanwhile.
    async fn controllers_ended(&self, of: impl Fn(&Value) -> bool, state: &str) -> Result<Value> {
        let samples = Mutex::new(Samples::default());
        let what = format!("a deployment of controllers that is {state}");
        let ended = self.until(&what, ROLLOUT, || {
            self.sample(&samples)?;
            self.ended_as(NAMESPACE, &of, state)
        });
        let ended = ended.await?;
        let samples = samples.into_inner().unwrap_or_default();
        ensure!(samples.taken > 5, "{samples:?}");
        ensure!(samples.most_pods <= MOST, "{samples:?}: too many pods");
        let fewest = samples.fewest_endpoints.unwrap_or(0);
        ensure!(fewest >= FEWEST, "{samples:?}: too few endpoints");
        ensure!(
            samples.refusals.is_empty(),
            "{samples:?}: the webhook was away"
        );
        Ok(ended)
    }

    fn explain_controllers(&self) -> String {
        let ask = |words: &[&str]| {
            let said = self.kubectl(words);
            said.unwrap_or_else(|error| format!("{error:#}"))
        };
        let kinds = "fe,fd,fi,fc,deployments,pods,leases";
        let objects = ask(&["get", kinds, "-n", NAMESPACE, "-o", "yaml"]);
        let label = "name=bellows-fleet";
        let log = ask(&[
            "logs",
            "--tail=60",
            "-n",
            "kube-system",
            "-l",
            label,
            "--prefix",
        ]);
        format!("{objects}\n---\n{log}")
    }
}

/// Requirement: B23, B48
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controller_is_moved_under_its_webhook_and_a_bad_image_is_put_back() -> Result<()> {
    let test = "controller_is_moved_under_its_webhook_and_a_bad_image_is_put_back";
    let Some(world) = World::of_test(test).await? else {
        return Ok(());
    };
    let moved = move_controllers(&world).await;
    explained(moved, || world.explain_controllers())
}

async fn move_controllers(world: &World) -> Result<()> {
    let images = Images::load(world, CONTROLLER)?;
    let replicas = format!("--replicas={REPLICAS}");
    world.kubectl(&[
        "scale",
        "deployment",
        CONTROLLER,
        "-n",
        NAMESPACE,
        &replicas,
    ])?;
    world.publisher.init(CHANNEL).await?;
    world
        .release_image(GOOD, "controller", &images.good)
        .await?;
    let (_server, _) = world.follow(&environment()).await?;
    let all_run =
        || Ok((world.controllers_run(None)? && world.endpoints()? == REPLICAS).then_some(()));
    world.until("all controllers", PATIENCE, all_run).await?;
    good_image_reaches_all_pods(world, &images.good).await?;
    for (version, code) in [("0.1.0", 0), ("9.9.9", 69)] {
        let output = preflight(world, version)?;
        ensure!(output.status.code() == Some(code), "{version}: {output:?}");
    }
    bad_image_is_put_back(world, &images.bad, &images.good).await?;
    other_writer_is_left_alone(world, &images.good).await?;
    rights::are_used(world, rights::Shown::Services)
}

fn order(name: &str, number: u32) -> Value {
    let revision = format!("{ENVIRONMENT}-r{number}");
    let mut order = in_namespace(deployment(name, &revision), NAMESPACE);
    order["spec"]["environment"] = json!(ENVIRONMENT);
    order
}

fn is_named(name: &'static str) -> impl Fn(&Value) -> bool {
    move |one| one["metadata"]["name"] == name
}

async fn good_image_reaches_all_pods(world: &World, good: &str) -> Result<()> {
    world.apply(&order("to-good", 1))?;
    world
        .controllers_ended(is_named("to-good"), "Complete")
        .await?;
    ensure!(world.controllers_run(Some(good))?, "all pods run the image");
    let pinned = format!("bellows/{CONTROLLER}@{good}");
    let image = world.controller_image()?;
    ensure!(image == pinned, "{image}: pinned, without a tag");
    let set = world.get(&["deployment", CONTROLLER, "-n", NAMESPACE])?;
    let rolling = &set["spec"]["strategy"]["rollingUpdate"];
    let expected = json!({"maxSurge": 1, "maxUnavailable": 1});
    ensure!(*rolling == expected, "{rolling}");
    Ok(())
}

/// The program of the chart's hook, in the image that a pod runs.
fn preflight(world: &World, version: &str) -> Result<std::process::Output> {
    let mut command = world.cluster.plane().kubectl();
    command.args([
        "exec",
        "deployment/bellows-fleet",
        "-n",
        "kube-system",
        "--",
    ]);
    command.args([
        PROGRAM,
        "--config=/etc/bellows-fleet/config.json",
        "preflight",
    ]);
    command.args(["--control-plane", version]);
    Ok(command.output()?)
}

/// The channel names it, and the fleet itself makes the deployment.
async fn bad_image_is_put_back(world: &World, bad: &str, good: &str) -> Result<()> {
    world.release_image(BAD, "controller", bad).await?;
    let is_bad = |one: &Value| {
        let is_second = one["spec"]["revision"] == format!("{ENVIRONMENT}-r2");
        is_second && one["spec"]["kind"] == "User"
    };
    let ended = world.controllers_ended(is_bad, "Unhealthy").await?;
    ensure!(ended["status"]["progress"]["failed"] == 1, "{ended}");
    let is_back = || Ok(world.controllers_run(Some(good))?.then_some(()));
    world.until("the image before", PATIENCE, is_back).await
}

/// Another writer sets the image while the fleet's own is on trial.
async fn other_writer_is_left_alone(world: &World, good: &str) -> Result<()> {
    let other = format!("{CONTROLLER}=bellows/{CONTROLLER}:0.1.0");
    let set = [
        "set",
        "image",
        "deployment",
        CONTROLLER,
        &other,
        "-n",
        NAMESPACE,
    ];
    world.kubectl(&set)?;
    let all_run = || Ok(world.controllers_run(Some(":0.1.0"))?.then_some(()));
    world
        .until("the image of another writer", PATIENCE, all_run)
        .await?;
    // A person's new order goes before it.
    world.apply(&order("again", 1))?;
    let is_set = || Ok(world.controller_image()?.ends_with(good).then_some(()));
    world
        .until("the image of the order", PATIENCE, is_set)
        .await?;
    world.kubectl(&set)?;
    let held = || {
        let one = world.get(&["fleetdeployment", "again", "-n", NAMESPACE])?;
        Ok((one["status"]["blockedBy"]["gate"] == "drift").then_some(()))
    };
    world.until("the gate drift", ROLLOUT, held).await?;
    let image = world.controller_image()?;
    ensure!(image.ends_with(":0.1.0"), "{image}: it is left alone");
    let stop = json!({"spec": {"stop": true}}).to_string();
    let words = [
        "patch",
        "fleetdeployment",
        "again",
        "-n",
        NAMESPACE,
        "--type=merge",
        "-p",
    ];
    world.kubectl(&[&words[..], &[&stop]].concat())?;
    let is_stopped = || {
        let one = world.get(&["fleetdeployment", "again", "-n", NAMESPACE])?;
        Ok((one["status"]["state"] == "Stopped").then_some(()))
    };
    world.until("the stop", PATIENCE, is_stopped).await
}
