//! Settings of which the API server has a say.

use daemon_kit::chain;
use kube::Client;

use super::api::{ApiError, offers_resize};
use super::overlay::{OverlayError, overlay};
use super::{WATCH_RETRY_CAP, WatchRetry, pause};
use crate::args::{Args, TrueRequests};
use crate::core::Settings;

/// Why the settings are not known.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The API server was not to be asked.
    #[error("whether the API server resizes pods")]
    Resize(#[source] ApiError),
    /// The overlay's configuration could not be read or used.
    #[error("the overlay's addresses")]
    Overlay(#[source] OverlayError),
}

impl SettingsError {
    /// Whether the API server was away: then it is asked again.
    fn is_away(&self) -> bool {
        match self {
            Self::Resize(source) | Self::Overlay(OverlayError::Read { source, .. }) => {
                source.is_away()
            }
            Self::Overlay(OverlayError::Config { .. }) => false,
        }
    }
}

/// What the arguments set, and what they leave to the API server. One that cannot be reached is
/// waited for.
///
/// # Errors
/// [`SettingsError`], of what asking again does not mend.
pub async fn settings(args: &Args, client: &Client) -> Result<Settings, SettingsError> {
    let mut pauses = WatchRetry::default();
    loop {
        match asked(args, client).await {
            Err(error) if error.is_away() => {
                tracing::warn!(error = chain(&error), "the API server is waited for");
                pause(pauses.next().unwrap_or(WATCH_RETRY_CAP)).await;
            }
            known => return known,
        }
    }
}

async fn asked(args: &Args, client: &Client) -> Result<Settings, SettingsError> {
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
