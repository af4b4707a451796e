//! A repository that was verified, or that is trusted as a folder.

use std::path::Path;

use jiff::Timestamp;
use protocol::fleet::{
    CHANNEL_TEXT_BYTES, ChannelReading, ChannelSpec, ChannelTrust, MANIFEST_BYTES, ReleaseManifest,
    ReleaseProgram, channel_critical, channel_version, check_version,
};
use protocol::parts::PartName;
use protocol::time::WallTime;
use reqwest::Url;
use semver::Version;
use sha2::{Digest as _, Sha256};
use tough::{IntoVec as _, RepositoryLoader, TargetName};

use crate::anchor::{Anchor, hex};
use crate::error::ReadError;
use crate::fetch::Fetcher;
use crate::folder::Folder;
use crate::layout::{
    METADATA, PLATFORM, RELEASES, TARGETS, below, channel_role, critical_target, manifest_target,
    plain_texts, program_target, version_target,
};

/// Member of a root whose keys are for trying.
pub(crate) const DEV: &str = "x-bellows-dev";

/// Why a repository is believed.
#[derive(Debug, Clone, Copy)]
pub enum Trust<'a> {
    /// By signatures that lead to a root.
    Tuf {
        /// Text of the root that a person gave.
        root: &'a [u8],
        /// Folder for what was verified. Without it an older state could be served again.
        verified: &'a Path,
    },
    /// As a folder of the same user.
    Local,
}

impl<'a> Trust<'a> {
    /// As the spec of a channel says, with this folder for what is verified.
    #[must_use]
    pub fn of_channel(spec: &'a ChannelSpec, verified: &'a Path) -> Self {
        match spec.trust {
            ChannelTrust::Local => Self::Local,
            ChannelTrust::Tuf => Self::Tuf {
                root: spec.root.as_bytes(),
                verified,
            },
        }
    }
}

/// Where the reader runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One machine with one user.
    Machine,
    /// A cluster, whose objects many people may write.
    Cluster {
        /// Whether keys for trying are accepted.
        allow_dev: bool,
    },
}

/// A repository whose metadata was checked.
#[derive(Debug, Clone)]
pub struct Repository(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Tuf(Box<tough::Repository>),
    Local(Folder),
}

impl Repository {
    /// Reads and checks the metadata at a URL.
    ///
    /// # Errors
    /// The metadata cannot be read or does not hold, or the way of trust is not allowed here.
    pub async fn open(
        fetcher: &Fetcher,
        url: &Url,
        trust: Trust<'_>,
        scope: Scope,
    ) -> Result<Self, ReadError> {
        let is_cluster = matches!(scope, Scope::Cluster { .. });
        if is_cluster && url.scheme() != "https" {
            let text = format!("{url} must begin with https: in a cluster");
            return Err(ReadError::Refused(text));
        }
        match trust {
            Trust::Local if is_cluster => Err(ReadError::Refused(
                "trust Local has no signatures, and is for one machine: choose trust Tuf".into(),
            )),
            Trust::Local => Ok(Self(Kind::Local(Folder::open(fetcher.clone(), url)?))),
            Trust::Tuf { root, verified } => {
                let repository = load(fetcher, url, root, verified).await?;
                let is_dev = repository.root().signed._extra.contains_key(DEV);
                if is_dev && scope == (Scope::Cluster { allow_dev: false }) {
                    return Err(ReadError::Refused(format!(
                        "{url} is signed by keys for trying, which a cluster refuses: publish with \
                         keys of its own, or allow them: --allow-dev"
                    )));
                }
                Ok(Self(Kind::Tuf(Box::new(repository))))
            }
        }
    }

    /// Reads a channel.
    ///
    /// # Errors
    /// Its version cannot be read. A mark that cannot be read is one that is not set.
    pub async fn channel(&self, name: &str) -> Result<ChannelReading, ReadError> {
        let version = self.channel_text(name, &version_target(name), 0).await?;
        let version = version.ok_or_else(|| {
            ReadError::Unavailable(format!("the repository has no channel {name}"))
        })?;
        let version = channel_version(&version)
            .map_err(|rule| ReadError::Invalid(format!("the version of channel {name} {rule}")))?;
        let critical = self.channel_text(name, &critical_target(name), 1).await;
        Ok(ChannelReading {
            version,
            is_critical: matches!(critical, Ok(Some(text)) if channel_critical(&text)),
            fresh_until: self.fresh_until(name),
        })
    }

    async fn channel_text(
        &self,
        channel: &str,
        target: &str,
        plain: usize,
    ) -> Result<Option<Vec<u8>>, ReadError> {
        match &self.0 {
            Kind::Tuf(_) => self.target(target, CHANNEL_TEXT_BYTES as u64).await,
            Kind::Local(folder) => {
                let path = &plain_texts(channel)[plain];
                let text = folder.file(path, CHANNEL_TEXT_BYTES as u64).await?;
                Ok(text.map(Into::into))
            }
        }
    }

    /// Reads the manifest of a release.
    ///
    /// # Errors
    /// It cannot be read, or breaks its rules.
    pub async fn manifest(&self, version: &Version) -> Result<ReleaseManifest, ReadError> {
        let name = manifest_target(&version.to_string());
        let text = self.target(&name, MANIFEST_BYTES as u64).await?;
        let text = text.ok_or_else(|| {
            ReadError::Unavailable(format!("the repository has no release {version}"))
        })?;
        let invalid =
            |rule: String| ReadError::Invalid(format!("the manifest of release {version}: {rule}"));
        let manifest = ReleaseManifest::parse(&text).map_err(invalid)?;
        if manifest.version == version.to_string() {
            Ok(manifest)
        } else {
            Err(invalid(format!("it is that of {}", manifest.version)))
        }
    }

    /// Reads the program of a release for a part. The content has the hash of the manifest.
    ///
    /// # Errors
    /// The release has no such program for this platform, or it cannot be read or does not hold.
    pub async fn program(
        &self,
        manifest: &ReleaseManifest,
        part: PartName,
    ) -> Result<(ReleaseProgram, Vec<u8>), ReadError> {
        let version = &manifest.version;
        let what = format!("{} of release {version} for {PLATFORM}", part.as_str());
        let program = manifest.program(part, PLATFORM).cloned();
        let program =
            program.ok_or_else(|| ReadError::Unavailable(format!("there is no {what}")))?;
        let name = program_target(part.as_str(), version, PLATFORM);
        let content = self.target(&name, program.size).await?;
        let content =
            content.ok_or_else(|| ReadError::Unavailable(format!("there is no file of {what}")))?;
        let found = hex(&Sha256::digest(&content));
        if found == program.sha256 {
            Ok((program, content))
        } else {
            let text = format!("{what} has SHA-256 {found}, not that of its manifest");
            Err(ReadError::Unverified(text))
        }
    }

    /// Versions of all releases, the highest first.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn versions(&self) -> Result<Vec<Version>, ReadError> {
        let names: Vec<String> = match &self.0 {
            Kind::Tuf(repository) => {
                let names = repository.all_targets().map(|(name, _)| name.raw());
                names.map(str::to_owned).collect()
            }
            Kind::Local(folder) => folder.names()?,
        };
        let version = |name: &String| {
            let text = name.strip_prefix("release-")?.strip_suffix(".json")?;
            check_version(text).ok()
        };
        let mut versions: Vec<Version> = names.iter().filter_map(version).collect();
        versions.sort_by(|one, other| other.cmp(one));
        Ok(versions)
    }

    /// Reads a target of at most so many bytes.
    async fn target(&self, name: &str, most: u64) -> Result<Option<Vec<u8>>, ReadError> {
        match &self.0 {
            Kind::Local(folder) => Ok(folder.target(name, most).await?.map(Into::into)),
            Kind::Tuf(repository) => {
                let target_name = TargetName::new(name)?;
                let Ok(target) = repository.targets().signed.find_target(&target_name, false)
                else {
                    return Ok(None);
                };
                if target.length > most {
                    let text = format!("{name} has {} bytes, above {most}", target.length);
                    return Err(ReadError::Unverified(text));
                }
                match repository.read_target(&target_name).await? {
                    Some(stream) => Ok(Some(stream.into_vec().await?)),
                    None => Ok(None),
                }
            }
        }
    }

    /// The first end of the metadata that a channel and its releases rest on.
    fn fresh_until(&self, channel: &str) -> Option<WallTime> {
        let Kind::Tuf(repository) = &self.0 else {
            return None;
        };
        let mut ends: Vec<Timestamp> = vec![
            repository.root().signed.expires,
            repository.timestamp().signed.expires,
            repository.snapshot().signed.expires,
            repository.targets().signed.expires,
        ];
        for role in [RELEASES, &channel_role(channel)] {
            let role = repository.delegated_role(role);
            ends.extend(role.and_then(|it| Some(it.targets.as_ref()?.signed.expires)));
        }
        let end = ends.into_iter().min()?;
        Some(WallTime(end.as_microsecond()))
    }
}

async fn load(
    fetcher: &Fetcher,
    url: &Url,
    root: &[u8],
    verified: &Path,
) -> Result<tough::Repository, ReadError> {
    let anchor = Anchor::open(verified, root).await?;
    let newest = anchor.newest_root().await;
    let root = newest.as_deref().unwrap_or(root);
    let limits = tough::Limits {
        max_root_size: fetcher.limits.metadata_bytes,
        max_targets_size: fetcher.limits.metadata_bytes,
        max_timestamp_size: fetcher.limits.metadata_bytes,
        max_snapshot_size: fetcher.limits.metadata_bytes,
        max_root_updates: 64,
    };
    let (metadata, targets) = (below(url, METADATA), below(url, TARGETS));
    let loader = RepositoryLoader::new(&root, metadata, targets)
        .transport(fetcher.clone())
        .limits(limits)
        .datastore(anchor.folder());
    Ok(loader.load().await?)
}
