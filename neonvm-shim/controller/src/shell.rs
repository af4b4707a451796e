//! The controller's shell: watches, drivers, the runner links, metrics.
//!
//! ```text
//! VMs ────────watch─┐        ┌─ driver of VM a ─┬─► API server (patches, pods, secrets)
//! Pods ───────watch─┼─► hub ─┤   mailbox, core  └─► runner of a (PUT /v1/size)
//! migrations ─watch─┘        │                       ▲ GET /v1/state?after=… kept open
//!                            ├─ driver of VM b
//!                            └─ driver of VM b's migrations ─┬─► API server
//!                                                            └─► runners of source and target
//! sets, members ─watch─► driver of all sets ─► API server (VMs, config maps, status of sets)
//! ```

mod admin;
mod api;
mod api_settings;
mod certificate;
mod clock;
mod context;
mod controllers;
mod decode;
mod events;
mod field_managers;
mod hub;
mod link;
mod mailbox;
mod metrics;
mod migration_driver;
mod migration_drivers;
mod monitor_key;
mod object_key;
mod overlay;
mod runner_key;
mod runner_link;
mod secret;
mod set_actions;
mod set_metrics;
mod set_records;
mod sets;
mod state;
#[cfg(test)]
mod testing;
mod vm_actions;
mod vm_driver;
mod watch;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;

use api_client::watch::{self as api_watch, Retry};
use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use daemon_kit::journal::Journal;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use protocol::annotations::LABEL_VM_NAME;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use admin::{Waits, serve_admin};
pub use api::ApiError;
pub use api_settings::{SettingsError, settings};
pub use certificate::CertificateError;
pub use decode::DecodeError;
pub use link::{LinkError, RunnerAddress, RunnerLink};
pub use metrics::Metrics;
use monitor_key::MonitorKey;
pub use overlay::OverlayError;
pub use secret::KeyError;
pub use state::StateHandle;
pub use watch::RunError;
use watch::resource;
pub use webhook::{Names as WebhookNames, Webhook};

use crate::core::Settings;

/// Parameters of [`run`].
#[derive(Clone)]
pub struct Params {
    /// Client of the API server.
    pub client: Client,
    /// Holds `vms/<namespace>_<pod>/control.sock` of each runner.
    pub state_dir: PathBuf,
    /// Settings of the controller.
    pub settings: Settings,
    /// The clock of this process.
    pub clock: Clock,
    /// Log of the stages of resizes.
    pub stages: StageLog,
    /// Metrics, registered by the caller.
    pub metrics: Metrics,
    /// Published state. The caller keeps another clone to read it.
    pub state: StateHandle,
    /// Journal of the changes of sets. Closed at the end.
    pub set_journal: Option<Journal>,
}

/// Runs the controller until `cancel`. While the API server is unreachable, the controller retries.
///
/// # Errors
/// [`RunError`] only through a defect.
pub async fn run(params: Params, cancel: CancellationToken) -> Result<(), RunError> {
    let objects = |resource: ApiResource| -> Api<DynamicObject> {
        Api::all_with(params.client.clone(), &resource)
    };
    let vm_objects = objects(resource(
        "vm.neon.tech",
        "VirtualMachine",
        "virtualmachines",
    ));
    let pod_objects = objects(resource("", "Pod", "pods"));
    let migration_objects = objects(resource(
        "vm.neon.tech",
        "VirtualMachineMigration",
        "virtualmachinemigrations",
    ));
    let mut api = api::KubeApi::new(params.client.clone());
    let pools = params.settings.overlay.clone().map(|overlay| {
        let metrics = params.metrics.ipam.clone();
        Arc::new(overlay::Pools::new(overlay, metrics, params.clock))
    });
    api.keep_field_owners = params.settings.keep_field_owners;
    api.monitor_key = params.settings.monitor_key.clone().map(MonitorKey::new);
    let api = Arc::new(api);
    let sweeper = pools.clone().map(|pools| {
        let sweep = pools.sweep(Arc::clone(&api), params.state.clone());
        tokio::spawn(sweep)
    });
    let (events, writer) = events::start(Arc::clone(&api), cancel.clone());
    let writer = tokio::spawn(writer);
    let sets = sets::keep(sets::SetContext {
        client: params.client.clone(),
        api: Arc::clone(&api),
        state: params.state.clone(),
        clock: params.clock,
        metrics: params.metrics.sets.clone(),
        records: set_records::SetRecords {
            journal: params.set_journal.clone(),
            clock: params.clock,
        },
    });
    let sets = AbortOnDropHandle::new(tokio::spawn(sets));
    let context = context::Context {
        api,
        pools,
        events,
        metrics: params.metrics,
        stages: params.stages,
        state: params.state,
        state_dir: params.state_dir,
        clock: params.clock,
    };
    let hub = hub::Hub::new(context, params.settings);
    let all = api_watch::Config::default();
    let pods_of_vms = all.clone().labels(LABEL_VM_NAME);
    let vms = api_watch::objects(vm_objects, all.clone(), Retry::Quick);
    let pods = api_watch::objects(pod_objects, pods_of_vms, Retry::Quick);
    let migrations = api_watch::objects(migration_objects, all, Retry::Quick);
    // Beside the tasks that it wakes and that wake it, not on the thread that waits for the end.
    let hub = AbortOnDropHandle::new(tokio::spawn(hub.run(vms, pods, migrations, cancel)));
    let ended = match hub.await {
        Ok(ended) => ended,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and this with it.
            Err(_) => Ok(()),
        },
    };
    writer.abort();
    drop(sets);
    if let Some(journal) = params.set_journal {
        journal.close().await;
    }
    if let Some(sweeper) = sweeper {
        sweeper.abort();
    }
    ended
}
