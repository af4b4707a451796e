//! An HTTP proxy in front of the API server that can hold the next write of a VM: before it is
//! passed on, or its answer.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc, oneshot};

/// Where a write is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It has left the scheduler and has not reached the API.
    BeforeItLands,
    /// It has been carried out, and the answer has not left.
    BeforeItsAnswer,
}

/// A write that is held. Dropped, it is never passed on, or never answered.
pub(crate) struct Held {
    go: oneshot::Sender<()>,
    done: oneshot::Receiver<u16>,
}

impl Held {
    /// Lets it go on; returns the API's status.
    pub(crate) async fn release(self) -> u16 {
        let _sent = self.go.send(());
        self.done.await.unwrap_or(0)
    }
}

type Trap = Arc<Mutex<Option<(Hold, mpsc::Sender<Held>)>>>;

#[derive(Clone)]
struct ProxyState {
    client: kube::Client,
    trap: Trap,
}

pub(crate) struct Proxy {
    address: std::net::SocketAddr,
    trap: Trap,
}

impl Proxy {
    pub(crate) async fn start(client: kube::Client) -> Self {
        let trap = Trap::default();
        let state = ProxyState {
            client,
            trap: Arc::clone(&trap),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("has an address");
        let router = Router::new().fallback(pass).with_state(state);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, trap }
    }

    pub(crate) fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: t\nclusters: [{{name: t, cluster: {{server: \"http://{}\"}}}}]\n\
             users: [{{name: t, user: {{}}}}]\ncontexts: [{{name: t, context: {{cluster: t, user: t}}}}]\n",
            self.address
        )
    }

    /// Holds the next write of a VM.
    pub(crate) async fn hold(&self, hold: Hold) -> mpsc::Receiver<Held> {
        let (caught, receiver) = mpsc::channel(1);
        *self.trap.lock().await = Some((hold, caught));
        receiver
    }
}

async fn pass(State(state): State<ProxyState>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 8 << 20)
        .await
        .unwrap_or_default();
    let is_write = parts.method == Method::PATCH && parts.uri.path().contains("/virtualmachines/");
    let trap = if is_write {
        state.trap.lock().await.take()
    } else {
        None
    };
    let forward = forward(state.client, parts, body.to_vec());
    let Some((hold, caught)) = trap else {
        return forward.await;
    };
    let (answer, answered) = oneshot::channel();
    // In a task of its own: a scheduler that is killed takes its connection with it, and not the
    // write.
    tokio::spawn(async move {
        let (go, released) = oneshot::channel();
        let (said, done) = oneshot::channel();
        let held = async {
            let held = Held { go, done };
            caught.send(held).await.is_ok() && released.await.is_ok()
        };
        let response = if hold == Hold::BeforeItLands {
            if !held.await {
                return;
            }
            forward.await
        } else {
            let response = forward.await;
            if !held.await {
                return;
            }
            response
        };
        let _said = said.send(response.status().as_u16());
        // Whoever asked may be gone.
        let _answered = answer.send(response);
    });
    match answered.await {
        Ok(response) => response,
        Err(_) => std::future::pending().await,
    }
}

async fn forward(client: kube::Client, mut parts: Parts, body: Vec<u8>) -> Response {
    for name in [header::HOST, header::CONTENT_LENGTH, header::CONNECTION] {
        parts.headers.remove(name);
    }
    match client.send(Request::from_parts(parts, body.into())).await {
        Ok(answer) => answer.map(Body::new),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}
