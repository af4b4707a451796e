//! The shipped API server in the process of a test, with a layer before it that makes faults.
//!
//! What a program under test asks is answered by the shipped code, from a store in memory. The test
//! itself reads and writes objects past admission ([`TestApi::put`], [`TestApi::edit`],
//! [`TestApi::take`]), so it can put there what an older version let in. It orders faults by the
//! beginning of a call's line ([`TestApi::order`]), cuts watches, and reads the calls so far.

#![forbid(unsafe_code)]

mod calls;
mod faults;
mod layer;
mod objects;
mod watches;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver::testing::InMemory;
use axum::Router;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};

pub use calls::Call;
pub use faults::Fault;
pub use objects::define;

use faults::Rule;
use watches::Order;

/// Nothing that is waited for takes longer.
const DEADLINE: Duration = Duration::from_secs(60);
/// Orders to watches that one of them may be behind.
const ORDERS: usize = 1024;

/// Runs after a successful write, before it is answered.
type Hook = Arc<dyn Fn(&TestApi, &Call) + Send + Sync>;

/// A running API server. Clones share it; it ends with the runtime.
#[derive(Clone)]
pub struct TestApi {
    inner: Arc<Inner>,
}

struct Inner {
    address: SocketAddr,
    memory: InMemory,
    state: Mutex<State>,
    /// Counts changes of objects and of faults.
    changed: watch::Sender<u64>,
    /// Number of calls so far.
    called: watch::Sender<usize>,
    watches: broadcast::Sender<Order>,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    calls: Vec<Call>,
    hook: Option<Hook>,
}

impl std::fmt::Debug for TestApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TestApi").field(&self.inner.address).finish()
    }
}

impl TestApi {
    /// Starts one on a free port of the loopback address.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        Self::serve(listener.expect("a port is free"))
    }

    /// Starts one on a socket that listens already.
    #[must_use]
    pub fn serve(listener: TcpListener) -> Self {
        let inner = Arc::new(Inner {
            address: listener.local_addr().expect("the socket is bound"),
            memory: apiserver::testing::start().expect("the definitions are sound"),
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            called: watch::Sender::new(0),
            watches: broadcast::Sender::new(ORDERS),
        });
        let api = Self { inner };
        let router = Router::new().fallback(layer::serve).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        api
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// The address for a client.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.inner.address)
    }

    /// A client of it.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        // A second installation changes nothing.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let url = self.url().parse().expect("is a URL");
        kube::Client::try_from(kube::Config::new(url)).expect("makes a client")
    }

    /// Has `hook` run after each successful write, before that is answered.
    pub fn after_writes(&self, hook: impl Fn(&Self, &Call) + Send + Sync + 'static) {
        self.inner.state().hook = Some(Arc::new(hook));
    }

    /// Waits until the objects satisfy `holds`.
    ///
    /// # Panics
    /// When they do not in time.
    pub async fn wait<T>(&self, what: &str, mut holds: impl FnMut(&Self) -> Option<T>) -> T {
        let mut changed = self.inner.changed.subscribe();
        let found = tokio::time::timeout(DEADLINE, async {
            loop {
                changed.borrow_and_update();
                if let Some(found) = holds(self) {
                    return found;
                }
                changed.changed().await.expect("the server stands");
            }
        });
        match found.await {
            Ok(found) => found,
            Err(_) => panic!("{what} never came; VMs: {:#?}", self.vms()),
        }
    }

    fn vms(&self) -> Vec<Value> {
        self.list("virtualmachines")
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark_changed(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}
