//! The control plane. In an environment of its parts one `Deployment` is the instance, and
//! Kubernetes replaces the pods.
//!
//! * A turn applies one image and the shares that Kubernetes keeps. Objects of the API are the
//!   state of a trial.
//! * A trial is good while all pods run the image and one of them renews the Lease.
//! * The image of another writer stays until a person orders a deployment.

mod deployment;
mod gates;
mod kind;
mod orders;
mod pods;

use std::time::Duration;

use fleet_core::permit::Gate;
use fleet_core::service::{LeaseSigns, ServiceSigns, fault_of_settled, trial};
use fleet_core::{Facts, Guest, Observed, PartFacts, Returned, claim, is_open, owner_windows};
use fleet_store::{LoadedEnvironment, Owner, OwnerKind};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use protocol::fleet::{KEY_ENROLLED, KEY_WINDOWS, TurnSpec, TurnVerb, service_instance_name};
use protocol::parts::{PartPhase, PartSource, PartState};
use tokio::time::timeout;

use crate::look::{Address, Looked, Looker, Way, is_orphan};
use crate::node::{seconds_since, time};
use crate::workload::{Unread, listed};
use deployment::Deployment;
use kind::Kind;
use pods::ServicePod;

pub(crate) use gates::gate as order_gate;
pub(crate) use orders::{Order, carry_out};

/// Time after which a read counts as not answered.
const READ_LIMIT: Duration = Duration::from_secs(10);
const NOT_FOUND: u16 = 404;

/// A part of the control plane as it was read.
struct Read {
    deployment: Deployment,
    signs: ServiceSigns,
    /// Digest that the template pins, else that of all its pods. Empty if they differ.
    sha256: String,
}

/// The world of an environment of the control plane, one of `all` environments.
pub(crate) async fn world(
    looker: &Looker,
    loaded: &LoadedEnvironment,
    all: &[LoadedEnvironment],
) -> Looked {
    let mut looked = Looked::of(loaded);
    looker.images.mark(&mut looked.world.revisions);
    let Some(kind) = Kind::of(loaded.environment.spec.part) else {
        return looked;
    };
    let read = match looker.runners.pods() {
        Some(_) => read(looker, &loaded.namespace, kind).await,
        None => Err(Unread::Absent(
            "a control plane of pods is in clusters".to_owned(),
        )),
    };
    let name = service_instance_name(kind.name);
    let mut guest = guest(loaded, all, &name);
    let mut uid = String::new();
    match read {
        Err(Unread::Absent(problem)) => guest.observed = Observed::Unmanaged(problem),
        Err(Unread::Failed(error)) => {
            let namespace = &loaded.namespace;
            tracing::warn!(namespace, error, "failed to look at the control plane");
        }
        Ok(read) => {
            let metadata = read.deployment.metadata();
            uid = metadata["uid"].as_str().unwrap_or_default().to_owned();
            let has_left = !loaded.selects(&read.deployment.labels());
            let turn = claim(guest.turn.as_ref(), guest.last.as_ref());
            if has_left && turn != Some(&loaded.environment.name) {
                return looked;
            }
            guest.has_left = has_left;
            observe(looker, loaded, &read, &mut guest);
        }
    }
    let address = Address {
        way: Way::Service,
        owner: Owner {
            kind: OwnerKind::Deployment,
            name: kind.name.to_owned(),
            uid,
        },
    };
    looked.world.guests.insert(name.clone(), guest);
    looked.addresses.insert(name, address);
    looked
}

/// A part of which nothing was seen so far.
fn guest(loaded: &LoadedEnvironment, all: &[LoadedEnvironment], instance: &str) -> Guest {
    let (turn, last) = loaded.turns.get(instance).cloned().unwrap_or_default();
    Guest {
        is_enrolled: true,
        gate: claim_gate(loaded, all, instance).or_else(|| order_gate(loaded, all)),
        is_orphan: is_orphan(turn.as_ref(), &loaded.namespace, all),
        turn,
        last,
        ..Guest::default()
    }
}

/// Gate by another environment of the same part. The first by name has it.
fn claim_gate(
    loaded: &LoadedEnvironment,
    all: &[LoadedEnvironment],
    instance: &str,
) -> Option<Gate> {
    let own = &loaded.environment;
    let others = all.iter().filter(|one| {
        one.namespace == loaded.namespace && one.environment.spec.part == own.spec.part
    });
    let mut others = others.filter(|one| one.environment.name != own.name);
    let is_of_other = others.any(|other| {
        let turn = other.turns.get(instance);
        let has_turn = turn.is_some_and(|(turn, last)| {
            let of_other = turn.as_ref();
            let of_other = of_other.filter(|turn| turn.environment == other.environment.name);
            is_open(of_other, last.as_ref())
        });
        has_turn || other.environment.name < own.name
    });
    is_of_other.then_some(Gate::Claim)
}

/// Adds what was seen. A part is on trial while its template has the image of an open turn.
fn observe(looker: &Looker, loaded: &LoadedEnvironment, read: &Read, guest: &mut Guest) {
    let now = looker.clock.wall();
    let spec = &loaded.environment.spec;
    let metadata = read.deployment.metadata();
    guest.labels = read.deployment.labels();
    guest.is_enrolled = metadata["labels"][KEY_ENROLLED] != "false";
    guest.uptime_seconds = time(&metadata["creationTimestamp"]).map(|it| seconds_since(it, now));
    let annotation = metadata["annotations"][KEY_WINDOWS].as_str();
    let (windows, gate) = owner_windows(annotation, spec.rollout.trial_seconds);
    guest.windows = windows;
    let lock = loaded.environment.status.lock.as_ref();
    let (turn, last) = (guest.turn.as_ref(), guest.last.as_ref());
    let drift = read.deployment.has_drifted(lock, turn, last);
    guest.gate = guest.gate.or(gate).or(drift.then_some(Gate::Drift));
    if let Some(problem) = read.deployment.problem() {
        guest.observed = Observed::Unmanaged(problem);
        return;
    }
    let open = guest.turn.as_ref().filter(|turn| {
        let is_set = read.deployment.sha256().as_ref() == Some(&turn.sha256);
        turn.verb == TurnVerb::Try && is_set && is_open(Some(turn), guest.last.as_ref())
    });
    let (state, fault) = state_of(loaded, read, open, guest);
    guest.facts = Facts {
        fault,
        ..Facts::default()
    };
    guest.observed = Observed::Seen(PartFacts {
        state,
        returned: Returned::Ended,
    });
}

fn state_of(
    loaded: &LoadedEnvironment,
    read: &Read,
    open: Option<&TurnSpec>,
    guest: &Guest,
) -> (PartState, Option<String>) {
    let spec = &loaded.environment.spec;
    let kept = guest
        .last
        .as_ref()
        .filter(|last| last.sha256 == read.sha256);
    let version = open
        .map(|turn| &turn.version)
        .or(kept.map(|last| &last.version));
    let mut state = PartState {
        version: version.cloned().unwrap_or_default(),
        sha256: read.sha256.clone(),
        from: PartSource::Image,
        phase: PartPhase::Settled,
        left_s: 0,
        token: String::new(),
        reason: String::new(),
        starts: 1,
        resident_bytes: 0,
    };
    let Some(turn) = open else {
        return (state, fault_of_settled(&read.signs));
    };
    let revision = loaded.revisions.get(&turn.revision);
    let trial_seconds =
        revision.map_or(spec.rollout.trial_seconds, |one| one.rollout.trial_seconds);
    let trial = trial(
        &read.signs,
        spec.service.unwrap_or_default().progress_seconds,
    );
    state.phase = PartPhase::Trial;
    state.left_s = trial.left_seconds(trial_seconds);
    state.token.clone_from(&turn.token);
    (state, trial.fault)
}

async fn read(looker: &Looker, namespace: &str, kind: Kind) -> Result<Read, Unread> {
    let workload = kind.workload(looker.client.clone(), namespace);
    let deployment = Deployment::new(workload.read().await?, kind);
    let (pods, lease) = tokio::try_join!(
        pods_of(looker, namespace, kind, &deployment),
        lease_of(looker, namespace, kind),
    )
    .map_err(Unread::Failed)?;
    let replicas = deployment.replicas();
    let available_wanted = if kind.is_ready_without_lead {
        replicas
    } else {
        0
    };
    let available = deployment.available();
    let key = (namespace.to_owned(), kind.name.to_owned());
    let is_short = available < available_wanted;
    let now = looker.clock.now();
    let sha256 = deployment.sha256().unwrap_or_else(|| common_digest(&pods));
    let set_at = deployment.set_at();
    let signs = ServiceSigns {
        replicas,
        available_wanted,
        available,
        pods: pods.into_iter().map(|pod| pod.signs).collect(),
        lease,
        set_seconds: set_at.map(|at| seconds_since(at, looker.clock.wall())),
        short_seconds: looker.seen.short_seconds(&key, is_short, now),
    };
    Ok(Read {
        deployment,
        signs,
        sha256,
    })
}

/// Digest of all pods. Empty if they have no common one.
fn common_digest(pods: &[ServicePod]) -> String {
    let first = pods.first().map(|pod| &pod.sha256);
    let first = first.filter(|first| pods.iter().all(|pod| pod.sha256 == **first));
    first.cloned().unwrap_or_default()
}

async fn pods_of(
    looker: &Looker,
    namespace: &str,
    kind: Kind,
    deployment: &Deployment,
) -> Result<Vec<ServicePod>, String> {
    let pods = api(looker, namespace, "", "Pod");
    let pods = listed(&pods, &deployment.pod_labels()).await?;
    let now = looker.clock.wall();
    let image = deployment.image();
    Ok(pods
        .iter()
        .filter_map(|pod| ServicePod::read(pod, kind, image, now))
        .collect())
}

/// `None` if there is no Lease.
async fn lease_of(
    looker: &Looker,
    namespace: &str,
    kind: Kind,
) -> Result<Option<LeaseSigns>, String> {
    let leases = api(looker, namespace, "coordination.k8s.io", "Lease");
    let read = timeout(READ_LIMIT, leases.get(kind.lease)).await;
    let object = match read.map_err(|_| "no Lease in time".to_owned())? {
        Ok(object) => object,
        Err(kube::Error::Api(refusal)) if refusal.code == NOT_FOUND => return Ok(None),
        Err(error) => return Err(daemon_kit::chain(&error)),
    };
    let object = serde_json::to_value(object).map_err(|error| error.to_string())?;
    let key = (namespace.to_owned(), kind.name.to_owned());
    Ok(Some(looker.seen.lease(&key, &object, looker.clock.now())))
}

fn api(looker: &Looker, namespace: &str, group: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    Api::namespaced_with(looker.client.clone(), namespace, &resource)
}
