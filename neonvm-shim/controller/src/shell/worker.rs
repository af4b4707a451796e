//! One task per VM: feeds its core, carries out what it asks, one request per peer at a time.

use std::path::PathBuf;
use std::sync::Arc;

use daemon_kit::clock::Clock;
use daemon_kit::{StageLog, chain};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use protocol::runner::{CpusAhead, SizeOrder};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::api::KubeApi;
use super::events::{EventRequest, EventSink};
use super::link::{RunnerAddress, RunnerLink};
use super::mailbox::Mailbox;
use super::metrics::Metrics;
use super::runner_key::RunnerKey;
use super::runner_link::RunnerConnections;
use super::state::{StateHandle, VmSlot};
use super::{moment, pause_until};
use crate::core::announce::{About, Announcer};
use crate::core::observe::PodRunner;
use crate::core::{Action, Event, Moment, Refusal, Reply, VmCore, VmEvent};

/// What all workers share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) api: Arc<KubeApi>,
    pub(super) events: EventSink,
    pub(super) metrics: Metrics,
    pub(super) stages: StageLog,
    pub(super) state: StateHandle,
    pub(super) state_dir: PathBuf,
    pub(super) clock: Clock,
}

/// The worker of the VM `namespace/name`.
pub(super) struct Worker {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) core: VmCore,
    pub(super) mailbox: Mailbox<Event>,
    pub(super) common: Common,
    pub(super) slot: VmSlot,
    pub(super) announcer: Announcer,
    pub(super) key: Arc<RunnerKey>,
}

impl Common {
    /// Where the runner of a pod listens: at the pod's address where it does so there, else on the
    /// socket in its directory.
    pub(super) fn address(
        &self,
        namespace: &str,
        pod: &str,
        at: Option<PodRunner>,
    ) -> RunnerAddress {
        at.map_or_else(
            || RunnerAddress::Socket(RunnerLink::socket(&self.state_dir, namespace, pod)),
            RunnerAddress::Pod,
        )
    }

    /// Passes on what a core has to say to people: to the log, the metrics and the events.
    pub(super) fn tell(&self, announcer: &mut Announcer, about: About<'_>, note: &VmEvent) {
        let (namespace, vm) = (about.namespace, about.name);
        tracing::info!(vm, namespace, note = note.reason(), "{note}");
        self.metrics.happened(note);
        if let Some(what) = announcer.announce(note, about, moment(&self.clock)) {
            self.events.send(EventRequest {
                namespace: namespace.to_owned(),
                what,
            });
        }
    }
}

impl Worker {
    /// Works until `cancel`.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        let key = format!("{}/{}", self.namespace, self.name);
        let mut under_way: FuturesUnordered<BoxFuture<'static, Event>> = FuturesUnordered::new();
        let mut held: Option<RunnerConnections> = None;
        loop {
            for (received, event) in self.mailbox.take() {
                self.core.handle(received, event);
            }
            self.follow(&mut held);
            while let Some(action) = self.core.poll_action(moment(&self.common.clock)) {
                under_way.push(self.begin(action, held.as_ref()));
            }
            // Requests go out before anybody is told of them.
            if let Some(Some(event)) = under_way.next().now_or_never() {
                self.ended(&key, moment(&self.common.clock), event);
                continue;
            }
            self.tell();
            self.slot.publish(self.core.snapshot());
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.mailbox.changed() => {}
                Some(event) = under_way.next() => {
                    self.ended(&key, moment(&self.common.clock), event);
                }
                () = pause_until(&self.common.clock, self.core.poll_deadline()) => {}
            }
        }
    }

    fn ended(&mut self, key: &str, now: Moment, event: Event) {
        if let Event::Done {
            kind,
            began,
            result,
        } = &event
        {
            let outcome = Refusal::outcome(result);
            self.common.metrics.ended(outcome, now.now.since(began.now));
            if kind.is_needed() {
                self.slot.note(key, *kind, outcome, now.now);
            }
            if let Err(Refusal::Failed { message, permanent }) = result {
                tracing::warn!(vm = key, action = ?kind, permanent, error = message, "action failed");
            } else {
                tracing::debug!(vm = key, action = ?kind, ?outcome, "action ended");
            }
        }
        self.core.handle(now, event);
    }

    /// Holds a link to the runner the core wants to hear, and to no other.
    fn follow(&self, held: &mut Option<RunnerConnections>) {
        let target = self.core.link_target();
        let at = self.core.link_address();
        let address = target.map(|pod| self.common.address(&self.namespace, pod, at));
        let target = target.zip(address);
        if held.as_ref().map(|held| (held.pod.as_str(), &held.address))
            == target.as_ref().map(|(pod, address)| (*pod, address))
        {
            return;
        }
        *held = target.map(|(pod, address)| {
            RunnerConnections::open(pod, address, &self.key, &self.mailbox, self.common.clock)
        });
    }

    fn begin(&self, action: Action, held: Option<&RunnerConnections>) -> BoxFuture<'static, Event> {
        let (kind, clock) = (action.kind(), self.common.clock);
        tracing::debug!(vm = self.name, action = ?kind, "action begins");
        let (api, namespace, name) = (
            Arc::clone(&self.common.api),
            self.namespace.clone(),
            self.name.clone(),
        );
        let (pod, order) = match action {
            Action::SetSize { pod, order, over } => (pod, Order::Size(order, over)),
            Action::PlugAhead { pod, wish } => (pod, Order::Ahead(wish)),
            other => {
                return Box::pin(async move {
                    let began = moment(&clock);
                    let result = api.carry_out(&namespace, &name, other).await;
                    Event::Done {
                        kind,
                        began,
                        result,
                    }
                });
            }
        };
        let link = held
            .filter(|held| held.pod == pod)
            .map(|held| Arc::clone(&held.orders));
        Box::pin(async move {
            let (began, result) = give(link, &order, &clock).await;
            Event::Done {
                kind,
                began,
                result,
            }
        })
    }

    /// Passes on what the core has to say to people.
    fn tell(&mut self) {
        for record in self.core.take_stages() {
            self.common.stages.record(record);
        }
        while let Some(note) = self.core.poll_note() {
            let uid = self.core.vm().map(|vm| vm.metadata.uid.clone());
            let about = About {
                namespace: &self.namespace,
                name: &self.name,
                uid: &uid.unwrap_or_default(),
            };
            self.common.tell(&mut self.announcer, about, &note);
        }
    }
}

/// What a runner is told.
#[derive(Debug)]
enum Order {
    Size(SizeOrder, Option<u64>),
    Ahead(CpusAhead),
}

/// Gives an order. The time of its beginning is that of the request, the connection made.
async fn give(
    link: Option<Arc<Mutex<RunnerLink>>>,
    order: &Order,
    clock: &Clock,
) -> (Moment, Result<Reply, Refusal>) {
    let Some(link) = link else {
        let message = "the link to the runner has just closed".into();
        return (
            moment(clock),
            Err(Refusal::Failed {
                message,
                permanent: false,
            }),
        );
    };
    let mut link = link.lock().await;
    let connected = link.connect().await;
    let began = moment(clock);
    let answer = match (connected, order) {
        (Ok(()), Order::Size(order, over)) => link.put_size(order, *over).await,
        (Ok(()), Order::Ahead(wish)) => link.put_ahead(*wish).await,
        (Err(error), _) => Err(error),
    };
    let result = match answer {
        Ok(state) => Ok(Reply::Runner(Box::new(state))),
        Err(error) => Err(Refusal::Failed {
            message: chain(&error),
            permanent: error.is_permanent(),
        }),
    };
    (began, result)
}

#[cfg(test)]
mod tests;
