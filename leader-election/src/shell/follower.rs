//! Reads, writes and watches of the Lease, and the loop of the election.

use std::time::Duration;

use api_client::watch::{self as api_watch, Retry};
use daemon_kit::clock::Clock;
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use protocol::time::{Span, Timestamp, WallTime};
use tokio::sync::oneshot;

use super::lease_object::{LeaseName, lease_text, monotonic, state_of};
use crate::core::elect::{ElectRule, Elector, LeaseWrite, Leave, Step};
use crate::core::lease::LeaseSeen;

/// Longest sleep. After it the elector is polled again.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Receives observations of the Lease, and the outcomes of calls and watches for metrics.
pub trait LeaseObserver: Send + Sync {
    /// Handles an observation.
    fn seen(&self, seen: LeaseSeen) -> impl Future<Output = ()> + Send;

    /// Handles the end of a call. `verb` is as in `Get`. `failure` is `None` after a success.
    fn called(&self, verb: &'static str, failure: Option<&str>);

    /// Handles a result of the watch.
    fn watched(&self, is_failing: bool);
}

/// Follows a Lease.
#[derive(Clone)]
pub struct Follower<W> {
    /// Client of the API server.
    pub client: Client,
    /// The clock of this process.
    pub clock: Clock,
    /// Time-out of one call.
    pub timeout: Duration,
    /// Field manager of writes.
    pub writer: String,
    /// Receives each observed state, and whether the watch fails.
    pub observer: W,
}

impl<W: LeaseObserver> Follower<W> {
    fn api(&self, lease: &LeaseName) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &lease.namespace)
    }

    async fn report(&self, seen: Option<LeaseSeen>) {
        if let Some(seen) = seen {
            self.observer.seen(seen).await;
        }
    }

    /// Reports every state of a Lease that another process renews. Never completes.
    pub async fn watch(&self, lease: &LeaseName, settle: Span) {
        let mut stream = api_watch::object(self.api(lease), &lease.name, Retry::Patient);
        while let Some(event) = stream.next().await {
            self.observer.watched(event.is_err());
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
            self.report(Some(LeaseSeen {
                holder: spec.holder_identity.unwrap_or_default(),
                renewed: monotonic(now, self.clock.wall(), WallTime(renewed)),
                settled: now + settle,
                handover: None,
            }))
            .await;
        }
    }

    /// Takes part in the election until the Lease is released after `leave`.
    pub async fn elect(
        &self,
        lease: &LeaseName,
        rule: ElectRule,
        mut leave: oneshot::Receiver<Leave>,
    ) {
        let api = self.api(lease);
        let mut stream = api_watch::object(api.clone(), &lease.name, Retry::Patient).fuse();
        let mut elector = Elector::new(rule);
        let mut is_leaving = false;
        while !elector.has_left() {
            match elector.poll(self.clock.now()) {
                Step::Wait(until) => tokio::select! {
                    request = &mut leave, if !is_leaving => {
                        is_leaving = true;
                        elector.leave(request.unwrap_or_default());
                    }
                    event = stream.select_next_some() => {
                        self.observer.watched(event.is_err());
                        match event {
                            Ok(Some(seen)) => match state_of(&seen) {
                                Some(state) => self.report(elector.seen(self.clock.now(), Some(state))).await,
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
                        Some(None) => self.report(elector.seen(now, None)).await,
                        Some(Some(Some(state))) => {
                            self.report(elector.seen(now, Some(state))).await
                        }
                        Some(Some(None)) | None => elector.failed(now),
                    }
                }
                Step::Write(write) => {
                    let written = self.write(&api, lease, &write).await;
                    let now = self.clock.now();
                    match written.as_ref().and_then(state_of) {
                        Some(state) => self.report(elector.written(now, state)).await,
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
                self.observer.called(verb, None);
                return Some(value);
            }
            Ok(Err(kube::Error::Api(status))) => format!("error: status {}", status.code),
            Ok(Err(_)) | Err(_) => "error: no answer".to_owned(),
        };
        tracing::info!(verb, failure, "a call about the Lease failed");
        self.observer.called(verb, Some(&failure));
        None
    }

    async fn sleep_until(&self, until: Timestamp) {
        let pause = until.since(self.clock.now()).to_duration();
        tokio::time::sleep(pause.min(LONGEST_SLEEP)).await;
    }
}
