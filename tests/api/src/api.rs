//! What all clones of a test's API server share: the server, the faults that the test ordered, and
//! the calls so far.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver::testing::InMemory;
use serde_json::Value;
use tokio::sync::{broadcast, watch};

use crate::call::Call;

/// Nothing that is waited for takes longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Orders to watches that one of them may be behind.
pub(crate) const ORDERS: usize = 1024;

/// Runs after a successful write, before it is answered.
type Hook = Arc<dyn Fn(&TestApi, &Call) + Send + Sync>;

/// A running API server. Clones share it; it ends with the runtime.
#[derive(Clone)]
pub struct TestApi {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) address: SocketAddr,
    pub(crate) memory: InMemory,
    pub(crate) state: Mutex<State>,
    /// Counts changes of objects and of faults.
    pub(crate) changed: watch::Sender<u64>,
    /// Number of calls so far.
    pub(crate) called: watch::Sender<usize>,
    pub(crate) watches: broadcast::Sender<Order>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) rules: Vec<Rule>,
    pub(crate) calls: Vec<Call>,
    pub(crate) hook: Option<Hook>,
}

/// What the test says instead of the API server: status and body. `None` leaves the call to later
/// orders and to the API server.
type Responder = Arc<dyn Fn(&TestApi, &Call) -> Option<(u16, Value)> + Send + Sync>;

/// What becomes of a call.
#[derive(Clone)]
pub enum Fault {
    /// It is answered with this status and changes nothing.
    Refuse(u16),
    /// It is never answered and changes nothing.
    Swallow,
    /// It is carried out and never answered.
    Lose,
    /// It is carried out once the order is taken back, also if the caller has gone by then.
    Hold,
    /// Of a watch: its changes are left out.
    Mute,
    /// The test answers.
    Answer(Responder),
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Self::Refuse(status) => return write!(f, "Refuse({status})"),
            Self::Swallow => "Swallow",
            Self::Lose => "Lose",
            Self::Hold => "Hold",
            Self::Mute => "Mute",
            Self::Answer(_) => "Answer",
        };
        f.write_str(name)
    }
}

impl Fault {
    /// The test answers calls for which `answer` gives a status and a body.
    pub fn answer(
        answer: impl Fn(&TestApi, &Call) -> Option<(u16, Value)> + Send + Sync + 'static,
    ) -> Self {
        Self::Answer(Arc::new(answer))
    }
}

pub(crate) struct Rule {
    pub(crate) number: u64,
    /// Begin of the lines of the calls that it is for.
    pub(crate) starts: String,
    pub(crate) times: u32,
    pub(crate) fault: Fault,
}

/// What a test tells the watches that run.
#[derive(Debug, Clone)]
pub(crate) enum Order {
    /// All watches end.
    HangUp,
    /// They end because what follows is no longer held: 410.
    Expire,
    /// Those whose line begins so tell of this event.
    Tell(String, Value),
}

impl std::fmt::Debug for TestApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TestApi").field(&self.inner.address).finish()
    }
}

impl TestApi {
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
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mark_changed(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}
