//! The key from which the token of each guest's monitor is derived. Agents mount its secret,
//! runners get the token of their VM.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use daemon_kit::bearer::{self, VmKey};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::core::settings::SecretName;

/// The key in its secret, and the file that agents read.
pub(super) const KEY: &str = "key";

/// The key, read once.
#[derive(Debug)]
pub(super) struct MonitorKey {
    pub(super) secret_name: SecretName,
    pub(super) read: OnceCell<VmKey>,
}

impl MonitorKey {
    pub(super) fn new(secret_name: SecretName) -> Self {
        Self {
            secret_name,
            read: OnceCell::new(),
        }
    }
}

pub(super) fn key_secret(secret_name: &SecretName) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name.name, "namespace": secret_name.namespace},
        "type": "Opaque",
        "immutable": true,
        "data": {KEY: STANDARD.encode(bearer::random())},
    })
}

pub(super) fn key_of(secret: &Value) -> Option<VmKey> {
    let bytes = STANDARD.decode(secret["data"][KEY].as_str()?).ok()?;
    VmKey::parse(std::str::from_utf8(&bytes).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_key_is_parsed_and_other_text_is_not() {
        let secret_name: SecretName = "kube-system/key".parse().expect("a name");
        let (one, other) = (key_secret(&secret_name), key_secret(&secret_name));
        assert!(key_of(&one).is_some());
        assert_ne!(one["data"], other["data"]);
        assert_eq!(one["metadata"]["namespace"], "kube-system");
        assert!(key_of(&json!({"data": {"key": "eA=="}})).is_none());
        assert!(key_of(&json!({})).is_none());
    }
}
