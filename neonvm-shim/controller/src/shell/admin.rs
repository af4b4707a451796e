//! The admin server of a controller that is a process of its own, and when that is ready.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::routing::get;
use axum::{Json, Router};
use daemon_kit::admin::{Admin, own_pod_only, serve_routes};
use daemon_kit::connections::ServerCounters;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::state::StateHandle;

/// Conditions of a replica's readiness.
#[derive(Debug)]
pub struct Waits {
    /// Set while it waits for the lead: then it is as ready as it can be.
    pub for_lead: Arc<AtomicBool>,
    /// Set once the webhook serves and API servers trust it; `None` without a webhook. API servers
    /// refuse objects while no webhook responds, so a rollout must wait for it.
    pub is_asked: Option<Arc<AtomicBool>>,
}

impl Waits {
    /// Adds the state and the readiness of the replica to its admin server.
    #[must_use]
    pub fn admin(&self, admin: Admin, state: &StateHandle) -> Admin {
        let (shown, synced) = (state.clone(), state.clone());
        let (for_lead, is_asked) = (Arc::clone(&self.for_lead), self.is_asked.clone());
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        admin.state(move || shown.dump()).ready(move || {
            if is_asked.as_deref().is_some_and(|asked| !is_set(asked)) {
                Err("the webhook does not serve yet, or API servers do not trust it yet".into())
            } else if is_set(&for_lead) || synced.is_synced() {
                Ok(())
            } else {
                Err("lists are not synced".into())
            }
        })
    }
}

/// Serves the admin routes, and the state at `/`, until `cancel`.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve_admin(
    listen: SocketAddr,
    admin: Admin,
    connections: ServerCounters,
    state: &StateHandle,
    cancel: &CancellationToken,
) -> std::io::Result<JoinHandle<()>> {
    let listener = TcpListener::bind(listen).await?;
    tracing::info!(address = %listener.local_addr()?, "admin server listens");
    let root = state.clone();
    let state = Router::new().route("/", get(async move || Json(root.dump())));
    let routes = admin.router().merge(own_pod_only(state));
    let served = serve_routes(listener, routes, connections, cancel.clone());
    Ok(tokio::spawn(served))
}
