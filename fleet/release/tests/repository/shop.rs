//! A repository of a test, with its keys and a reader.

use std::fs;
use std::path::{Path, PathBuf};

use fleet_release::{
    Audience, Changed, FetchLimits, Fetcher, Program, PublishError, Publisher, ReadError,
    ReleaseDraft, Repository, Scope, Trust,
};
use protocol::fleet::ChannelReading;
use protocol::parts::PartName;
use reqwest::Url;
use tempfile::TempDir;

/// Content of the program of a version.
pub(crate) fn program(version: &str) -> String {
    format!("program {version}")
}

/// A repository with the releases 1.0.0 and 1.1.0, and the channel `stable` that names the first.
pub(crate) struct Shop {
    dir: TempDir,
    pub(crate) publisher: Publisher,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let shop = Self::empty(Audience::Production).await;
        shop.release("1.0.0").await.unwrap();
        shop.release("1.1.0").await.unwrap();
        shop.publisher.add_channel("stable").await.unwrap();
        shop.promote("1.0.0").await.unwrap();
        shop
    }

    pub(crate) async fn empty(audience: Audience) -> Self {
        install_provider();
        let dir = tempfile::tempdir().unwrap();
        let publisher = Publisher::new(&dir.path().join("repository"), &dir.path().join("keys"));
        publisher.init(audience).await.unwrap();
        Self { dir, publisher }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.dir.path().join("repository")
    }

    pub(crate) fn keys(&self) -> PathBuf {
        self.dir.path().join("keys")
    }

    /// Folder for what a reader verified.
    pub(crate) fn verified(&self) -> PathBuf {
        self.dir.path().join("verified")
    }

    pub(crate) fn metadata(&self, file: &str) -> PathBuf {
        self.folder().join("metadata").join(file)
    }

    pub(crate) fn root(&self) -> Vec<u8> {
        fs::read(self.metadata("1.root.json")).unwrap()
    }

    pub(crate) fn url(&self) -> Url {
        Url::from_directory_path(self.folder()).unwrap()
    }

    pub(crate) fn draft(&self, version: &str) -> ReleaseDraft {
        let file = self.dir.path().join(format!("program-{version}"));
        fs::write(&file, program(version)).unwrap();
        ReleaseDraft {
            version: version.to_owned(),
            programs: vec![Program {
                part: PartName::Monitor,
                platform: fleet_release::PLATFORM.to_owned(),
                file,
            }],
            ..ReleaseDraft::default()
        }
    }

    pub(crate) async fn release(&self, version: &str) -> Result<Changed, PublishError> {
        self.publisher.release(&self.draft(version)).await
    }

    pub(crate) async fn promote(&self, version: &str) -> Result<Changed, PublishError> {
        self.publisher.promote("stable", version, false).await
    }

    /// Opens the repository as a reader who keeps what was verified.
    pub(crate) async fn repository(&self) -> Result<Repository, ReadError> {
        let trust = Trust::Tuf {
            root: &self.root(),
            verified: &self.verified(),
        };
        Repository::open(&fetcher(), &self.url(), trust, Scope::Machine).await
    }

    /// Reads the channel `stable`.
    pub(crate) async fn read(&self) -> Result<ChannelReading, ReadError> {
        self.repository().await?.channel("stable").await
    }

    /// Version that the channel `stable` names.
    pub(crate) async fn version(&self) -> Result<String, ReadError> {
        Ok(self.read().await?.version.to_string())
    }

    /// Reads the program that the channel `stable` names.
    pub(crate) async fn program(&self) -> Result<Vec<u8>, ReadError> {
        let repository = self.repository().await?;
        let version = repository.channel("stable").await?.version;
        let manifest = repository.manifest(&version).await?;
        Ok(repository.program(&manifest, PartName::Monitor).await?.1)
    }

    /// Path of the one target file with this end of its name.
    pub(crate) fn target(&self, end: &str) -> PathBuf {
        let all = fs::read_dir(self.folder().join("targets")).unwrap();
        let mut found = all.map(|entry| entry.unwrap().path()).filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.split_once('.').unwrap().1 == end
        });
        let first = found.next().unwrap();
        assert_eq!(found.next(), None, "one file of {end}");
        first
    }
}

/// A fetcher with the usual bounds.
pub(crate) fn fetcher() -> Fetcher {
    Fetcher::new(FetchLimits::default(), &[]).unwrap()
}

pub(crate) fn install_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Copies a folder over another one, as a server that shows an older state.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}
