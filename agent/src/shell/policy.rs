//! Policies in the place of the core's own goal. The answers of a live version reach the core, as
//! events; those of a candidate are recorded, and nothing else gets one.
//!
//! ```text
//!   ScalingPolicies, namespaces --watch--> known policies --watch(latest)--> VM's driver
//!   VM's driver --samples, questions--> supervisor --JSON lines--> bellows-policy worker
//!               <--answers------------
//! ```
//!
//! Feeds, which a version may name, are read by a task for each VM that has such a version.
//!
//! Without the section `policies` in the agent's file none of this runs. Live versions and
//! candidates have a worker each, so that a candidate delays nobody. A worker starts with the first
//! VM that needs it.

mod cut;
mod feeds;
mod follow;
mod judge;
mod kept;
mod known;
mod metrics;
mod quota;
mod request;
mod revisions;
mod runtime;
mod sources;
mod vm;
mod worker;

use std::path::PathBuf;

use daemon_kit::clock::Clock;
use prometheus_client::registry::Registry;
use protocol::policy::Role;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::RunError;
use super::config::Policies as Settings;
use super::journal::JournalHandle;
use super::metrics::AgentMetrics;
use crate::core::tallies::Tallies;
use request::{End, Question, Replies, Request, Said};
pub(super) use runtime::PolicyRuntime;
use runtime::WorkerLink;
pub(super) use vm::{PolicyEvent, VmChoice, VmPolicy, create_event, next_event};

/// Parts that [`PolicyRuntime::start`] needs.
pub(super) struct Parts<'a> {
    pub settings: Settings,
    pub kube: kube::Client,
    pub metrics: AgentMetrics,
    pub registry: &'a mut Registry,
    pub journal: Option<JournalHandle>,
    pub clock: Clock,
    /// Folder of the journal.
    pub folder: Option<PathBuf>,
    /// The worker's program; `None` = it is looked for.
    pub program: Option<PathBuf>,
}

impl PolicyRuntime {
    /// Starts the watches and the supervisor.
    pub(super) fn start(
        parts: Parts<'_>,
        tasks: &mut JoinSet<Result<(), RunError>>,
        cancel: &CancellationToken,
    ) -> Self {
        let sources = parts
            .folder
            .as_ref()
            .map(|folder| folder.join(sources::FOLDER));
        let (runtime, queues) = Self::new(parts.settings, parts.registry, sources, parts.clock);
        let folder = parts.folder.filter(|_| parts.journal.is_some());
        *runtime.tallies() = Tallies::new(folder.is_some());
        runtime.restore();
        follow::spawn(&runtime, parts.kube, &parts.metrics, tasks, cancel);
        let judging = judge::run(
            runtime.clone(),
            folder,
            parts.program.clone(),
            cancel.clone(),
        );
        tasks.spawn(async move {
            judging.await;
            Ok(())
        });
        for (role, queue) in [(Role::Live, queues.live), (Role::Shadow, queues.shadow)] {
            let (journal, program) = (parts.journal.clone(), parts.program.clone());
            let supervisor =
                worker::Supervisor::new(runtime.clone(), role, queue, journal, program);
            let stop = cancel.clone();
            tasks.spawn(async move {
                supervisor.run(stop).await;
                Ok(())
            });
        }
        runtime
    }
}
