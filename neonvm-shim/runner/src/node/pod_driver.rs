//! The worker of one pod: drives its directory and its runner to the state in the API, and writes
//! its status.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use protocol::object::Pod;
use protocol::runner::{ExitReason, ExitReport, RunnerPhase};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::api::{self, EventType, PodId};
use super::kept_logs::keep_logs;
use super::link::{self, Link};
use super::params::NodeParams;
use super::pod_record::PodRecord;
use super::prepare::{AddressAllocator, prepare};
use super::trash::move_aside;
use super::users::UserAllocator;
use super::{saved, volumes};
use crate::core::paths::Paths;
use crate::core::pod::{CONTAINER, Desired, Local, StatusInput, Step, View, next, status, summary};
use crate::shell::process::ProcessId;
use crate::shell::record::{Record, read_json};

/// Pause between two looks without an event.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// First pause after a failure; doubles up to [`LOOK_AGAIN`].
const RETRY: Duration = Duration::from_millis(250);
/// Pause before a runner that ended without its VM is started again, doubled each time up to
/// [`RESPAWN_MOST`].
const RESPAWN: Duration = Duration::from_millis(200);
const RESPAWN_MOST: Duration = Duration::from_secs(30);
/// Time after which a status that has not come back by the watch counts as overwritten, and is
/// written again.
const OVERWRITTEN_AFTER: Duration = Duration::from_secs(3);
/// Time after the end of a stop at which a QEMU that still runs is killed.
const KILL_AFTER: Duration = Duration::from_secs(15);

/// State of a pod from the watch.
#[derive(Debug, Clone)]
pub(super) struct DesiredPod {
    pub(super) desired: Desired,
    pub(super) pod: Pod,
    /// The complete status of the pod.
    pub(super) status: Value,
    /// Whether the watch reported the deletion: then nothing is kept. Else the directory is moved
    /// aside.
    pub(super) seen_deleted: bool,
}

pub(super) struct PodDriver {
    pub(super) params: NodeParams,
    pub(super) addresses: AddressAllocator,
    pub(super) users: Option<UserAllocator>,
    pub(super) id: PodId,
    pub(super) dir: PathBuf,
    pub(super) desired_pod: watch::Receiver<Arc<DesiredPod>>,
}

/// State of a worker between two steps.
#[derive(Default)]
struct Observed {
    link: Option<Link>,
    end: Option<ExitReport>,
    waiting: Option<(String, String)>,
    /// Grace period in the last order to the runner.
    stopping: Option<u64>,
    stop_since: Option<tokio::time::Instant>,
    published: Option<Value>,
    published_at: Option<tokio::time::Instant>,
    retry: Option<Duration>,
    respawn: Option<Duration>,
    respawn_at: Option<tokio::time::Instant>,
    /// Tasks that keep the pod's volumes current, while the pod is to run.
    keepers: Option<JoinSet<()>>,
}

impl PodDriver {
    /// Runs until the pod, its runner and its directory are gone.
    pub(super) async fn run(mut self) {
        let mut seen = Observed {
            link: Link::find(&self.dir).await,
            ..Observed::default()
        };
        if seen.link.is_some() {
            info!(pod = self.id.key(), "runner found");
        }
        loop {
            let desired_pod = self.desired_pod.borrow_and_update().clone();
            let local = self.local(&mut seen);
            let step = next(desired_pod.desired, local, &desired_pod.pod.status.phase);
            if self.take(step, &desired_pod, &mut seen).await {
                return;
            }
            self.keep_volumes(&desired_pod, &mut seen);
            self.publish(&desired_pod, &mut seen).await;
            let pause = seen.retry.unwrap_or(LOOK_AGAIN);
            tokio::select! {
                changed = self.desired_pod.changed() => if changed.is_err() {
                    // The driver has ended; runner and guest stay.
                    return;
                },
                () = state_changed(seen.link.as_mut()) => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Keeps the volumes of a prepared pod current.
    fn keep_volumes(&self, desired_pod: &DesiredPod, seen: &mut Observed) {
        if desired_pod.desired != Desired::Run || seen.end.is_some() {
            seen.keepers = None;
        } else if seen.keepers.is_none() && Paths::new(&self.dir).config().exists() {
            let namespace = &self.id.namespace;
            let keepers = volumes::keep_all(&self.params, namespace, &desired_pod.pod, &self.dir);
            seen.keepers = Some(keepers);
        }
    }

    fn local(&self, seen: &mut Observed) -> Local {
        if seen.link.as_ref().is_some_and(Link::is_over) {
            seen.link = None;
        }
        if seen.link.is_some() {
            return Local::Runner;
        }
        if seen.end.is_none() {
            seen.end = read_json(&Paths::new(&self.dir).exit()).ok().flatten();
        }
        if seen.end.is_some() {
            Local::Ended
        } else if Paths::new(&self.dir).config().exists() {
            Local::NoRunner
        } else {
            Local::Fresh
        }
    }

    /// Carries out a step; returns `true` when the pod is finished.
    async fn take(&self, step: Step, desired_pod: &DesiredPod, seen: &mut Observed) -> bool {
        match step {
            Step::Watch => seen.retry = None,
            Step::Prepare => self.prepare(desired_pod, seen).await,
            Step::Spawn => self.spawn(desired_pod, seen).await,
            Step::Stop { grace_ms } => self.stop(grace_ms, seen).await,
            Step::Lose => {
                seen.end = Some(ExitReport {
                    success: false,
                    reason: ExitReason::QemuDied,
                    code: None,
                    message: "the VM's directory is gone".to_owned(),
                });
            }
            Step::Finish { in_api } => {
                let is_deleted = in_api || desired_pod.seen_deleted;
                return self.finish(in_api, is_deleted, seen).await;
            }
        }
        false
    }

    async fn prepare(&self, desired_pod: &DesiredPod, seen: &mut Observed) {
        match prepare(
            &self.params,
            (&self.addresses, self.users.as_ref()),
            &desired_pod.pod,
            &self.id,
            &self.dir,
        )
        .await
        {
            Ok(()) => {
                seen.waiting = None;
                self.spawn(desired_pod, seen).await;
            }
            Err(error) => {
                let (reason, message) = (error.reason(), daemon_kit::chain(&error));
                self.waits(reason, &message, seen).await;
            }
        }
    }

    /// Records why the pod waits, and reports it once.
    async fn waits(&self, reason: &str, message: &str, seen: &mut Observed) {
        let now = (reason.to_owned(), message.to_owned());
        back_off(seen);
        if seen.waiting.as_ref() == Some(&now) {
            return;
        }
        warn!(pod = self.id.key(), reason, message, "pod cannot start");
        let wall = self.params.clock.wall();
        if let Err(error) = api::event(
            &self.params.client,
            &self.id,
            EventType::Warning,
            reason,
            message,
            wall,
        )
        .await
        {
            warn!(error = daemon_kit::chain(&error), "event not written");
        }
        seen.waiting = Some(now);
    }

    async fn spawn(&self, desired_pod: &DesiredPod, seen: &mut Observed) {
        let now = tokio::time::Instant::now();
        if seen.respawn_at.is_some_and(|at| now < at) {
            seen.retry = Some(RETRY);
            return;
        }
        let gone = !matches!(desired_pod.desired, Desired::Run);
        if gone && !Paths::new(&self.dir).record().exists() {
            // No guest was started here, and none shall be.
            seen.end = Some(ExitReport {
                success: false,
                reason: ExitReason::StartFailed,
                code: None,
                message: "the pod was deleted before its VM was started".to_owned(),
            });
            seen.retry = Some(Duration::ZERO);
            return;
        }
        match Link::spawn(&self.params.runner_command, &self.dir) {
            Ok(link) => {
                info!(pod = self.id.key(), dir = %self.dir.display(), "runner started");
                let pause = seen
                    .respawn
                    .map_or(RESPAWN, |pause| (pause * 2).min(RESPAWN_MOST));
                seen.respawn = Some(pause);
                seen.respawn_at = Some(now + pause);
                seen.link = Some(link);
                seen.waiting = None;
                seen.stopping = None;
                seen.retry = None;
            }
            Err(error) => {
                self.waits(
                    "RunContainerError",
                    &format!("cannot start a runner: {error}"),
                    seen,
                )
                .await;
            }
        }
    }

    async fn stop(&self, grace_ms: u64, seen: &mut Observed) {
        let since = *seen
            .stop_since
            .get_or_insert_with(tokio::time::Instant::now);
        let bound = Duration::from_millis(grace_ms) + KILL_AFTER;
        if since.elapsed() > bound {
            self.kill();
        }
        if seen.stopping == Some(grace_ms) {
            seen.retry = Some(LOOK_AGAIN);
            return;
        }
        match link::stop(&self.dir, grace_ms).await {
            Ok(()) => {
                info!(pod = self.id.key(), grace_ms, "stop ordered");
                seen.stopping = Some(grace_ms);
                seen.retry = None;
            }
            // The runner starts or ends: the order is repeated.
            Err(_) => seen.retry = Some(RETRY),
        }
    }

    /// Kills QEMU, in place of a runner that does not.
    fn kill(&self) {
        let record: Option<Record> = read_json(&Paths::new(&self.dir).record()).ok().flatten();
        if let Some(process) = record.and_then(|record| record.qemu)
            && process.is_alive()
        {
            warn!(
                pod = self.id.key(),
                pid = process.pid,
                "QEMU still runs after its stop and is killed"
            );
            ProcessId::kill(process);
        }
    }

    async fn finish(&self, in_api: bool, is_deleted: bool, seen: &mut Observed) -> bool {
        self.kill();
        if let Err(error) = self.clear(is_deleted, seen.end.as_ref()) {
            warn!(pod = self.id.key(), %error, "failed to remove the pod's directory");
            back_off(seen);
            return false;
        }
        if let Err(error) = self.addresses.release(&self.id.key()).await {
            warn!(
                pod = self.id.key(),
                error = daemon_kit::chain(&error),
                "failed to free the pod's address"
            );
        }
        if let Some(users) = &self.users
            && let Err(error) = users.release(&self.id.key()).await
        {
            let error = daemon_kit::chain(&error);
            warn!(pod = self.id.key(), error, "user not freed");
        }
        if in_api && let Err(error) = api::delete(&self.params.client, &self.id).await {
            warn!(
                pod = self.id.key(),
                error = daemon_kit::chain(&error),
                "failed to delete the pod"
            );
            back_off(seen);
            return false;
        }
        info!(pod = self.id.key(), "pod finished");
        true
    }

    /// Removes the directory of a deleted pod, and moves that of any other pod aside.
    fn clear(&self, is_deleted: bool, end: Option<&ExitReport>) -> std::io::Result<()> {
        let state_dir = &self.params.state_dir;
        let objects = saved::path(state_dir, &self.dir);
        if is_deleted {
            keep_logs(state_dir, &self.dir, end);
            remove(&self.dir)?;
            return match std::fs::remove_file(objects) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
        }
        let now = self.params.clock.wall();
        if let Some(to) = move_aside(state_dir, &self.dir, now)? {
            warn!(pod = self.id.key(), to = %to.display(), "directory moved to the trash, to be removed in a week");
        }
        move_aside(state_dir, &objects, now).map(drop)
    }

    /// Writes the status if it differs from the API's.
    async fn publish(&self, desired_pod: &DesiredPod, seen: &mut Observed) {
        if matches!(desired_pod.desired, Desired::Gone { .. }) {
            return;
        }
        let Some(view) = view(seen) else { return };
        if let View::Running { ready: true } = view {
            // The runner works: the next failure begins a new series.
            seen.respawn = None;
        }
        let image = desired_pod
            .pod
            .spec
            .containers
            .iter()
            .find(|container| container.name == CONTAINER);
        let host_ip = self.params.host_ip().to_string();
        let input = StatusInput {
            existing: seen.published.as_ref().unwrap_or(&desired_pod.status),
            image: image.map_or("", |container| &container.image),
            pod_ip: PodRecord::read(&self.dir).map(|record| record.ip.to_string()),
            host_ip: &host_ip,
            now: self.params.clock.wall(),
        };
        let status = status(&view, &input);
        if holds(&desired_pod.status, &status) {
            seen.published = Some(status);
            return;
        }
        let fresh = seen
            .published_at
            .is_some_and(|at| at.elapsed() < OVERWRITTEN_AFTER);
        if seen.published.as_ref() == Some(&status) && fresh {
            // The watch may not have returned the last write yet.
            return;
        }
        match api::patch_status(&self.params.client, &self.id, &status).await {
            Ok(()) => {
                self.announce(&view, desired_pod, seen).await;
                seen.published = Some(status);
            }
            Err(error) => {
                warn!(
                    pod = self.id.key(),
                    error = daemon_kit::chain(&error),
                    "failed to write the pod's status"
                );
                back_off(seen);
            }
        }
    }

    /// Writes one event about an end.
    async fn announce(&self, view: &View, desired_pod: &DesiredPod, seen: &Observed) {
        let View::Ended(report) = view else { return };
        let is_ended =
            |status: &Value| matches!(status["phase"].as_str(), Some("Failed" | "Succeeded"));
        if report.success
            || is_ended(&desired_pod.status)
            || seen.published.as_ref().is_some_and(is_ended)
        {
            return;
        }
        let (reason, message) = (crate::core::pod::label(report.reason), summary(report));
        warn!(pod = self.id.key(), reason, message, "VM failed");
        let wall = self.params.clock.wall();
        if let Err(error) = api::event(
            &self.params.client,
            &self.id,
            EventType::Warning,
            reason,
            &message,
            wall,
        )
        .await
        {
            warn!(error = daemon_kit::chain(&error), "event not written");
        }
    }
}

fn back_off(seen: &mut Observed) {
    seen.retry = Some(
        seen.retry
            .map_or(RETRY, |pause| (pause * 2).clamp(RETRY, LOOK_AGAIN)),
    );
}

async fn state_changed(link: Option<&mut Link>) {
    match link {
        // A change and the end are both due.
        Some(link) => drop(link.state.changed().await),
        None => std::future::pending().await,
    }
}

/// View for the status; `None` before anything is known.
fn view(seen: &Observed) -> Option<View> {
    if let Some(link) = &seen.link {
        let ready = link
            .state
            .borrow()
            .as_ref()
            .is_some_and(|state| state.phase == RunnerPhase::Running);
        return Some(View::Running { ready });
    }
    if let Some(report) = &seen.end {
        return Some(View::Ended(report.clone()));
    }
    let (reason, message) = seen.waiting.clone()?;
    Some(View::Waiting { reason, message })
}

/// Whether the API's status contains all members of ours.
fn holds(api: &Value, ours: &Value) -> bool {
    match (api, ours) {
        (Value::Object(api), Value::Object(ours)) => ours
            .iter()
            .all(|(key, value)| api.get(key).is_some_and(|there| holds(there, value))),
        (Value::Array(api), Value::Array(ours)) => {
            api.len() == ours.len() && api.iter().zip(ours).all(|(api, ours)| holds(api, ours))
        }
        (api, ours) => api == ours,
    }
}

fn remove(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn status_with_more_members_contains_ours() {
        let api = json!({ "phase": "Running", "qosClass": "x", "list": [{ "a": 1, "b": 2 }] });
        assert!(holds(
            &api,
            &json!({ "phase": "Running", "list": [{ "a": 1 }] })
        ));
        assert!(!holds(&api, &json!({ "phase": "Pending" })));
        assert!(!holds(&api, &json!({ "list": [] })));
        assert!(!holds(&Value::Null, &json!({ "phase": "Running" })));
    }
}
