//! The secret of a VM's runners: the certificate that they show, and the token that they expect.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use daemon_kit::tls;
use hyper::header::HeaderValue;
use protocol::runner::ORDERS_IDENTITY;
use rustls::ClientConfig;
use serde_json::Value;

/// Member with the token that runners expect, as the controller makes it.
const TOKEN: &str = "token";

/// Both sides' proof. Without either of them a runner is not asked.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    pub(super) token: HeaderValue,
    /// Trusts the certificate of the VM's runners and no other.
    pub(super) certificate: Arc<ClientConfig>,
}

/// Name of the secret of a VM's runners.
pub(super) fn secret_name(vm: &str) -> String {
    format!("runner-neonvm-{vm}")
}

/// Reads a secret.
///
/// # Errors
/// It belongs to another VM, or lacks a member.
pub(super) fn credentials(secret: &Value, uid: &str) -> Result<Credentials, &'static str> {
    let owners = secret["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    if !owners.any(|owner| owner["uid"] == uid) {
        return Err("the secret of the VM's runners belongs to another VM");
    }
    let member = |name: &str| {
        let text = secret["data"][name].as_str()?;
        STANDARD.decode(text).ok().filter(|bytes| !bytes.is_empty())
    };
    let token = member(TOKEN).and_then(|token| {
        let text = String::from_utf8(token).ok()?;
        HeaderValue::try_from(format!("Bearer {text}")).ok()
    });
    let mut token = token.ok_or("the secret of the VM's runners has no token")?;
    token.set_sensitive(true);
    let certificate = member(ORDERS_IDENTITY[0]).and_then(|pem| tls::trusting(&pem).ok());
    let certificate = certificate.ok_or("the secret of the VM's runners has no certificate")?;
    Ok(Credentials { token, certificate })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secret_of_another_vm_or_without_a_member_is_refused() {
        let identity = test_authority::Authority::new("runner").pem;
        let whole = json!({
            "metadata": {"ownerReferences": [{"uid": "u"}]},
            "data": {
                "token": STANDARD.encode("t"),
                "tls.crt": STANDARD.encode(identity),
            },
        });
        let read = credentials(&whole, "u").expect("whole");
        assert_eq!(read.token, "Bearer t");
        assert!(read.token.is_sensitive());
        assert!(credentials(&whole, "v").is_err());
        for (member, value) in [
            ("token", json!("")),
            ("token", json!("%")),
            ("token", json!(STANDARD.encode("a\nb"))),
            ("tls.crt", Value::Null),
            ("tls.crt", json!(STANDARD.encode("no certificate"))),
        ] {
            let mut broken = whole.clone();
            broken["data"][member] = value;
            assert!(credentials(&broken, "u").is_err(), "{broken}");
        }
    }
}
