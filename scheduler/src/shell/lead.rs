//! Who leads: our own election through a Lease, or the one of a kube-scheduler beside us, which is only watched.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use protocol::time::{Span, Timestamp, WallTime};
use serde_json::{Value, json};
use telemetry::clock::Clock;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::owner::Command;
use crate::core::elect::{ElectRule, Elector, LeaseState, LeaseWrite, Step};
use crate::core::event::Event;
use crate::core::lease::{LeaseRule, LeaseSeen};

/// Set on a Lease by whoever released it with nothing of its own under way, removed by whoever takes it.
pub const ANNOTATION_DRAINED: &str = "autoscaling.neon.tech/drained";
/// Longest sleep; whatever is due later is looked at again then.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// The Lease object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// How it is told whether this process leads.
#[derive(Debug, Clone)]
pub enum Leadership {
    /// There is no other replica: it always does.
    Alone,
    /// This process takes part in an election of its own.
    Elected(LeaseName, ElectRule),
    /// A kube-scheduler on this host takes part; the Lease is only watched.
    Followed(LeaseName, LeaseRule),
}

impl Leadership {
    /// What the core is told of it.
    #[must_use]
    pub fn rule(&self) -> Option<LeaseRule> {
        match self {
            Self::Alone => None,
            Self::Elected(_, rule) => Some(rule.lease_rule()),
            Self::Followed(_, rule) => Some(rule.clone()),
        }
    }
}

/// What is needed to follow a Lease.
pub(super) struct Follower {
    pub(super) client: Client,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) metrics: Metrics,
    pub(super) clock: Clock,
    /// Time-out of one call.
    pub(super) timeout: Duration,
    /// Who writes, for the API's records.
    pub(super) writer: String,
}

impl Follower {
    /// Runs until `cancel`, or until `leave` has been answered by giving the Lease up: its value says whether nothing of this
    /// process is under way.
    pub(super) async fn run(
        self,
        leadership: Leadership,
        leave: oneshot::Receiver<bool>,
        cancel: CancellationToken,
    ) {
        let following = async {
            match leadership {
                Leadership::Alone => drop(leave.await),
                Leadership::Elected(lease, rule) => self.elect(&lease, rule, leave).await,
                Leadership::Followed(lease, rule) => {
                    tokio::select! {
                        () = self.watch(&lease, rule.settle) => {}
                        // What kube-scheduler holds is not ours to give up.
                        _ = leave => {}
                    }
                }
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = following => {}
        }
    }

    fn api(&self, lease: &LeaseName) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &lease.namespace)
    }

    async fn tell(&self, told: Option<LeaseSeen>) {
        if let Some(told) = told {
            // The owner has gone only when everything ends.
            let event = Command::Happened(Event::Lease(told));
            let _sent = self.commands.send(event).await;
        }
    }

    /// Tells of every state of a Lease that somebody else renews.
    async fn watch(&self, lease: &LeaseName, settle: Span) {
        let stream = watcher::watch_object(self.api(lease), &lease.name).default_backoff();
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            self.metrics.watch_failing("Leases", event.is_err());
            let lease = match event {
                Ok(lease) => lease.unwrap_or_default(),
                Err(error) => {
                    let error = telemetry::chain(&error);
                    tracing::warn!(error, "the watch of the Lease failed; it is taken up again");
                    continue;
                }
            };
            let now = self.clock.now();
            let spec = lease.spec.unwrap_or_default();
            let renewed = spec.renew_time.map_or(0, |at| at.0.as_microsecond());
            self.tell(Some(LeaseSeen {
                holder: spec.holder_identity.unwrap_or_default(),
                renewed: moment(now, self.clock.wall(), WallTime(renewed)),
                settled: now + settle,
            }))
            .await;
        }
    }

    async fn elect(&self, lease: &LeaseName, rule: ElectRule, mut leave: oneshot::Receiver<bool>) {
        let api = self.api(lease);
        let stream = watcher::watch_object(api.clone(), &lease.name).default_backoff();
        let mut stream = std::pin::pin!(stream.fuse());
        let mut elector = Elector::new(rule);
        let mut is_leaving = false;
        while !elector.has_left() {
            match elector.poll(self.clock.now()) {
                Step::Wait(until) => tokio::select! {
                    drained = &mut leave, if !is_leaving => {
                        is_leaving = true;
                        elector.leave(drained.unwrap_or(false));
                    }
                    event = stream.select_next_some() => {
                        self.metrics.watch_failing("Leases", event.is_err());
                        match event {
                            Ok(Some(seen)) => match state_of(&seen) {
                                Some(state) => self.tell(elector.seen(self.clock.now(), Some(state))).await,
                                None => elector.doubt(),
                            },
                            Ok(None) => elector.doubt(),
                            Err(error) => {
                                let error = telemetry::chain(&error);
                                tracing::warn!(error, "the watch of the Lease failed; it is taken up again");
                            }
                        }
                    }
                    () = self.sleep_until(until) => {}
                },
                Step::Read => {
                    let found = self.call("Get", api.get_opt(&lease.name)).await;
                    let now = self.clock.now();
                    match found.map(|found| found.as_ref().map(state_of)) {
                        Some(None) => self.tell(elector.seen(now, None)).await,
                        Some(Some(Some(state))) => self.tell(elector.seen(now, Some(state))).await,
                        Some(Some(None)) | None => elector.failed(now),
                    }
                }
                Step::Write(write) => {
                    let written = self.write(&api, lease, &write).await;
                    let now = self.clock.now();
                    match written.as_ref().and_then(state_of) {
                        Some(state) => self.tell(elector.written(now, state)).await,
                        None => elector.failed(now),
                    }
                }
            }
        }
    }

    async fn write(&self, api: &Api<Lease>, name: &LeaseName, write: &LeaseWrite) -> Option<Lease> {
        let text = lease_text(name, write, self.clock.wall());
        let params = PatchParams {
            field_manager: Some(self.writer.clone()),
            ..PatchParams::default()
        };
        if write.base.is_some() {
            let patch = Patch::Merge(&text);
            return self
                .call("Patch", api.patch(&name.name, &params, &patch))
                .await;
        }
        let lease: Lease = serde_json::from_value(text).ok()?;
        let params = PostParams {
            field_manager: Some(self.writer.clone()),
            ..PostParams::default()
        };
        self.call("Create", api.create(&params, &lease)).await
    }

    async fn call<T>(&self, op: &str, call: impl Future<Output = kube::Result<T>>) -> Option<T> {
        let (outcome, result) = match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(value)) => ("success".to_owned(), Some(value)),
            Ok(Err(kube::Error::Api(status))) => (format!("error: status {}", status.code), None),
            Ok(Err(_)) | Err(_) => ("error: no answer".to_owned(), None),
        };
        if result.is_none() {
            tracing::info!(op, outcome, "a call about the Lease failed");
        }
        self.metrics.k8s_op(op, "Lease", &outcome);
        result
    }

    async fn sleep_until(&self, until: Timestamp) {
        let pause = until.since(self.clock.now()).to_duration();
        tokio::time::sleep(pause.min(LONGEST_SLEEP)).await;
    }
}

/// The monotonic time of a time of day on this host.
fn moment(now: Timestamp, wall: WallTime, at: WallTime) -> Timestamp {
    now - Span(u64::try_from(wall.0.saturating_sub(at.0)).unwrap_or(0))
}

/// Reads a Lease; nothing if its version cannot be put in order.
fn state_of(lease: &Lease) -> Option<LeaseState> {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or(0);
    let drained = lease.metadata.annotations.as_ref();
    let drained = drained.and_then(|notes| notes.get(ANNOTATION_DRAINED));
    Some(LeaseState {
        version: lease.metadata.resource_version.as_ref()?.parse().ok()?,
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Span::from_secs(u64::try_from(seconds).unwrap_or(0)),
        transitions: u32::try_from(spec.lease_transitions.unwrap_or(0)).unwrap_or(0),
        is_drained: drained.is_some_and(|value| value == "true"),
    })
}

/// A whole new Lease, or the merge patch of one: the version in it makes the API refuse it for any other.
fn lease_text(name: &LeaseName, write: &LeaseWrite, now: WallTime) -> Value {
    let LeaseWrite { base, state, takes } = write;
    let mut text = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name.name, "namespace": name.namespace },
        "spec": {
            "holderIdentity": (!state.holder.is_empty()).then_some(&state.holder),
            "leaseDurationSeconds": state.duration.0 / 1_000_000,
            "leaseTransitions": state.transitions,
            "renewTime": now.to_micro_string(),
        },
    });
    if *takes {
        text["spec"]["acquireTime"] = json!(now.to_micro_string());
    }
    if let Some(base) = base {
        text["metadata"]["resourceVersion"] = json!(base.to_string());
        let drained = state.is_drained.then_some("true");
        text["metadata"]["annotations"] = json!({ ANNOTATION_DRAINED: drained });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(base: Option<u64>, holder: &str, is_drained: bool) -> LeaseWrite {
        let state = LeaseState {
            version: 0,
            holder: holder.into(),
            duration: Span::from_secs(8),
            transitions: 2,
            is_drained,
        };
        let takes = base.is_none();
        LeaseWrite { base, state, takes }
    }

    fn name() -> LeaseName {
        LeaseName {
            namespace: "kube-system".into(),
            name: "autoscale-scheduler".into(),
        }
    }

    #[test]
    fn a_lease_is_written_as_the_api_wants_it() {
        let now = WallTime(1_700_000_000_000_001);
        let made = lease_text(&name(), &write(None, "a", false), now);
        let time = "2023-11-14T22:13:20.000001Z";
        let expected = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "autoscale-scheduler", "namespace": "kube-system"},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 8, "leaseTransitions": 2,
                "renewTime": time, "acquireTime": time},
        });
        assert_eq!(made, expected);
        let released = lease_text(&name(), &write(Some(7), "", true), now);
        assert_eq!(released["spec"]["holderIdentity"], Value::Null);
        assert_eq!(released["metadata"]["resourceVersion"], "7");
        assert_eq!(
            released["metadata"]["annotations"][ANNOTATION_DRAINED],
            "true"
        );
        let renewed = lease_text(&name(), &write(Some(7), "a", false), now);
        assert_eq!(
            renewed["metadata"]["annotations"][ANNOTATION_DRAINED],
            Value::Null
        );
    }

    #[test]
    fn a_lease_is_read_whatever_is_missing() {
        let read = |text: Value| state_of(&serde_json::from_value(text).expect("is a Lease"));
        let full = json!({"metadata": {"resourceVersion": "12", "annotations": {ANNOTATION_DRAINED: "true"}},
            "spec": {"holderIdentity": "b", "leaseDurationSeconds": 15, "leaseTransitions": 4}});
        let expected = LeaseState {
            version: 12,
            holder: "b".into(),
            duration: Span::from_secs(15),
            transitions: 4,
            is_drained: true,
        };
        assert_eq!(read(full), Some(expected));
        let bare = read(json!({"metadata": {"resourceVersion": "12"}})).expect("is read");
        assert_eq!((bare.holder.as_str(), bare.duration), ("", Span(0)));
        let odd = json!({"metadata": {"resourceVersion": "12"}, "spec": {"leaseDurationSeconds": -5, "leaseTransitions": -1}});
        assert_eq!(read(odd), Some(bare));
        assert_eq!(read(json!({"metadata": {"resourceVersion": "x"}})), None);
    }

    #[test]
    fn a_time_of_day_becomes_a_moment_of_this_process() {
        let now = Timestamp(50_000_000);
        let moment = |at| moment(now, WallTime(1_000_000_000), WallTime(at));
        assert_eq!(moment(997_000_000), Timestamp(47_000_000));
        assert_eq!(moment(2_000_000_000), now, "a clock ahead gives no time");
        assert_eq!(moment(0), Timestamp(0));
        assert_eq!(moment(i64::MIN), Timestamp(0));
    }
}
