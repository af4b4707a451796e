//! The admin server of a daemon: `/metrics`, `/healthz`, `/readyz`, `/debug/state`, `/debug/log`.
//!
//! Reading any of these never blocks a core: each closure reads a snapshot that its shell
//! published.
//!
//! | page | in a pod | on one machine ([`Admin::behind_token`]) |
//! |---|---|---|
//! | `/healthz`, `/readyz` | open | open |
//! | `/metrics` | open | needs the token: labels name VMs |
//! | `/debug/state` | from the process's own machine or pod | not served: every local user reaches loopback |
//! | `PUT /debug/log` | from the process's own machine or pod | not served |
//! | pages of [`Admin::debug`] | from the process's own machine or pod | not served |

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, put};
use axum::{Extension, Router};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::bearer::Expected;
use crate::connections::http::{self, Addresses, Limits};
use crate::connections::{Bounds, ServerCounters};
use crate::exposition::Format;
use crate::logging::LogHandle;
use crate::process_metrics;

/// Longest accepted log filter in bytes.
const FILTER_LIMIT_BYTES: usize = 1024;
/// Response to a request for state or log filter from another machine or pod.
const FROM_ELSEWHERE: &str = "state and log filter are served to this process's own machine or pod only: in a cluster by \
    `kubectl port-forward`, or by `kubectl debug` at the pod's own address\n";
/// Response to a request for metrics without the right token.
const NO_TOKEN: &str = "metrics of this machine need the token of the file metrics.token in the \
    state directory: Authorization: Bearer TOKEN\n";
/// Response to a request for state or log filter on one machine.
const ON_SOCKET_ONLY: &str =
    "not served on this port: run `bellows dump` as the owner of the state directory\n";

type StateFn = Arc<dyn Fn() -> Value + Send + Sync>;
type ReadyFn = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The network namespace of this process.
    Here,
    Elsewhere,
}

impl Origin {
    /// Origin of a connection from `peer` to `local`. A peer with an address of this namespace is
    /// in it, as kernels drop packets from outside with such a source.
    fn of(Addresses { peer, local }: Addresses) -> Self {
        let peer = peer.to_canonical();
        if peer.is_loopback() || local.to_canonical() == peer {
            Self::Here
        } else {
            Self::Elsewhere
        }
    }
}

/// Pages and probes of the admin server.
#[derive(Clone)]
pub struct Admin {
    registry: Arc<Registry>,
    state: StateFn,
    ready: ReadyFn,
    log: Option<LogHandle>,
    debug: Router,
    connections: ServerCounters,
    token: Option<Expected>,
    shows_process: bool,
    program: Option<&'static str>,
}

impl Admin {
    /// A server of the metrics in `registry`, always ready and with an empty state until set
    /// otherwise. `connections` counts the connections that its bounds close.
    #[must_use]
    pub fn new(registry: Arc<Registry>, connections: ServerCounters) -> Self {
        Self {
            registry,
            state: Arc::new(|| Value::Null),
            ready: Arc::new(|| Ok(())),
            log: None,
            debug: Router::new(),
            connections,
            token: None,
            shows_process: true,
            program: None,
        }
    }

    /// Adds `PROGRAM_build_info` to the metrics of the process. `program` begins the name.
    #[must_use]
    pub fn program(mut self, program: &'static str) -> Self {
        self.program = Some(program);
        self
    }

    /// Omits the metrics of the process, for a second page of the same process.
    #[must_use]
    pub fn without_process(mut self) -> Self {
        self.shows_process = false;
        self
    }

    /// Serves metrics to callers with this token only, and neither state nor log filter to any
    /// caller.
    #[must_use]
    pub fn behind_token(mut self, token: Option<Expected>) -> Self {
        self.token = token;
        self
    }

    /// Sets the content of `/debug/state`.
    #[must_use]
    pub fn state(mut self, state: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        self.state = Arc::new(state);
        self
    }

    /// Sets the check of `/readyz`: an error is status 503 with its text.
    #[must_use]
    pub fn ready(mut self, ready: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.ready = Arc::new(ready);
        self
    }

    /// Enables `PUT /debug/log`, which changes the log filter, for callers from this process's own
    /// machine or pod.
    #[must_use]
    pub fn log(mut self, log: LogHandle) -> Self {
        self.log = Some(log);
        self
    }

    /// Adds pages below `/debug/` for callers from this process's own machine or pod. Behind a
    /// token they are not served.
    #[must_use]
    pub fn debug(mut self, pages: Router) -> Self {
        self.debug = self.debug.merge(own_pod_only(pages));
        self
    }

    /// The routes, for a daemon with routes of its own. `PUT` and state need [`serve_routes`],
    /// which records where connections come from; else they are refused.
    pub fn router(self) -> Router {
        let process = self
            .shows_process
            .then(|| {
                self.program
                    .map_or_else(process_metrics::registry, process_metrics::registry_of)
            })
            .map(Arc::new);
        let mut metrics = metrics_of(Registries([Some(self.registry.clone()), process]));
        let mut debug = Router::new()
            .route("/debug/state", get(debug_state))
            .route("/debug/log", put(debug_log));
        debug = own_pod_only(debug).merge(self.debug.clone().with_state(()));
        if let Some(token) = self.token {
            metrics = metrics.route_layer(middleware::from_fn_with_state(token, admit));
            debug = Router::new().route("/debug/{page}", any(on_socket_only));
        }
        Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .merge(debug)
            .with_state(self)
            .merge(metrics)
    }
}

/// `/metrics` only, for servers other than a daemon's admin server.
pub fn metrics_route(registry: Arc<Registry>) -> Router {
    metrics_of(Registries([Some(registry), None]))
}

fn metrics_of(registries: Registries) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .with_state(registries)
}

/// Registries of a metrics page, in its order.
#[derive(Debug, Clone)]
struct Registries([Option<Arc<Registry>>; 2]);

impl Registries {
    fn write(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        for registry in self.0.iter().flatten() {
            encode_registry(&mut text, registry)?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }
}

async fn admit(State(token): State<Expected>, request: Request, next: Next) -> Response {
    if token.is_shown(request.headers()) {
        next.run(request).await
    } else {
        (StatusCode::UNAUTHORIZED, NO_TOKEN).into_response()
    }
}

async fn on_socket_only() -> Response {
    (StatusCode::FORBIDDEN, ON_SOCKET_ONLY).into_response()
}

/// Restricts `routes` to callers of the process's own machine or pod. In a cluster those are users
/// who may forward the pod's ports: the pod network provides no identity.
pub fn own_pod_only<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    routes.route_layer(middleware::from_fn(refuse_elsewhere))
}

async fn refuse_elsewhere(
    from: Option<Extension<Addresses>>,
    request: Request,
    next: Next,
) -> Response {
    if from.is_some_and(|Extension(from)| Origin::of(from) == Origin::Here) {
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, FROM_ELSEWHERE).into_response()
    }
}

async fn metrics(State(registries): State<Registries>, headers: HeaderMap) -> Response {
    let format = Format::of(&headers);
    match registries.write() {
        Ok(written) => {
            let page = format.render(&written);
            ([(header::CONTENT_TYPE, format.content_type())], page).into_response()
        }
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

/// Serves the routes of `admin` until `cancel`.
pub async fn serve(listener: TcpListener, admin: Admin, cancel: CancellationToken) {
    let connections = admin.connections.clone();
    serve_routes(listener, admin.router(), connections, cancel).await;
}

/// Serves the routes of an [`Admin`], and any added ones, until `cancel`.
pub async fn serve_routes(
    listener: TcpListener,
    routes: Router,
    connections: ServerCounters,
    cancel: CancellationToken,
) {
    let bounds = (Bounds::pages(), Limits::PAGES);
    http::serve(listener, routes, bounds, connections, cancel).await;
}

#[cfg(test)]
mod tests {
    use test_network::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        ask(address, "GET", path).await
    }

    async fn ask(address: std::net::SocketAddr, method: &str, path: &str) -> String {
        let line = &format!("{method} {path}");
        Request::new(line).ask(address).await.expect("answers")
    }

    #[tokio::test]
    async fn routes_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("has an address");
        let cancel = CancellationToken::new();
        let admin = Admin::new(Arc::default(), ServerCounters::unregistered())
            .state(|| serde_json::json!({"vms": 3}))
            .ready(|| Err("lists are not synced".into()));
        let server = tokio::spawn(serve(listener, admin, cancel.clone()));
        let page = get(address, "/metrics").await;
        assert!(
            page.contains("\r\ncontent-type: text/plain; version=0.0.4;"),
            "{page}"
        );
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_open_fds",
        ] {
            assert!(page.contains(&format!("\n{name} ")), "{name} in {page}");
        }
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/debug/state").await.ends_with(r#"{"vms":3}"#));
        let ready = get(address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("lists are not synced"));
        // From this very machine: accepted, but there is no log filter to change.
        let order = ask(address, "PUT", "/debug/log").await;
        assert!(order.starts_with("HTTP/1.1 404"), "{order}");
        cancel.cancel();
        server.await.expect("joins");
    }

    #[tokio::test]
    async fn state_and_orders_are_for_this_machine_or_pod_only() {
        let routes = Admin::new(Arc::default(), ServerCounters::unregistered()).router();
        let addresses = |peer: [u8; 4]| Addresses {
            peer: peer.into(),
            local: [10, 0, 0, 1].into(),
        };
        for (from, wanted) in [
            (Some(addresses([10, 0, 0, 1])), StatusCode::NOT_FOUND),
            (Some(addresses([10, 0, 0, 2])), StatusCode::FORBIDDEN),
            // The server does not record the addresses.
            (None, StatusCode::FORBIDDEN),
        ] {
            let state = match wanted {
                StatusCode::NOT_FOUND => StatusCode::OK,
                refused => refused,
            };
            for (method, path, wanted) in [
                ("PUT", "/debug/log", wanted),
                ("GET", "/debug/state", state),
                ("GET", "/healthz", StatusCode::OK),
            ] {
                let mut request = axum::http::Request::builder()
                    .method(method)
                    .uri(path)
                    .body(axum::body::Body::from("debug"))
                    .expect("a request");
                if let Some(from) = from {
                    request.extensions_mut().insert(from);
                }
                let answer = routes.clone().oneshot(request).await.expect("answers");
                assert_eq!(answer.status(), wanted, "{path} {from:?}");
            }
        }
    }

    #[tokio::test]
    async fn metrics_behind_a_token_need_it_and_state_is_not_served() {
        let token = crate::bearer::random();
        let routes = Admin::new(Arc::default(), ServerCounters::unregistered())
            .state(|| serde_json::json!({"vms": 3}))
            .behind_token(Some(Expected::new(&token)))
            .router();
        let right = format!("Bearer {token}");
        for (method, path, shown, wanted) in [
            ("GET", "/metrics", None, StatusCode::UNAUTHORIZED),
            (
                "GET",
                "/metrics",
                Some("Bearer 0"),
                StatusCode::UNAUTHORIZED,
            ),
            ("GET", "/metrics", Some(right.as_str()), StatusCode::OK),
            ("GET", "/healthz", None, StatusCode::OK),
            ("GET", "/debug/state", None, StatusCode::FORBIDDEN),
            ("GET", "/debug/state", Some(&right), StatusCode::FORBIDDEN),
            ("PUT", "/debug/log", Some(&right), StatusCode::FORBIDDEN),
        ] {
            let mut request = axum::http::Request::builder().method(method).uri(path);
            if let Some(shown) = shown {
                request = request.header(header::AUTHORIZATION, shown);
            }
            let mut request = request.body(axum::body::Body::empty()).expect("a request");
            request.extensions_mut().insert(Addresses {
                peer: [127, 0, 0, 1].into(),
                local: [127, 0, 0, 1].into(),
            });
            let answer = routes.clone().oneshot(request).await.expect("answers");
            assert_eq!(answer.status(), wanted, "{method} {path} {shown:?}");
        }
    }

    #[test]
    fn peer_with_the_dialled_address_is_local() {
        for (peer, dialled, wanted) in [
            ("127.0.0.1", "127.0.0.1", Origin::Here),
            ("127.0.0.1", "127.3.0.1", Origin::Here),
            ("::1", "::1", Origin::Here),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", Origin::Here),
            ("10.244.1.7", "10.244.1.7", Origin::Here),
            ("::ffff:10.244.1.7", "10.244.1.7", Origin::Here),
            ("10.244.1.1", "10.244.1.7", Origin::Elsewhere),
            ("::ffff:10.244.1.8", "::ffff:10.244.1.7", Origin::Elsewhere),
            ("fd00::8", "fd00::7", Origin::Elsewhere),
        ] {
            let ip = |text: &str| text.parse().expect("an address");
            let addresses = Addresses {
                peer: ip(peer),
                local: ip(dialled),
            };
            assert_eq!(Origin::of(addresses), wanted, "{peer} to {dialled}");
        }
    }
}
