//! Clients of an API server by a kubeconfig.

use std::path::Path;

use anyhow::Result;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// TLS needs one crypto provider per process; later calls find it installed.
pub fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The configuration in a kubeconfig's current context.
pub(crate) async fn config_of(kubeconfig: &Path) -> Result<kube::Config> {
    install_crypto();
    let file = Kubeconfig::read_from(kubeconfig)?;
    Ok(kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

/// A client for the current context of a kubeconfig.
///
/// # Errors
/// When the kubeconfig cannot be used.
pub async fn client_of(kubeconfig: &Path) -> Result<kube::Client> {
    Ok(kube::Client::try_from(config_of(kubeconfig).await?)?)
}
