//! The embedded API server: a Kubernetes-compatible REST API for one machine, kept in one file.
//!
//! `kubectl` and every Kubernetes client library work against it with the kubeconfig it writes.
//! Kinds are data: each one, built in or added at run time, is read from a CustomResourceDefinition
//! document.
//!
//! # Use
//!
//! ```no_run
//! use apiserver::{Config, start};
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = start(Config {
//!     state_dir: "/var/lib/bellows".into(),
//!     listen: "127.88.0.1:6443".parse()?, // port 0: any free one
//!     names: vec!["localhost".into()],    // further names in the certificate
//!     seen: Vec::new(),                   // positions of stores that others rest on
//!     audit_log: None,                    // file with a line for each call
//! })
//! .await?;
//! println!("https://{} {:?}", server.addr, server.kubeconfig_path);
//! let stop = CancellationToken::new(); // cancel it to stop
//! server.run(stop).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`start`] opens the store, makes the certificates, binds the address and writes the kubeconfig;
//! from then on connections wait in the kernel's queue and [`Server::run`] serves them. The state
//! directory then holds `api.redb` (the store), `snapshots/` (copies of it), `kubeconfig` (0600),
//! and `pki/` with `ca.crt`, `ca.key` and `token` (0600).
//!
//! # Parts
//!
//! [`core`] decides what a request does, without I/O. [`shell`] is the writing thread with group
//! commit ([`shell::engine`]), the file ([`shell::db`]), the committed state with its watchers
//! ([`shell::hub`]), TLS and HTTP.
//!
//! ```text
//! HTTP ─▶ shell::http ─ reads, watches ─▶ shell::hub ◀─ publish ─┐
//!             └─ writes ─▶ shell::engine: core::store ─▶ shell::db commit ─┴▶ answer
//! ```
//!
//! *Durable before said*: an answer to a write, and the watch events it causes, leave only after
//! the commit is on disk.

#![forbid(unsafe_code)]

pub mod core;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod kinds;
pub mod shell;
#[cfg(feature = "testing")]
pub mod testing;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::connections::ServerCounters;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::core::object::meta;
use crate::core::protobuf::Messages;
use crate::core::request::{FieldValidation, Target, Verb, WriteOptions};
use crate::core::store::{NAMESPACE_KIND, Store, WriteRequest};
use crate::core::view::{CRD_KIND, Change};
use crate::shell::audit::{AuditLog, AuditThread};
use crate::shell::db::{Db, File, Storage};
use crate::shell::engine::{Engine, StoreThread};
use crate::shell::files;
use crate::shell::http::{self, App};
use crate::shell::hub::Hub;
use crate::shell::{listen, pki, snapshots};

pub use crate::error::{RunError, StartError};
pub use crate::shell::db::Position;
pub use crate::shell::engine::Backups;
pub use crate::shell::snapshots::{check as check_store, copy as copy_store};

/// Name of the store in the state directory.
pub const STORE_FILE: &str = "api.redb";
/// Namespaces that are always there.
const NAMESPACES: [&str; 3] = ["default", "kube-node-lease", "kube-system"];
/// How often watchers that want it are told which revision they have seen.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// How often objects whose owners are gone are looked for.
const GARBAGE_PERIOD: Duration = Duration::from_secs(30);

/// What the server needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory of the store, the kubeconfig and the certificates; made if absent.
    pub state_dir: PathBuf,
    /// Address to listen on; port 0 = any free one.
    pub listen: SocketAddr,
    /// Further DNS names for the server's certificate.
    pub names: Vec<String>,
    /// Positions of stores that were seen before, for example by the node driver. A store that is
    /// older than its own among them is a copy that was put back, and gets a new identity.
    pub seen: Vec<Position>,
    /// File that a line for each call is appended to. `None`: calls are not written down.
    pub audit_log: Option<PathBuf>,
}

/// A server that is ready to run.
#[derive(Debug)]
pub struct Server {
    /// The address it listens on, with the real port.
    pub addr: SocketAddr,
    /// Path of the kubeconfig that the server wrote.
    pub kubeconfig_path: PathBuf,
    listener: TcpListener,
    connections: ServerCounters,
    parts: Parts,
}

/// What is made before the first request.
#[derive(Debug)]
struct Parts {
    store_id: u64,
    store_path: PathBuf,
    messages: Messages,
    identity: pki::Identity,
    token: String,
    hub: Arc<Hub>,
    audit: Option<(AuditLog, AuditThread)>,
    // Dropped in this order: the thread ends when its last handle is gone.
    engine: Engine,
    thread: StoreThread,
}

/// Opens the store, makes certificates and token, binds the address and writes the kubeconfig.
///
/// # Errors
/// See [`StartError`]. Nothing is left running.
pub async fn start(config: Config) -> Result<Server, StartError> {
    start_with(config, Arc::new(File)).await
}

/// Like [`start`], with another reader and writer of the store's bytes.
///
/// # Errors
/// See [`StartError`].
pub async fn start_with(config: Config, storage: Arc<dyn Storage>) -> Result<Server, StartError> {
    let addr = config.listen;
    let unbound = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::AddrInUse => StartError::AddressInUse { addr },
        _ => StartError::Listen { addr, source },
    };
    let listener = TcpListener::bind(addr).await.map_err(unbound)?;
    let addr = listener.local_addr().map_err(unbound)?;
    let kubeconfig_path = config.state_dir.join("kubeconfig");
    let prepared = tokio::task::spawn_blocking(move || prepare(&config, addr, storage)).await;
    let parts = prepared.map_err(|_| StartError::Panicked)??;
    Ok(Server {
        addr,
        kubeconfig_path,
        listener,
        connections: ServerCounters::unregistered(),
        parts,
    })
}

/// Everything that reads or writes files.
fn prepare(
    config: &Config,
    addr: SocketAddr,
    storage: Arc<dyn Storage>,
) -> Result<Parts, StartError> {
    let dir = config.state_dir.as_path();
    let audit_log = config.audit_log.as_deref();
    let audit = audit_log.map(AuditLog::open).transpose()?;
    files::make_private_dir(dir)?;
    let store_path = dir.join(STORE_FILE);
    let mut db = Db::open_on(&store_path, storage)?;
    if db.fork_if_older(&config.seen)? {
        tracing::warn!(path = %store_path.display(), "the store is an older copy: nothing is concluded from what it lacks");
    }
    let opened = db.position()?;
    let mut store = Store::new(kinds::builtin()?, opened.revision);
    db.load(&mut store)?;
    bootstrap(&mut store, &mut db)?;
    let pki_dir = dir.join("pki");
    let reachable = match addr.ip() {
        ip if ip.is_unspecified() => SocketAddr::from(([127, 0, 0, 1], addr.port())),
        _ => addr,
    };
    let identity = pki::identity(&pki_dir, &[reachable.ip()], &config.names)?;
    let token = files::token(&pki_dir.join("token"))?;
    let kubeconfig = files::kubeconfig(reachable, &identity.ca_pem, &token);
    files::write_private(&dir.join("kubeconfig"), &kubeconfig)?;
    let hub = Arc::new(Hub::new(store.view().clone()));
    let (engine, thread) =
        Engine::start(store, db, Arc::clone(&hub)).map_err(StartError::Thread)?;
    let messages = kinds::protobuf()?;
    Ok(Parts {
        store_id: opened.id,
        store_path,
        messages,
        identity,
        token,
        hub,
        audit,
        engine,
        thread,
    })
}

/// Puts in what every store has: the namespaces, and the definitions of the project's own kinds as
/// this version has them.
fn bootstrap(store: &mut Store, db: &mut Db) -> Result<(), StartError> {
    let mut changes: Vec<Change> = Vec::new();
    for name in NAMESPACES {
        if store.view().get(NAMESPACE_KIND, "", name).is_none() {
            let object = json!({"metadata": {"name": name}});
            changes.extend(put(store, "", "namespaces", name, Verb::Create(object))?);
        }
    }
    for definition in kinds::definitions()? {
        let name = meta(&definition, "name").unwrap_or_default().to_owned();
        let known = store.view().get(CRD_KIND, "", &name).cloned();
        let verb = match known {
            None => Verb::Create(definition),
            Some(known) => {
                let mut updated = known.value.clone();
                updated["spec"] = definition["spec"].clone();
                Verb::Update(updated)
            }
        };
        let resource = "customresourcedefinitions";
        changes.extend(put(store, "apiextensions.k8s.io", resource, &name, verb)?);
    }
    if changes.is_empty() {
        Ok(())
    } else {
        Ok(db.commit(&changes)?)
    }
}

fn put(
    store: &mut Store,
    group: &str,
    resource: &str,
    name: &str,
    verb: Verb,
) -> Result<Vec<Change>, StartError> {
    let is_update = matches!(verb, Verb::Update(_));
    let target = Target {
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        name: is_update.then(|| name.to_owned()),
        ..Target::default()
    };
    let options = WriteOptions {
        manager: "bellows".to_owned(),
        field_validation: FieldValidation::Strict,
        ..WriteOptions::default()
    };
    let call = WriteRequest {
        now: shell::now(),
        seed: rand::random(),
        target,
        verb,
        options,
    };
    let applied = store.apply(call);
    let (_, changes) = applied.map_err(|source| StartError::Bootstrap {
        name: name.to_owned(),
        source,
    })?;
    Ok(changes)
}

impl Server {
    /// The bearer token, for clients in the same process.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.parts.token
    }

    /// Identity of the store. It differs for every store that was ever made, and for an older copy
    /// that was put back.
    #[must_use]
    pub fn store_id(&self) -> u64 {
        self.parts.store_id
    }

    /// Makes copies of the store while the server runs.
    #[must_use]
    pub fn backups(&self) -> Backups {
        self.parts.engine.backups()
    }

    /// Path of the certificate authority's certificate.
    #[must_use]
    pub fn ca_path(&self) -> PathBuf {
        let dir = self.kubeconfig_path.parent().unwrap_or(Path::new("."));
        dir.join("pki").join("ca.crt")
    }

    /// Counts the connections that the server's bounds close.
    pub fn count_connections(&mut self, counters: ServerCounters) {
        self.connections = counters;
    }

    /// Serves requests until `cancel`, then ends watches, lets running requests finish and closes
    /// the store.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run(self, cancel: CancellationToken) -> Result<(), RunError> {
        let Parts {
            store_id: _,
            store_path,
            messages,
            identity,
            token,
            hub,
            audit,
            engine,
            thread,
        } = self.parts;
        let (audit, auditor) = audit.unzip();
        let app = Arc::new(App {
            engine: engine.clone(),
            hub: Arc::clone(&hub),
            token,
            messages,
            documents: http::Documents::default(),
            audit,
            cancel: cancel.clone(),
        });
        let serving = listen::serve(
            self.listener,
            identity.tls,
            http::router(app),
            self.connections,
            cancel.clone(),
        );
        tokio::join!(serving, housekeeping(&hub, engine, &store_path, cancel));
        // All handles to the threads are gone now, so they finish their queues and close the files.
        let ended = tokio::task::spawn_blocking(move || {
            if let Some(auditor) = auditor {
                auditor.join();
            }
            thread.join()
        })
        .await;
        if matches!(ended, Ok(true)) {
            Ok(())
        } else {
            Err(RunError::Store)
        }
    }
}

/// Bookmarks, garbage and snapshots, on their periods.
async fn housekeeping(hub: &Hub, engine: Engine, store: &Path, cancel: CancellationToken) {
    let mut snapshots = tokio::time::interval(snapshots::LOOK_EVERY);
    let mut bookmarks = tokio::time::interval(BOOKMARK_PERIOD);
    let mut garbage = tokio::time::interval(GARBAGE_PERIOD);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = bookmarks.tick() => hub.bookmark(),
            _ = garbage.tick() => engine.collect_garbage(),
            _ = snapshots.tick() => match snapshots::take_if_due(store, &engine).await {
                Ok(Some(path)) => tracing::debug!(path = %path.display(), "snapshot of the store taken"),
                Ok(None) => {}
                Err(error) => tracing::warn!(error = %daemon_kit::chain(&error), "no snapshot of the store taken"),
            },
        }
    }
}
