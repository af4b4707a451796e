//! The SSH key pair of a VM (spec/neonvm.md §2.4).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ssh_key::{Algorithm, LineEnding, PrivateKey, rand_core::OsRng};

/// A key pair could not be made.
#[derive(Debug, thiserror::Error)]
#[error("could not make an SSH key pair")]
pub struct KeyError(#[from] ssh_key::Error);

/// A new secret: type `kubernetes.io/ssh-auth`, immutable, ed25519, keys `ssh-publickey` (a line of `authorized_keys`)
/// and `ssh-privatekey` (OpenSSH PEM).
///
/// # Errors
/// [`KeyError`] when the operating system gives no randomness.
pub(super) fn ssh_secret(namespace: &str, name: &str, owner: &Value) -> Result<Value, KeyError> {
    let key = PrivateKey::random(&mut OsRng, Algorithm::Ed25519)?;
    let private = key.to_openssh(LineEnding::LF)?;
    let mut public = key.public_key().to_openssh()?;
    public.push('\n');
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
        "type": "kubernetes.io/ssh-auth",
        "immutable": true,
        "data": {
            "ssh-publickey": STANDARD.encode(public),
            "ssh-privatekey": STANDARD.encode(private.as_bytes()),
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_keys_belong_together_and_no_two_secrets_are_alike() {
        let secret =
            ssh_secret("default", "ssh-neonvm-example", &json!({"uid": "u"})).expect("makes");
        assert_eq!(secret["type"], "kubernetes.io/ssh-auth");
        assert_eq!(secret["immutable"], true);
        assert_eq!(secret["metadata"]["ownerReferences"], json!([{"uid": "u"}]));
        let text = |key: &str| {
            let data = secret["data"][key].as_str().expect("text");
            String::from_utf8(STANDARD.decode(data).expect("base64")).expect("utf-8")
        };
        let private = PrivateKey::from_openssh(text("ssh-privatekey")).expect("reads");
        let public = ssh_key::PublicKey::from_openssh(text("ssh-publickey").trim()).expect("reads");
        assert_eq!(private.public_key().key_data(), public.key_data());
        assert!(text("ssh-publickey").starts_with("ssh-ed25519 "));
        let other = ssh_secret("default", "x", &json!({})).expect("makes");
        assert_ne!(other["data"], secret["data"]);
    }
}
