//! Would a control plane of a release understand what runs in this cluster? Releases are read from
//! all channels, without a write.

use std::collections::BTreeMap;
use std::path::Path;

use fleet_core::order::Release;
use fleet_core::preflight::{Findings, RunningPart, compare, running_parts};
use fleet_release::{FetchLimits, Fetcher, ReadError, Repository, Trust};
use fleet_store::{FleetStore, LoadedChannel};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use protocol::fleet::{FleetKind, GROUP, VERSION, own_links};
use protocol::release::RELEASE;
use reqwest::Url;
use semver::Version;

use crate::driver::Location;

const NOT_FOUND: u16 = 404;

/// What the question is asked with.
pub struct Preflight<'a> {
    /// Client of the API.
    pub client: kube::Client,
    /// Which channels are believed.
    pub location: &'a Location,
    /// Release of the new control plane.
    pub control_plane: &'a Version,
    /// Folder for verified metadata. It may be lost afterwards.
    pub folder: &'a Path,
}

/// Why the question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// A call of the API failed.
    #[error("failed to list {0}")]
    Api(String),
    /// A repository was not read, so parts that run cannot be compared.
    #[error(
        "failed to read the repository of FleetChannel {channel}: {reason}; mend the channel, or \
         leave the question out by fleet.preflight=false"
    )]
    Channel {
        /// Namespace and name of the channel.
        channel: String,
        /// Text of the failure.
        reason: String,
    },
    /// No repository has the release.
    #[error("no channel has release {0}: publish it, or name the release of this program")]
    Release(String),
}

/// Compares a control plane with all parts that run.
///
/// # Errors
/// [`PreflightError`].
pub async fn preflight(question: &Preflight<'_>) -> Result<Findings, PreflightError> {
    let parts = parts(&question.client).await?;
    let mut known = BTreeMap::new();
    if let Ok(version) = Version::parse(RELEASE) {
        let own = Release::of_links(version, &own_links());
        known.insert(RELEASE.to_owned(), own);
    }
    let wanted = question.control_plane.to_string();
    let is_all_known = known.contains_key(&wanted) && parts.is_empty();
    if !is_all_known {
        let store = FleetStore::new(question.client.clone());
        let (channels, _) = store.channels().await.or_else(none_if_absent)?;
        for (number, channel) in channels.iter().enumerate() {
            let folder = question.folder.join(number.to_string());
            let read = read(
                question.location,
                channel,
                &folder,
                (&wanted, &parts),
                &mut known,
            );
            read.await.map_err(|reason| PreflightError::Channel {
                channel: format!("{}/{}", channel.namespace, channel.name),
                reason,
            })?;
        }
    }
    let release = known.get(&wanted).cloned();
    let release = release.ok_or(PreflightError::Release(wanted))?;
    Ok(compare(&release, parts, &known))
}

fn none_if_absent<T: Default>(error: kube::Error) -> Result<T, PreflightError> {
    match error {
        // The kinds are not installed, so nothing was rolled out.
        kube::Error::Api(refusal) if refusal.code == NOT_FOUND => Ok(T::default()),
        error => Err(PreflightError::Api(daemon_kit::chain(&error))),
    }
}

async fn parts(client: &kube::Client) -> Result<Vec<RunningPart>, PreflightError> {
    let kind = FleetKind::Instance;
    let gvk = GroupVersionKind::gvk(GROUP, VERSION, kind.as_str());
    let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let listed = api.list(&ListParams::default()).await;
    let items = listed.map(|list| list.items).or_else(none_if_absent)?;
    let values: Result<Vec<_>, _> = items.into_iter().map(serde_json::to_value).collect();
    let values = values.map_err(|error| PreflightError::Api(error.to_string()))?;
    Ok(running_parts(&values))
}

/// Adds the releases of a channel's repository that are asked for.
async fn read(
    location: &Location,
    channel: &LoadedChannel,
    folder: &Path,
    (wanted, parts): (&str, &[RunningPart]),
    known: &mut BTreeMap<String, Release>,
) -> Result<(), String> {
    let repository = open(location, channel, folder).await?;
    let versions = repository.versions().map_err(|error| error.to_string())?;
    for version in versions {
        let text = version.to_string();
        let is_asked = text == wanted || parts.iter().any(|part| part.version == text);
        if !is_asked || known.contains_key(&text) {
            continue;
        }
        let manifest = repository.manifest(&version).await;
        let manifest = manifest.map_err(|error: ReadError| error.to_string())?;
        known.insert(text, Release::of_manifest(&version, &manifest));
    }
    Ok(())
}

async fn open(
    location: &Location,
    channel: &LoadedChannel,
    folder: &Path,
) -> Result<Repository, String> {
    let (scope, authorities) = location.believed();
    let authorities: Vec<&[u8]> = authorities.iter().map(Vec::as_slice).collect();
    let fetcher = Fetcher::new(FetchLimits::default(), &authorities)?;
    let url = Url::parse(&channel.spec.url).map_err(|error| error.to_string())?;
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let trust = Trust::of_channel(&channel.spec, folder);
    let opened = Repository::open(&fetcher, &url, trust, scope).await;
    opened.map_err(|error| error.to_string())
}
