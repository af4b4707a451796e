//! The agent's HTTP servers: metrics and health, metrics of single VMs, state dump. Source:
//! docs/compatibility/agent.md §4.4, §4.5.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use daemon_kit::admin::{self, Admin};
use daemon_kit::bearer::Expected;
use daemon_kit::connections::ConnectionCounters;
use daemon_kit::logging::LogHandle;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::RunError;
use super::journal_pages;
use super::state::StateHandle;

/// Content of the servers.
pub(super) struct Servers {
    pub registry: Registry,
    pub vm_registry: Registry,
    pub connections: ConnectionCounters,
    pub state: StateHandle,
    pub log: Option<LogHandle>,
    pub token: Option<Expected>,
    /// Folder of the journal.
    pub journal: Option<PathBuf>,
}

impl Servers {
    /// Starts one task per server.
    pub(super) fn spawn(
        self,
        tasks: &mut JoinSet<Result<(), RunError>>,
        metrics: TcpListener,
        vm_metrics: TcpListener,
        dump: Option<TcpListener>,
        cancel: &CancellationToken,
    ) {
        let (shown, ready) = (self.state.clone(), self.state.clone());
        let reports = self.state.clone();
        let counters = |server| self.connections.server(server);
        let mut global = Admin::new(Arc::new(self.registry), counters("metrics"))
            .program("autoscaler_agent")
            .state(move || shown.dump())
            .ready(move || ready.ready())
            .behind_token(self.token);
        if let Some(log) = self.log {
            global = global.log(log);
        }
        if let Some(folder) = self.journal {
            global = global.debug(journal_pages::routes(folder));
        }
        let single = Admin::new(Arc::new(self.vm_registry), counters("vm_metrics"))
            .without_process()
            .behind_token(self.token);
        let mut global = global.router();
        if self.token.is_none() {
            // As open as the metrics, and with the same names.
            let reports = get(async move || axum::Json(reports.policy_reports()));
            global = global.route("/policies", reports);
        }
        let pages = [
            (metrics, global, "metrics"),
            (vm_metrics, single.router(), "vm_metrics"),
        ];
        for (listener, routes, server) in pages {
            let (connections, cancel) = (counters(server), cancel.clone());
            tasks.spawn(async move {
                admin::serve_routes(listener, routes, connections, cancel).await;
                Ok(())
            });
        }
        if let Some(listener) = dump {
            let router = Router::new()
                .route("/", any(dump_state))
                .route("/{*path}", any(dump_state))
                .with_state(self.state);
            let router = admin::own_pod_only(router);
            let (counters, cancel) = (counters("state"), cancel.clone());
            tasks.spawn(async move {
                admin::serve_routes(listener, router, counters, cancel).await;
                Ok(())
            });
        }
    }
}

/// Serves the state dump to `GET` with a JSON body or none.
async fn dump_state(State(state): State<StateHandle>, method: Method, body: Bytes) -> Response {
    if method != Method::GET {
        let text = "request method must be GET";
        return (StatusCode::METHOD_NOT_ALLOWED, text).into_response();
    }
    if !body.is_empty() && serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_err() {
        return (StatusCode::BAD_REQUEST, "bad JSON").into_response();
    }
    axum::Json(state.dump()).into_response()
}
