//! Names of the webhook's objects in the cluster.

use std::net::IpAddr;

/// Names under which API servers find and trust the webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Where its service and its secret are.
    pub namespace: String,
    /// Name of the Service by which API servers reach the webhook.
    pub service: String,
    /// The secret with its certificate, of type `kubernetes.io/tls` with `ca.crt`.
    pub secret: String,
    /// Name of the MutatingWebhookConfiguration that gets the CA certificate.
    pub mutating: String,
    /// Name of the ValidatingWebhookConfiguration that gets the CA certificate.
    pub validating: String,
}

impl Names {
    /// Those of the deployed one, in a namespace.
    #[must_use]
    pub fn deployed(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            service: "neonvm-webhook-service".into(),
            secret: "webhook-server-cert".into(),
            mutating: "neonvm-mutating-webhook-configuration".into(),
            validating: "neonvm-validating-webhook-configuration".into(),
        }
    }

    /// By which API servers dial it: the service's names, and the address it listens on where that
    /// is one.
    pub(super) fn dialled(&self, listens: IpAddr) -> Vec<String> {
        let service = format!("{}.{}.svc", self.service, self.namespace);
        let mut names = vec![service.clone(), format!("{service}.cluster.local")];
        if !listens.is_unspecified() {
            names.push(listens.to_string());
        }
        names
    }
}
