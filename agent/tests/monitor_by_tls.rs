//! The monitor link by TLS over real sockets: the agent shows its certificate and looks at the
//! monitor's, reads its files anew for each connection, and never falls back to plain text.

mod peers;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use peers::{Seen, World};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;
use test_authority::{Authority, Identity, put};

/// A monitor that shows this certificate and wants one of that authority.
fn monitor(own: &Identity, agents: &Authority) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(agents.pem.as_bytes()).expect("PEM");
    roots.add(root).expect("a root");
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let chain = CertificateDer::from_pem_slice(own.cert.as_bytes()).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("PEM");
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("a verifier"))
        .with_single_cert(vec![chain], key);
    Arc::new(config.expect("they go together"))
}

/// A world whose agent and monitor have certificates, in a folder that stays until it is dropped.
async fn world(monitors: &Authority, agents: &Authority) -> (World, tempfile::TempDir) {
    let mut world = World::new().await;
    let own = monitors.signs(world.guest.ip);
    *world.guest.manners.tls.lock().expect("unused yet") = Some(monitor(&own, agents));
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let shown = agents.signs("agent");
    put(&file("ca"), &monitors.pem);
    put(&file("cert"), &shown.cert);
    put(&file("key"), &shown.key);
    world.config["monitor"]["connectionRetryMinWaitSeconds"] = json!(1);
    world.config["monitor"]["tls"] =
        json!({"caFile": file("ca"), "certFile": file("cert"), "keyFile": file("key")});
    (world, folder)
}

async fn refused(world: &World) -> String {
    let refused = world.trace.until("TLS is refused", |all| {
        all.iter().find_map(|seen| match seen {
            Seen::NoTls(why) => Some(why.clone()),
            _ => None,
        })
    });
    refused.await
}

/// Requirement: N32, N37
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_link_versions_work_over_tls() {
    for is_v2 in [false, true] {
        let (monitors, agents) = (Authority::new("monitors"), Authority::new("agents"));
        let (mut world, _folder) = world(&monitors, &agents).await;
        world
            .guest
            .manners
            .speaks_v2
            .store(is_v2, Ordering::Relaxed);
        world.start_connected().await;
        let healthy = |all: &[Seen]| all.contains(&Seen::HealthCheck).then_some(());
        world.trace.until("a health check", healthy).await;
        let named = world
            .trace
            .count(|seen| matches!(seen, Seen::Capabilities(..)));
        assert_eq!(named, usize::from(is_v2));
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monitor_of_unknown_authority_is_refused_until_it_is_trusted() {
    let (monitors, agents) = (Authority::new("monitors"), Authority::new("agents"));
    let (mut world, folder) = world(&monitors, &agents).await;
    put(&folder.path().join("ca"), &Authority::new("others").pem);
    world.start().await;
    let why = refused(&world).await;
    assert!(why.contains("UnknownCA") || why.contains("alert"), "{why}");
    assert_eq!(
        world.trace.count(|seen| matches!(seen, Seen::Connected(_))),
        0
    );
    put(&folder.path().join("ca"), &monitors.pem);
    let connected = |all: &[Seen]| all.contains(&Seen::Connected(1)).then_some(());
    world.trace.until("connected", connected).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monitor_certificate_must_have_the_expected_name() {
    let (monitors, agents) = (Authority::new("monitors"), Authority::new("agents"));
    let (mut world, _folder) = world(&monitors, &agents).await;
    // Its certificate bears its address alone.
    world.config["monitor"]["tls"]["serverName"] = json!("vm-monitor");
    world.start().await;
    refused(&world).await;
    let own = monitors.signs("vm-monitor");
    *world.guest.manners.tls.lock().expect("no test panics here") = Some(monitor(&own, &agents));
    let connected = |all: &[Seen]| all.contains(&Seen::Connected(1)).then_some(());
    world.trace.until("connected", connected).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_without_tls_is_refused_and_readable_key_is_not_used() {
    let (monitors, agents) = (Authority::new("monitors"), Authority::new("agents"));
    let (mut world, folder) = world(&monitors, &agents).await;
    let tls = world.config["monitor"]["tls"].take();
    world.config["monitor"]
        .as_object_mut()
        .expect("an object")
        .remove("tls");
    world.start().await;
    refused(&world).await;
    world.stop().await;

    let mut world = World::new().await;
    world.config["monitor"]["tls"] = tls;
    world.config["monitor"]["connectionRetryMinWaitSeconds"] = json!(1);
    let own = monitors.signs(world.guest.ip);
    *world.guest.manners.tls.lock().expect("unused yet") = Some(monitor(&own, &agents));
    let key = folder.path().join("key");
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&key, open).expect("set");
    world.start().await;
    refused(&world).await;
    assert_eq!(
        world.trace.count(|seen| matches!(seen, Seen::Connected(_))),
        0
    );
    let private = std::fs::Permissions::from_mode(0o400);
    std::fs::set_permissions(&key, private).expect("set");
    let connected = |all: &[Seen]| all.contains(&Seen::Connected(1)).then_some(());
    world.trace.until("connected", connected).await;
    world.stop().await;
}
