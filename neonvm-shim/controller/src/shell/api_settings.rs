//! Settings that depend on the API server: whether it resizes pods, and the overlay.

use api_client::watch::Retry;
use daemon_kit::chain;
use kube::Client;

use super::api::{ApiError, offers_resize};
use super::clock::pause;
use super::overlay::{OverlayError, overlay};
use crate::args::{Args, TrueRequests};
use crate::core::Settings;

/// The settings could not be completed.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The list of the API server's resources could not be read.
    #[error("whether the API server resizes pods")]
    Resize(#[source] ApiError),
    /// The overlay's configuration could not be read, or is unusable.
    #[error("the overlay's addresses")]
    Overlay(#[source] OverlayError),
}

impl SettingsError {
    /// Whether the API server was unreachable. The caller then tries again.
    fn is_away(&self) -> bool {
        match self {
            Self::Resize(source) | Self::Overlay(OverlayError::Read { source, .. }) => {
                source.is_away()
            }
            Self::Overlay(OverlayError::Config { .. }) => false,
        }
    }
}

/// Reads the settings that `args` leave to the API server and adds them to those that `args` set.
/// Retries while the API server is unreachable.
///
/// # Errors
/// [`SettingsError`] if a retry cannot help.
pub async fn settings(args: &Args, client: &Client) -> Result<Settings, SettingsError> {
    let mut pauses = Retry::Quick.pauses();
    loop {
        match read_settings(args, client).await {
            Err(error) if error.is_away() => {
                tracing::warn!(error = chain(&error), "API server is unreachable, retrying");
                pause(pauses.next().unwrap_or_default()).await;
            }
            settings => return settings,
        }
    }
}

async fn read_settings(args: &Args, client: &Client) -> Result<Settings, SettingsError> {
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
