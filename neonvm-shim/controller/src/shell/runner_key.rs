//! What the controller and the runners of one VM know each other by: a token and a certificate, in
//! one secret.

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

/// First and longest pause before a secret that is in doubt is read once more. A kubelet takes a
/// minute or more to bring a secret that was made anew to its runner; links try much more often,
/// and the API server has other work.
const READ_FIRST: Duration = Duration::from_millis(100);
const READ_CAP: Duration = Duration::from_secs(30);

/// What is in the secret; each is `None` if it is not there, as in one that is older than that.
#[derive(Debug, Clone, Default)]
pub(super) struct Credentials {
    /// The token, as it is sent.
    pub(super) token: Option<HeaderValue>,
    /// The side of TLS that trusts the runners' certificate and no other.
    pub(super) certificate: Option<Arc<ClientConfig>>,
    /// Which state of the secret this is; empty without one.
    pub(super) version: String,
}

/// The secret of one VM, read when it is first needed. What was read is kept, over failures to read
/// it again and over its end, for runners go by the files they have; when one of them refuses it,
/// it is read again, at a bounded pace.
pub(super) struct RunnerKey {
    api: Arc<KubeApi>,
    namespace: String,
    vm: String,
    held: SyncMutex<Option<Held>>,
    /// Held by whoever reads.
    reading: Mutex<()>,
}

struct Held {
    credentials: Credentials,
    in_doubt: bool,
    not_before: Instant,
    pause: Duration,
}

impl Held {
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
            held: SyncMutex::new(None),
            reading: Mutex::new(()),
        }
    }

    /// Nothing in them if the VM has no secret.
    pub(super) async fn credentials(&self) -> Result<Credentials, LinkError> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let _turn = self.reading.lock().await;
        // Another may have had its turn meanwhile.
        if let Some(known) = self.known() {
            return Ok(known);
        }
        self.put_off();
        let read = self.api.read_runner_secret(&self.namespace, &self.vm).await;
        let found = read.map(|secret| secret.as_ref().map_or_else(Credentials::default, of));
        self.take(found)
    }

    /// What is held and is not due to be read again.
    fn known(&self) -> Option<Credentials> {
        let held = self.lock();
        let held = held.as_ref()?;
        let is_due = held.in_doubt && Instant::now() >= held.not_before;
        (!is_due).then(|| held.credentials.clone())
    }

    /// Whoever asks while this one reads uses what is held.
    fn put_off(&self) {
        if let Some(held) = &mut *self.lock() {
            held.pause = (held.pause * 2).min(READ_CAP);
            held.not_before = Instant::now() + held.pause;
        }
    }

    fn take(&self, found: Result<Credentials, ApiError>) -> Result<Credentials, LinkError> {
        let mut slot = self.lock();
        let held = match (found, &mut *slot) {
            (Err(error), None) => return Err(LinkError::Token(Box::new(error))),
            (Err(error), Some(held)) => {
                let (namespace, vm, error) = (&self.namespace, &self.vm, chain(&error));
                tracing::debug!(vm, namespace, error, "the runners' secret was not read");
                held
            }
            // It is gone, or has not changed.
            (Ok(found), Some(held))
                if found.version.is_empty() || found.version == held.credentials.version =>
            {
                held
            }
            (Ok(found), slot) => slot.insert(Held::new(found)),
        };
        // Until a runner refuses it once more.
        held.in_doubt = false;
        Ok(held.credentials.clone())
    }

    /// A runner had none of these, or they lack what it needs. Others may have been read since.
    pub(super) fn doubt(&self, used: &Credentials) {
        if let Some(held) = &mut *self.lock()
            && held.credentials.version == used.version
        {
            held.in_doubt = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
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
