//! Events on deployments: each is written once, also after a restart of the driver.
//!
//! The name of an event follows from what happened, so the API refuses a second one. The API keeps
//! events for an hour by default: what happened earlier than [`FRESH`] is not told again.

use std::collections::BTreeSet;
use std::time::Duration;

use api_client::events::Warning;
use fleet_core::{Deployment, ImageCheck, World};
use fleet_store::LoadedEnvironment;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::api::{Api, PostParams};
use protocol::fleet::{DeploymentKind, DeploymentState, FleetKind, GROUP, VERSION};
use protocol::time::WallTime;
use tokio::time::timeout;

use crate::changes::{ChangeKind, change};
use crate::names::short_digest;
use crate::records::Records;

const COMPONENT: &str = "bellows-fleet";
/// Longest time for one event.
const EVENT_LIMIT: Duration = Duration::from_secs(5);
/// Longest age of what is told, microseconds.
const FRESH: i64 = 30 * 60 * 1_000_000;
/// Time behind one gate after which a deployment is called blocked, microseconds.
const BLOCKED: i64 = 3600 * 1_000_000;
/// Longest share of a deployment's name in that of an event, bytes.
const NAME_BYTES: usize = 200;
const CONFLICT: u16 = 409;
const REFUSED: &str = "ImageRefused";

/// Something that happened to a deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FleetEvent {
    deployment: String,
    reason: &'static str,
    /// Tells it from others of this deployment and reason.
    key: String,
    message: String,
}

impl FleetEvent {
    fn key(&self) -> (String, &'static str, String) {
        (self.deployment.clone(), self.reason, self.key.clone())
    }

    fn is_warning(&self) -> bool {
        matches!(self.reason, REFUSED | "Halted" | "TimedOut" | "Blocked")
    }

    /// Name of its event. The uid keeps a deployment apart from an earlier one of its name.
    fn name(&self, uid: &str) -> String {
        let hash = short_digest(&[uid, self.reason, &self.key].join("\n"), 8);
        let deployment: String = self.deployment.chars().take(NAME_BYTES).collect();
        format!("{deployment}.{hash}")
    }
}

/// Writer of the events of an environment.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Deployments, reasons and keys of events that the API has.
    told: BTreeSet<(String, &'static str, String)>,
}

impl Events {
    /// Writes the events that are missing. One that fails is written by a later look.
    pub(crate) async fn tell(
        &mut self,
        client: &kube::Client,
        records: &Records,
        loaded: &LoadedEnvironment,
        world: &World,
        now: WallTime,
    ) {
        let due = events_of(world, now);
        let keys: BTreeSet<_> = due.iter().map(FleetEvent::key).collect();
        self.told.retain(|one| keys.contains(one));
        for note in due {
            if self.told.contains(&note.key()) {
                continue;
            }
            let event = event(loaded, &note, now);
            let written = timeout(EVENT_LIMIT, write(client, &loaded.namespace, event)).await;
            let failure = written.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            let failure = failure.err();
            let on = format!("{}/{}", loaded.namespace, note.deployment);
            if note.reason == REFUSED {
                let mut refused =
                    change(ChangeKind::Refuse, on, String::new(), note.message.clone());
                refused.failure.clone_from(&failure);
                records.tell(&refused);
            } else if let Some(error) = &failure {
                tracing::warn!(
                    deployment = on,
                    note.reason,
                    error,
                    "failed to write an event"
                );
            }
            if failure.is_none() {
                self.told.insert(note.key());
            }
        }
    }
}

/// What happened to the deployments lately.
fn events_of(world: &World, now: WallTime) -> Vec<FleetEvent> {
    world
        .deployments
        .iter()
        .flat_map(|one| {
            [
                started(one, now),
                ended(one, now),
                blocked(one, now),
                refused(world, one),
            ]
        })
        .flatten()
        .collect()
}

fn fleet_event(one: &Deployment, reason: &'static str, key: String, message: String) -> FleetEvent {
    FleetEvent {
        deployment: one.name.clone(),
        reason,
        key,
        message,
    }
}

fn is_fresh(at: WallTime, now: WallTime) -> bool {
    now.0.saturating_sub(at.0) < FRESH
}

fn started(one: &Deployment, now: WallTime) -> Option<FleetEvent> {
    one.status.started_at.filter(|at| is_fresh(*at, now))?;
    let what = match one.spec.kind {
        DeploymentKind::Cron => "verifies that guests run",
        DeploymentKind::Rollback => "takes guests back to",
        _ => "brings guests to",
    };
    let mut message = format!("{what} {}", one.spec.revision);
    if !one.spec.reason.is_empty() {
        message = format!("{message}: {}", one.spec.reason);
    }
    Some(fleet_event(one, "Started", String::new(), message))
}

fn ended(one: &Deployment, now: WallTime) -> Option<FleetEvent> {
    let status = &one.status;
    let halts = status.ending == Some(DeploymentState::Unhealthy);
    let is_new = status.ended_at.is_some_and(|at| is_fresh(at, now));
    let is_rollback = one.spec.kind == DeploymentKind::Rollback;
    let reason = match status.state {
        DeploymentState::ToBeStopped if halts => "Halted",
        _ if !is_new => return None,
        DeploymentState::Unhealthy => "Halted",
        DeploymentState::Complete if is_rollback => "RolledBack",
        DeploymentState::Complete => "Complete",
        DeploymentState::Stopped => "Stopped",
        DeploymentState::Canceled => "Canceled",
        DeploymentState::TimedOut => "TimedOut",
        DeploymentState::Pending
        | DeploymentState::InProgress
        | DeploymentState::Blocked
        | DeploymentState::ToBeStopped => return None,
    };
    let figures = format!(
        "{} of {} guests",
        status.progress.done, status.progress.total
    );
    let evidence = status.evidence.first();
    let message = match reason {
        "RolledBack" => format!("{} was taken back: {figures}", one.spec.rollback_of),
        _ => evidence.map_or_else(|| figures.clone(), |first| format!("{figures}; {first}")),
    };
    // Figures and evidence may grow while it halts: it is the same event.
    Some(fleet_event(one, reason, String::new(), message))
}

/// A deployment that has waited behind one gate for an hour. The next gate is another event.
fn blocked(one: &Deployment, now: WallTime) -> Option<FleetEvent> {
    let by = one.status.blocked_by.as_ref();
    let by = by.filter(|_| one.status.state == DeploymentState::Blocked)?;
    let due = WallTime(by.since.0.saturating_add(BLOCKED));
    if now < due || !is_fresh(due, now) {
        return None;
    }
    let message = format!("for an hour by {}: {}", by.gate, by.detail);
    Some(fleet_event(
        one,
        "Blocked",
        by.since.to_micro_string(),
        message,
    ))
}

/// A deployment whose image is not used.
fn refused(world: &World, one: &Deployment) -> Option<FleetEvent> {
    let revision = world.revisions.get(&one.spec.revision)?;
    match &revision.image {
        ImageCheck::Refused(why) if !one.status.state.is_terminal() => {
            Some(fleet_event(one, REFUSED, why.clone(), why.clone()))
        }
        _ => None,
    }
}

fn event(loaded: &LoadedEnvironment, note: &FleetEvent, now: WallTime) -> Event {
    let uid = loaded.uid(FleetKind::Deployment, &note.deployment);
    let about = ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some(FleetKind::Deployment.as_str().to_owned()),
        name: Some(note.deployment.clone()),
        namespace: Some(loaded.namespace.clone()),
        uid: uid.clone(),
        ..ObjectReference::default()
    };
    let warning = Warning {
        about,
        component: COMPONENT.to_owned(),
        reason: note.reason.to_owned(),
        message: note.message.clone(),
        unix_us: now.0,
    };
    let mut event = warning.into_event();
    event.metadata.generate_name = None;
    event.metadata.name = Some(note.name(&uid.unwrap_or_default()));
    if !note.is_warning() {
        event.type_ = Some("Normal".to_owned());
    }
    event
}

async fn write(client: &kube::Client, namespace: &str, event: Event) -> Result<(), String> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    match events.create(&PostParams::default(), &event).await {
        Ok(_) => Ok(()),
        // An earlier run has written it.
        Err(kube::Error::Api(refusal)) if refusal.code == CONFLICT => Ok(()),
        Err(error) => Err(daemon_kit::chain(&error)),
    }
}

#[cfg(test)]
mod tests;
