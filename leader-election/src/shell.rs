//! The Lease object: read, written, watched.

mod leading;

use std::time::Duration;

use daemon_kit::clock::Clock;
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use protocol::time::{Span, Timestamp, WallTime};
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub use leading::{Led, LostLead, while_leading};

use crate::core::elect::{ElectRule, Elector, LeaseState, LeaseWrite, Leave, Note, Step};
use crate::core::lease::LeaseSeen;

/// Set on a Lease by whoever released it with nothing under way, of its own or of an earlier one;
/// removed by whoever takes it.
pub const ANNOTATION_DRAINED: &str = "autoscaling.neon.tech/drained";
/// What whoever released a Lease left to the next one: the Lease's transitions, a space, and a
/// text; removed by whoever takes it.
pub const ANNOTATION_NOTE: &str = "autoscaling.neon.tech/handed-over";
/// Longest note that is read, in bytes.
const MAX_NOTE_BYTES: usize = 1024;
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

/// Who is told what happens to the Lease.
pub trait Witness: Send + Sync {
    /// It was seen like this.
    fn seen(&self, seen: LeaseSeen) -> impl Future<Output = ()> + Send;

    /// A call about it ended: the verb as in `Get`, and how it failed if it did.
    fn called(&self, verb: &'static str, failure: Option<&str>);

    /// Its watch works, or does not.
    fn watched(&self, is_failing: bool);
}

/// What is needed to follow a Lease.
#[derive(Clone)]
pub struct Follower<W> {
    /// Client of the API server.
    pub client: Client,
    /// The clock of this process.
    pub clock: Clock,
    /// Time-out of one call.
    pub timeout: Duration,
    /// Who writes, for the API's records.
    pub writer: String,
    /// Who is told.
    pub witness: W,
}

impl<W: Witness> Follower<W> {
    fn api(&self, lease: &LeaseName) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &lease.namespace)
    }

    async fn tell(&self, told: Option<LeaseSeen>) {
        if let Some(told) = told {
            self.witness.seen(told).await;
        }
    }

    /// Tells of every state of a Lease that somebody else renews. Ends only when it is dropped.
    pub async fn watch(&self, lease: &LeaseName, settle: Span) {
        let stream = watcher::watch_object(self.api(lease), &lease.name).default_backoff();
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            self.witness.watched(event.is_err());
            let lease = match event {
                Ok(lease) => lease.unwrap_or_default(),
                Err(error) => {
                    let error = daemon_kit::chain(&error);
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
                note: None,
            }))
            .await;
        }
    }

    /// Takes part in the election until `leave` was answered by giving the Lease up.
    pub async fn elect(
        &self,
        lease: &LeaseName,
        rule: ElectRule,
        mut leave: oneshot::Receiver<Leave>,
    ) {
        let api = self.api(lease);
        let stream = watcher::watch_object(api.clone(), &lease.name).default_backoff();
        let mut stream = std::pin::pin!(stream.fuse());
        let mut elector = Elector::new(rule);
        let mut is_leaving = false;
        while !elector.has_left() {
            match elector.poll(self.clock.now()) {
                Step::Wait(until) => tokio::select! {
                    told = &mut leave, if !is_leaving => {
                        is_leaving = true;
                        elector.leave(told.unwrap_or_default());
                    }
                    event = stream.select_next_some() => {
                        self.witness.watched(event.is_err());
                        match event {
                            Ok(Some(seen)) => match state_of(&seen) {
                                Some(state) => self.tell(elector.seen(self.clock.now(), Some(state))).await,
                                None => elector.doubt(),
                            },
                            Ok(None) => elector.doubt(),
                            Err(error) => {
                                let error = daemon_kit::chain(&error);
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

    async fn call<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Option<T> {
        let failure = match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(value)) => {
                self.witness.called(verb, None);
                return Some(value);
            }
            Ok(Err(kube::Error::Api(status))) => format!("error: status {}", status.code),
            Ok(Err(_)) | Err(_) => "error: no answer".to_owned(),
        };
        tracing::info!(verb, failure, "a call about the Lease failed");
        self.witness.called(verb, Some(&failure));
        None
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
    let annotations = lease.metadata.annotations.as_ref();
    let drained = annotations.and_then(|notes| notes.get(ANNOTATION_DRAINED));
    let note = annotations.and_then(|notes| notes.get(ANNOTATION_NOTE));
    Some(LeaseState {
        version: lease.metadata.resource_version.as_ref()?.parse().ok()?,
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Span::from_secs(u64::try_from(seconds).unwrap_or(0)),
        transitions: u32::try_from(spec.lease_transitions.unwrap_or(0)).unwrap_or(0),
        is_drained: drained.is_some_and(|value| value == "true"),
        note: note.and_then(|text| note_of(text)),
    })
}

fn note_of(text: &str) -> Option<Note> {
    let (transitions, text) = text.split_once(' ')?;
    Some(Note {
        transitions: transitions.parse().ok()?,
        text: (text.len() <= MAX_NOTE_BYTES).then(|| text.to_owned())?,
    })
}

/// A whole new Lease, or the merge patch of one: the version in it makes the API refuse it for any
/// other.
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
        let note = state.note.as_ref();
        let note = note.map(|note| format!("{} {}", note.transitions, note.text));
        text["metadata"]["annotations"] =
            json!({ ANNOTATION_DRAINED: drained, ANNOTATION_NOTE: note });
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
            note: is_drained.then(note),
        };
        let takes = base.is_none();
        LeaseWrite { base, state, takes }
    }

    fn note() -> Note {
        Note {
            transitions: 2,
            text: "nodes=1 pods=2".into(),
        }
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
        assert_eq!(
            released["metadata"]["annotations"][ANNOTATION_NOTE],
            "2 nodes=1 pods=2"
        );
        let renewed = lease_text(&name(), &write(Some(7), "a", false), now);
        let notes = &renewed["metadata"]["annotations"];
        assert_eq!(
            notes.get(ANNOTATION_NOTE),
            Some(&Value::Null),
            "it is removed"
        );
        assert_eq!(
            renewed["metadata"]["annotations"][ANNOTATION_DRAINED],
            Value::Null
        );
    }

    #[test]
    fn a_lease_is_read_whatever_is_missing() {
        let read = |text: Value| state_of(&serde_json::from_value(text).expect("is a Lease"));
        let full = json!({"metadata": {"resourceVersion": "12",
                "annotations": {ANNOTATION_DRAINED: "true", ANNOTATION_NOTE: "2 nodes=1 pods=2"}},
            "spec": {"holderIdentity": "b", "leaseDurationSeconds": 15, "leaseTransitions": 4}});
        let expected = LeaseState {
            version: 12,
            holder: "b".into(),
            duration: Span::from_secs(15),
            transitions: 4,
            is_drained: true,
            note: Some(note()),
        };
        assert_eq!(read(full), Some(expected));
        let bare = read(json!({"metadata": {"resourceVersion": "12"}})).expect("is read");
        assert_eq!((bare.holder.as_str(), bare.duration), ("", Span(0)));
        let odd = json!({"metadata": {"resourceVersion": "12"}, "spec": {"leaseDurationSeconds": -5, "leaseTransitions": -1}});
        assert_eq!(read(odd), Some(bare));
        assert_eq!(read(json!({"metadata": {"resourceVersion": "x"}})), None);
        let long = format!("2 {}", "x".repeat(MAX_NOTE_BYTES + 1));
        for text in ["", "2", "x y", "-2 y", "99999999999 y", &long] {
            assert_eq!(note_of(text), None, "{text}");
        }
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
