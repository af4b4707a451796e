//! The admin server of a daemon: `/metrics`, `/healthz`, `/readyz`, `/debug/state`, `/debug/log`.
//!
//! Reading any of these never blocks a core: each closure reads a snapshot that its shell published.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::logging::LogHandle;

/// Content type of the OpenMetrics text the registry is rendered to.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Longest log filter accepted, bytes.
const FILTER_LIMIT_BYTES: usize = 1024;

type StateFn = Arc<dyn Fn() -> Value + Send + Sync>;
type ReadyFn = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What the admin server shows.
#[derive(Clone)]
pub struct Admin {
    registry: Arc<Registry>,
    state: StateFn,
    ready: ReadyFn,
    log: Option<LogHandle>,
}

impl Admin {
    /// Shows the metrics of `registry`; always ready, empty state, until told otherwise.
    #[must_use]
    pub fn new(registry: Arc<Registry>) -> Self {
        Self {
            registry,
            state: Arc::new(|| Value::Null),
            ready: Arc::new(|| Ok(())),
            log: None,
        }
    }

    /// What `/debug/state` answers.
    #[must_use]
    pub fn state(mut self, state: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        self.state = Arc::new(state);
        self
    }

    /// What `/readyz` answers: an error is 503 with its text.
    #[must_use]
    pub fn ready(mut self, ready: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.ready = Arc::new(ready);
        self
    }

    /// Lets `PUT /debug/log` change the log filter.
    #[must_use]
    pub fn log(mut self, log: LogHandle) -> Self {
        self.log = Some(log);
        self
    }

    /// The routes, for a daemon that adds its own.
    pub fn router(self) -> Router {
        let metrics = metrics_route(self.registry.clone());
        Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route("/debug/state", get(debug_state))
            .route("/debug/log", put(debug_log))
            .with_state(self)
            .merge(metrics)
    }
}

/// `/metrics` alone, for a server that is no daemon's admin server.
pub fn metrics_route(registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .with_state(registry)
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn readyz(State(admin): State<Admin>) -> Response {
    match (admin.ready)() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn debug_state(State(admin): State<Admin>) -> Response {
    axum::Json((admin.state)()).into_response()
}

async fn debug_log(State(admin): State<Admin>, body: Bytes) -> Response {
    let Some(log) = &admin.log else {
        return (
            StatusCode::NOT_FOUND,
            "this process has a fixed log filter\n",
        )
            .into_response();
    };
    let Some(filter) = std::str::from_utf8(&body)
        .ok()
        .filter(|text| text.len() <= FILTER_LIMIT_BYTES)
    else {
        return (
            StatusCode::BAD_REQUEST,
            "the body must be a filter of at most 1024 bytes\n",
        )
            .into_response();
    };
    match log.set_filter(filter.trim()) {
        Ok(()) => "ok\n".into_response(),
        Err(error) => (
            StatusCode::BAD_REQUEST,
            format!("{}\n", crate::chain(&error)),
        )
            .into_response(),
    }
}

/// Serves until `cancel`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    admin: Admin,
    cancel: CancellationToken,
) -> std::io::Result<()> {
    axum::serve(listener, admin.router())
        .with_graceful_shutdown(cancel.cancelled_owned())
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address)
            .await
            .expect("connects");
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("writes");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("reads");
        text
    }

    #[tokio::test]
    async fn routes_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("has an address");
        let cancel = CancellationToken::new();
        let admin = Admin::new(Arc::new(Registry::default()))
            .state(|| serde_json::json!({"vms": 3}))
            .ready(|| Err("lists are not synced".into()));
        let server = tokio::spawn(serve(listener, admin, cancel.clone()));
        assert!(get(address, "/metrics").await.contains("# EOF"));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/debug/state").await.ends_with(r#"{"vms":3}"#));
        let ready = get(address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("lists are not synced"));
        cancel.cancel();
        server.await.expect("joins").expect("ends well");
    }
}
