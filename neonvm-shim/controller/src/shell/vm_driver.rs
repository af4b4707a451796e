//! One task per VM: it owns the VM's core and carries out its actions, one request per peer at a
//! time.

use std::sync::Arc;

use daemon_kit::chain;
use daemon_kit::clock::Clock;
use daemon_kit::driver::{Settled, Shell, drive};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use protocol::core::Core as _;
use protocol::runner::{CpusAhead, SizeOrder};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::clock::moment;
use super::context::Context;
use super::link::RunnerLink;
use super::mailbox::Mailbox;
use super::runner_key::RunnerKey;
use super::runner_link::RunnerConnections;
use super::state::VmSlot;
use super::vm_actions;
use crate::core::announce::{About, Announcer};
use crate::core::{Action, ActionResponse, Event, Moment, Refusal, VmCore};

/// Driver of the VM `namespace/name`.
pub(super) struct VmDriver {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) core: VmCore,
    pub(super) mailbox: Mailbox<Event>,
    pub(super) context: Context,
    pub(super) slot: VmSlot,
    pub(super) announcer: Announcer,
    pub(super) key: Arc<RunnerKey>,
    pub(super) under_way: FuturesUnordered<BoxFuture<'static, Event>>,
    pub(super) held: Option<RunnerConnections>,
}

impl Shell for VmDriver {
    type Core = VmCore;
    /// The end of an action. `None`: the mailbox has changed.
    type Input = Option<Event>;

    fn core(&mut self) -> &mut VmCore {
        &mut self.core
    }

    fn clock(&self) -> Clock {
        self.context.clock
    }

    async fn input(&mut self) -> Option<Option<Event>> {
        tokio::select! {
            () = self.mailbox.changed() => Some(None),
            Some(event) = self.under_way.next() => Some(Some(event)),
        }
    }

    fn take(&mut self, input: Option<Event>) {
        if let Some(event) = input {
            let key = format!("{}/{}", self.namespace, self.name);
            self.ended(&key, moment(&self.context.clock), event);
        }
    }

    fn act(&mut self, action: Action) {
        let action = self.begin(action);
        self.under_way.push(action);
    }

    fn prepare(&mut self) {
        for (received, event) in self.mailbox.take() {
            self.core.handle(received, event);
        }
        self.update_link();
    }

    fn settle(&mut self) -> Settled {
        // Requests go out before their events and the state are published.
        if let Some(Some(event)) = self.under_way.next().now_or_never() {
            self.take(Some(event));
            return Settled::Again;
        }
        self.publish_events();
        self.slot.publish(self.core.snapshot());
        Settled::Sleep
    }
}

impl VmDriver {
    /// Works until `cancel`.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        drive(&mut self, &cancel).await;
    }

    fn ended(&mut self, key: &str, now: Moment, event: Event) {
        if let Event::Done {
            kind,
            began,
            result,
        } = &event
        {
            let outcome = Refusal::outcome(result);
            self.context
                .metrics
                .ended(outcome, now.now.since(began.now));
            if kind.is_needed() {
                self.slot.record(key, *kind, outcome, now.now);
            }
            if let Err(Refusal::Failed { message, permanent }) = result {
                tracing::warn!(vm = key, action = ?kind, permanent, error = message, "action failed");
            } else {
                tracing::debug!(vm = key, action = ?kind, ?outcome, "action ended");
            }
        }
        self.core.handle(now, event);
    }

    /// Holds a link to the runner that the core names, and to no other.
    fn update_link(&mut self) {
        let target = self.core.link_target();
        let at = self.core.link_address();
        let address = target.map(|pod| self.context.address(&self.namespace, pod, at));
        let target = target.zip(address);
        let held = self.held.as_ref();
        if held.map(|held| (held.pod.as_str(), &held.address))
            == target.as_ref().map(|(pod, address)| (*pod, address))
        {
            return;
        }
        self.held = target.map(|(pod, address)| {
            RunnerConnections::open(pod, address, &self.key, &self.mailbox, self.context.clock)
        });
    }

    fn begin(&self, action: Action) -> BoxFuture<'static, Event> {
        let (kind, clock) = (action.kind(), self.context.clock);
        tracing::debug!(vm = self.name, action = ?kind, "action begins");
        let context = self.context.clone();
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        let (pod, order) = match action {
            Action::SetSize { pod, order, over } => (pod, RunnerOrder::Size(order, over)),
            Action::PlugAhead { pod, cpus } => (pod, RunnerOrder::Ahead(cpus)),
            other => {
                return Box::pin(async move {
                    let began = moment(&clock);
                    let result = vm_actions::carry_out(&context, &namespace, &name, other).await;
                    Event::Done {
                        kind,
                        began,
                        result,
                    }
                });
            }
        };
        let held = self.held.as_ref();
        let link = held
            .filter(|held| held.pod == pod)
            .map(|held| Arc::clone(&held.orders));
        Box::pin(async move {
            let (began, result) = send_order(link, &order, &clock).await;
            Event::Done {
                kind,
                began,
                result,
            }
        })
    }

    /// Publishes the core's events and the stages of resizes.
    fn publish_events(&mut self) {
        for record in self.core.take_stages() {
            self.context.stages.record(record);
        }
        while let Some(event) = self.core.poll_event() {
            let uid = self.core.vm().map(|vm| vm.metadata.uid.clone());
            let about = About {
                namespace: &self.namespace,
                name: &self.name,
                uid: &uid.unwrap_or_default(),
            };
            self.context
                .publish_event(&mut self.announcer, about, &event);
        }
    }
}

/// Order to a runner.
#[derive(Debug)]
enum RunnerOrder {
    Size(SizeOrder, Option<u64>),
    Ahead(CpusAhead),
}

/// Gives an order. The time of its beginning is that of the request, the connection made.
async fn send_order(
    link: Option<Arc<Mutex<RunnerLink>>>,
    order: &RunnerOrder,
    clock: &Clock,
) -> (Moment, Result<ActionResponse, Refusal>) {
    let Some(link) = link else {
        let message = "the link to the runner is closed".into();
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
    let response = match (connected, order) {
        (Ok(()), RunnerOrder::Size(order, over)) => link.put_size(order, *over).await,
        (Ok(()), RunnerOrder::Ahead(cpus)) => link.put_ahead(*cpus).await,
        (Err(error), _) => Err(error),
    };
    let result = match response {
        Ok(state) => Ok(ActionResponse::Runner(Box::new(state))),
        Err(error) => Err(Refusal::Failed {
            message: chain(&error),
            permanent: error.is_permanent(),
        }),
    };
    (began, result)
}

#[cfg(test)]
mod tests;
