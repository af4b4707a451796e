//! The world of an environment, as the engine's driver reads it, for plans and explanations.
//!
//! Health is read from the VM's conditions and the guest's daemon. Pages and agents are not asked.

use std::collections::BTreeMap;

use fleet_core::permit::Gate;
use fleet_core::{
    Degradation, Deployment, Environment, Facts, Guest, ImageCheck, Revision, World, health_check,
    owner_windows,
};
use fleet_store::{KeptRevision, observed};
use protocol::fleet::{
    InstancePart, InstanceSpec, InstanceStatus, KEY_ENROLLED, KEY_UNHEALTHY, KEY_WINDOWS, TurnSpec,
    instance_name,
};
use protocol::parts::PartName;
use serde::Deserialize;
use serde_json::Value;

use super::objects::{INSTANCE, deployments_of, labels, revisions_of};
use super::parts;
use crate::api::{Api, Kind};
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::view::fleet::{Deployed, Env};
use crate::view::parts::InstanceView;

/// Reads the objects and guests of an environment.
pub(super) async fn read(context: &Context, api: &Api, env: &Env) -> Outcome<World> {
    let key = (env.namespace.as_str(), env.name.as_str());
    if env.spec.part.is_image() {
        return of_images(api, key).await;
    }
    let revisions = revisions_of(api, key).await?;
    let deployments = deployments_of(api, key).await?;
    let instances = api.list(INSTANCE, Some(key.0)).await?;
    let by_name: BTreeMap<&str, &Value> = instances
        .iter()
        .filter_map(|one| Some((one["metadata"]["name"].as_str()?, one)))
        .collect();
    let vms = api.list(Kind::Vm, Some(key.0)).await?;
    let is_out = namespace_is_out(api, key.0).await;
    let part = (env.spec.part, env.spec.rollout.trial_seconds);
    let mut guests = BTreeMap::new();
    let matching = vms
        .iter()
        .filter(|vm| env.spec.selector.matches(&labels(vm)));
    for vm in matching {
        let Some(name) = vm["metadata"]["name"].as_str() else {
            continue;
        };
        let instance = instance_name(name);
        let object = by_name.get(instance.as_str()).copied();
        let view = parts::instance_of(context, key.0, name, vm).await?;
        let mut guest = guest(vm, &view, part, object);
        guest.is_enrolled &= !is_out;
        guests.insert(instance, guest);
    }
    Ok(World {
        environment: Environment {
            name: env.name.clone(),
            spec: env.spec.clone(),
            status: env.status.clone(),
            is_deleted: false,
            has_finalizer: true,
        },
        revisions: revisions.into_iter().map(revision).collect(),
        deployments: deployments.into_iter().map(deployment).collect(),
        guests,
        is_critical: false,
    })
}

/// Nodes or a `Deployment`, by the driver's own look.
async fn of_images(api: &Api, key: (&str, &str)) -> Outcome<World> {
    let world = fleet::planned_world(api.client(), key).await;
    let world = world.map_err(|error| {
        Fail::missing(format!(
            "the objects of {}/{} were not read: {error}",
            key.0, key.1
        ))
        .rule("a plan of images reads nodes, pods and Deployments of the cluster")
    })?;
    world.ok_or_else(|| {
        Fail::not_so(format!(
            "fleet environment {}/{} cannot be read",
            key.0, key.1
        ))
        .rule("an environment keeps the rules of its admission")
        .fix(format!(
            "kubectl get fleetenvironment {} -n {} -o yaml",
            key.1, key.0
        ))
    })
}

fn revision(one: KeptRevision) -> (String, Revision) {
    let revision = Revision {
        rollout: one.data.spec.rollout,
        program: one.data.resolved,
        image: ImageCheck::default(),
    };
    (one.name, revision)
}

fn deployment(one: Deployed) -> Deployment {
    Deployment {
        name: one.name,
        created: one.created,
        spec: one.spec,
        status: one.status,
        answers: BTreeMap::new(),
    }
}

/// Whether the label of the namespace keeps its guests out. A server without the kind has none.
async fn namespace_is_out(api: &Api, namespace: &str) -> bool {
    let object = api.read(&format!("/api/v1/namespaces/{namespace}")).await;
    object.is_ok_and(|object| object["metadata"]["labels"][KEY_ENROLLED] == "false")
}

/// A guest of a VM.
pub(super) fn guest(
    vm: &Value,
    view: &InstanceView,
    (part, trial_seconds): (PartName, u64),
    instance: Option<&Value>,
) -> Guest {
    let (turn, last) = instance.map_or((None, None), |object| turn_of(object, part));
    let mut conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
    let degraded = conditions.find(|one| one["type"] == "Degraded" && one["status"] == "True");
    let annotation = vm["metadata"]["annotations"][KEY_WINDOWS].as_str();
    let (windows, unreadable) = owner_windows(annotation, trial_seconds);
    let check = health_check(vm["metadata"]["annotations"][KEY_UNHEALTHY].as_str());
    Guest {
        node: vm["status"]["node"].as_str().unwrap_or_default().to_owned(),
        is_enrolled: vm["metadata"]["labels"][KEY_ENROLLED] != "false",
        boot: String::new(),
        observed: observed(view.unmanaged.map_or(Ok(&view.parts), Err), part),
        facts: Facts {
            check: check.clone(),
            degraded: degraded.map(|one| Degradation {
                message: one["message"].as_str().unwrap_or_default().to_owned(),
                ..Degradation::default()
            }),
            fault: None,
            page_answers: None,
            agent_connected: None,
            agent_is_new: false,
        },
        gate: gate(vm).or(unreadable).or(check.map(|_| Gate::Check)),
        turn,
        last,
        labels: labels(vm),
        windows,
        ..Guest::default()
    }
}

fn gate(vm: &Value) -> Option<Gate> {
    match vm["status"]["phase"].as_str() {
        Some("Running") => None,
        Some("Scaling") => Some(Gate::Resizing),
        Some("PreMigrating" | "Migrating") => Some(Gate::Migrating),
        _ => Some(Gate::NotRunning),
    }
}

/// Newest turn of a part and its end, from the instance.
pub(super) fn turn_of(object: &Value, part: PartName) -> (Option<TurnSpec>, Option<InstancePart>) {
    let spec = InstanceSpec::of_object(object).unwrap_or_default();
    let status = InstanceStatus::deserialize(&object["status"]).unwrap_or_default();
    (
        spec.parts.get(&part).cloned(),
        status.parts.get(&part).cloned(),
    )
}
