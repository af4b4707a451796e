use std::net::SocketAddr;
use std::sync::Mutex as SyncMutex;

use axum::http::{HeaderMap, HeaderValue};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::service::TowerToHyperService;
use protocol::runner::ORDERS_IDENTITY;
use serde_json::{Value, json};
use telemetry::tls::{IdentityFiles, Server, ServerFiles};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::core::testing::runner_at;
use crate::shell::api::KubeApi;
use crate::shell::runner_key::Credentials;
use crate::shell::secret::{certificate, orders_identity};

/// The certificate and key of a VM's runners, as its secret holds them.
fn identity() -> Value {
    orders_identity().expect("there is randomness")
}

/// A runner that says its state to everybody, by TLS if it has an identity, and what it was shown.
struct Runner {
    at: SocketAddr,
    shown: Arc<SyncMutex<Vec<Option<String>>>>,
}

impl Runner {
    async fn start(identity: Option<&Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let at = listener.local_addr().expect("bound");
        let shown: Arc<SyncMutex<Vec<Option<String>>>> = Arc::default();
        let seen = Arc::clone(&shown);
        let state = async move |headers: HeaderMap| {
            let token = headers.get(header::AUTHORIZATION);
            let token = token.map(|token| token.to_str().expect("text").to_owned());
            seen.lock().expect("whole").push(token);
            Json(runner_at(1000, 1))
        };
        let routes = Router::new().route("/v1/state", get(state));
        match identity.map(acceptor) {
            None => drop(tokio::spawn(
                async move { axum::serve(listener, routes).await },
            )),
            Some(acceptor) => drop(tokio::spawn(by_tls(listener, acceptor, routes))),
        }
        Self { at, shown }
    }

    /// Asks for its state as the controller does, knowing what is in `secret`.
    async fn ask(&self, secret: Option<&Value>, by_tls: bool) -> Result<(), LinkError> {
        let peer = RunnerAddress::Pod(PodRunner {
            at: self.at,
            by_tls,
        });
        let mut link = RunnerLink::with_key(peer, &key(secret));
        link.state(None).await.map(drop)
    }

    /// What it was shown since it was asked last.
    fn shown(&self) -> Vec<Option<String>> {
        std::mem::take(&mut *self.shown.lock().expect("whole"))
    }
}

fn acceptor(identity: &Value) -> TlsAcceptor {
    let dir = tempfile::tempdir().expect("makes");
    let [cert, key] = ORDERS_IDENTITY.map(|name| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = dir.path().join(name);
        let pem = STANDARD.decode(identity[name].as_str().expect("text"));
        std::fs::write(&path, pem.expect("base64")).expect("writes");
        let mode = std::fs::Permissions::from_mode(0o400);
        std::fs::set_permissions(&path, mode).expect("sets");
        path
    });
    let files = ServerFiles {
        identity: IdentityFiles { cert, key },
        client_authority: None,
    };
    TlsAcceptor::from(Server::load(files).expect("loads").config())
}

async fn by_tls(listener: TcpListener, acceptor: TlsAcceptor, routes: Router) {
    loop {
        let (stream, _) = listener.accept().await.expect("accepts");
        let Ok(stream) = acceptor.accept(stream).await else {
            continue;
        };
        let service = TowerToHyperService::new(routes.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}

/// A key that holds what was in `secret`, and has nobody to ask for more.
fn key(secret: Option<&Value>) -> Arc<RunnerKey> {
    let nowhere = "http://127.0.0.1:1".parse().expect("an address");
    let client = kube::Client::try_from(kube::Config::new(nowhere)).expect("a client");
    let trusted = secret.and_then(|identity| certificate(&json!({"data": identity})));
    let trusted = trusted.map(|pem| telemetry::tls::trusting(&pem).expect("a certificate"));
    let held = Credentials {
        token: Some(HeaderValue::from_static("Bearer it")),
        certificate: trusted,
    };
    Arc::new(RunnerKey::holding(Arc::new(KubeApi::new(client)), held))
}

fn token() -> Vec<Option<String>> {
    vec![Some("Bearer it".to_owned())]
}

#[tokio::test]
async fn a_runner_with_the_certificate_of_its_vm_is_asked_by_tls() {
    let (own, other) = (identity(), identity());
    let runner = Runner::start(Some(&own)).await;
    for by_tls in [true, false] {
        runner.ask(Some(&own), by_tls).await.expect("answers");
        assert_eq!(runner.shown(), token());
        let refused = runner.ask(Some(&other), by_tls).await;
        let refused = refused.expect_err("another's certificate");
        assert!(matches!(refused, LinkError::Tls { .. }), "{refused:?}");
        assert!(!refused.is_permanent());
        assert_eq!(runner.shown(), [], "nobody else is shown the token");
    }
}

#[tokio::test]
async fn a_runner_that_knows_tls_is_never_asked_in_the_clear() {
    let runner = Runner::start(None).await;
    let refused = runner.ask(Some(&identity()), true).await;
    let refused = refused.expect_err("it speaks in the clear");
    assert!(matches!(refused, LinkError::Tls { .. }), "{refused:?}");
    let refused = runner.ask(None, true).await.expect_err("no certificate");
    let LinkError::NoCertificate { .. } = refused else {
        panic!("{refused:?}");
    };
    assert!(!refused.is_permanent());
    assert_eq!(runner.shown(), []);
}

#[tokio::test]
async fn a_runner_of_which_nobody_knows_that_is_asked_as_it_can_be() {
    let runner = Runner::start(None).await;
    for secret in [Some(identity()), None] {
        let asked = runner.ask(secret.as_ref(), false).await;
        asked.expect("answers in the clear");
        assert_eq!(runner.shown(), token());
    }
}
