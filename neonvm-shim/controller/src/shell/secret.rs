//! The secrets of a VM: its SSH key pair (docs/compatibility/neonvm.md §2.4), and the credentials
//! of its runners.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use daemon_kit::tls;
use protocol::migration::PSK_FILE;
use protocol::runner::{MONITOR_TOKEN, ORDERS_IDENTITY, ORDERS_NAME};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::ClientConfig;
use serde_json::{Value, json};
use ssh_key::rand_core::{OsRng, RngCore};
use ssh_key::{Algorithm, LineEnding, PrivateKey};

use crate::core::volumes::TOKEN;

/// Random bytes of a token, and of a key.
const SECRET_BYTES: usize = 32;

/// A key pair, or a certificate, could not be made.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The SSH key pair of a VM could not be made.
    #[error("failed to make an SSH key pair")]
    Ssh(#[from] ssh_key::Error),
    /// For the TLS of runners.
    #[error("failed to make a certificate for the VM's runners")]
    Certificate(#[from] rcgen::Error),
}

/// A new secret: type `kubernetes.io/ssh-auth`, immutable, ed25519, keys `ssh-publickey` (a line of
/// `authorized_keys`) and `ssh-privatekey` (OpenSSH PEM).
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

/// A new secret: type `Opaque`, keys `token` and `keys.psk`, those of [`orders_identity`], and the
/// token of the guest's monitor. `keys.psk` is never sent: QEMU encrypts a migration with it. The
/// secret is not immutable, so that kubelets replace the files of one that is made again.
///
/// # Errors
/// [`KeyError`] when the operating system gives no randomness.
pub(super) fn runner_secret(
    namespace: &str,
    name: &str,
    owner: &Value,
    monitor: Option<&str>,
) -> Result<Value, KeyError> {
    let random = || {
        let mut bytes = [0; SECRET_BYTES];
        OsRng.fill_bytes(&mut bytes);
        bytes
    };
    let token = URL_SAFE_NO_PAD.encode(random());
    let digits: String = random().iter().map(|byte| format!("{byte:02x}")).collect();
    let key = format!("qemu:{digits}\n");
    let mut data = orders_identity()?;
    // Text in the file, so that it can be sent as it is.
    data[TOKEN] = json!(STANDARD.encode(token));
    data[PSK_FILE] = json!(STANDARD.encode(key));
    if let Some(monitor) = monitor {
        data[MONITOR_TOKEN] = json!(STANDARD.encode(monitor));
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
        "type": "Opaque",
        "data": data,
    }))
}

/// Members that a secret lacks, as its `data`. It may be older than certificates, or than the key
/// from which the token of the guest's monitor is derived.
///
/// # Errors
/// [`KeyError`] when the operating system gives no randomness.
pub(super) fn runner_lacks(
    secret: &Value,
    monitor: Option<&str>,
) -> Result<Option<Value>, KeyError> {
    let mut data = match certificate(secret) {
        Some(_) => json!({}),
        None => orders_identity()?,
    };
    let monitor = monitor.map(|token| STANDARD.encode(token));
    if let Some(token) = monitor.filter(|token| secret["data"][MONITOR_TOKEN] != token.as_str()) {
        data[MONITOR_TOKEN] = json!(token);
    }
    Ok(Some(data).filter(|data| *data != json!({})))
}

/// A certificate that the runners of one VM show, which signs itself, and its key: `tls.crt` and
/// `tls.key`, as a secret holds them. It is good for as long as its secret is there, for it is
/// trusted by that alone.
///
/// # Errors
/// [`KeyError`] when the operating system gives no randomness.
pub(super) fn orders_identity() -> Result<Value, KeyError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([ORDERS_NAME.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    let name = &mut params.distinguished_name;
    name.push(DnType::CommonName, ORDERS_NAME);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.self_signed(&key)?.pem();
    let [in_cert, in_key] = ORDERS_IDENTITY;
    Ok(json!({
        in_cert: STANDARD.encode(certificate),
        in_key: STANDARD.encode(key.serialize_pem()),
    }))
}

/// The side of TLS that trusts the certificate in such a secret; `None` if it has none that is any
/// good, or not its key.
pub(super) fn certificate(secret: &Value) -> Option<Arc<ClientConfig>> {
    let [pem, key] = ORDERS_IDENTITY.map(|name| secret["data"][name].as_str());
    key.filter(|key| !key.is_empty())?;
    tls::trusting(&STANDARD.decode(pem?).ok()?).ok()
}

/// The token in such a secret.
pub(super) fn token(secret: &Value) -> Option<String> {
    let bytes = STANDARD.decode(secret["data"][TOKEN].as_str()?).ok()?;
    String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.is_empty())
}

/// Whether `owner` owns a secret.
pub(super) fn is_owned(secret: &Value, owner: &Value) -> bool {
    owners(secret).any(|has| has["uid"] == owner["uid"])
}

/// Whether the guest of the VM that `owner` names gets the key pair of this secret: its own, or one
/// without an owner. A secret of an earlier VM with the same name is deleted with that VM, and a
/// pod that mounts it would wait for ever.
pub(super) fn is_key_pair_of(secret: &Value, owner: &Value) -> bool {
    is_owned(secret, owner) || owners(secret).all(|has| has["kind"] != owner["kind"])
}

fn owners(secret: &Value) -> impl Iterator<Item = &Value> {
    let owners = secret["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_pair_matches_and_secrets_differ() {
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

    #[test]
    fn tokens_differ_and_belong_to_their_vm() {
        let owner = json!({"uid": "u"});
        let made = |name| runner_secret("default", name, &owner, Some("m")).expect("makes");
        let (one, other) = (made("runner-neonvm-a"), made("runner-neonvm-b"));
        let text = token(&one).expect("it has one");
        assert_eq!(text.len(), 43, "256 bits in base64");
        assert_ne!(Some(text), token(&other));
        assert!(is_owned(&one, &owner) && !is_owned(&one, &json!({"uid": "v"})));
        let key = |secret: &Value| {
            let data = secret["data"][PSK_FILE].as_str().expect("a key").to_owned();
            String::from_utf8(STANDARD.decode(data).expect("base64")).expect("text")
        };
        assert_ne!(key(&one), key(&other));
        let line = key(&one);
        let digits = line
            .strip_prefix("qemu:")
            .and_then(|rest| rest.strip_suffix('\n'));
        let digits = digits.expect("as QEMU reads it");
        assert_eq!(digits.len(), 64, "256 bits");
        assert!(digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_eq!(token(&json!({"data": {"token": ""}})), None);
        assert_eq!(token(&json!({})), None);
        assert!(certificate(&one).is_some() && certificate(&other).is_some());
        for file in ORDERS_IDENTITY {
            assert_ne!(one["data"][file], other["data"][file]);
            let mut half = one.clone();
            half["data"][file] = json!("");
            assert!(certificate(&half).is_none(), "without {file}");
        }
        assert!(certificate(&json!({"data": {"token": "eA=="}})).is_none());
    }

    #[test]
    fn secret_gets_missing_monitor_token_alone() {
        let owner = json!({"uid": "u"});
        let made = |monitor| runner_secret("default", "x", &owner, monitor).expect("makes");
        let lacks = |secret: &Value, monitor| runner_lacks(secret, monitor).expect("makes");
        assert_eq!(lacks(&made(Some("m")), Some("m")), None);
        assert_eq!(lacks(&made(Some("m")), None), None);
        assert_eq!(lacks(&made(None), None), None);
        let monitors = Some(json!({"monitor.token": "bQ=="}));
        assert_eq!(lacks(&made(None), Some("m")), monitors);
        assert_eq!(lacks(&made(Some("old")), Some("m")), monitors);
        let older = json!({"data": {"token": "eA=="}});
        let data = lacks(&older, Some("m")).expect("it lacks both");
        assert_eq!(
            data.as_object().map(serde_json::Map::len),
            Some(3),
            "{data}"
        );
    }
}
