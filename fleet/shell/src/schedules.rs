//! When do updaters in guests upgrade? The annotation of VMs whose monitor a package manager of the
//! guest brings. The VM's agent passes it on.
//!
//! # Rules
//! * The environment that selects the VM decides, once it is active. A VM without one, or kept out
//!   by a label, has no schedule of ours.
//! * A write follows only if the annotation differs. What somebody else set stays.
//! * A guest whose page does not answer keeps its schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_core::permit::Gate;
use fleet_core::schedule::{Inputs, of_updater};
use fleet_core::windows::Calendar;
use fleet_store::LoadedEnvironment;
use futures::StreamExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use protocol::fleet::{EnvironmentState, KEY_SCHEDULE};
use protocol::monitor_v2::SCHEDULE_LIMIT_BYTES;
use protocol::parts::{PartName, is_from_package};
use protocol::vm::{API_VERSION, VirtualMachine};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::changes::{ChangeKind, change};
use crate::guest::read_page;
use crate::lane::{Listing, Shared};
use crate::look::{Looker, Surroundings, selects, vm_resource};
use crate::pulse::Pulse;
use crate::records::Records;

/// Field manager of the annotation. It is its own, so that no other write takes it away.
const MANAGER: &str = "bellows-fleet-schedules";
/// Longest time for one write.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// Age at which the origin of a monitor is read again.
const ORIGIN_FOR: Duration = Duration::from_secs(60);
/// Pages that are read concurrently.
const AT_ONCE: usize = 16;
const CONFLICT: u16 = 409;

/// What the annotation should be.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// What is there is right.
    AsIs,
    /// This schedule, or none.
    Value(Option<String>),
}

/// Whether a package manager brings the monitor of a pod, and when its page was read.
type Origin = (String, Instant, bool);

/// The task that writes schedules.
pub(crate) struct Schedules {
    looker: Looker,
    records: Records,
    pulse: Pulse,
    /// By uid of the VM.
    origins: BTreeMap<String, Origin>,
    /// Annotation that was wanted and the one that was seen, of the last write of each VM.
    written: BTreeMap<String, (Option<String>, Option<String>)>,
}

impl Schedules {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self {
            looker: shared.looker.clone(),
            records: shared.records.clone(),
            pulse: shared.pulses.task(),
            origins: BTreeMap::new(),
            written: BTreeMap::new(),
        }
    }

    /// Runs until nobody lists for it any more.
    pub(crate) async fn run(mut self, mut listings: watch::Receiver<Option<Arc<Listing>>>) {
        loop {
            self.pulse.rest();
            if listings.changed().await.is_err() {
                return;
            }
            self.pulse.beat();
            let listing = listings.borrow_and_update().clone();
            if let Some(listing) = listing {
                self.look(&listing).await;
            }
        }
    }

    async fn look(&mut self, listing: &Listing) {
        let surroundings = &listing.surroundings;
        let vms = surroundings.vms.iter();
        let vms: Vec<(&VirtualMachine, Option<&LoadedEnvironment>)> = vms
            .filter(|vm| vm.metadata.deletion_timestamp.is_none())
            .map(|vm| (vm, environment_of(vm, surroundings, &listing.environments)))
            .collect();
        self.read_origins(&vms).await;
        for (vm, environment) in vms {
            if let Wanted::Value(value) = self.wanted(vm, environment, surroundings) {
                self.bring(vm, value).await;
                self.pulse.beat();
            }
        }
    }

    /// Reads the pages of monitors whose origin is unknown or old.
    async fn read_origins(&mut self, vms: &[(&VirtualMachine, Option<&LoadedEnvironment>)]) {
        let uids: BTreeSet<&str> = vms.iter().map(|(vm, _)| vm.metadata.uid.as_str()).collect();
        self.origins.retain(|uid, _| uids.contains(uid.as_str()));
        self.written.retain(|uid, _| uids.contains(uid.as_str()));
        let due = vms.iter().filter_map(|(vm, environment)| {
            let (uid, status) = (vm.metadata.uid.clone(), vm.status.as_ref()?);
            let is_known = self
                .origins
                .get(&uid)
                .is_some_and(|(pod, at, _)| *pod == status.pod_name && at.elapsed() < ORIGIN_FOR);
            let is_due = environment.is_some() && !status.pod_ip.is_empty() && !is_known;
            is_due.then(|| (uid, status.pod_name.clone(), status.pod_ip.clone()))
        });
        let reads: Vec<_> = due
            .map(async |(uid, pod, ip)| {
                let page = read_page(&ip).await.ok()?;
                Some((uid, (pod, Instant::now(), is_from_package(&page)?)))
            })
            .collect();
        let read: Vec<_> = futures::stream::iter(reads)
            .buffer_unordered(AT_ONCE)
            .inspect(|_| self.pulse.beat())
            .collect()
            .await;
        self.origins.extend(read.into_iter().flatten());
    }

    fn wanted(
        &self,
        vm: &VirtualMachine,
        environment: Option<&LoadedEnvironment>,
        surroundings: &Surroundings,
    ) -> Wanted {
        let Some(loaded) = environment else {
            return Wanted::Value(None);
        };
        let environment = &loaded.environment;
        if environment.status.state != EnvironmentState::Active {
            return Wanted::AsIs;
        }
        let pod = vm.status.as_ref().map(|status| status.pod_name.as_str());
        match self.origins.get(&vm.metadata.uid) {
            Some((of, _, true)) if pod == Some(of) => {}
            Some((of, _, false)) if pod == Some(of) => return Wanted::Value(None),
            _ => return Wanted::AsIs,
        }
        let spec = &environment.spec;
        let owner = surroundings.owner(vm, spec.rollout.trial_seconds);
        let inputs = Inputs {
            calendar: Calendar {
                windows: &spec.windows,
                blackouts: &spec.blackouts,
                narrowed: &owner.windows,
            },
            is_critical: loaded.is_critical,
            is_held: owner.gate == Some(Gate::Window),
        };
        let schedule = of_updater(&inputs, self.looker.clock.wall());
        if schedule.len() > SCHEDULE_LIMIT_BYTES {
            let (namespace, name) = (&vm.metadata.namespace, &vm.metadata.name);
            let bytes = schedule.len();
            tracing::warn!(
                namespace,
                name,
                bytes,
                "the windows of a VM make a schedule of more than {SCHEDULE_LIMIT_BYTES} bytes; \
                 give its environment fewer windows"
            );
            return Wanted::AsIs;
        }
        Wanted::Value(Some(schedule))
    }

    /// Writes the annotation if it differs and this very change was not made before.
    async fn bring(&mut self, vm: &VirtualMachine, value: Option<String>) {
        let metadata = &vm.metadata;
        let seen = metadata.annotations.get(KEY_SCHEDULE).cloned();
        let pair = (value, seen);
        if pair.0 == pair.1 || self.written.get(&metadata.uid) == Some(&pair) {
            return;
        }
        let sent = timeout(WRITE_LIMIT, self.apply(vm, pair.0.as_deref())).await;
        let sent =
            sent.unwrap_or_else(|_| Err((None, "the API did not answer in time".to_owned())));
        let on = format!("{}/{}", metadata.namespace, metadata.name);
        let to = pair.0.clone().unwrap_or_else(|| "none".to_owned());
        let mut changed = change(ChangeKind::Schedule, on, to, String::new());
        match sent {
            Ok(()) => {
                self.written.insert(metadata.uid.clone(), pair);
            }
            Err((code, reason)) => {
                changed.failure = Some(reason);
                // Somebody else set it. It is told once.
                if code == Some(CONFLICT) {
                    self.written.insert(metadata.uid.clone(), pair);
                }
            }
        }
        self.records.tell(&changed);
    }

    /// Applies the annotation, without taking it from another manager. A VM of another uid is left
    /// alone, and none is made.
    async fn apply(
        &self,
        vm: &VirtualMachine,
        value: Option<&str>,
    ) -> Result<(), (Option<u16>, String)> {
        let metadata = &vm.metadata;
        let mut body = json!({
            "apiVersion": API_VERSION, "kind": "VirtualMachine",
            "metadata": {
                "name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid,
            },
        });
        if let Some(value) = value {
            body["metadata"]["annotations"] = json!({ KEY_SCHEDULE: value });
        }
        let client = self.looker.client.clone();
        let api: Api<DynamicObject> =
            Api::namespaced_with(client, &metadata.namespace, &vm_resource());
        let params = PatchParams::apply(MANAGER);
        let patch = Patch::<Value>::Apply(body);
        match api.patch(&metadata.name, &params, &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(refusal)) => Err((Some(refusal.code), refusal.message)),
            Err(error) => Err((None, daemon_kit::chain(&error))),
        }
    }
}

/// The environment of monitors that a VM takes part in: the first by name that selects it.
fn environment_of<'a>(
    vm: &VirtualMachine,
    surroundings: &Surroundings,
    all: &'a [LoadedEnvironment],
) -> Option<&'a LoadedEnvironment> {
    let monitors = all
        .iter()
        .filter(|one| one.environment.spec.part == PartName::Monitor && selects(one, vm));
    let first = monitors.min_by_key(|one| &one.environment.name)?;
    let trial_seconds = first.environment.spec.rollout.trial_seconds;
    let is_enrolled = surroundings.owner(vm, trial_seconds).is_enrolled;
    is_enrolled.then_some(first)
}
