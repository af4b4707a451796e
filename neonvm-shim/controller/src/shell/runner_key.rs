//! What the controller and the runners of one VM know each other by: a token and a certificate, in one secret.

use std::sync::Arc;

use hyper::header::HeaderValue;
use rustls::ClientConfig;
use telemetry::{chain, tls};
use tokio::sync::Mutex;

use super::api::KubeApi;
use super::link::LinkError;
use super::secret;

/// What is in the secret; each is `None` if it is not there, as in one that is older than that.
#[derive(Clone, Default)]
pub(super) struct Credentials {
    /// The token, as it is sent.
    pub(super) token: Option<HeaderValue>,
    /// The side of TLS that trusts the runners' certificate and no other.
    pub(super) certificate: Option<Arc<ClientConfig>>,
}

/// The secret of one VM, read when it is first needed and kept until a runner refuses what it holds.
pub(super) struct RunnerKey {
    api: Arc<KubeApi>,
    namespace: String,
    vm: String,
    held: Mutex<Option<Credentials>>,
}

impl RunnerKey {
    pub(super) fn new(api: Arc<KubeApi>, namespace: &str, vm: &str) -> Self {
        Self {
            api,
            namespace: namespace.to_owned(),
            vm: vm.to_owned(),
            held: Mutex::new(None),
        }
    }

    /// One that was read already.
    #[cfg(test)]
    pub(super) fn holding(api: Arc<KubeApi>, held: Credentials) -> Self {
        Self {
            held: Mutex::new(Some(held)),
            ..Self::new(api, "default", "vm")
        }
    }

    /// Nothing in them if the VM has no secret.
    pub(super) async fn credentials(&self) -> Result<Credentials, LinkError> {
        let mut held = self.held.lock().await;
        if let Some(known) = &*held {
            return Ok(known.clone());
        }
        let secret = self.api.read_runner_secret(&self.namespace, &self.vm).await;
        let secret = secret.map_err(|error| LinkError::Token(Box::new(error)))?;
        let found = secret.as_ref().map(|secret| Credentials {
            token: secret::token(secret).as_deref().and_then(sent),
            certificate: secret::certificate(secret).and_then(|pem| self.trusted(&pem)),
        });
        let found = found.unwrap_or_default();
        *held = Some(found.clone());
        Ok(found)
    }

    fn trusted(&self, pem: &[u8]) -> Option<Arc<ClientConfig>> {
        let (namespace, vm) = (&self.namespace, &self.vm);
        match tls::trusting(pem) {
            Ok(config) => Some(config),
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(vm, namespace, error, "the runners' certificate is no good");
                None
            }
        }
    }

    /// They are not the right ones any more, or there are some now.
    pub(super) async fn forget(&self) {
        *self.held.lock().await = None;
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
