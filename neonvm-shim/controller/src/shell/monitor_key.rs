//! The key from which the token of each guest's monitor is derived. Agents mount its secret,
//! runners get the token of their VM.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use daemon_kit::bearer::{self, VmKey};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::api::KubeApi;
use crate::core::Refusal;
use crate::core::settings::SecretName;

/// The key in its secret, and the file that agents read.
const KEY: &str = "key";

/// The key, read once.
#[derive(Debug)]
pub(super) struct MonitorKey {
    secret_name: SecretName,
    read: OnceCell<VmKey>,
}

impl MonitorKey {
    pub(super) fn new(secret_name: SecretName) -> Self {
        Self {
            secret_name,
            read: OnceCell::new(),
        }
    }
}

impl KubeApi {
    /// The token of the monitor of the VM that `owner` names; `None` where guests get none.
    pub(super) async fn monitor_token(
        &self,
        namespace: &str,
        owner: &Value,
    ) -> Result<Option<String>, Refusal> {
        let Some(MonitorKey { secret_name, read }) = &self.monitor_key else {
            return Ok(None);
        };
        let key = read
            .get_or_try_init(|| self.ensure_monitor_key(secret_name))
            .await?;
        let text = |member: &str| owner[member].as_str().unwrap_or_default();
        Ok(Some(key.token(namespace, text("name"), text("uid"))))
    }

    /// Reads the key, or makes it. It is never replaced: guests that run ask for what was derived
    /// from it.
    async fn ensure_monitor_key(&self, secret_name: &SecretName) -> Result<VmKey, Refusal> {
        let SecretName { namespace, name } = secret_name;
        let make = || Ok(secret(secret_name));
        let found = self.ensure_secret(namespace, name, make, |_| true).await?;
        key_of(&found).ok_or_else(|| Refusal::Failed {
            message: format!(
                "secret {namespace}/{name} must hold 64 hexadecimal digits as {KEY}: delete it, and start \
                 the controller again; guests that run take no agent then until they boot again"
            ),
            permanent: false,
        })
    }
}

fn secret(secret_name: &SecretName) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name.name, "namespace": secret_name.namespace},
        "type": "Opaque",
        "immutable": true,
        "data": {KEY: STANDARD.encode(bearer::random())},
    })
}

fn key_of(secret: &Value) -> Option<VmKey> {
    let bytes = STANDARD.decode(secret["data"][KEY].as_str()?).ok()?;
    VmKey::parse(std::str::from_utf8(&bytes).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_that_is_made_is_one_and_anything_else_is_none() {
        let secret_name: SecretName = "kube-system/key".parse().expect("a name");
        let (one, other) = (secret(&secret_name), secret(&secret_name));
        assert!(key_of(&one).is_some());
        assert_ne!(one["data"], other["data"]);
        assert_eq!(one["metadata"]["namespace"], "kube-system");
        assert!(key_of(&json!({"data": {"key": "eA=="}})).is_none());
        assert!(key_of(&json!({})).is_none());
    }
}
