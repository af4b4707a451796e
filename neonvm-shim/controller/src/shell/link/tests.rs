use std::net::SocketAddr;
use std::sync::{Arc, Mutex as SyncMutex};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use protocol::runner::ORDERS_IDENTITY;
use serde_json::{Value, json};
use test_api::TestApi;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::{LinkError, RunnerAddress, RunnerLink};
use crate::core::observe::PodRunner;
use crate::core::testing::runner_at;
use crate::shell::api::KubeApi;
use crate::shell::clock::pause;
use crate::shell::runner_key::RunnerKey;
use crate::shell::secret::orders_identity;

/// Name of the VM's secret.
const SECRET: &str = "runner-neonvm-vm";

/// A place that a server and its test both see.
type Shared<T> = Arc<SyncMutex<T>>;

fn set<T>(shared: &Shared<T>, value: T) {
    *shared.lock().expect("whole") = value;
}

/// The certificate and key of a VM's runners, as its secret holds them.
fn identity() -> Value {
    orders_identity().expect("there is randomness")
}

/// What a runner speaks.
#[derive(Clone)]
enum Speaks {
    Clear,
    /// By TLS, with this identity.
    Tls(Value),
    /// It hangs up.
    Nothing,
}

/// A runner that says its state to everybody, and what it was shown.
struct Runner {
    at: SocketAddr,
    speaks: Shared<Speaks>,
    tokens: Shared<Vec<Option<String>>>,
}

impl Runner {
    async fn start(speaks: Speaks) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let at = listener.local_addr().expect("bound");
        let tokens: Shared<Vec<Option<String>>> = Arc::default();
        let seen = Arc::clone(&tokens);
        let state = async move |headers: HeaderMap| -> Response {
            let token = headers.get(header::AUTHORIZATION);
            let token = token.map(|token| token.to_str().expect("text").to_owned());
            seen.lock().expect("whole").push(token.clone());
            if token.is_some_and(|token| token.ends_with("stale")) {
                return StatusCode::UNAUTHORIZED.into_response();
            }
            Json(runner_at(1000, 1)).into_response()
        };
        let routes = Router::new().route("/v1/state", get(state));
        let speaks = Arc::new(SyncMutex::new(speaks));
        tokio::spawn(serve(listener, Arc::clone(&speaks), routes));
        Self { at, speaks, tokens }
    }

    /// A link to it, which knows what `key` knows.
    fn link(&self, key: &Arc<RunnerKey>, by_tls: bool) -> RunnerLink {
        let at = self.at;
        RunnerLink::with_key(RunnerAddress::Pod(PodRunner { at, by_tls }), key)
    }

    /// What it was shown since it was asked last.
    fn tokens(&self) -> Vec<Option<String>> {
        std::mem::take(&mut *self.tokens.lock().expect("whole"))
    }
}

async fn serve(listener: TcpListener, speaks: Shared<Speaks>, routes: Router) {
    loop {
        let (stream, _) = listener.accept().await.expect("accepts");
        let speaks = speaks.lock().expect("whole").clone();
        let service = TowerToHyperService::new(routes.clone());
        let http = hyper::server::conn::http1::Builder::new();
        match speaks {
            Speaks::Nothing => drop(stream),
            Speaks::Clear => {
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
            Speaks::Tls(identity) => {
                let pem = ORDERS_IDENTITY.map(|name| {
                    let text = identity[name].as_str().expect("text");
                    STANDARD.decode(text).expect("base64")
                });
                let config = daemon_kit::tls::showing(&pem[0], &pem[1]).expect("a pair");
                if let Ok(stream) = TlsAcceptor::from(config).accept(stream).await {
                    tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
                }
            }
        }
    }
}

/// An API server with one secret or none.
struct Api {
    key: Arc<RunnerKey>,
    server: TestApi,
}

impl Api {
    async fn start(identity: Option<&Value>) -> Self {
        let server = TestApi::start().await;
        let api = Arc::new(KubeApi::new(server.client()));
        let key = Arc::new(RunnerKey::new(api, "default", "vm"));
        let api = Self { key, server };
        api.set_secret(identity.map(secret));
        api
    }

    fn set_secret(&self, secret: Option<Value>) {
        match secret {
            Some(secret) => self.server.put("secrets", secret),
            None => self.server.take("secrets", "default", SECRET),
        }
    }

    /// How often the secret was read.
    fn reads(&self) -> usize {
        let line = format!("GET /api/v1/namespaces/default/secrets/{SECRET}");
        self.server.count(&line, |_| true)
    }
}

/// A secret with the token `it`.
fn secret(identity: &Value) -> Value {
    let mut data = identity.clone();
    data["token"] = json!(STANDARD.encode("it"));
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": "default"},
        "data": data,
    })
}

fn token() -> Vec<Option<String>> {
    vec![Some("Bearer it".to_owned())]
}

#[tokio::test]
async fn runner_with_certificate_of_its_vm_is_reached_by_tls() {
    let (own, other) = (identity(), identity());
    let runner = Runner::start(Speaks::Tls(own.clone())).await;
    for by_tls in [true, false] {
        let api = Api::start(Some(&own)).await;
        let state = runner.link(&api.key, by_tls).state(None).await;
        state.expect("answers");
        assert_eq!(runner.tokens(), token());
        let api = Api::start(Some(&other)).await;
        let refused = runner.link(&api.key, by_tls).state(None).await;
        let refused = refused.expect_err("another's certificate");
        assert!(matches!(refused, LinkError::Tls { .. }), "{refused:?}");
        assert!(!refused.is_permanent());
        assert_eq!(runner.tokens(), [], "nobody else is shown the token");
    }
}

#[tokio::test]
async fn b48_a_runner_that_knows_tls_is_never_asked_in_the_clear() {
    let runner = Runner::start(Speaks::Clear).await;
    let api = Api::start(Some(&identity())).await;
    let mut link = runner.link(&api.key, true);
    let refused = link.state(None).await.expect_err("it speaks in the clear");
    assert!(matches!(refused, LinkError::Clear { .. }), "{refused:?}");
    set(&runner.speaks, Speaks::Nothing);
    let refused = link.state(None).await.expect_err("it hangs up");
    assert!(matches!(refused, LinkError::Tls { .. }), "{refused:?}");
    set(&runner.speaks, Speaks::Clear);
    let none = Api::start(None).await;
    let refused = runner.link(&none.key, true).state(None).await;
    let refused = refused.expect_err("no certificate");
    assert!(
        matches!(refused, LinkError::NoCertificate { .. }),
        "{refused:?}"
    );
    assert!(!refused.is_permanent());
    assert_eq!(runner.tokens(), []);
    assert_eq!(api.reads(), 1, "the secret has nothing to do with it");
}

#[tokio::test]
async fn runner_of_unknown_age_is_reached_by_tls_or_in_clear() {
    let runner = Runner::start(Speaks::Clear).await;
    for (identity, tokens) in [(Some(identity()), token()), (None, vec![None])] {
        let api = Api::start(identity.as_ref()).await;
        let state = runner.link(&api.key, false).state(None).await;
        state.expect("answers in the clear");
        assert_eq!(runner.tokens(), tokens);
    }
}

#[tokio::test]
async fn replaced_secret_is_used_once_runner_has_it() {
    let (first, second) = (identity(), identity());
    let runner = Runner::start(Speaks::Tls(first.clone())).await;
    let api = Api::start(Some(&first)).await;
    let ask = async || runner.link(&api.key, true).state(None).await;
    ask().await.expect("answers");
    // Gone, and made anew: until the kubelet has brought it to the runner, nothing changes.
    api.set_secret(None);
    ask().await.expect("answers");
    api.set_secret(Some(secret(&second)));
    ask().await.expect("answers");
    assert_eq!(api.reads(), 1);
    pause(Duration::from_millis(150)).await;
    set(&runner.speaks, Speaks::Tls(second));
    ask().await.expect_err("it does not know it yet");
    ask().await.expect("answers");
    assert_eq!(api.reads(), 2);
}

/// Of a runner of which nobody knows that it speaks TLS either: its secret may get a certificate,
/// and another token.
#[tokio::test]
async fn missing_or_refused_credentials_are_read_again() {
    let own = identity();
    let runner = Runner::start(Speaks::Tls(own.clone())).await;
    let api = Api::start(None).await;
    let mut strict = runner.link(&api.key, true);
    let refused = strict.state(None).await.expect_err("no secret yet");
    assert!(
        matches!(refused, LinkError::NoCertificate { .. }),
        "{refused:?}"
    );
    let mut stale = secret(&own);
    stale["data"]["token"] = json!(STANDARD.encode("stale"));
    api.set_secret(Some(stale));
    pause(Duration::from_millis(150)).await;
    let refused = strict.state(None).await.expect_err("another token");
    assert!(matches!(refused, LinkError::Refused { .. }), "{refused:?}");
    api.set_secret(Some(secret(&own)));
    pause(Duration::from_millis(150)).await;
    strict.state(None).await.expect("answers");
    // By TLS from then on, also where it was spoken to in the clear before.
    set(&runner.speaks, Speaks::Clear);
    let bare = Api::start(None).await;
    let mut lax = runner.link(&bare.key, false);
    lax.state(None).await.expect("answers in the clear");
    bare.set_secret(Some(secret(&own)));
    set(&runner.speaks, Speaks::Tls(own));
    pause(Duration::from_millis(150)).await;
    runner.tokens();
    runner
        .link(&bare.key, false)
        .state(None)
        .await
        .expect("answers");
    assert_eq!(runner.tokens(), token());
}

/// A kubelet takes its time, and links try on: the API server is asked ever more seldom, and what a
/// runner had is kept if it is of no more use to ask.
#[tokio::test]
async fn waiting_for_runner_reads_secret_seldom() {
    let (own, other) = (identity(), identity());
    let runner = Runner::start(Speaks::Tls(other)).await;
    let api = Api::start(Some(&own)).await;
    let mut links = [(); 3].map(|()| runner.link(&api.key, true));
    for _ in 0..60 {
        for link in &mut links {
            link.state(None).await.expect_err("another's certificate");
        }
        pause(Duration::from_millis(10)).await;
    }
    let reads = api.reads();
    assert!((2..=12).contains(&reads), "{reads} reads in 180 attempts");
    // Gone: it is asked for once more, and what was known stays known.
    api.set_secret(None);
    let began = std::time::Instant::now();
    while api.reads() == reads && began.elapsed() < Duration::from_secs(60) {
        links[0].state(None).await.expect_err("as before");
        pause(Duration::from_millis(100)).await;
    }
    assert!(api.reads() > reads, "it was not asked again");
    set(&runner.speaks, Speaks::Tls(own));
    links[0]
        .state(None)
        .await
        .expect("it is still known by that");
}
