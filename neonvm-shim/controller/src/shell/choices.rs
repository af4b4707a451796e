//! Settings of which the API server has a say.

use kube::Client;

use super::api::offers_resize;
use super::overlay::{OverlayError, overlay};
use crate::args::{Args, TrueRequests};
use crate::core::Settings;

/// Why the settings are not known.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The API server was not to be asked.
    #[error("whether the API server resizes pods")]
    Resize(#[source] kube::Error),
    /// The overlay.
    #[error("the overlay's addresses")]
    Overlay(#[source] OverlayError),
}

/// What the arguments set, and what they leave to the API server.
///
/// # Errors
/// [`SettingsError`].
pub async fn settings(args: &Args, client: &Client) -> Result<Settings, SettingsError> {
    let mut settings = args.settings();
    if args.true_requests == TrueRequests::Auto {
        let offers = offers_resize(client).await;
        settings.true_requests = offers.map_err(SettingsError::Resize)?;
    }
    if let Some((namespace, name)) = args.overlay() {
        let found = overlay(client, namespace, name).await;
        settings.overlay = Some(found.map_err(SettingsError::Overlay)?);
    }
    Ok(settings)
}
