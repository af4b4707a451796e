//! The webhook that reviews VM objects and sets for an API server: `core::review` over HTTPS.
//! Every replica serves it, with or without the lead.
//!
//! ```text
//! secret with the certificate ─watch─┐
//! mutating configuration ──────watch─┼─► keeper ─► renewed secret; caBundle of both configurations
//! validating configuration ────watch─┘      └────► TLS configuration of connections
//! ```
//!
//! Bounds: connections, the size of a review, and the time of a handshake, of a request's head and
//! of its body.

mod identity;
mod keeper;
mod names;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use daemon_kit::clock::Clock;
use daemon_kit::connections::{self, Bounds, Connection, ServerCounters, WhenFull};
use daemon_kit::serving::Ending;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use kube::Client;
use protocol::permit::NamespacedName;
use rustls::ServerConfig;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::api::KubeApi;
use super::clock::moment;
use super::events::{self, EventRequest, EventSink};
pub use names::Names;

use crate::core::VmEvent;
use crate::core::announce::{About, Announcer};
use crate::core::review::{self, Excused, Skipped, Task};

/// Paths by kind, after `/mutate-` or `/validate-`.
const KINDS: [&str; 3] = [
    "vm-neon-tech-v1-virtualmachine",
    "vm-neon-tech-v1-virtualmachinemigration",
    "policy-bellows-dev-v1alpha1-virtualmachineset",
];
/// Connections at a time. An API server keeps a few.
const CONNECTIONS: usize = 64;
/// Largest review: two objects as large as an API server takes them.
const MAX_BODY_BYTES: usize = 8 << 20;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// API servers wait for ten seconds themselves.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The webhook before it serves.
pub struct Webhook {
    /// Client of the API server.
    pub client: Client,
    /// Listener of the HTTPS server.
    pub listener: TcpListener,
    /// Names of the webhook's objects in the cluster.
    pub names: Names,
    /// VMs whose changes skip validation.
    pub excused: Excused,
    /// The clock of this process.
    pub clock: Clock,
    /// Set once it serves and API servers trust it.
    pub ready: Arc<AtomicBool>,
}

impl Webhook {
    /// One under the deployed names, on an address.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn listen(
        address: SocketAddr,
        client: &Client,
        excused: Excused,
        clock: Clock,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        tracing::info!(address = %listener.local_addr()?, "webhook listens");
        Ok(Self {
            client: client.clone(),
            listener,
            names: Names::deployed(client.default_namespace()),
            excused,
            clock,
            ready: Arc::default(),
        })
    }

    /// Serves until `cancel`. Without a certificate yet, connections wait for it.
    ///
    /// # Errors
    /// When the address of the listener cannot be read.
    pub async fn serve(self, cancel: CancellationToken) -> std::io::Result<()> {
        let dialled = self.names.dialled(self.listener.local_addr()?.ip());
        let (shown, served) = watch::channel(None);
        let api = keeper::WebhookApi::new(&self.client, &self.names);
        let events = Arc::new(KubeApi::new(self.client.clone()));
        let (events, writer) = events::start(events, cancel.clone());
        let writer = tokio::spawn(writer);
        let routes = router(&WebhookContext {
            excused: Arc::new(self.excused),
            announcers: Arc::default(),
            events,
            clock: self.clock,
        });
        let keeper = keeper::Keeper {
            api,
            dialled,
            clock: self.clock,
            shown,
            ready: self.ready,
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = keeper.keep() => {}
            () = accept(self.listener, served, routes, cancel.clone()) => {}
        }
        writer.abort();
        Ok(())
    }
}

/// Shared state of the request handlers.
#[derive(Clone)]
struct WebhookContext {
    excused: Arc<Excused>,
    /// Announcer of each excused VM. The command line bounds their number.
    announcers: Arc<Mutex<BTreeMap<NamespacedName, Announcer>>>,
    events: EventSink,
    clock: Clock,
}

impl WebhookContext {
    /// Logs a change that skipped validation, and writes a Kubernetes event about it.
    fn report(&self, skipped: Skipped) {
        let Skipped { key, uid, message } = skipped;
        let event = VmEvent::SkippedValidation { broken: message };
        tracing::warn!(vm = %key, note = event.reason(), "{event}");
        let about = About {
            namespace: &key.namespace,
            name: &key.name,
            uid: &uid,
        };
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        let mut announcers = self
            .announcers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let announcer = announcers.entry(key.clone()).or_default();
        if let Some(what) = announcer.announce(&event, about, moment(&self.clock)) {
            self.events.send(EventRequest {
                namespace: key.namespace.clone(),
                what,
            });
        }
    }
}

fn router(context: &WebhookContext) -> Router {
    let mut router = Router::new();
    for kind in KINDS {
        for (verb, task) in [("mutate", Task::Mutate), ("validate", Task::Validate)] {
            let handler = move |State(context): State<WebhookContext>, body: Bytes| async move {
                respond(task, &context, &body)
            };
            router = router.route(&format!("/{verb}-{kind}"), post(handler));
        }
    }
    let router = router.layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    router.with_state(context.clone())
}

fn respond(task: Task, context: &WebhookContext, body: &[u8]) -> Response {
    let bad = |why: String| (StatusCode::BAD_REQUEST, why).into_response();
    let review: Value = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => return bad(format!("not JSON: {error}")),
    };
    match review::respond(task, &review, &context.excused) {
        Ok(response) => {
            if let Some(skipped) = response.skipped {
                context.report(skipped);
            }
            Json(response.review).into_response()
        }
        Err(error) => bad(error.to_string()),
    }
}

/// Accepts connections until `cancel`. Before there is a certificate, they wait.
async fn accept(
    listener: TcpListener,
    mut served: watch::Receiver<Option<Arc<ServerConfig>>>,
    router: Router,
    cancel: CancellationToken,
) {
    // The keeper lives as long as we do.
    if served.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let bounds = Bounds {
        total: CONNECTIONS,
        per_peer: CONNECTIONS,
        when_full: WhenFull::Wait,
    };
    let serve_one = move |stream, connection| {
        // The certificate is renewed from time to time.
        let (config, router) = (served.borrow().clone(), router.clone());
        async move {
            match config {
                Some(config) => serve_connection(stream, connection, config.into(), router).await,
                None => Ending::Broken,
            }
        }
    };
    let counters = ServerCounters::unregistered();
    connections::accept(listener, bounds, counters, cancel, serve_one).await;
}

async fn serve_connection(
    stream: TcpStream,
    connection: Connection,
    acceptor: TlsAcceptor,
    router: Router,
) -> Ending {
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake with the webhook failed");
            return Ending::Broken;
        }
        Err(_) => return Ending::TimedOut,
    };
    let service = tower::ServiceExt::<axum::http::Request<axum::body::Body>>::map_future(
        router,
        move |response| {
            let guard = connection.request();
            async move {
                let response = tokio::time::timeout(REQUEST_TIMEOUT, response).await;
                drop(guard);
                response.unwrap_or_else(|_| Ok(StatusCode::REQUEST_TIMEOUT.into_response()))
            }
        },
    );
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    match served.await {
        Ok(()) => Ending::Done,
        Err(error) => {
            tracing::debug!(%error, "connection to the webhook failed");
            Ending::Broken
        }
    }
}
