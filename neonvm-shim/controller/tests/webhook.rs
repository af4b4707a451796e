//! The webhook's certificate, between an API server and who dials.

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use daemon_kit::clock::Clock;
use daemon_kit::tls;
use neonvm_controller::Webhook;
use neonvm_controller::core::review::Excused;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use support::DEADLINE;
use support::api::FakeApi;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

const SECRET: &str = "webhook-server-cert";
const NAMES: [&str; 3] = [
    "neonvm-webhook-service.default.svc",
    "neonvm-webhook-service.default.svc.cluster.local",
    "127.0.0.1",
];
const DAY: Duration = Duration::from_secs(24 * 3600);
const KINDS: [&str; 2] = ["Mutating", "Validating"];

/// A secret that somebody put there, as cert-manager writes it, with a certificate that signs
/// itself; and that certificate.
fn foreign(ends: SystemTime) -> (Value, String) {
    let key = KeyPair::generate().expect("a key");
    let names = NAMES.map(str::to_owned).to_vec();
    let mut params = CertificateParams::new(names).expect("names");
    params.not_before = (SystemTime::now() - 365 * DAY).into();
    params.not_after = ends.into();
    let pem = params.self_signed(&key).expect("signed").pem();
    let coded = |text: &str| STANDARD.encode(text);
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": "default"},
        "type": "kubernetes.io/tls",
        "data": {
            "tls.crt": coded(&pem),
            "tls.key": coded(&key.serialize_pem()),
            "ca.crt": coded(&pem),
        },
    });
    (secret, pem)
}

fn in_days(days: u32) -> SystemTime {
    SystemTime::now() + days * DAY
}

/// An API server that is to ask the webhook, and the webhook.
struct Scene {
    api: FakeApi,
    address: SocketAddr,
    ready: Arc<AtomicBool>,
    cancel: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

impl Scene {
    async fn start(secret: Value, clock: Clock) -> Self {
        let api = FakeApi::start().await;
        for kind in KINDS {
            let name = kind.to_lowercase();
            let hook = json!({"name": "vm", "clientConfig": {}});
            api.create(
                &format!("{name}webhookconfigurations"),
                json!({
                    "apiVersion": "admissionregistration.k8s.io/v1",
                    "kind": format!("{kind}WebhookConfiguration"),
                    "metadata": {"name": format!("neonvm-{name}-webhook-configuration")},
                    "webhooks": [hook.clone(), hook],
                }),
            );
        }
        api.create("secrets", secret);
        let client = api.client();
        let nowhere = "127.0.0.1:0".parse().expect("an address");
        let webhook = Webhook::listen(nowhere, &client, Excused::of([]), clock).await;
        let webhook = webhook.expect("listens");
        let address = webhook.listener.local_addr().expect("bound");
        let (ready, cancel) = (Arc::clone(&webhook.ready), CancellationToken::new());
        let task = tokio::spawn(webhook.serve(cancel.clone()));
        Self {
            api,
            address,
            ready,
            cancel,
            task,
        }
    }

    async fn until_ready(&self, is: bool) {
        let waits = timeout(DEADLINE, async {
            while self.ready.load(Ordering::Relaxed) != is {
                yield_now().await;
            }
        });
        assert!(waits.await.is_ok(), "ready: {}", !is);
    }

    /// Waits until API servers trust this certificate, and are served by it.
    async fn until_trusted(&self, pem: &str) {
        let coded = json!(STANDARD.encode(pem));
        let trust = |api: &FakeApi| {
            let all = KINDS.map(|kind| {
                let kind = kind.to_lowercase();
                let object = &api.list(&format!("{kind}webhookconfigurations"))[0];
                let mut hooks = object["webhooks"].as_array().expect("hooks").iter();
                hooks.all(|hook| hook["clientConfig"]["caBundle"] == coded)
            });
            (all == [true, true]).then_some(())
        };
        self.api.wait("trust", trust).await;
        let config = tls::trusting(pem.as_bytes()).expect("a certificate");
        let name = ServerName::try_from(NAMES[0]).expect("a name");
        let stream = TcpStream::connect(self.address).await.expect("connects");
        let greeted = TlsConnector::from(config).connect(name, stream);
        let greeted = timeout(DEADLINE, greeted).await.expect("answers");
        greeted.expect("it is served by what is trusted");
    }

    /// The owner writes another certificate into the secret; without one, something that is none of
    /// ours.
    fn owner_writes(&self, data: Option<&Value>) {
        self.api.edit("secrets", SECRET, |secret| match data {
            Some(data) => secret["data"] = data["data"].clone(),
            None => secret["metadata"]["annotations"] = json!({"seen": "again"}),
        });
    }

    /// What was written to the secret through the API.
    fn writes(&self) -> Vec<String> {
        let mut requests = self.api.lines();
        let reads = |line: &str| line.starts_with("GET ") || line.starts_with("WATCH ");
        requests.retain(|line| !reads(line) && line.contains("/secrets"));
        requests
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.task.await.expect("no panic").expect("no error");
    }
}

#[tokio::test]
async fn foreign_certificate_and_its_successor_are_served() {
    static LATER: AtomicI64 = AtomicI64::new(0);
    let (secret, first) = foreign(in_days(30));
    let scene = Scene::start(secret, Clock::with_wall_offset(&LATER)).await;
    scene.until_ready(true).await;
    scene.until_trusted(&first).await;
    // Renewed by its owner while it is served.
    let (renewed, second) = foreign(in_days(40));
    scene.owner_writes(Some(&renewed));
    scene.until_trusted(&second).await;
    assert!(scene.ready.load(Ordering::Relaxed));
    // It runs out, and nobody has renewed it.
    let us = i64::try_from((50 * DAY).as_micros()).expect("small");
    LATER.store(us, Ordering::Relaxed);
    scene.owner_writes(None);
    scene.until_ready(false).await;
    let (renewed, third) = foreign(in_days(80));
    scene.owner_writes(Some(&renewed));
    scene.until_trusted(&third).await;
    scene.until_ready(true).await;
    assert_eq!(scene.writes(), Vec::<String>::new());
    scene.stop().await;
}

#[tokio::test]
async fn expired_foreign_certificate_is_left_to_its_owner() {
    let (ended, _) = foreign(SystemTime::now() - DAY);
    let scene = Scene::start(ended, Clock::new()).await;
    // A list and a watch of each of the three objects.
    scene.api.wait_calls(6).await;
    scene.owner_writes(None);
    assert!(!scene.ready.load(Ordering::Relaxed));
    let (renewed, pem) = foreign(in_days(30));
    scene.owner_writes(Some(&renewed));
    scene.until_trusted(&pem).await;
    scene.until_ready(true).await;
    assert_eq!(scene.writes(), Vec::<String>::new());
    scene.stop().await;
}

#[tokio::test]
async fn due_certificate_is_served_until_renewal_succeeds() {
    let (mut secret, old) = foreign(in_days(30));
    secret["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "neonvm-controller"});
    let scene = Scene::start(secret, Clock::new()).await;
    let write = format!("PATCH /api/v1/namespaces/default/secrets/{SECRET}");
    scene.api.refuse(&write, u32::MAX, 403);
    // One that was written before that is as good.
    scene.until_ready(true).await;
    scene.api.take_all_back();
    scene.owner_writes(None);
    let old = json!(STANDARD.encode(old));
    let secret = scene.api.wait("a new certificate", |api| {
        let secret = api.get("secrets", SECRET)?;
        (secret["data"]["tls.crt"] != old).then_some(secret)
    });
    let bundle = secret.await["data"]["ca.crt"].clone();
    let bundle = STANDARD
        .decode(bundle.as_str().expect("one"))
        .expect("base64");
    let bundle = String::from_utf8(bundle).expect("text");
    scene.until_trusted(&bundle).await;
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2);
    scene.stop().await;
}
