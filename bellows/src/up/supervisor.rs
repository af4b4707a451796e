//! Runs the components as tasks, detects one that ends too early, and ends them in order.

use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::part_registry::PartRegistry;
use crate::fail::Fail;

/// Name of an ended component, and its result.
type Ended = (&'static str, Result<(), String>);

/// Longest time for the components of one stage to drain. A component that is cut off loses
/// nothing: its answers are durable, and the rest is rebuilt from observation.
const DRAIN: Duration = Duration::from_secs(10);

/// Stage of the shutdown: components that change things end before those that serve them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Agent, controller, scheduler and announcer.
    Deciders,
    /// The node driver. It releases the runners.
    Node,
    /// The API server.
    Api,
}

/// Stages in the order of the shutdown.
const STAGES: [Stage; 3] = [Stage::Deciders, Stage::Node, Stage::Api];

pub(crate) struct Supervisor {
    parts: PartRegistry,
    tasks: JoinSet<Ended>,
    names: Vec<(tokio::task::Id, &'static str, Stage)>,
    tokens: [CancellationToken; 3],
}

impl Supervisor {
    /// A supervisor without components. It records ends in `parts`.
    pub(crate) fn new(parts: PartRegistry) -> Self {
        Self {
            parts,
            tasks: JoinSet::new(),
            names: Vec::new(),
            tokens: Default::default(),
        }
    }

    /// The token that ends the components of a stage.
    pub(crate) fn token(&self, stage: Stage) -> CancellationToken {
        self.tokens[stage as usize].clone()
    }

    /// Runs a component. Its future must end when the stage's token is cancelled.
    pub(crate) fn run(
        &mut self,
        name: &'static str,
        stage: Stage,
        part: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(async move { (name, part.await) });
        self.names.push((handle.id(), name, stage));
    }

    /// Waits until a component ends on its own, which is always a failure.
    pub(crate) async fn fatal(&mut self) -> Fail {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.explain(ended),
            None => std::future::pending().await,
        }
    }

    fn explain(&mut self, ended: Result<(tokio::task::Id, Ended), JoinError>) -> Fail {
        let (name, how) = match ended {
            Ok((id, (name, result))) => {
                self.names.retain(|(known, ..)| *known != id);
                (
                    name,
                    result.map_or_else(|why| why, |()| "it ended without being asked to".into()),
                )
            }
            Err(error) => {
                let id = error.id();
                let name = self
                    .names
                    .iter()
                    .find(|(known, ..)| *known == id)
                    .map_or("a part", |entry| entry.1);
                self.names.retain(|(known, ..)| *known != id);
                (name, panic_text(error))
            }
        };
        self.parts.set_ended(name, &how);
        Fail::bug(format!("the {name} ended: {how}"))
            .rule("every part runs until bellows down; guests keep running without us")
            .fix("start again: bellows up; if it happens again, report it with the output of bellows dump")
    }

    /// Ends the components of every stage up to and including `last`, in order.
    pub(crate) async fn drain_through(&mut self, last: Stage) {
        for stage in STAGES.into_iter().filter(|stage| *stage <= last) {
            self.tokens[stage as usize].cancel();
            let waited = tokio::time::timeout(DRAIN, self.join_stage(stage)).await;
            if waited.is_err() {
                for (_, name, _) in self.names.iter().filter(|(_, _, its)| *its == stage) {
                    tracing::warn!(
                        part = name,
                        seconds = DRAIN.as_secs(),
                        "did not drain in time and is cut off"
                    );
                }
                self.names.retain(|(_, _, its)| *its != stage);
            }
        }
    }

    async fn join_stage(&mut self, stage: Stage) {
        while self.names.iter().any(|(_, _, its)| *its == stage) {
            let Some(ended) = self.tasks.join_next_with_id().await else {
                return;
            };
            let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
            let Some(place) = self.names.iter().position(|(known, ..)| *known == id) else {
                continue;
            };
            let (_, name, _) = self.names.remove(place);
            match ended {
                Ok((_, (_, Ok(())))) => self.parts.set_ended(name, "drained"),
                Ok((_, (_, Err(why)))) => {
                    tracing::warn!(part = name, why, "ended badly");
                    self.parts.set_ended(name, &why);
                }
                Err(error) => {
                    let why = panic_text(error);
                    tracing::error!(part = name, why, "ended badly");
                    self.parts.set_ended(name, &why);
                }
            }
        }
    }
}

fn panic_text(error: JoinError) -> String {
    if !error.is_panic() {
        return "it was cut off".into();
    }
    let panic = error.into_panic();
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    format!("it panicked: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn registry(names: &[&'static str]) -> PartRegistry {
        let parts = PartRegistry::default();
        for name in names {
            parts.register(name, None, Box::new(|| Ok(())), None);
        }
        parts
    }

    #[tokio::test]
    async fn a_part_that_ends_alone_is_fatal_and_named() {
        let parts = registry(&["agent", "scheduler"]);
        let mut supervisor = Supervisor::new(parts.clone());
        let token = supervisor.token(Stage::Deciders);
        supervisor.run("scheduler", Stage::Deciders, async move {
            token.cancelled().await;
            Ok(())
        });
        supervisor.run("agent", Stage::Deciders, async {
            Err("the watch ended".into())
        });
        let fail = supervisor.fatal().await;
        assert_eq!(fail.exit() as u8, 70);
        assert!(
            fail.what().contains("the agent ended: the watch ended"),
            "{fail}"
        );
        assert!(!parts.is_ready("agent") && parts.is_ready("scheduler"));
        supervisor.drain_through(Stage::Api).await;
    }

    #[tokio::test]
    async fn panic_is_fatal_and_quoted() {
        let mut supervisor = Supervisor::new(registry(&["agent"]));
        supervisor.run("agent", Stage::Deciders, async {
            panic!("index out of range")
        });
        let fail = supervisor.fatal().await;
        assert!(
            fail.what()
                .contains("the agent ended: it panicked: index out of range"),
            "{fail}"
        );
    }

    #[tokio::test]
    async fn stages_end_in_order() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut supervisor = Supervisor::new(registry(&["agent", "node", "api"]));
        for (name, stage) in [
            ("api", Stage::Api),
            ("node", Stage::Node),
            ("agent", Stage::Deciders),
        ] {
            let (token, order) = (supervisor.token(stage), Arc::clone(&order));
            supervisor.run(name, stage, async move {
                token.cancelled().await;
                order.lock().unwrap().push(name);
                Ok(())
            });
        }
        supervisor.drain_through(Stage::Deciders).await;
        assert_eq!(*order.lock().unwrap(), ["agent"]);
        supervisor.drain_through(Stage::Api).await;
        assert_eq!(*order.lock().unwrap(), ["agent", "node", "api"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_does_not_drain_is_cut_off() {
        let mut supervisor = Supervisor::new(registry(&["agent", "api"]));
        supervisor.run("agent", Stage::Deciders, std::future::pending());
        let token = supervisor.token(Stage::Api);
        supervisor.run("api", Stage::Api, async move {
            token.cancelled().await;
            Ok(())
        });
        supervisor.drain_through(Stage::Api).await;
    }
}
