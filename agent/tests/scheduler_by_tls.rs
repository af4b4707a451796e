//! Permits by TLS over real sockets: the agent looks at the scheduler's certificate and shows its
//! own, takes up files that were replaced, and never falls back to plain text.

mod peers;

use std::path::Path;

use daemon_kit::tls::{IdentityFiles, Server, ServerFiles};
use peers::{World, permits, until_asked_again};
use serde_json::json;
use test_authority::{Authority, put};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

const REQUESTS: &str = "autoscaling_agent_scheduler_plugin_requests_total";
/// Puts a certificate and its key in a folder.
fn signs(authority: &Authority, folder: &Path, who: &str, name: &str) -> IdentityFiles {
    let (cert, key) = authority.signs(name).put(folder, who);
    IdentityFiles { cert, key }
}

/// Stands before the world's scheduler: takes TLS from who shows a certificate of the authority,
/// and closes every connection when its files have changed. Returns its port.
async fn door(world: &World, mut server: Server) -> u16 {
    let listener = TcpListener::bind((world.scheduler.ip, 0)).await;
    let listener = listener.expect("binds");
    let port = listener.local_addr().expect("has an address").port();
    let inner = (world.scheduler.ip, world.scheduler.port);
    tokio::spawn(async move {
        let mut open = tokio::task::JoinSet::new();
        let mut look = tokio::time::interval(std::time::Duration::from_millis(20));
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (stream, _) = accepted.expect("accepts");
                    let (config, _) = server.renew().expect("is valid");
                    let acceptor = TlsAcceptor::from(config);
                    open.spawn(async move {
                        let Ok(mut outer) = acceptor.accept(stream).await else { return };
                        if outer.get_ref().1.peer_certificates().is_some() {
                            let mut inner = TcpStream::connect(inner).await.expect("connects");
                            // Either end may go.
                            let _ended = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
                        }
                    });
                }
                _ = look.tick() => if server.renew().expect("is valid").1 {
                    open.abort_all();
                }
            }
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_requests_use_tls_with_the_current_files() {
    let (schedulers, agents) = (Authority::new("schedulers"), Authority::new("agents"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    put(&file("agents"), &agents.pem);
    put(&file("ca"), &Authority::new("others").pem);
    let own = signs(&agents, folder.path(), "agent", "agent");
    let server = ServerFiles {
        identity: signs(&schedulers, folder.path(), "scheduler", "permits"),
        client_authority: Some(file("agents")),
    };
    let mut world = World::new().await;
    let server = Server::load(server).expect("is valid");
    let scheduler = &mut world.config["scheduler"];
    scheduler["tls"] = json!({"caFile": file("ca"), "certFile": own.cert, "keyFile": own.key, "serverName": "permits"});
    scheduler["requestAtLeastEverySeconds"] = json!(1);
    scheduler["retryFailedRequestSeconds"] = json!(1);
    world.config["scheduler"]["requestPort"] = json!(door(&world, server).await);
    world.start().await;
    // A scheduler of another authority is not asked.
    let failed = "[error doing request: could not connect]";
    world
        .until_metric(&format!("{REQUESTS}{{code=\"{failed}\"}}"))
        .await;
    assert!(permits(&world.trace.all()).is_empty());
    put(&file("ca"), &schedulers.pem);
    until_asked_again(&world).await;
    // What cannot be used leaves in force what was.
    put(&own.key, "rubbish");
    until_asked_again(&world).await;
    // Both sides get others: the agent's new certificate is shown without a restart.
    let newer = Authority::new("newer agents");
    signs(&newer, folder.path(), "agent", "agent");
    put(&file("agents"), &newer.pem);
    until_asked_again(&world).await;
    until_asked_again(&world).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduler_certificate_must_have_the_expected_name() {
    let (schedulers, agents) = (Authority::new("schedulers"), Authority::new("agents"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    put(&file("agents"), &agents.pem);
    put(&file("ca"), &schedulers.pem);
    let own = signs(&agents, folder.path(), "agent", "agent");
    let mut world = World::new().await;
    let server = ServerFiles {
        identity: signs(&schedulers, folder.path(), "scheduler", "another"),
        client_authority: Some(file("agents")),
    };
    let scheduler = &mut world.config["scheduler"];
    scheduler["tls"] = json!({"caFile": file("ca"), "certFile": own.cert, "keyFile": own.key});
    scheduler["requestAtLeastEverySeconds"] = json!(1);
    scheduler["retryFailedRequestSeconds"] = json!(1);
    let server = Server::load(server).expect("is valid");
    world.config["scheduler"]["requestPort"] = json!(door(&world, server).await);
    world.start().await;
    // Without a name it has to bear its address.
    let failed = "[error doing request: could not connect]";
    world
        .until_metric(&format!("{REQUESTS}{{code=\"{failed}\"}}"))
        .await;
    assert!(permits(&world.trace.all()).is_empty());
    let (address, folder) = (world.scheduler.ip, folder.path());
    schedulers.signs(address).put(folder, "scheduler");
    until_asked_again(&world).await;
    world.stop().await;
}
