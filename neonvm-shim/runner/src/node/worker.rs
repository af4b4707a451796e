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

use super::api::{self, PodId};
use super::aside::move_aside;
use super::link::{self, Link};
use super::params::NodeParams;
use super::prepare::{AddressBook, PodRecord, prepare};
use super::users::UserBook;
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
/// Longest such pause.
const RESPAWN_MOST: Duration = Duration::from_secs(30);
/// Time after which a status that has not come back by the watch counts as overwritten, and is
/// written again.
const OVERWRITTEN_AFTER: Duration = Duration::from_secs(3);
/// Time after the end of a stop at which a QEMU that still runs is killed.
const KILL_AFTER: Duration = Duration::from_secs(15);

/// State of a pod from the watch.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) desired: Desired,
    pub(super) pod: Pod,
    /// The complete status of the pod.
    pub(super) status: Value,
    /// Whether the watch reported the deletion: then nothing is kept. Else the directory is moved
    /// aside.
    pub(super) seen_deleted: bool,
}

pub(super) struct Worker {
    pub(super) params: NodeParams,
    pub(super) addresses: AddressBook,
    pub(super) users: Option<UserBook>,
    pub(super) id: PodId,
    pub(super) dir: PathBuf,
    pub(super) wish: watch::Receiver<Arc<Wish>>,
}

/// State of a worker between two steps.
#[derive(Default)]
struct Seen {
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

impl Worker {
    /// Runs until the pod, its runner and its directory are gone.
    pub(super) async fn run(mut self) {
        let mut seen = Seen {
            link: Link::find(&self.dir).await,
            ..Seen::default()
        };
        if seen.link.is_some() {
            info!(pod = self.id.key(), "runner found");
        }
        loop {
            let wish = self.wish.borrow_and_update().clone();
            let local = self.local(&mut seen);
            let step = next(wish.desired, local, &wish.pod.status.phase);
            if self.take(step, &wish, &mut seen).await {
                return;
            }
            self.keep_volumes(&wish, &mut seen);
            self.publish(&wish, &mut seen).await;
            let pause = seen.retry.unwrap_or(LOOK_AGAIN);
            tokio::select! {
                changed = self.wish.changed() => if changed.is_err() {
                    // The driver has ended; runner and guest stay.
                    return;
                },
                () = state_changed(seen.link.as_mut()) => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Keeps the volumes of a prepared pod current.
    fn keep_volumes(&self, wish: &Wish, seen: &mut Seen) {
        if wish.desired != Desired::Run || seen.end.is_some() {
            seen.keepers = None;
        } else if seen.keepers.is_none() && Paths::new(&self.dir).config().exists() {
            let namespace = &self.id.namespace;
            let keepers = volumes::keep_all(&self.params, namespace, &wish.pod, &self.dir);
            seen.keepers = Some(keepers);
        }
    }

    fn local(&self, seen: &mut Seen) -> Local {
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
    async fn take(&self, step: Step, wish: &Wish, seen: &mut Seen) -> bool {
        match step {
            Step::Watch => seen.retry = None,
            Step::Prepare => self.prepare(wish, seen).await,
            Step::Spawn => self.spawn(wish, seen).await,
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
                let is_deleted = in_api || wish.seen_deleted;
                return self.finish(in_api, is_deleted, seen).await;
            }
        }
        false
    }

    async fn prepare(&self, wish: &Wish, seen: &mut Seen) {
        match prepare(
            &self.params,
            (&self.addresses, self.users.as_ref()),
            &wish.pod,
            &self.id,
            &self.dir,
        )
        .await
        {
            Ok(()) => {
                seen.waiting = None;
                self.spawn(wish, seen).await;
            }
            Err(error) => {
                let (reason, message) = (error.reason(), daemon_kit::chain(&error));
                self.waits(reason, &message, seen).await;
            }
        }
    }

    /// Records why the pod waits, and reports it once.
    async fn waits(&self, reason: &str, message: &str, seen: &mut Seen) {
        let now = (reason.to_owned(), message.to_owned());
        back_off(seen);
        if seen.waiting.as_ref() == Some(&now) {
            return;
        }
        warn!(pod = self.id.key(), reason, message, "pod cannot start");
        let wall = self.params.clock.wall();
        if let Err(error) =
            api::event(&self.params.client, &self.id, true, reason, message, wall).await
        {
            warn!(error = daemon_kit::chain(&error), "event not written");
        }
        seen.waiting = Some(now);
    }

    async fn spawn(&self, wish: &Wish, seen: &mut Seen) {
        let now = tokio::time::Instant::now();
        if seen.respawn_at.is_some_and(|at| now < at) {
            seen.retry = Some(RETRY);
            return;
        }
        let gone = !matches!(wish.desired, Desired::Run);
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

    async fn stop(&self, grace_ms: u64, seen: &mut Seen) {
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
                "QEMU outlived its stop and is killed"
            );
            ProcessId::kill(process);
        }
    }

    async fn finish(&self, in_api: bool, is_deleted: bool, seen: &mut Seen) -> bool {
        self.kill();
        if let Err(error) = self.clear(is_deleted, seen.end.as_ref()) {
            warn!(pod = self.id.key(), %error, "directory not removed");
            back_off(seen);
            return false;
        }
        if let Err(error) = self.addresses.release(&self.id.key()).await {
            warn!(
                pod = self.id.key(),
                error = daemon_kit::chain(&error),
                "address not freed"
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
                "pod not deleted"
            );
            back_off(seen);
            return false;
        }
        info!(pod = self.id.key(), "pod is done with");
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
            warn!(pod = self.id.key(), to = %to.display(), "directory moved aside, it is removed in a week");
        }
        move_aside(state_dir, &objects, now).map(drop)
    }

    /// Writes the status if it differs from the API's.
    async fn publish(&self, wish: &Wish, seen: &mut Seen) {
        if matches!(wish.desired, Desired::Gone { .. }) {
            return;
        }
        let Some(view) = view(seen) else { return };
        if let View::Running { ready: true } = view {
            // The runner works: the next failure begins a new series.
            seen.respawn = None;
        }
        let image = wish
            .pod
            .spec
            .containers
            .iter()
            .find(|container| container.name == CONTAINER);
        let host_ip = self.params.host_ip().to_string();
        let input = StatusInput {
            existing: seen.published.as_ref().unwrap_or(&wish.status),
            image: image.map_or("", |container| &container.image),
            pod_ip: PodRecord::read(&self.dir).map(|record| record.ip.to_string()),
            host_ip: &host_ip,
            now: self.params.clock.wall(),
        };
        let status = status(&view, &input);
        if holds(&wish.status, &status) {
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
                self.announce(&view, wish, seen).await;
                seen.published = Some(status);
            }
            Err(error) => {
                warn!(
                    pod = self.id.key(),
                    error = daemon_kit::chain(&error),
                    "status not written"
                );
                back_off(seen);
            }
        }
    }

    /// Writes one event about an end.
    async fn announce(&self, view: &View, wish: &Wish, seen: &Seen) {
        let View::Ended(report) = view else { return };
        let told =
            |status: &Value| matches!(status["phase"].as_str(), Some("Failed" | "Succeeded"));
        if report.success || told(&wish.status) || seen.published.as_ref().is_some_and(told) {
            return;
        }
        let (reason, message) = (crate::core::pod::word(report.reason), summary(report));
        warn!(pod = self.id.key(), reason, message, "VM failed");
        let wall = self.params.clock.wall();
        if let Err(error) =
            api::event(&self.params.client, &self.id, true, reason, &message, wall).await
        {
            warn!(error = daemon_kit::chain(&error), "event not written");
        }
    }
}

fn back_off(seen: &mut Seen) {
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
fn view(seen: &Seen) -> Option<View> {
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

/// Number of failed VMs whose logs are kept.
const KEPT_LOGS: usize = 16;

/// Keeps the logs of a failed VM: the controller deletes its pod at once, and with it all evidence.
fn keep_logs(state_dir: &Path, dir: &Path, end: Option<&ExitReport>) {
    let failed = end.is_some_and(|report| !report.success && report.reason != ExitReason::Killed);
    let (true, Some(name)) = (failed, dir.file_name()) else {
        return;
    };
    let root = state_dir.join("failed");
    let to = root.join(name);
    // Failures here must not delay the pod's end.
    if crate::shell::record::private_dir(&to).is_err() {
        return;
    }
    for file in [
        "console.log",
        "console.log.1",
        "guest.log",
        "guest.log.1",
        "qemu.log",
        "runner.log",
        "exit.json",
        "runner.json",
    ] {
        let _ = std::fs::rename(dir.join(file), to.join(file));
    }
    let Ok(entries) = std::fs::read_dir(&root) else {
        return;
    };
    let mut kept: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    kept.sort();
    let surplus = kept.len().saturating_sub(KEPT_LOGS);
    for (_, path) in kept.into_iter().take(surplus) {
        let _ = std::fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_with_more_members_holds_ours() {
        let api = json!({ "phase": "Running", "qosClass": "x", "list": [{ "a": 1, "b": 2 }] });
        assert!(holds(
            &api,
            &json!({ "phase": "Running", "list": [{ "a": 1 }] })
        ));
        assert!(!holds(&api, &json!({ "phase": "Pending" })));
        assert!(!holds(&api, &json!({ "list": [] })));
        assert!(!holds(&Value::Null, &json!({ "phase": "Running" })));
    }

    #[test]
    fn logs_of_failures_are_kept_and_bounded() {
        let temp = tempfile::tempdir().unwrap();
        let report = |success, reason| ExitReport {
            success,
            reason,
            code: None,
            message: String::new(),
        };
        for n in 0..KEPT_LOGS + 3 {
            let dir = temp.path().join(format!("vms/default_p{n}"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("console.log"), "x").unwrap();
            keep_logs(
                temp.path(),
                &dir,
                Some(&report(false, ExitReason::GuestPanic)),
            );
        }
        let kept = || {
            std::fs::read_dir(temp.path().join("failed"))
                .unwrap()
                .count()
        };
        assert_eq!(kept(), KEPT_LOGS);
        let dir = temp.path().join("vms/default_good");
        std::fs::create_dir_all(&dir).unwrap();
        keep_logs(
            temp.path(),
            &dir,
            Some(&report(true, ExitReason::Requested)),
        );
        assert!(!temp.path().join("failed/default_good").exists());
    }
}
