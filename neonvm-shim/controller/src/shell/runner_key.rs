//! Credentials by which the controller and the runners of one VM recognize each other: a token and
//! a certificate, in one secret.

use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};
use std::time::Duration;

use daemon_kit::chain;
use hyper::header::HeaderValue;
use rustls::ClientConfig;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::api::{ApiError, KubeApi};
use super::link::LinkError;
use super::secret;

/// First and longest pause before an outdated secret is read again. A kubelet takes a minute or
/// more to bring a new secret to its runner. Links try much more often, and the reads would load
/// the API server.
const READ_FIRST: Duration = Duration::from_millis(100);
const READ_CAP: Duration = Duration::from_secs(30);

/// Credentials in the secret. Each is `None` if the secret lacks it, as an older one does.
#[derive(Debug, Clone, Default)]
pub(super) struct Credentials {
    /// The token, as it is sent.
    pub(super) token: Option<HeaderValue>,
    /// The side of TLS that trusts the runners' certificate and no other.
    pub(super) certificate: Option<Arc<ClientConfig>>,
    /// Which state of the secret this is; empty without one.
    pub(super) version: String,
}

/// The secret of one VM, read at its first use. The credentials stay cached if a later read fails
/// or the secret is deleted, because runners use the files that they have. If a runner refuses
/// them, the secret is read again, at a bounded rate.
pub(crate) struct RunnerKey {
    api: Arc<KubeApi>,
    namespace: String,
    vm: String,
    cached: SyncMutex<Option<Cached>>,
    /// Held during a read.
    reading: Mutex<()>,
}

struct Cached {
    credentials: Credentials,
    in_doubt: bool,
    not_before: Instant,
    pause: Duration,
}

impl Cached {
    fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            in_doubt: false,
            not_before: Instant::now() + READ_FIRST,
            pause: READ_FIRST,
        }
    }
}

impl RunnerKey {
    pub(super) fn new(api: Arc<KubeApi>, namespace: &str, vm: &str) -> Self {
        Self {
            api,
            namespace: namespace.to_owned(),
            vm: vm.to_owned(),
            cached: SyncMutex::new(None),
            reading: Mutex::new(()),
        }
    }

    /// Nothing in them if the VM has no secret.
    pub(super) async fn credentials(&self) -> Result<Credentials, LinkError> {
        if let Some(cached_credentials) = self.cached_credentials() {
            return Ok(cached_credentials);
        }
        let _turn = self.reading.lock().await;
        // Another may have had its turn meanwhile.
        if let Some(cached_credentials) = self.cached_credentials() {
            return Ok(cached_credentials);
        }
        self.postpone();
        let read = self.api.read_runner_secret(&self.namespace, &self.vm).await;
        let found = read.map(|secret| secret.as_ref().map_or_else(Credentials::default, of));
        self.store(found)
    }

    /// The cached credentials, unless they are due to be read again.
    fn cached_credentials(&self) -> Option<Credentials> {
        let cached = self.lock();
        let cached = cached.as_ref()?;
        let is_due = cached.in_doubt && Instant::now() >= cached.not_before;
        (!is_due).then(|| cached.credentials.clone())
    }

    /// Postpones the next read, so that other callers use the cache during this one.
    fn postpone(&self) {
        if let Some(cached) = &mut *self.lock() {
            cached.pause = (cached.pause * 2).min(READ_CAP);
            cached.not_before = Instant::now() + cached.pause;
        }
    }

    fn store(&self, found: Result<Credentials, ApiError>) -> Result<Credentials, LinkError> {
        let mut slot = self.lock();
        let cached = match (found, &mut *slot) {
            (Err(error), None) => return Err(LinkError::Token(Box::new(error))),
            (Err(error), Some(cached)) => {
                let (namespace, vm, error) = (&self.namespace, &self.vm, chain(&error));
                tracing::debug!(
                    vm,
                    namespace,
                    error,
                    "failed to read the secret of the VM's runners"
                );
                cached
            }
            // It is gone, or has not changed.
            (Ok(found), Some(cached))
                if found.version.is_empty() || found.version == cached.credentials.version =>
            {
                cached
            }
            (Ok(found), slot) => slot.insert(Cached::new(found)),
        };
        // Until a runner refuses it once more.
        cached.in_doubt = false;
        Ok(cached.credentials.clone())
    }

    /// Marks these credentials as outdated: a runner refused them, or they lack a part. Does
    /// nothing if newer ones were read since.
    pub(super) fn invalidate(&self, used: &Credentials) {
        if let Some(cached) = &mut *self.lock()
            && cached.credentials.version == used.version
        {
            cached.in_doubt = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Cached>> {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of(secret: &serde_json::Value) -> Credentials {
    let version = secret["metadata"]["resourceVersion"].as_str();
    Credentials {
        token: secret::token(secret).as_deref().and_then(sent),
        certificate: secret::certificate(secret),
        version: version.unwrap_or_default().to_owned(),
    }
}

fn sent(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

impl std::fmt::Debug for RunnerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunnerKey({}/{})", self.namespace, self.vm)
    }
}
