//! The agent's port by TLS: who may come in, who may not and is counted for what, and that the
//! agent that is there notices none of it. N31 and N32 hold inside TLS as outside.
#![cfg(feature = "tls")]

mod harness;

use std::path::PathBuf;
use std::sync::Arc;

use harness::{Agent, Files, GIB, Guest, http_get, soon};
use protocol::monitor::MonitorBody;
use protocol::monitor_v2::Capabilities;
use protocol::time::Span;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use test_authority::{Authority, Identity, PAST, put_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::Error;
use vm_monitor::shell::config::TlsFiles;
use vm_monitor::{BindError, Bound, Config};

/// The name in the monitor's certificate.
const NAME: &str = "vm-monitor.test";

/// Files of a monitor's TLS in a folder of their own.
struct Keys {
    folder: TempDir,
}

impl Keys {
    fn new(monitors: &Authority, agents: &Authority) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = Self { folder };
        keys.put("ca", &agents.pem, 0o644);
        keys.renew(monitors);
        keys
    }

    /// Another certificate for the monitor.
    fn renew(&self, monitors: &Authority) {
        let own = monitors.signs(NAME);
        self.put("cert", &own.cert, 0o644);
        self.put("key", &own.key, 0o600);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, text: &str, mode: u32) {
        put_with(&self.path(name), text, mode);
    }

    fn files(&self) -> TlsFiles {
        TlsFiles {
            cert: self.path("cert"),
            key: self.path("key"),
            client_ca: self.path("ca"),
        }
    }
}

/// An agent's side of TLS: whom it trusts, and what it shows.
fn connector(trusted: &Authority, shows: Option<&Identity>) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(trusted.pem.as_bytes()).expect("PEM");
    roots.add(root).expect("a root");
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match shows {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = CertificateDer::from_pem_slice(own.cert.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("PEM");
            let built = builder.with_client_auth_cert(vec![chain], key);
            built.expect("they go together")
        }
    };
    TlsConnector::from(Arc::new(config))
}

/// A WebSocket inside TLS that has not shaken hands. The monitor's refusal comes after our part of
/// TLS is done, so it shows only here.
async fn dial(guest: &Guest, connector: &TlsConnector) -> Result<Agent, Error> {
    let stream = TcpStream::connect(guest.addr).await?;
    let name = ServerName::try_from(NAME).expect("a name");
    let stream = soon("TLS", connector.connect(name, stream)).await?;
    Agent::over(Box::new(stream)).await
}

struct Scene {
    guest: Guest,
    keys: Keys,
    monitors: Authority,
    agents: Authority,
}

impl Scene {
    async fn new() -> Self {
        let (monitors, agents) = (Authority::new("monitors"), Authority::new("agents"));
        let keys = Keys::new(&monitors, &agents);
        let files = Files::new();
        let config = Config {
            tls: Some(keys.files()),
            ..files.config()
        };
        let guest = Guest::with(files, config).await;
        Self {
            guest,
            keys,
            monitors,
            agents,
        }
    }

    /// The connector of an agent that is what it should be.
    fn good(&self) -> TlsConnector {
        connector(&self.monitors, Some(&self.agents.signs(NAME)))
    }

    async fn agent(&self) -> Agent {
        let dialled = dial(&self.guest, &self.good()).await;
        dialled.expect("let in").version_one().await
    }

    /// Waits until a failure has been counted so often.
    async fn counted(&self, reason: &str, count: u64) {
        let is_so =
            |state: &serde_json::Value| state["counters"]["handshake_failures"][reason] == count;
        self.guest.state_when(reason, is_so).await;
    }
}

/// What comes back, whatever ends it.
async fn rest_of(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = soon("the end", stream.read_to_end(&mut rest)).await;
    rest
}

#[tokio::test]
async fn n31_n32_both_versions_are_spoken_inside_tls() {
    let scene = Scene::new().await;
    let mut first = scene.agent().await;
    assert!(first.is_alive().await);
    scene.guest.settle(100 << 20).await;
    scene.guest.shrinks_at_last(&mut first, 2 * GIB).await;
    let second = dial(&scene.guest, &scene.good()).await.expect("let in");
    let all = Capabilities::all(Span::from_secs(60));
    let mut second = second.version_two(all).await;
    let close = first.closed().await.expect("a close frame");
    assert_eq!(u16::from(close.code), 1008, "replaced, as without TLS");
    let metrics =
        |frame: &protocol::monitor_v2::MonitorFrameV2| frame.body.wire_type() == "Metrics";
    second.frame_where(metrics).await;
    // The pages stay plain: they are for scrapers.
    let (status, page) = http_get(scene.guest.metrics, "/metrics").await;
    assert_eq!(status, 200);
    assert!(
        page.contains("vm_monitor_handshake_failures_total{reason=\"tls_expired\"} 0"),
        "{page}"
    );
    scene.guest.stop().await;
}

#[tokio::test]
async fn strangers_are_refused_by_reason_and_the_agent_notices_nothing() {
    let scene = Scene::new().await;
    let mut agent = scene.agent().await;
    let others = Authority::new("others");
    let (expired, unknown) = (scene.agents.signs_for(NAME, PAST), others.signs(NAME));
    for (reason, connector) in [
        ("tls_no_certificate", connector(&scene.monitors, None)),
        ("tls_untrusted", connector(&scene.monitors, Some(&unknown))),
        ("tls_expired", connector(&scene.monitors, Some(&expired))),
        // One that does not trust the monitor.
        ("tls_failed", connector(&others, Some(&expired))),
    ] {
        let refused = dial(&scene.guest, &connector).await;
        assert!(refused.is_err(), "{reason}");
        scene.counted(reason, 1).await;
        assert!(agent.is_alive().await, "{reason}");
    }
    // Plain text, at once and slowly.
    for text in ["GET /monitor HTTP/1.1\r\nHost: guest\r\n\r\n", "hello?"] {
        let mut plain = TcpStream::connect(scene.guest.addr)
            .await
            .expect("connected");
        plain.write_all(text.as_bytes()).await.expect("sent");
        let answer = rest_of(&mut plain).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
    scene.counted("not_tls", 2).await;
    assert!(agent.is_alive().await);
    let state = scene.guest.state_when("counted", |_| true).await;
    assert_eq!(state["counters"]["connections"], 1);
    assert_eq!(state["counters"]["replaced"], 0);
    scene.guest.stop().await;
}

#[tokio::test]
async fn tls_to_a_plain_port_is_refused_and_counted() {
    let guest = Guest::start().await;
    let mut agent = guest.agent().await;
    let monitors = Authority::new("monitors");
    let refused = dial(&guest, &connector(&monitors, None)).await;
    assert!(refused.is_err());
    let is_so =
        |state: &serde_json::Value| state["counters"]["handshake_failures"]["not_http"] == 1;
    guest.state_when("not_http", is_so).await;
    assert!(agent.is_alive().await);
    guest.stop().await;
}

#[tokio::test]
async fn whoever_does_not_finish_tls_in_time_is_let_go() {
    let (monitors, agents) = (Authority::new("monitors"), Authority::new("agents"));
    let keys = Keys::new(&monitors, &agents);
    let files = Files::new();
    let config = Config {
        tls: Some(keys.files()),
        ready_limit: std::time::Duration::from_secs(2),
        ..files.config()
    };
    let guest = Guest::with(files, config).await;
    let mut silent = TcpStream::connect(guest.addr).await.expect("connected");
    assert_eq!(rest_of(&mut silent).await, b"");
    let is_so =
        |state: &serde_json::Value| state["counters"]["handshake_failures"]["timed_out"] == 1;
    guest.state_when("timed_out", is_so).await;
    guest.stop().await;
}

#[tokio::test]
async fn changed_certificates_are_used_for_the_next_connection() {
    let scene = Scene::new().await;
    let mut agent = scene.agent().await;
    // A certificate whose key has not come yet: what was goes on.
    let others = Authority::new("other monitors");
    let theirs = others.signs(NAME);
    scene.keys.put("cert", &theirs.cert, 0o644);
    let mut again = scene.agent().await;
    assert!(agent.closed().await.is_some(), "the newest wins");
    // Its key, but open to others: no use either.
    scene.keys.put("key", &theirs.key, 0o640);
    let mut third = scene.agent().await;
    assert!(again.closed().await.is_some());
    scene.keys.put("key", &theirs.key, 0o400);
    let refused = dial(&scene.guest, &scene.good()).await;
    assert!(refused.is_err(), "the old authority no longer vouches");
    assert!(third.is_alive().await, "who is there stays");
    // Agents of another authority, too.
    let newcomers = Authority::new("new agents");
    scene.keys.put("ca", &newcomers.pem, 0o644);
    let connector = connector(&others, Some(&newcomers.signs(NAME)));
    let fourth = dial(&scene.guest, &connector).await.expect("let in");
    let mut fourth = fourth.version_one().await;
    assert!(fourth.is_alive().await);
    assert!(third.closed().await.is_some());
    scene.guest.stop().await;
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named_before_anything_is_bound() {
    let (monitors, agents) = (Authority::new("monitors"), Authority::new("agents"));
    let problem = async |spoil: &dyn Fn(&Keys)| {
        let keys = Keys::new(&monitors, &agents);
        spoil(&keys);
        let files = Files::new();
        let config = Config {
            tls: Some(keys.files()),
            ..files.config()
        };
        match Bound::bind(&config).await {
            Err(error @ BindError::Tls(_)) => vm_monitor::shell::logging::chain(&error),
            other => panic!("{other:?}"),
        }
    };
    let key = monitors.signs(NAME).key;
    for (spoil, says) in [
        (
            &(|keys: &Keys| keys.put("key", &key, 0o644)) as &dyn Fn(&Keys),
            "(mode 0644): make it 0600 or 0400",
        ),
        (
            &|keys: &Keys| keys.put("key", &key, 0o600),
            "cannot be used",
        ),
        (
            &|keys: &Keys| keys.put("key", "", 0o600),
            "holds no private key in PEM form",
        ),
        (
            &|keys: &Keys| keys.put("cert", &key, 0o600),
            "holds no certificate in PEM form",
        ),
        (
            &|keys: &Keys| std::fs::remove_file(keys.path("ca")).expect("removed"),
            "cannot read",
        ),
    ] {
        let problem = problem(spoil).await;
        assert!(problem.contains(says), "{problem}");
    }
}

/// The whole way through: a version 1 agent inside TLS is answered byte for byte.
#[tokio::test]
async fn n37_answers_are_the_same_inside_tls() {
    let scene = Scene::new().await;
    let mut agent = scene.agent().await;
    agent
        .send_text(r#"{"type":"HealthCheck","content":{},"id":6}"#)
        .await;
    assert_eq!(agent.text().await, r#"{"type":"HealthCheck","id":6}"#);
    let answer = agent.upscale(4 * GIB).await;
    assert_eq!(answer, MonitorBody::UpscaleConfirmation);
    scene.guest.stop().await;
}
