//! Fixtures for tests of drivers.

use std::sync::Arc;

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::api::KubeApi;
use super::context::Context;
use super::events;
use super::metrics::Metrics;
use super::runner_key::RunnerKey;
use super::state::StateHandle;

/// The VM of all of them.
pub(super) const VM: &str = "default/example";

/// Dependencies of drivers, with an API server that cannot be reached.
pub(super) fn context() -> Context {
    let url = "http://127.0.0.1:1".parse().expect("an address");
    let client = api_client::connect(kube::Config::new(url)).expect("a client");
    let api = Arc::new(KubeApi::new(client));
    let clock = Clock::new();
    let (events, _) = events::start(Arc::clone(&api), CancellationToken::new());
    Context {
        api,
        pools: None,
        events,
        metrics: Metrics::register(&mut Registry::default()),
        stages: StageLog::new(16),
        state: StateHandle::new(clock),
        state_dir: "/nowhere".into(),
        clock,
    }
}

/// The key of its runners.
pub(super) fn key(context: &Context) -> Arc<RunnerKey> {
    let api = Arc::clone(&context.api);
    Arc::new(RunnerKey::new(api, "default", "example"))
}

/// One that is cancelled.
pub(super) fn cancelled() -> CancellationToken {
    let cancel = CancellationToken::new();
    cancel.cancel();
    cancel
}
